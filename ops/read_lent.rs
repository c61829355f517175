use std::io;
use std::os::fd::AsFd;

use crate::runtime::{Completion, Driver, Encoded, Fd, FdHold, FixedBuf, Operation, Sqe, Submission};

/// `read_lent(fd)`: reads what comes next from a pipe into a page that is found when it has come.
///
/// As [`recv_lent`](super::recv_lent), for a pipe, or anything else that is read as a stream. `None` is the end.
///
/// # Cancel safety
/// As [`recv_lent`](super::recv_lent).
///
/// # Errors
/// Those of `read(2)`, but for `EAGAIN`; those of [`Driver::buffer_group`].
///
/// # Kernel
/// `IORING_OP_READ` with a ring of provided buffers, Linux 5.19.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"ring")?;
/// ringmain::Runtime::new()?.block_on(async {
///     let pages = ops::read_lent(&Fd::new(reader.into())).await?.expect("four bytes have come");
///     assert_eq!(&pages[..], b"ring");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READ")]
#[doc(alias = "IOSQE_BUFFER_SELECT")]
pub fn read_lent(fd: &impl AsRef<Fd>) -> Submission<ReadLent> {
    read_lent_sized(fd, 1)
}

/// `read_lent_sized(fd, bytes)`: as [`read_lent`], into a buffer of at least this many bytes.
///
/// # Cancel safety
/// As [`read_lent`].
///
/// # Errors
/// As [`read_lent`]; `InvalidInput` if [`Config::lent`](crate::Config::lent) has no size that is large enough.
///
/// # Kernel
/// As [`read_lent`].
pub fn read_lent_sized(fd: &impl AsRef<Fd>, bytes: usize) -> Submission<ReadLent> {
    Submission::new(ReadLent { fd: fd.as_ref().hold(), bytes })
}

/// The operation of [`read_lent`] and [`read_lent_sized`].
#[derive(Debug)]
pub struct ReadLent {
    fd: FdHold,
    bytes: usize,
}

impl Operation for ReadLent {
    type Output = io::Result<Option<FixedBuf>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let group = Driver::current().buffer_group(self.bytes, false)?;
        sqe.read_lent(self.fd.as_fd(), &group)
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()?;
        Ok(completion.take_buffer())
    }
}
