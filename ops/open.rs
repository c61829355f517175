use std::ffi::CString;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::accept::{FromCreated, created};
use crate::runtime::{Completion, Encoded, Operation, Sqe, Submission};

/// `open(path, flags, mode)`: opens a file, always close-on-exec.
///
/// A relative path starts at the process's working directory, as that is when the kernel runs this. `mode` is that of
/// a file which this makes, less the process's umask; without `CREATE` or `TMPFILE` it must be empty. A FIFO may be opened
/// at once instead of waiting for its other end, as the kernel tries to open without waiting first.
///
/// # Cancel safety
/// Dropping it leaks nothing: what was opened for nobody is closed. A file may have been made or truncated.
///
/// # Errors
/// Those of `openat(2)`; `InvalidInput` for a path with a NUL byte in it.
///
/// # Kernel
/// `IORING_OP_OPENAT`, Linux 5.6.
///
/// # Examples
/// ```
/// use ringmain::{Mode, OFlags, ops};
///
/// let opened = ops::open("/dev/null", OFlags::RDONLY, Mode::empty());
/// let null: std::os::fd::OwnedFd = ringmain::Runtime::new()?.block_on(opened)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_OPENAT")]
pub fn open(path: impl AsRef<Path>, flags: OFlags, mode: Mode) -> Submission<Open> {
    Submission::new(Open::new(path.as_ref(), flags, mode))
}

/// The operation of [`open()`], and of the file handle's own: `T` is what the new descriptor becomes.
pub struct Open<T = OwnedFd> {
    /// Or why there is nothing to open, until that has been said.
    path: Result<CString, Option<io::Error>>,
    flags: OFlags,
    mode: Mode,
    _becomes: PhantomData<fn() -> T>,
}

impl<T> Open<T> {
    pub(super) fn new(path: &Path, flags: OFlags, mode: Mode) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_nul| {
            let sentence = "the path has a NUL byte in it, which no file name can have";
            Some(io::Error::new(io::ErrorKind::InvalidInput, sentence))
        });
        Self { path, flags, mode, _becomes: PhantomData }
    }

    /// An open that cannot take place, and says so when it is awaited.
    pub(super) fn refused(error: io::Error) -> Self {
        Self { path: Err(Some(error)), flags: OFlags::empty(), mode: Mode::empty(), _becomes: PhantomData }
    }
}

impl<T: FromCreated> Operation for Open<T> {
    type Output = io::Result<T>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let path = match &mut self.path {
            Ok(path) => path,
            Err(error) => {
                return Err(error.take().unwrap_or_else(|| io::ErrorKind::InvalidInput.into()));
            }
        };
        sqe.openat(None, path, self.flags, self.mode)
    }

    fn decode(self, completion: Completion) -> io::Result<T> {
        created(completion)
    }
}

impl<T> fmt::Debug for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("path", &self.path).field("flags", &self.flags).field("mode", &self.mode).finish()
    }
}
