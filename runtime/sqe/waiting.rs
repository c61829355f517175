//! What moves nothing: wait for a descriptor, or do nothing at all.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::PollFlags;

use super::{Encoded, EncodedMultishot, MultishotSqe, Sqe};
use crate::runtime::abi;
use crate::runtime::entry::Entry;
use crate::runtime::frame::Retry;

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
        self.finish(entry)
    }
}

/// The entry that waits for a descriptor: an operation of its own, and the stage before a retry.
pub(crate) fn poll_entry(fd: i32, events: PollFlags) -> Entry {
    // The kernel reads the mask as two 16-bit halves, swapped on big-endian machines (`poll32_events`).
    let mask = u32::from(events.bits());
    let op_flags = if cfg!(target_endian = "big") { mask.rotate_left(16) } else { mask };
    Entry { opcode: abi::POLL_ADD, fd, op_flags, ..Entry::default() }
}
