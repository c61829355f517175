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
//! Every method below has such a test, which says by which error it has to fail (stable `rustdoc` takes any error for
//! the right one, the nightly one compares). The lifetime itself cannot be bent either way, so no description or proof
//! can be passed off as one of another operation:
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

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::SpliceFlags;
use socket2::SockAddr;

use super::abi;
use super::buf::{Fill, IoBufMut, Ticket};
use super::completion::Creates;
use super::entry::Entry;
use super::frame::{Frame, Retry};

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
        fn arm(&mut self, ticket: Ticket, before: usize) -> io::Result<(NonNull<u8>, usize)> {
            Fill::arm(self, ticket, before)
        }
    }
}

impl<'op> Sqe<'op> {
    /// `nop()`: do nothing, and complete.
    ///
    /// ```compile_fail,E0382
    /// # use std::io; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad;
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.nop()?;
    ///         sqe.nop() // one description is one entry
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    #[inline]
    pub fn nop(self) -> io::Result<Encoded<'op>> {
        self.finish(Entry { opcode: abi::NOP, fd: -1, ..Entry::default() })
    }

    /// `read(fd, into, offset)`: fill a region from a descriptor. `None` reads at the cursor, or from a stream.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad { fd: OwnedFd, shared: std::rc::Rc<std::cell::RefCell<Vec<u8>>> }
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let mut guard = self.shared.borrow_mut();
    ///         sqe.read(self.fd.as_fd(), &mut guard[..], None) // the guard ends here, the read does not
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn read<D: Destination + ?Sized>(
        self,
        fd: BorrowedFd<'op>,
        into: &'op mut D,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        let (region, len) = sealed::Destination::arm(into, self.frame.ticket, 0)?;
        self.transfer(abi::READ, fd, region, len, offset, Retry::Readable)
    }

    /// `write(fd, from, offset)`: write a region. `None` writes at the cursor, or to a stream.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let local = vec![0u8; 16];
    ///         sqe.write(self.0.as_fd(), &local, None)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn write(self, fd: BorrowedFd<'op>, from: &'op [u8], offset: Option<u64>) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        self.transfer(abi::WRITE, fd, region, from.len(), offset, Retry::Writable)
    }

    /// `readv(fd, into, offset)`: fill several regions in order, each to its end before the next.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let mut local = [[0u8; 16]; 2];
    ///         sqe.readv(self.0.as_fd(), local.iter_mut().map(|part| &mut part[..]), None)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn readv<D: Destination + ?Sized + 'op>(
        self,
        fd: BorrowedFd<'op>,
        into: impl IntoIterator<Item = &'op mut D>,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        let ticket = self.frame.ticket;
        let mut before = 0usize;
        let regions = into.into_iter().map(|part| {
            let (region, len) = sealed::Destination::arm(part, ticket, before)?;
            before = before.saturating_add(len);
            Ok((region, len))
        });
        self.vectored(abi::READV, fd, regions, offset, Retry::Readable)
    }

    /// `writev(fd, from, offset)`: write several regions in order.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let local = [0u8; 16];
    ///         sqe.writev(self.0.as_fd(), [&local[..8], &local[8..]], None)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn writev(
        self,
        fd: BorrowedFd<'op>,
        from: impl IntoIterator<Item = &'op [u8]>,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        let regions = from.into_iter().map(|part| Ok((NonNull::from(part).cast(), part.len())));
        self.vectored(abi::WRITEV, fd, regions, offset, Retry::Writable)
    }

    /// `read_fixed(fd, into, offset)`: fill a region of the runtime's registered pages.
    ///
    /// `InvalidInput` for memory that is not of this runtime's registry. Where the pages could not be registered,
    /// the same region is read by a plain `READ`.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, FixedBuf, Operation, Sqe};
    /// struct Bad(OwnedFd, Option<FixedBuf>);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let mut lease = self.1.take().unwrap();
    ///         sqe.read_fixed(self.0.as_fd(), lease.as_capacity_mut(), None) // the lease would be returned here
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn read_fixed<D: Destination + ?Sized>(
        self,
        fd: BorrowedFd<'op>,
        into: &'op mut D,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        let (region, len) = sealed::Destination::arm(into, self.frame.ticket, 0)?;
        self.fixed([abi::READ, abi::READ_FIXED], fd, region, len, offset, Retry::Readable)
    }

    /// `write_fixed(fd, from, offset)`: write a region of the runtime's registered pages.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, FixedBuf, Operation, Sqe};
    /// struct Bad(OwnedFd, Option<FixedBuf>);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let lease = self.1.take().unwrap();
    ///         sqe.write_fixed(self.0.as_fd(), &lease, None)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn write_fixed(self, fd: BorrowedFd<'op>, from: &'op [u8], offset: Option<u64>) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        let opcodes = [abi::WRITE, abi::WRITE_FIXED];
        self.fixed(opcodes, fd, region, from.len(), offset, Retry::Writable)
    }

    /// `recv(fd, into)`: fill a region from a connected socket.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.recv(self.0.as_fd(), &mut vec![0u8; 16][..])
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn recv<D: Destination + ?Sized>(self, fd: BorrowedFd<'op>, into: &'op mut D) -> io::Result<Encoded<'op>> {
        let (region, len) = sealed::Destination::arm(into, self.frame.ticket, 0)?;
        self.transfer(abi::RECV, fd, region, len, Some(0), Retry::Readable)
    }

    /// `send(fd, from)`: send a region on a connected socket. Never raises `SIGPIPE`.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.send(self.0.as_fd(), String::from("gone").as_bytes())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn send(self, fd: BorrowedFd<'op>, from: &'op [u8]) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        self.transfer(abi::SEND, fd, region, from.len(), Some(0), Retry::Writable)
    }

    /// `send_zc(fd, from)`: send without copying where the device can; two completions, the second of which says
    /// that the kernel has let go of the region. The operation resolves at the second.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let local = [0u8; 4096];
    ///         sqe.send_zc(self.0.as_fd(), &local)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn send_zc(self, fd: BorrowedFd<'op>, from: &'op [u8]) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        self.transfer(abi::SEND_ZC, fd, region, from.len(), Some(0), Retry::Writable)
    }

    /// `splice(from, from_offset, to, to_offset, len, flags)`: move up to `len` bytes, one end a pipe.
    ///
    /// Pipe and socket ends take no offset. The kernel runs it on a worker thread, and a *blocking* socket would
    /// park that thread with the pipe's lock held: callers make sure that sockets are non-blocking.
    /// `SPLICE_F_GIFT` is refused: it gives pages away that the program still uses.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe, SpliceFlags};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.splice(copy.as_fd(), None, self.0.as_fd(), None, 1, SpliceFlags::empty()) // closed on return
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn splice(
        self,
        from: BorrowedFd<'op>,
        from_offset: Option<u64>,
        to: BorrowedFd<'op>,
        to_offset: Option<u64>,
        len: usize,
        flags: SpliceFlags,
    ) -> io::Result<Encoded<'op>> {
        self.finish(Entry {
            opcode: abi::SPLICE,
            fd: to.as_raw_fd(),
            off: place(to_offset)?,
            addr: place(from_offset)?,
            len: len.min(TRANSFER_MAX) as u32,
            op_flags: known(flags)?,
            file_index: from.as_raw_fd(),
            ..Entry::default()
        })
    }

    /// `tee(from, to, len, flags)`: let a second pipe share the first `len` bytes of a first one, consuming nothing.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe, SpliceFlags};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.tee(self.0.as_fd(), copy.as_fd(), 1, SpliceFlags::empty())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn tee(
        self,
        from: BorrowedFd<'op>,
        to: BorrowedFd<'op>,
        len: usize,
        flags: SpliceFlags,
    ) -> io::Result<Encoded<'op>> {
        self.finish(Entry {
            opcode: abi::TEE,
            fd: to.as_raw_fd(),
            len: len.min(TRANSFER_MAX) as u32,
            op_flags: known(flags)?,
            file_index: from.as_raw_fd(),
            ..Entry::default()
        })
    }

    /// `poll(fd, events)`: complete when one of the events holds; the result is the set that does.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe, PollFlags};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.poll(copy.as_fd(), PollFlags::IN)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn poll(self, fd: BorrowedFd<'op>, events: PollFlags) -> io::Result<Encoded<'op>> {
        self.frame.retry = Retry::Signal;
        self.finish(poll_entry(fd.as_raw_fd(), events))
    }

    /// `accept(fd)`: take a connection off a listening socket, close-on-exec and non-blocking. The new descriptor is
    /// the completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.accept(copy.as_fd())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn accept(self, fd: BorrowedFd<'op>) -> io::Result<Encoded<'op>> {
        self.frame.creates = Creates::Descriptor;
        self.frame.retry = Retry::Readable;
        self.finish(accept_entry(fd))
    }

    /// `connect(fd, address)`: connect a socket.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let address = socket2::SockAddr::unix("/gone")?;
    ///         sqe.connect(self.0.as_fd(), &address)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn connect(self, fd: BorrowedFd<'op>, address: &'op SockAddr) -> io::Result<Encoded<'op>> {
        self.finish(Entry {
            opcode: abi::CONNECT,
            fd: fd.as_raw_fd(),
            addr: address.as_ptr().expose_provenance() as u64,
            off: u64::from(address.len()),
            ..Entry::default()
        })
    }

    /// `shutdown(fd, how)`: end one or both directions of a connection.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.shutdown(copy.as_fd(), std::net::Shutdown::Both)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn shutdown(self, fd: BorrowedFd<'op>, how: Shutdown) -> io::Result<Encoded<'op>> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        self.finish(Entry { opcode: abi::SHUTDOWN, fd: fd.as_raw_fd(), len: how.unsigned_abs(), ..Entry::default() })
    }

    /// `openat(dir, path, flags, mode)`: open a file, always close-on-exec. The new descriptor is the completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, ffi::CString, os::fd::AsFd}; use ringmain::{Completion, Encoded, Mode, OFlags, Operation, Sqe};
    /// struct Bad;
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let path = CString::new("gone")?;
    ///         sqe.openat(None, &path, OFlags::RDONLY, Mode::empty())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn openat(
        self,
        dir: Option<BorrowedFd<'op>>,
        path: &'op CStr,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<Encoded<'op>> {
        self.frame.creates = Creates::Descriptor;
        self.finish(Entry {
            opcode: abi::OPENAT,
            fd: dir.map_or(libc::AT_FDCWD, |dir| dir.as_raw_fd()),
            addr: path.as_ptr().expose_provenance() as u64,
            len: mode.bits(),
            op_flags: (flags | OFlags::CLOEXEC).bits(),
            ..Entry::default()
        })
    }

    /// `close(fd)`: give a descriptor to the kernel to close. If the entry never reaches the kernel, it is closed
    /// here.
    ///
    /// ```compile_fail,E0308
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.close(self.0.as_fd()) // a borrowed descriptor is not ours to close
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn close(self, fd: OwnedFd) -> io::Result<Encoded<'op>> {
        let entry = Entry { opcode: abi::CLOSE, fd: fd.as_raw_fd(), ..Entry::default() };
        self.frame.closing = Some(fd);
        self.finish(entry)
    }

    /// `fsync(fd, data_only)`: wait until the file's data (and, unless `data_only`, its metadata) is on the device.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.fsync(copy.as_fd(), true)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn fsync(self, fd: BorrowedFd<'op>, data_only: bool) -> io::Result<Encoded<'op>> {
        self.finish(Entry {
            opcode: abi::FSYNC,
            fd: fd.as_raw_fd(),
            op_flags: if data_only { abi::FSYNC_DATASYNC } else { 0 },
            ..Entry::default()
        })
    }

    pub(crate) fn new(frame: &'op mut Frame) -> Self {
        Self { frame, _invariant: PhantomData }
    }

    #[inline]
    fn finish(self, entry: Entry) -> io::Result<Encoded<'op>> {
        self.frame.entry = Entry { user_data: self.frame.entry.user_data, ..entry };
        Ok(Encoded { frame: self.frame, _invariant: PhantomData })
    }

    fn transfer(
        self,
        opcode: u8,
        fd: BorrowedFd<'op>,
        region: NonNull<u8>,
        len: usize,
        offset: Option<u64>,
        retry: Retry,
    ) -> io::Result<Encoded<'op>> {
        let len = len.min(TRANSFER_MAX);
        self.frame.lends(region, len);
        self.frame.retry = retry;
        self.finish(Entry {
            opcode,
            fd: fd.as_raw_fd(),
            off: place(offset)?,
            addr: region.as_ptr().expose_provenance() as u64,
            len: len as u32,
            ..Entry::default()
        })
    }

    fn fixed(
        self,
        [plain, fixed]: [u8; 2],
        fd: BorrowedFd<'op>,
        region: NonNull<u8>,
        len: usize,
        offset: Option<u64>,
        retry: Retry,
    ) -> io::Result<Encoded<'op>> {
        let registry = &self.frame.registry;
        if !registry.contains(region.addr().get(), len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "this buffer is not a lease of the runtime's own registry; lease it from the runtime that uses it",
            ));
        }
        let registered = registry.is_registered_on(self.frame.ring);
        let index = if registered { registry.entry_of(region.addr().get()) } else { None };
        let encoded = self.transfer(if index.is_some() { fixed } else { plain }, fd, region, len, offset, retry)?;
        encoded.frame.entry.buf_index = index.unwrap_or(0);
        Ok(encoded)
    }

    fn vectored(
        self,
        opcode: u8,
        fd: BorrowedFd<'op>,
        regions: impl Iterator<Item = io::Result<(NonNull<u8>, usize)>>,
        offset: Option<u64>,
        retry: Retry,
    ) -> io::Result<Encoded<'op>> {
        for region in regions.take(VECTORS_MAX + 1) {
            let (region, len) = region?;
            self.frame.lends(region, len);
            self.frame.vectors.push(libc::iovec { iov_base: region.as_ptr().cast(), iov_len: len });
        }
        if self.frame.vectors.is_empty() || self.frame.vectors.len() > VECTORS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a vectored operation takes 1 to {VECTORS_MAX} buffers"),
            ));
        }
        self.frame.retry = retry;
        let entry = Entry {
            opcode,
            fd: fd.as_raw_fd(),
            off: place(offset)?,
            addr: self.frame.vectors.as_ptr().expose_provenance() as u64,
            len: self.frame.vectors.len() as u32,
            ..Entry::default()
        };
        self.finish(entry)
    }
}

impl<'op> MultishotSqe<'op> {
    /// `poll(fd, events)`: an item each time one of the events comes to hold.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe, PollFlags};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.poll(copy.as_fd(), PollFlags::IN)
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn poll(self, fd: BorrowedFd<'op>, events: PollFlags) -> io::Result<EncodedMultishot<'op>> {
        let entry = Entry { len: abi::POLL_ADD_MULTI, ..poll_entry(fd.as_raw_fd(), events) };
        self.0.finish(entry).map(|_encoded| EncodedMultishot { _invariant: PhantomData })
    }

    /// `accept(fd)`: an item for each connection; each new descriptor is its completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.accept(copy.as_fd())
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn accept(self, fd: BorrowedFd<'op>) -> io::Result<EncodedMultishot<'op>> {
        self.0.frame.creates = Creates::Descriptor;
        let entry = Entry { ioprio: abi::ACCEPT_MULTISHOT, ..accept_entry(fd) };
        self.0.finish(entry).map(|_encoded| EncodedMultishot { _invariant: PhantomData })
    }

    pub(crate) fn new(frame: &'op mut Frame) -> Self {
        Self(Sqe::new(frame))
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
        self.frame.entry.flags |= abi::LINK;
        self
    }
}

/// The entry that waits for a descriptor: an operation of its own, and the stage before a retry.
pub(crate) fn poll_entry(fd: i32, events: PollFlags) -> Entry {
    // The kernel reads the mask as two 16-bit halves, swapped on big-endian machines (`poll32_events`).
    let mask = u32::from(events.bits());
    let op_flags = if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask };
    Entry { opcode: abi::POLL_ADD, fd, op_flags, ..Entry::default() }
}

/// A place in a file, or the cursor. The one number that the kernel takes for the cursor is no place; every other that
/// no file reaches to it refuses itself.
fn place(offset: Option<u64>) -> io::Result<u64> {
    match offset {
        Some(CURSOR) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no file reaches to offset {CURSOR}; the highest is {}", i64::MAX),
        )),
        offset => Ok(offset.unwrap_or(CURSOR)),
    }
}

fn accept_entry(fd: BorrowedFd<'_>) -> Entry {
    Entry {
        opcode: abi::ACCEPT,
        fd: fd.as_raw_fd(),
        op_flags: (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).unsigned_abs(),
        ..Entry::default()
    }
}

fn known(flags: SpliceFlags) -> io::Result<u32> {
    let allowed = SpliceFlags::MOVE | SpliceFlags::NONBLOCK | SpliceFlags::MORE;
    if allowed.contains(flags) {
        return Ok(flags.bits());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "splice and tee take the flags MOVE, NONBLOCK and MORE; GIFT would give away pages that are still in use",
    ))
}
