use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, Fill, IoBufMut, Operation, Sqe, Submission};

/// `readv(fd, buffers)`: reads what comes next into several buffers, each to its capacity before the next.
///
/// The count is of all of them together, and each buffer's length becomes what arrived in it. As
/// [`read`](super::read()) otherwise.
///
/// # Cancel safety
/// As [`read`](super::read()).
///
/// # Errors
/// Those of `readv(2)`, but for `EAGAIN`; `InvalidInput` for no buffer, for more than 1,024 (`UIO_MAXIOV`), or for one
/// without capacity.
///
/// # Kernel
/// `IORING_OP_READV`, Linux 5.1.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"headbody")?;
/// let parts: Vec<Box<[u8]>> = vec![Box::new([0; 4]), Box::new([0; 9])];
/// let reader = Fd::new(reader.into());
/// let (count, parts) = ringmain::Runtime::new()?.block_on(ops::readv(&reader, parts));
/// assert_eq!((count?, &parts[0][..], &parts[1][..4]), (8, &b"head"[..], &b"body"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READV")]
pub fn readv<B: IoBufMut>(fd: &impl AsRef<Fd>, buffers: Vec<B>) -> Submission<Readv<B>> {
    Submission::new(Readv::new(fd, buffers, None))
}

/// `readv_at(fd, buffers, offset)`: as [`readv()`], from a place in a file, in bytes.
///
/// # Cancel safety
/// Dropping it loses nothing: the bytes are still where they were.
///
/// # Errors
/// As [`readv()`], and those of `preadv(2)`.
///
/// # Kernel
/// `IORING_OP_READV`, Linux 5.1.
#[doc(alias = "IORING_OP_READV")]
pub fn readv_at<B: IoBufMut>(fd: &impl AsRef<Fd>, buffers: Vec<B>, offset: u64) -> Submission<Readv<B>> {
    Submission::new(Readv::new(fd, buffers, Some(offset)))
}

/// The operation of [`readv()`] and [`readv_at`].
#[derive(Debug)]
pub struct Readv<B> {
    fd: FdHold,
    fills: Vec<Fill<B>>,
    offset: Option<u64>,
}

impl<B: IoBufMut> Readv<B> {
    fn new(fd: &impl AsRef<Fd>, buffers: Vec<B>, offset: Option<u64>) -> Self {
        Self { fd: fd.as_ref().hold(), fills: buffers.into_iter().map(Fill::new).collect(), offset }
    }
}

impl<B: IoBufMut> Operation for Readv<B> {
    type Output = BufResult<Vec<B>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.readv(self.fd.as_fd(), self.fills.iter_mut(), self.offset)
    }

    fn decode(self, completion: Completion) -> BufResult<Vec<B>> {
        Fill::finish_all(self.fills, completion)
    }
}
