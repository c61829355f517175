use std::io;
use std::os::fd::AsFd;

use super::{BufResult, FixedSource};
use crate::runtime::{Completion, Encoded, Fd, FdHold, IoBuf, Operation, Sqe, Submission};

/// `writev_fixed(fd, buffers)`: writes several leases of registered pages in order.
///
/// The count is of all of them together, and may end inside any. As [`write_fixed`](super::write_fixed()) otherwise.
/// Leases that lie in different chunks of the registry, or on a machine that has not registered them, are written
/// by `WRITEV`: one entry all the same, and their pages are pinned for it. A clone of a [`SharedBuf`](crate::SharedBuf) is
/// a lease as well.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// Those of `writev(2)`, but for `EAGAIN`; `InvalidInput` for no lease, for more than 1,024 (`UIO_MAXIOV`), or for one of
/// another registry than that of the runtime it is awaited in.
///
/// # Kernel
/// `IORING_OP_WRITEV_FIXED`, Linux 6.15. Without it, `IORING_OP_WRITEV`.
///
/// # Examples
/// ```
/// use ringmain::{Driver, Fd, ops};
///
/// let (mut reader, writer) = std::io::pipe()?;
/// ringmain::Runtime::new()?.block_on(async {
///     let mut head = Driver::current().registry().lease(4096).await?;
///     head.as_capacity_mut()[..8].copy_from_slice(b"headbody");
///     head.set_len(8);
///     let body = head.split_off(4);
///     let (count, parts) = ops::writev_fixed(&Fd::new(writer.into()), vec![body, head]).await;
///     assert_eq!((count?, parts.len()), (8, 2));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # assert_eq!(std::io::read_to_string(&mut reader)?, "bodyhead");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_WRITEV_FIXED")]
pub fn writev_fixed<B: FixedSource>(fd: &impl AsRef<Fd>, buffers: Vec<B>) -> Submission<WritevFixed<B>> {
    Submission::new(WritevFixed { fd: fd.as_ref().hold(), buffers, offset: None })
}

/// `writev_fixed_at(fd, buffers, offset)`: as [`writev_fixed()`], to a place in a file, in bytes.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// As [`writev_fixed()`], and those of `pwritev(2)`.
///
/// # Kernel
/// As [`writev_fixed()`].
#[doc(alias = "IORING_OP_WRITEV_FIXED")]
pub fn writev_fixed_at<B: FixedSource>(
    fd: &impl AsRef<Fd>,
    buffers: Vec<B>,
    offset: u64,
) -> Submission<WritevFixed<B>> {
    Submission::new(WritevFixed { fd: fd.as_ref().hold(), buffers, offset: Some(offset) })
}

/// The operation of [`writev_fixed()`] and [`writev_fixed_at`].
#[derive(Debug)]
pub struct WritevFixed<B> {
    fd: FdHold,
    buffers: Vec<B>,
    offset: Option<u64>,
}

impl<B: FixedSource> Operation for WritevFixed<B> {
    type Output = BufResult<Vec<B>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        if !self.buffers.is_empty() && self.buffers.iter().all(|buffer| buffer.bytes().is_empty()) {
            // As `write_fixed`: nothing to write succeeds with 0.
            return sqe.nop();
        }
        sqe.writev_fixed(self.fd.as_fd(), self.buffers.iter().map(IoBuf::bytes), self.offset)
    }

    fn decode(self, mut completion: Completion) -> BufResult<Vec<B>> {
        (completion.result().map(|count| count as usize), self.buffers)
    }
}
