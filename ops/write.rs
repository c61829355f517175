use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, IoBuf, Operation, Sqe, Submission};

/// `write(fd, buffer)`: writes to a stream, or at a file's own position.
///
/// Writes the buffer's bytes, or the first of them: the count says how many. Nothing to write is 0. At most 2 GiB less
/// 4 KiB in one go (`write(2)`). Two writes to one stream that are in flight together may tear each other.
///
/// # Cancel safety
/// A write that is dropped may have written some of its bytes or all. [`cancel`](Submission::cancel) tells how many.
///
/// # Errors
/// Those of `write(2)`, but for `EAGAIN`. A pipe or socket without a reader also raises `SIGPIPE`, unless the program
/// ignores it, as programs in Rust do; [`send`](super::send()) never does.
///
/// # Kernel
/// `IORING_OP_WRITE`, Linux 5.6.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (mut reader, writer) = std::io::pipe()?;
/// let writer = Fd::new(writer.into());
/// let (count, text) = ringmain::Runtime::new()?.block_on(ops::write(&writer, "ring"));
/// assert_eq!((count?, text), (4, "ring"));
/// # drop(writer);
/// # assert_eq!(std::io::read_to_string(&mut reader)?, "ring");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_WRITE")]
pub fn write<B: IoBuf>(fd: &impl AsRef<Fd>, buffer: B) -> Submission<Write<B>> {
    Submission::new(Write::new(fd.as_ref().hold(), buffer, None))
}

/// `write_at(fd, buffer, offset)`: writes to a place in a file, in bytes, and leaves the file's position alone.
///
/// As [`write()`] otherwise. A pipe or a socket has no places: there the offset means nothing. A file that was opened for appending is appended to all the same (`pwrite(2)`, "Bugs").
///
/// # Cancel safety
/// As [`write()`].
///
/// # Errors
/// Those of `pwrite(2)`.
///
/// # Kernel
/// `IORING_OP_WRITE`, Linux 5.6.
#[doc(alias = "IORING_OP_WRITE")]
pub fn write_at<B: IoBuf>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> Submission<Write<B>> {
    Submission::new(Write::new(fd.as_ref().hold(), buffer, Some(offset)))
}

/// The operation of [`write()`] and [`write_at`].
#[derive(Debug)]
pub struct Write<B> {
    fd: FdHold,
    buffer: B,
    offset: Option<u64>,
}

impl<B: IoBuf> Write<B> {
    pub(super) fn new(fd: FdHold, buffer: B, offset: Option<u64>) -> Self {
        Self { fd, buffer, offset }
    }

    /// The buffer of one that did not take place.
    pub(super) fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: IoBuf> Operation for Write<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.write(self.fd.as_fd(), self.buffer.bytes(), self.offset)
    }

    fn decode(self, mut completion: Completion) -> BufResult<B> {
        (completion.result().map(|count| count as usize), self.buffer)
    }
}
