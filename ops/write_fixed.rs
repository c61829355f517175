use std::io;
use std::os::fd::AsFd;

use super::{BufResult, FixedSource};
use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `write_fixed(fd, buffer)`: writes from registered pages, which the kernel need not pin again.
///
/// To a stream (a pipe or a socket, too), or at a file's own position. As [`write`](super::write()) otherwise. Where
/// the runtime could not register its pages, this is a plain write of the same memory. A clone of a
/// [`SharedBuf`](crate::SharedBuf) for each lets several writes send one page at once.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// Those of `write(2)`, but for `EAGAIN`; `InvalidInput` for a buffer that was leased from another registry than that
/// of the runtime it is awaited in.
///
/// # Kernel
/// `IORING_OP_WRITE_FIXED`, Linux 5.1.
///
/// # Examples
/// ```
/// use ringmain::{Driver, Fd, ops};
///
/// let (mut reader, writer) = std::io::pipe()?;
/// ringmain::Runtime::new()?.block_on(async {
///     let mut pages = Driver::current().registry().lease(4096).await?;
///     pages.as_capacity_mut()[..4].copy_from_slice(b"ring");
///     pages.set_len(4);
///     let (count, pages) = ops::write_fixed(&Fd::new(writer.into()), pages).await;
///     assert_eq!((count?, &pages[..]), (4, &b"ring"[..]));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # assert_eq!(std::io::read_to_string(&mut reader)?, "ring");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_WRITE_FIXED")]
pub fn write_fixed<B: FixedSource>(fd: &impl AsRef<Fd>, buffer: B) -> Submission<WriteFixed<B>> {
    Submission::new(WriteFixed { fd: fd.as_ref().hold(), buffer, offset: None })
}

/// `write_fixed_at(fd, buffer, offset)`: as [`write_fixed()`], to a place in a file, in bytes.
///
/// # Cancel safety
/// As [`write`](super::write()).
///
/// # Errors
/// As [`write_fixed()`], and those of `pwrite(2)`.
///
/// # Kernel
/// `IORING_OP_WRITE_FIXED`, Linux 5.1.
#[doc(alias = "IORING_OP_WRITE_FIXED")]
pub fn write_fixed_at<B: FixedSource>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> Submission<WriteFixed<B>> {
    Submission::new(WriteFixed { fd: fd.as_ref().hold(), buffer, offset: Some(offset) })
}

/// The operation of [`write_fixed()`] and [`write_fixed_at`].
#[derive(Debug)]
pub struct WriteFixed<B> {
    fd: FdHold,
    buffer: B,
    offset: Option<u64>,
}

impl<B: FixedSource> Operation for WriteFixed<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        if self.buffer.bytes().is_empty() {
            // An empty region lies in no registered entry, so the kernel would refuse what succeeds with 0.
            return sqe.nop();
        }
        sqe.write_fixed(self.fd.as_fd(), self.buffer.bytes(), self.offset)
    }

    fn decode(self, mut completion: Completion) -> BufResult<B> {
        (completion.result().map(|count| count as usize), self.buffer)
    }
}
