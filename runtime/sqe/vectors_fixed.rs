//! Several pieces of registered memory in one entry.

use std::io;
use std::os::fd::BorrowedFd;

use super::transfers::foreign_memory;
use super::{Destination, Encoded, Sqe};
use crate::runtime::abi;

impl<'op> Sqe<'op> {
    /// `readv_fixed(fd, into, offset)`: fill several regions of the runtime's registered pages in order.
    ///
    /// The kernel takes them in one entry if all lie in one registered buffer. Where they do not, where the pages could
    /// not be registered, and where the kernel does not know the opcode, the same regions are read by a plain `READV`:
    /// the same bytes in one entry, and the pages are pinned for it. `InvalidInput` for memory that is not of this
    /// runtime's registry.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, FixedBuf, Operation, Sqe};
    /// struct Bad(OwnedFd, Option<FixedBuf>);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let mut lease = self.1.take().unwrap();
    ///         sqe.readv_fixed(self.0.as_fd(), [lease.as_capacity_mut()], None) // the lease would be returned here
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn readv_fixed<D: Destination + ?Sized + 'op>(
        self,
        fd: BorrowedFd<'op>,
        into: impl IntoIterator<Item = &'op mut D>,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        self.readv(fd, into, offset)?.in_one_buffer(abi::READV_FIXED)
    }

    /// `writev_fixed(fd, from, offset)`: write several regions of the runtime's registered pages in order.
    ///
    /// As [`readv_fixed`](Self::readv_fixed). Empty regions are left out, for the kernel refuses them.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, FixedBuf, Operation, Sqe};
    /// struct Bad(OwnedFd, Option<FixedBuf>);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let lease = self.1.take().unwrap();
    ///         sqe.writev_fixed(self.0.as_fd(), [&lease[..]], None)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn writev_fixed(
        self,
        fd: BorrowedFd<'op>,
        from: impl IntoIterator<Item = &'op [u8]>,
        offset: Option<u64>,
    ) -> io::Result<Encoded<'op>> {
        let parts = from.into_iter().filter(|part| !part.is_empty());
        self.writev(fd, parts, offset)?.in_one_buffer(abi::WRITEV_FIXED)
    }
}

impl Encoded<'_> {
    /// Name the vectors of this entry by the one registered buffer that all of them lie in, if there is one.
    fn in_one_buffer(self, fixed: u8) -> io::Result<Self> {
        let frame = &mut *self.frame;
        // `flights` has exactly those vectors that are of this registry.
        if frame.flights() != frame.vectors().len() {
            return Err(foreign_memory());
        }
        if let Some(index) = frame.common_buffer().filter(|_| frame.takes_fixed_vectors) {
            frame.entry.opcode = fixed;
            frame.entry.buf_index = index;
        }
        Ok(self)
    }
}
