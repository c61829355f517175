use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{
    Completion, Encoded, Fd, FdHold, Fill, FixedBuf, IoBuf, IoBufMut, Operation, SharedBuf, Slice, Sqe, Submission,
};

/// Bytes of a registry, exclusive or shared, whole or narrowed: what the fixed writes take.
pub trait FixedSource: IoBuf + sealed::Sealed {}

/// Leased pages of a registry, whole or narrowed: what the fixed reads take.
pub trait FixedBytes: IoBufMut + FixedSource {}

impl FixedSource for FixedBuf {}
impl FixedSource for SharedBuf {}
impl<B: FixedSource> FixedSource for Slice<B> {}
impl FixedBytes for FixedBuf {}
impl<B: FixedBytes> FixedBytes for Slice<B> {}

mod sealed {
    use super::{FixedBuf, FixedSource, SharedBuf, Slice};

    pub trait Sealed {}
    impl Sealed for FixedBuf {}
    impl Sealed for SharedBuf {}
    impl<B: FixedSource> Sealed for Slice<B> {}
}

/// `read_fixed(fd, buffer)`: reads what comes next into registered pages, which the kernel need not pin again.
///
/// From a stream (a pipe or a socket, too), or at a file's own position. As [`read`](super::read()) otherwise. Where
/// the runtime could not register its pages, this is a plain read of the same memory.
///
/// # Cancel safety
/// As [`read`](super::read()).
///
/// # Errors
/// Those of `read(2)`, but for `EAGAIN`; `InvalidInput` for a buffer without capacity, or one that was leased from
/// another registry than that of the runtime it is awaited in.
///
/// # Kernel
/// `IORING_OP_READ_FIXED`, Linux 5.1.
///
/// # Examples
/// ```
/// use ringmain::{Driver, Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"ring")?;
/// ringmain::Runtime::new()?.block_on(async {
///     let pages = Driver::current().registry().lease(4096).await?;
///     let (count, pages) = ops::read_fixed(&Fd::new(reader.into()), pages).await;
///     assert_eq!((count?, &pages[..]), (4, &b"ring"[..]));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READ_FIXED")]
pub fn read_fixed<B: FixedBytes>(fd: &impl AsRef<Fd>, buffer: B) -> Submission<ReadFixed<B>> {
    Submission::new(ReadFixed { fd: fd.as_ref().hold(), fill: Fill::new(buffer), offset: None })
}

/// `read_fixed_at(fd, buffer, offset)`: as [`read_fixed()`], from a place in a file, in bytes.
///
/// # Cancel safety
/// Dropping it loses nothing: the bytes are still where they were.
///
/// # Errors
/// As [`read_fixed()`], and those of `pread(2)`.
///
/// # Kernel
/// `IORING_OP_READ_FIXED`, Linux 5.1.
#[doc(alias = "IORING_OP_READ_FIXED")]
pub fn read_fixed_at<B: FixedBytes>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> Submission<ReadFixed<B>> {
    Submission::new(ReadFixed { fd: fd.as_ref().hold(), fill: Fill::new(buffer), offset: Some(offset) })
}

/// The operation of [`read_fixed()`] and [`read_fixed_at`].
#[derive(Debug)]
pub struct ReadFixed<B> {
    fd: FdHold,
    fill: Fill<B>,
    offset: Option<u64>,
}

impl<B: FixedBytes> Operation for ReadFixed<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read_fixed(self.fd.as_fd(), &mut self.fill, self.offset)
    }

    fn decode(self, completion: Completion) -> BufResult<B> {
        self.fill.finish(completion)
    }
}
