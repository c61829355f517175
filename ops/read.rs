use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, Fill, IoBufMut, Operation, Sqe, Submission};

/// `read(fd, buffer)`: reads what comes next: from a stream, or at a file's own position.
///
/// Fills the buffer from its start up to its capacity, with as many bytes as are there, at least one. 0 is the end.
/// At most 2 GiB less 4 KiB in one go (`read(2)`). Two reads of one stream that are in flight together take their bytes
/// in no promised order.
///
/// # Cancel safety
/// A read that is dropped may have taken bytes from a stream, which are then gone with the buffer.
/// [`cancel`](Submission::cancel) gives the count and the buffer back and loses nothing.
///
/// # Errors
/// Those of `read(2)`, but for `EAGAIN`; `InvalidInput` for a buffer without capacity.
///
/// # Kernel
/// `IORING_OP_READ`, Linux 5.6.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"ring")?;
/// let (count, bytes) = ringmain::Runtime::new()?
///     .block_on(async { ops::read(&Fd::new(reader.into()), Vec::with_capacity(16)).await });
/// assert_eq!((count?, &bytes[..]), (4, &b"ring"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READ")]
pub fn read<B: IoBufMut>(fd: &impl AsRef<Fd>, buffer: B) -> Submission<Read<B>> {
    Submission::new(Read::new(fd.as_ref().hold(), buffer, None))
}

/// `read_at(fd, buffer, offset)`: reads from a place in a file, in bytes, and leaves the file's position alone.
///
/// As [`read()`] otherwise. A pipe or a socket has no places: there the offset means nothing.
///
/// # Cancel safety
/// Dropping it loses nothing: a file's bytes are still where they were.
///
/// # Errors
/// Those of `pread(2)`; `InvalidInput` for an offset beyond `i64::MAX`, or a buffer without
/// capacity.
///
/// # Kernel
/// `IORING_OP_READ`, Linux 5.6.
#[doc(alias = "IORING_OP_READ")]
pub fn read_at<B: IoBufMut>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> Submission<Read<B>> {
    Submission::new(Read::new(fd.as_ref().hold(), buffer, Some(offset)))
}

/// The operation of [`read()`] and [`read_at`].
#[derive(Debug)]
pub struct Read<B> {
    fd: FdHold,
    fill: Fill<B>,
    offset: Option<u64>,
}

impl<B: IoBufMut> Read<B> {
    pub(super) fn new(fd: FdHold, buffer: B, offset: Option<u64>) -> Self {
        Self { fd, fill: Fill::new(buffer), offset }
    }

    /// The buffer of one that did not take place.
    pub(super) fn into_buffer(self) -> B {
        self.fill.into_inner()
    }
}

impl<B: IoBufMut> Operation for Read<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.fd.as_fd(), &mut self.fill, self.offset)
    }

    fn decode(self, completion: Completion) -> BufResult<B> {
        self.fill.finish(completion)
    }
}
