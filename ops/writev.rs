use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, IoBuf, Operation, Sqe, Submission};

/// `writev(fd, buffers)`: writes several buffers in order.
///
/// The count is of all of them together, and may end in the middle of any. As [`write`](super::write()) otherwise.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// Those of `writev(2)`, but for `EAGAIN`; `InvalidInput` for no buffer, or more than 1,024 (`UIO_MAXIOV`).
///
/// # Kernel
/// `IORING_OP_WRITEV`, Linux 5.1.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (mut reader, writer) = std::io::pipe()?;
/// let writer = Fd::new(writer.into());
/// let (count, _) = ringmain::Runtime::new()?.block_on(ops::writev(&writer, vec!["head", "", "body"]));
/// assert_eq!(count?, 8);
/// # drop(writer);
/// # assert_eq!(std::io::read_to_string(&mut reader)?, "headbody");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_WRITEV")]
pub fn writev<B: IoBuf>(fd: &impl AsRef<Fd>, buffers: Vec<B>) -> Submission<Writev<B>> {
    Submission::new(Writev { fd: fd.as_ref().hold(), buffers, offset: None })
}

/// `writev_at(fd, buffers, offset)`: as [`writev()`], to a place in a file, in bytes.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// As [`writev()`], and those of `pwritev(2)`.
///
/// # Kernel
/// `IORING_OP_WRITEV`, Linux 5.1.
#[doc(alias = "IORING_OP_WRITEV")]
pub fn writev_at<B: IoBuf>(fd: &impl AsRef<Fd>, buffers: Vec<B>, offset: u64) -> Submission<Writev<B>> {
    Submission::new(Writev { fd: fd.as_ref().hold(), buffers, offset: Some(offset) })
}

/// The operation of [`writev()`] and [`writev_at`].
#[derive(Debug)]
pub struct Writev<B> {
    fd: FdHold,
    buffers: Vec<B>,
    offset: Option<u64>,
}

impl<B: IoBuf> Operation for Writev<B> {
    type Output = BufResult<Vec<B>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.writev(self.fd.as_fd(), self.buffers.iter().map(IoBuf::bytes), self.offset)
    }

    fn decode(self, mut completion: Completion) -> BufResult<Vec<B>> {
        (completion.result().map(|count| count as usize), self.buffers)
    }
}
