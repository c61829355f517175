//! Bytes between a descriptor and memory: plain, vectored, and in registered pages.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::{CURSOR, Destination, Encoded, Sqe, TRANSFER_MAX, VECTORS_MAX, sealed};
use crate::runtime::abi;
use crate::runtime::entry::Entry;
use crate::runtime::frame::Retry;

impl<'op> Sqe<'op> {
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

    pub(super) fn transfer(
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
        self.region(Entry { opcode, fd: fd.as_raw_fd(), ..Entry::default() }, region, len, offset, retry)
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
        // A chunk, which they lie in, is shorter than the most that one operation moves.
        let Some(span) = self.frame.pages.find(region.addr().get(), len) else {
            return Err(foreign_memory());
        };
        // A chunk by which the registry has grown is unregistered until this ring's next turn.
        let (opcode, buf_index) = span.index().map_or((plain, 0), |index| (fixed, index));
        self.frame.lends_pages(span);
        let entry = Entry { opcode, fd: fd.as_raw_fd(), buf_index, ..Entry::default() };
        self.region(entry, region, len, offset, retry)
    }

    /// This entry, of one region that is lent already.
    #[inline]
    fn region(
        self,
        entry: Entry,
        region: NonNull<u8>,
        len: usize,
        offset: Option<u64>,
        retry: Retry,
    ) -> io::Result<Encoded<'op>> {
        self.frame.retry = retry;
        let addr = region.as_ptr().expose_provenance() as u64;
        self.finish(Entry { off: place(offset)?, addr, len: len as u32, ..entry })
    }

    pub(super) fn vectored(
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
            self.frame.beside().vectors.push(libc::iovec { iov_base: region.as_ptr().cast(), iov_len: len });
        }
        if self.frame.vectors().is_empty() || self.frame.vectors().len() > VECTORS_MAX {
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
            addr: self.frame.vectors().as_ptr().expose_provenance() as u64,
            len: self.frame.vectors().len() as u32,
            ..Entry::default()
        };
        self.finish(entry)
    }
}

/// A place in a file, or the cursor. The one number that the kernel takes for the cursor is no place; every other that
/// no file reaches to it refuses itself.
pub(super) fn place(offset: Option<u64>) -> io::Result<u64> {
    match offset {
        Some(CURSOR) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("no file reaches to offset {CURSOR}; the highest is {}", i64::MAX),
        )),
        offset => Ok(offset.unwrap_or(CURSOR)),
    }
}

/// Memory that an operation on registered pages cannot take.
pub(super) fn foreign_memory() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "this buffer is not a lease of the runtime's own registry; lease it from the runtime that uses it",
    )
}
