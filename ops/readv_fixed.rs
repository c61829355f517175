use std::io;
use std::os::fd::AsFd;

use super::{BufResult, FixedBytes};
use crate::runtime::{Completion, Encoded, Fd, FdHold, Fill, Operation, Sqe, Submission};

/// `readv_fixed(fd, buffers)`: reads what comes next into several leases of registered pages, each to its capacity before
/// the next.
///
/// The count is of all of them together, and each lease's length becomes what arrived in it. As
/// [`read_fixed`](super::read_fixed()) otherwise. Leases that lie in different chunks of the registry, or on a
/// machine that has not registered them, are read into by `READV`: one entry all the same, and their pages are pinned
/// for it.
///
/// # Cancel safety
/// As [`read`](super::read()).
///
/// # Errors
/// Those of `readv(2)`, but for `EAGAIN`; `InvalidInput` for no lease, for more than 1,024 (`UIO_MAXIOV`), for one without
/// capacity, or for one of another registry than that of the runtime it is awaited in.
///
/// # Kernel
/// `IORING_OP_READV_FIXED`, Linux 6.15. Without it, `IORING_OP_READV`.
///
/// # Examples
/// ```
/// use ringmain::{Driver, Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"headbody")?;
/// ringmain::Runtime::new()?.block_on(async {
///     let mut head = Driver::current().registry().lease(4096).await?;
///     let body = head.split_off(4);
///     let (count, parts) = ops::readv_fixed(&Fd::new(reader.into()), vec![head, body]).await;
///     assert_eq!((count?, &parts[0][..], &parts[1][..]), (8, &b"head"[..], &b"body"[..]));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READV_FIXED")]
pub fn readv_fixed<B: FixedBytes>(fd: &impl AsRef<Fd>, buffers: Vec<B>) -> Submission<ReadvFixed<B>> {
    Submission::new(ReadvFixed::new(fd, buffers, None))
}

/// `readv_fixed_at(fd, buffers, offset)`: as [`readv_fixed()`], from a place in a file, in bytes.
///
/// # Cancel safety
/// Dropping it loses nothing: the bytes are still where they were.
///
/// # Errors
/// As [`readv_fixed()`], and those of `preadv(2)`.
///
/// # Kernel
/// As [`readv_fixed()`].
#[doc(alias = "IORING_OP_READV_FIXED")]
pub fn readv_fixed_at<B: FixedBytes>(fd: &impl AsRef<Fd>, buffers: Vec<B>, offset: u64) -> Submission<ReadvFixed<B>> {
    Submission::new(ReadvFixed::new(fd, buffers, Some(offset)))
}

/// The operation of [`readv_fixed()`] and [`readv_fixed_at`].
#[derive(Debug)]
pub struct ReadvFixed<B> {
    fd: FdHold,
    fills: Vec<Fill<B>>,
    offset: Option<u64>,
}

impl<B: FixedBytes> ReadvFixed<B> {
    fn new(fd: &impl AsRef<Fd>, buffers: Vec<B>, offset: Option<u64>) -> Self {
        Self { fd: fd.as_ref().hold(), fills: buffers.into_iter().map(Fill::new).collect(), offset }
    }
}

impl<B: FixedBytes> Operation for ReadvFixed<B> {
    type Output = BufResult<Vec<B>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.readv_fixed(self.fd.as_fd(), self.fills.iter_mut(), self.offset)
    }

    fn decode(self, completion: Completion) -> BufResult<Vec<B>> {
        Fill::finish_all(self.fills, completion)
    }
}
