//! Pipes: the place where pages wait between two splices.
//!
//! A pipe holds *slots*, one page reference each, not bytes: sixteen one-byte writes that came by splice can fill a
//! 64 KiB pipe. Its size can be asked for and refused, so what counts is what it got.

mod pool;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::runtime::Fd;
pub(super) use pool::{PipePool, PooledPipe};

/// `pipe()`: a pipe of the kernel's default size, both ends close-on-exec and non-blocking.
///
/// # Errors
/// Out of descriptors (`EMFILE`, `ENFILE`).
///
/// # Examples
/// ```
/// use ringmain::{Runtime, ops};
///
/// let runtime = Runtime::new()?;
/// let (reader, writer) = ops::pipe()?;
/// runtime.block_on(async {
///     ops::write(&writer, b"pages".to_vec()).await.0?;
///     let (count, bytes) = ops::read(&reader, Vec::with_capacity(16)).await;
///     assert_eq!((count?, &bytes[..]), (5, &b"pages"[..]));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `pipe(2)`, `pipe(7)`.
pub fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let identity = Rc::new(());
    Ok((
        PipeReader { fd: Fd::new(reader), identity: Some(Rc::clone(&identity)) },
        PipeWriter { fd: Fd::new(writer), identity: Some(identity) },
    ))
}

/// `pipe_sized(bytes)`: a pipe of at least this many bytes, or of whatever it got.
///
/// A size that is refused is no error: the pipe works with the size it has, which [`PipeReader::size`] tells.
///
/// # Errors
/// Out of descriptors.
///
/// # Kernel
/// Sizes are rounded up to a power of two of pages; above `/proc/sys/fs/pipe-max-size` (1 MiB) they need
/// `CAP_SYS_RESOURCE`, and beyond `pipe-user-pages-soft` (64 MiB for each user) they are refused (`pipe(7)`).
pub fn pipe_sized(bytes: usize) -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = pipe()?;
    writer.grow(bytes)?;
    Ok((reader, writer))
}

/// The end of a pipe that bytes come out of.
#[derive(Debug)]
pub struct PipeReader {
    fd: Fd,
    /// Which pipe this is, without asking the kernel; `None` for an end that was made elsewhere.
    identity: Option<Rc<()>>,
}

/// The end of a pipe that bytes go into.
#[derive(Debug)]
pub struct PipeWriter {
    fd: Fd,
    /// Which pipe this is, without asking the kernel; `None` for an end that was made elsewhere.
    identity: Option<Rc<()>>,
}

impl PipeReader {
    /// How many bytes the pipe has room for: slots times the page size.
    ///
    /// # Errors
    /// Those of `fcntl(F_GETPIPE_SZ)`.
    pub fn size(&self) -> io::Result<usize> {
        size_of_pipe(self.as_fd())
    }

    /// Whether these are the two ends of one pipe, whatever descriptors they are known by.
    pub fn is_same_pipe(&self, writer: &PipeWriter) -> bool {
        if let (Some(reader), Some(writer)) = (&self.identity, &writer.identity) {
            return Rc::ptr_eq(reader, writer);
        }
        match (rustix::fs::fstat(self), rustix::fs::fstat(writer)) {
            (Ok(reader), Ok(writer)) => (reader.st_dev, reader.st_ino) == (writer.st_dev, writer.st_ino),
            // Whoever uses them hears of it from the kernel.
            _ => false,
        }
    }
}

impl PipeWriter {
    /// How many bytes the pipe has room for: slots times the page size.
    ///
    /// # Errors
    /// Those of `fcntl(F_GETPIPE_SZ)`.
    pub fn size(&self) -> io::Result<usize> {
        size_of_pipe(self.as_fd())
    }

    /// Ask for room for at least this many bytes; returns the size the pipe has then, larger or not.
    ///
    /// # Errors
    /// Those of `fcntl(F_GETPIPE_SZ)`. A refusal (`EPERM`, and `EBUSY` for less than the pipe holds) is no error.
    pub fn grow(&self, bytes: usize) -> io::Result<usize> {
        match fcntl_setpipe_size(&self.fd, bytes) {
            Ok(size) => Ok(size),
            Err(Errno::PERM | Errno::BUSY | Errno::INVAL | Errno::NOMEM) => self.size(),
            Err(error) => Err(error.into()),
        }
    }
}

macro_rules! end {
    ($end:ident, $std:ty) => {
        impl AsRef<Fd> for $end {
            fn as_ref(&self) -> &Fd {
                &self.fd
            }
        }

        impl AsFd for $end {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.fd.as_fd()
            }
        }

        impl $end {
            /// The end as the standard library's type: the same descriptor, or a duplicate of it while other handles
            /// or operations use it. It stays non-blocking.
            ///
            /// # Errors
            /// Out of descriptors, where it has to be duplicated.
            pub fn into_std(self) -> io::Result<$std> {
                let fd = self.fd.into_owned().or_else(|shared| shared.try_clone_to_owned())?;
                Ok(fd.into())
            }

            /// Take an end over from the standard library's type, and make it non-blocking.
            ///
            /// The flag belongs to the open file: whoever shares this end of the pipe sees it too.
            ///
            /// # Errors
            /// Those of `fcntl(2)`.
            pub fn from_std(end: $std) -> io::Result<Self> {
                let fd = Fd::new(OwnedFd::from(end));
                fd.set_nonblocking()?;
                Ok(Self { fd, identity: None })
            }
        }
    };
}

end!(PipeReader, std::io::PipeReader);
end!(PipeWriter, std::io::PipeWriter);

fn size_of_pipe(end: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(fcntl_getpipe_size(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_size_leaves_a_pipe_that_works() {
        let (reader, writer) = pipe_sized(1 << 31).unwrap();
        assert!(reader.size().unwrap() >= 4096);
        assert_eq!(reader.size().unwrap(), writer.size().unwrap());
    }
}
