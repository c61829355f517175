use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::OpenOptions;
use crate::ops::accept::FromCreated;
use crate::ops::{
    self, Close, FixedBytes, FixedSource, Fsync, InFlight, Open, Read, ReadExact, ReadFixed, Write, WriteAll,
    WriteFixed,
};
use crate::runtime::{Fd, IoBuf, IoBufMut, Submission};

/// An open file.
///
/// Dropping it cancels what is pending on it, and closes it when the kernel has let go; [`close`](Self::close) tells
/// how that went.
///
/// # Examples
/// ```
/// use ringmain::fs::File;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("greeting");
/// ringmain::Runtime::new()?.block_on(async {
///     let file = File::create(&path).await?;
///     file.write_all_at("hello", 0).await.0?;
///     file.sync_all().await?;
///     file.close().await?;
///
///     let (count, bytes) = File::open(&path).await?.read_at(Vec::with_capacity(64), 1).await;
///     assert_eq!((count?, &bytes[..]), (4, &b"ello"[..]));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct File {
    fd: Fd,
}

impl File {
    /// `open(path)`: opens a file for reading.
    ///
    /// # Cancel safety
    /// Dropping it leaks nothing: what was opened for nobody is closed.
    ///
    /// # Errors
    /// Those of `openat(2)`; `InvalidInput` for a path with a NUL byte in it.
    pub fn open(path: impl AsRef<Path>) -> Submission<Open<Self>> {
        OpenOptions::new().read(true).open(path)
    }

    /// `create(path)`: opens a file for writing, empty, and makes it if it is not there.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open), but the file may have been made or truncated.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>) -> Submission<Open<Self>> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// `read_at(buffer, offset)`: reads from a place in the file. See [`ops::read_at`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the bytes are still where they were.
    ///
    /// # Errors
    /// Those of `pread(2)`; `InvalidInput` for a buffer without capacity.
    pub fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Submission<Read<B>> {
        ops::read_at(self, buffer, offset)
    }

    /// `read_exact_at(buffer, offset)`: reads until the buffer is full. See [`ops::read_exact_at`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the bytes are still where they were.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends first; those of `pread(2)`.
    pub fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> ReadExact<B> {
        ops::read_exact_at(self, buffer, offset)
    }

    /// `read_fixed_at(buffer, offset)`: reads into registered pages. See [`ops::read_fixed_at`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the bytes are still where they were.
    ///
    /// # Errors
    /// As [`ops::read_fixed_at`].
    pub fn read_fixed_at<B: FixedBytes>(&self, buffer: B, offset: u64) -> Submission<ReadFixed<B>> {
        ops::read_fixed_at(self, buffer, offset)
    }

    /// `write_at(buffer, offset)`: writes to a place in the file. See [`ops::write_at`].
    ///
    /// # Cancel safety
    /// A write that is dropped may have written some of its bytes or all. [`cancel`](Submission::cancel) tells how many.
    ///
    /// # Errors
    /// Those of `pwrite(2)`.
    pub fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Submission<Write<B>> {
        ops::write_at(self, buffer, offset)
    }

    /// `write_all_at(buffer, offset)`: writes until all of the buffer's bytes are written. See [`ops::write_all_at`].
    ///
    /// # Cancel safety
    /// Not: a dropped one may have written any part. [`cancel`](ops::Exact::cancel) tells how much.
    ///
    /// # Errors
    /// `WriteZero` when a step makes no progress; those of `pwrite(2)`.
    pub fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> WriteAll<B> {
        ops::write_all_at(self, buffer, offset)
    }

    /// `write_fixed_at(buffer, offset)`: writes from registered pages. See [`ops::write_fixed_at`].
    ///
    /// # Cancel safety
    /// As [`write_at`](Self::write_at).
    ///
    /// # Errors
    /// As [`ops::write_fixed_at`].
    pub fn write_fixed_at<B: FixedSource>(&self, buffer: B, offset: u64) -> Submission<WriteFixed<B>> {
        ops::write_fixed_at(self, buffer, offset)
    }

    /// `sync_all()`: waits until data and metadata are on the device. See [`ops::fsync`](ops::fsync()).
    ///
    /// # Cancel safety
    /// Dropping it loses nothing but the answer.
    ///
    /// # Errors
    /// Those of `fsync(2)`.
    pub fn sync_all(&self) -> Submission<Fsync> {
        ops::fsync(self, false)
    }

    /// `sync_data()`: waits until the data, and what is needed to read it back, is on the device. See
    /// [`ops::fsync`](ops::fsync()).
    ///
    /// # Cancel safety
    /// Dropping it loses nothing but the answer.
    ///
    /// # Errors
    /// Those of `fdatasync(2)`.
    pub fn sync_data(&self) -> Submission<Fsync> {
        ops::fsync(self, true)
    }

    /// `metadata()`: what the filesystem knows about the file.
    ///
    /// Plain system calls: the inode of an open file is in memory, so a local filesystem answers at once. A network
    /// filesystem may ask its server, and the runtime waits for that.
    ///
    /// # Errors
    /// Those of `fstat(2)`; out of descriptors, as the standard library's type is asked, which wants one of its own.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        fs::File::from(self.fd.try_clone_to_owned()?).metadata()
    }

    /// `len()`: the file's length in bytes, by one plain system call. See [`metadata`](Self::metadata).
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    #[expect(clippy::len_without_is_empty, reason = "a length that can fail makes no good test for emptiness")]
    pub fn len(&self) -> io::Result<u64> {
        // Negative for nothing that can be opened.
        Ok(rustix::fs::fstat(&self.fd)?.st_size.unsigned_abs())
    }

    /// `close()`: closes the file, and tells what that had to say. See [`ops::close`](ops::close()).
    ///
    /// # Cancel safety
    /// The file is closed in any case.
    ///
    /// # Errors
    /// Those of `close(2)`. `ResourceBusy` while operations on it are in flight: those are cancelled, and the file is
    /// closed when the kernel has let go of it, but what that had to say is lost.
    pub fn close(self) -> Submission<Close> {
        match self.into_owned() {
            Ok(fd) => ops::close(fd),
            Err(busy) => Submission::new(Close::refused(io::Error::new(io::ErrorKind::ResourceBusy, busy.to_string()))),
        }
    }

    /// `into_std()`: the standard library's twin.
    ///
    /// # Errors
    /// [`InFlight`] gives the file back while operations on it are in flight.
    pub fn into_std(self) -> Result<fs::File, InFlight<Self>> {
        self.into_owned().map(fs::File::from)
    }

    fn into_owned(self) -> Result<OwnedFd, InFlight<Self>> {
        self.fd.into_owned().map_err(|fd| InFlight::new(Self { fd }))
    }
}

impl FromCreated for File {
    fn from_created(fd: OwnedFd) -> Self {
        Self { fd: Fd::new(fd) }
    }
}

impl From<fs::File> for File {
    fn from(file: fs::File) -> Self {
        Self { fd: Fd::new(file.into()) }
    }
}

impl AsRef<Fd> for File {
    #[inline]
    fn as_ref(&self) -> &Fd {
        &self.fd
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.fd.as_fd().as_raw_fd()).finish()
    }
}
