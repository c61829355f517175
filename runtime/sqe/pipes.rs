//! Pipes: splice and tee.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::pipe::SpliceFlags;

use super::transfers::place;
use super::{Encoded, Sqe, TRANSFER_MAX};
use crate::runtime::abi;
use crate::runtime::entry::Entry;

impl<'op> Sqe<'op> {
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
