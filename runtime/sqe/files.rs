//! Files: open, close, make durable.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::{Encoded, Sqe};
use crate::runtime::abi;
use crate::runtime::completion::Creates;
use crate::runtime::entry::Entry;

impl<'op> Sqe<'op> {
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
        self.frame.beside().creates = Creates::Descriptor;
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
        self.frame.beside().closing = Some(fd);
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
}
