//! Sends that leave the bytes where they are, and the plain sends that stand in for them.
//!
//! All of them ask for all their bytes to be sent (`MSG_WAITALL`): what is left of a short zero-copy send could be sent
//! only when the network has let go of the whole buffer.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::{Encoded, Sqe};
use crate::runtime::abi;
use crate::runtime::entry::Entry;
use crate::runtime::frame::Retry;
use crate::runtime::zero_copy::ZeroCopy;

/// `MSG_WAITALL`, as an entry carries it.
const WAIT_ALL: u32 = libc::MSG_WAITALL.unsigned_abs();

impl<'op> Sqe<'op> {
    /// `send_zc(fd, from)`: send without copying where the device can; two completions, the second of which says
    /// that the kernel has let go of the region. The operation resolves at the second;
    /// [`poll_answer`](crate::Submission::poll_answer) sees the first.
    ///
    /// Memory of this runtime's registered pages is named by its registered buffer, and not pinned again.
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
        self.send_region(abi::SEND_ZC, fd, from).map(|encoded| encoded.zero_copy(true))
    }

    /// `send_all(fd, from)`: as [`send`](Self::send), and the kernel goes on until all bytes are sent, or an error or a
    /// cancel comes: then the count says how far it came.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.send_all(self.0.as_fd(), String::from("gone").as_bytes())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn send_all(self, fd: BorrowedFd<'op>, from: &'op [u8]) -> io::Result<Encoded<'op>> {
        self.send_region(abi::SEND, fd, from)
    }

    /// `sendmsg_zc(fd, from)`: as [`send_zc`](Self::send_zc), from several regions in order.
    ///
    /// Where all of them lie in one registered buffer and the kernel takes that (Linux 6.15), they are named by it.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let local = [0u8; 16];
    ///         sqe.sendmsg_zc(self.0.as_fd(), [&local[..8], &local[8..]])
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn sendmsg_zc(
        self,
        fd: BorrowedFd<'op>,
        from: impl IntoIterator<Item = &'op [u8]>,
    ) -> io::Result<Encoded<'op>> {
        let encoded = self.send_regions(abi::SENDMSG_ZC, fd, from)?;
        let takes_fixed = encoded.frame.takes_fixed_vectors;
        Ok(encoded.zero_copy(takes_fixed))
    }

    /// `sendmsg_all(fd, from)`: as [`send_all`](Self::send_all), from several regions in order.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let local = vec![0u8; 16];
    ///         sqe.sendmsg_all(self.0.as_fd(), [&local[..]])
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn sendmsg_all(
        self,
        fd: BorrowedFd<'op>,
        from: impl IntoIterator<Item = &'op [u8]>,
    ) -> io::Result<Encoded<'op>> {
        self.send_regions(abi::SENDMSG, fd, from)
    }

    fn send_region(self, opcode: u8, fd: BorrowedFd<'op>, from: &'op [u8]) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        let encoded = self.transfer(opcode, fd, region, from.len(), Some(0), Retry::Writable)?;
        encoded.frame.entry.op_flags = WAIT_ALL;
        Ok(encoded)
    }

    fn send_regions(
        self,
        opcode: u8,
        fd: BorrowedFd<'op>,
        from: impl IntoIterator<Item = &'op [u8]>,
    ) -> io::Result<Encoded<'op>> {
        let parts = from.into_iter().filter(|part| !part.is_empty());
        let regions = parts.map(|part| Ok((NonNull::from(part).cast(), part.len())));
        let encoded = self.vectored(opcode, fd, regions, Some(0), Retry::Writable)?;
        let frame = &mut *encoded.frame;
        let (vectors, vectors_len) = (frame.vectors().as_ptr().expose_provenance() as u64, frame.vectors().len());
        let message = frame.empty_message();
        message.vectors = vectors;
        message.vectors_len = vectors_len;
        let addr = std::ptr::from_ref(message).expose_provenance() as u64;
        frame.entry = Entry { addr, len: 1, op_flags: WAIT_ALL, ..frame.entry };
        Ok(encoded)
    }
}

impl Encoded<'_> {
    /// Have this experience learn from what the notification of a zero-copy send says.
    pub(crate) fn teaching(self, zero_copy: &Rc<ZeroCopy>) -> Self {
        self.frame.beside().zero_copy = Some(Rc::clone(zero_copy));
        self
    }

    /// Ask for a report of what was copied, and name the memory by its registered buffer if it has one.
    fn zero_copy(self, takes_fixed: bool) -> Self {
        let frame = &mut *self.frame;
        frame.entry.ioprio = abi::SEND_ZC_REPORT_USAGE;
        if let Some(index) = frame.common_buffer().filter(|_| takes_fixed) {
            frame.entry.ioprio |= abi::RECVSEND_FIXED_BUF;
            frame.entry.buf_index = index;
        }
        self
    }
}
