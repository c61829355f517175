//! The ABI: one method per opcode, and the only place that says what the kernel may touch.
//!
//! Each method takes what it lends as a borrow of `'op`, consumes the [`Sqe`] and returns the [`Encoded`] that proves
//! one entry was made. Both are *invariant* in `'op`, a lifetime that the runtime picks, so nothing shorter-lived
//! than the operation itself can be lent:
//!
//! ```compile_fail,E0515
//! # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
//! struct Bad(OwnedFd);
//! impl Operation for Bad {
//!     type Output = ();
//!     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
//!         let mut local = [0u8; 16];
//!         sqe.read(self.0.as_fd(), &mut local[..], None) // does not live as long as the operation
//!     }
//!     fn decode(self, _: Completion) {}
//! }
//! ```
//!
//! The methods stand in the files below this one, by what they are for. Each has such a test, which says by which error
//! it has to fail (stable `rustdoc` takes any error for the right one, the nightly one compares). The lifetime itself
//! cannot be bent either way, so no description or proof can be passed off as one of another operation:
//!
//! ```compile_fail
//! fn shorter<'op: 'local, 'local>(sqe: ringmain::Sqe<'op>) -> ringmain::Sqe<'local> {
//!     sqe
//! }
//! ```
//! ```compile_fail
//! fn longer<'op: 'local, 'local>(encoded: ringmain::Encoded<'local>) -> ringmain::Encoded<'op> {
//!     encoded
//! }
//! ```
//! ```compile_fail
//! fn shorter<'op: 'local, 'local>(encoded: ringmain::Encoded<'op>) -> ringmain::Encoded<'local> {
//!     encoded
//! }
//! ```
//! ```compile_fail
//! fn shorter<'op: 'local, 'local>(sqe: ringmain::MultishotSqe<'op>) -> ringmain::MultishotSqe<'local> {
//!     sqe
//! }
//! ```
//! ```compile_fail
//! fn longer<'op: 'local, 'local>(encoded: ringmain::EncodedMultishot<'local>) -> ringmain::EncodedMultishot<'op> {
//!     encoded
//! }
//! ```
//!
//! where the same with one lifetime compiles:
//!
//! ```
//! fn same<'op>(
//!     sqe: ringmain::Sqe<'op>,
//!     encoded: ringmain::Encoded<'op>,
//!     multishot: ringmain::MultishotSqe<'op>,
//!     proof: ringmain::EncodedMultishot<'op>,
//! ) -> (ringmain::Sqe<'op>, ringmain::Encoded<'op>, ringmain::MultishotSqe<'op>, ringmain::EncodedMultishot<'op>) {
//!     (sqe, encoded, multishot, proof)
//! }
//! ```
//!
//! A proof cannot be made without an entry, and an entry with many answers cannot lend memory to be written:
//!
//! ```compile_fail,E0451
//! # use std::io; use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
//! struct Bad;
//! impl MultishotOperation for Bad {
//!     type Item = ();
//!     fn encode<'op>(&'op self, _: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
//!         Ok(EncodedMultishot { _invariant: std::marker::PhantomData })
//!     }
//!     fn item(&self, _: Completion) {}
//! }
//! ```
//! ```compile_fail,E0599
//! # use std::{io, os::fd::{AsFd, OwnedFd}};
//! # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
//! struct Bad(OwnedFd, Vec<u8>);
//! impl MultishotOperation for Bad {
//!     type Item = ();
//!     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
//!         sqe.read(self.0.as_fd(), &self.1, None)
//!     }
//!     fn item(&self, _: Completion) {}
//! }
//! ```
//!
//! What is deliberately absent: raw flags, raw message headers, `MSG_RING` with a free `user_data`,
//! `PROVIDE_BUFFERS`, `URING_CMD`, `MADVISE`: each would let safe code reach memory that nothing has lent.
//!
//! Field meanings follow `include/uapi/linux/io_uring.h` and the `io_uring_enter(2)` manual page.

mod files;
mod lent;
mod pipes;
mod sockets;
mod transfers;
mod vectors_fixed;
mod waiting;
mod zero_copy;

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;

use super::buf::{Fill, IoBufMut, Ticket};
use super::entry::Entry;
use super::frame::Frame;
pub(crate) use waiting::poll_entry;

/// The most that one read, write or splice moves: the kernel's `MAX_RW_COUNT`, in bytes.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// The most regions one vectored operation takes (`UIO_MAXIOV`).
pub(crate) const VECTORS_MAX: usize = 1024;

/// The offset that means "where the cursor is" for a file, and "this is a stream" for the rest.
const CURSOR: u64 = u64::MAX;

/// An entry about to be described, borrowed from the slot of the operation that describes it.
#[derive(Debug)]
pub struct Sqe<'op> {
    frame: &'op mut Frame,
    _invariant: Invariant<'op>,
}

/// The proof that an [`Sqe`] became one entry.
#[derive(Debug)]
pub struct Encoded<'op> {
    frame: &'op mut Frame,
    _invariant: Invariant<'op>,
}

/// An entry with many completions about to be described: only opcodes that lend no writable memory.
#[derive(Debug)]
pub struct MultishotSqe<'op>(Sqe<'op>);

/// The proof that a [`MultishotSqe`] became one entry.
#[derive(Debug)]
pub struct EncodedMultishot<'op> {
    _invariant: Invariant<'op>,
}

type Invariant<'op> = PhantomData<fn(&'op ()) -> &'op ()>;

/// Memory that an operation lets the kernel write: a byte slice, or a [`Fill`] around an owned buffer.
pub trait Destination: sealed::Destination {}

impl Destination for [u8] {}
impl<B: IoBufMut> Destination for Fill<B> {}

mod sealed {
    use super::*;

    pub trait Destination {
        /// The writable region in full, noted as lent to the submission `ticket` names, which fills `before` bytes
        /// elsewhere before it comes to these.
        fn arm(&mut self, ticket: Ticket, before: usize) -> io::Result<(NonNull<u8>, usize)>;
    }

    impl Destination for [u8] {
        fn arm(&mut self, _ticket: Ticket, _before: usize) -> io::Result<(NonNull<u8>, usize)> {
            if self.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the buffer of this read has no capacity, and a result of 0 would read as the end of the file",
                ));
            }
            let len = self.len();
            Ok((NonNull::from(self).cast(), len))
        }
    }

    impl<B: IoBufMut> Destination for Fill<B> {
        #[inline]
        fn arm(&mut self, ticket: Ticket, before: usize) -> io::Result<(NonNull<u8>, usize)> {
            Fill::arm(self, ticket, before)
        }
    }
}

impl<'op> Sqe<'op> {
    pub(crate) fn new(frame: &'op mut Frame) -> Self {
        Self { frame, _invariant: PhantomData }
    }

    #[inline]
    fn finish(self, entry: Entry) -> io::Result<Encoded<'op>> {
        self.frame.entry = Entry { user_data: self.frame.entry.user_data, ..entry };
        Ok(Encoded { frame: self.frame, _invariant: PhantomData })
    }
}

impl<'op> MultishotSqe<'op> {
    pub(crate) fn new(frame: &'op mut Frame) -> Self {
        Self(Sqe::new(frame))
    }

    /// As for [`Sqe`].
    fn finish(self, entry: Entry) -> io::Result<EncodedMultishot<'op>> {
        self.0.finish(entry).map(|_encoded| EncodedMultishot { _invariant: PhantomData })
    }
}

impl Encoded<'_> {
    /// The entry, and what else belongs to it, while all it names is still borrowed.
    pub(crate) fn frame(&self) -> &Frame {
        self.frame
    }

    /// The first of a linked pair. No operation makes one yet, so this is for the tests of the way it is pushed.
    #[cfg(test)]
    pub(crate) fn linked(self) -> Self {
        self.frame.entry.flags |= super::abi::LINK;
        self
    }
}
