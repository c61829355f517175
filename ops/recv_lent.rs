use std::io;
use std::os::fd::AsFd;

use crate::runtime::{Completion, Driver, Encoded, Fd, FdHold, FixedBuf, Operation, Sqe, Submission};

/// `recv_lent(socket)`: receives what comes next on a socket into a page that is found when it has come.
///
/// While it waits it holds no memory: the kernel takes a buffer of the smallest size that
/// [`Config::lent`](crate::Config::lent) has once there is something to put into it. That is what an idle connection
/// needs. `None` is the end of the peer's sending (on a socket of datagrams, an empty one). A buffer is a lease of the
/// runtime's registry, so that it can be written to a file or sent at once, and returns its pages when it is dropped.
///
/// Where no page is left, it waits until one comes back.
///
/// # Cancel safety
/// A receive that is dropped may have taken bytes, which are then gone; their page returns.
/// [`cancel`](Submission::cancel) loses nothing: it answers with the buffer if there is one.
///
/// # Errors
/// Those of `recv(2)`, but for `EAGAIN` and `ENOBUFS`; those of [`Driver::buffer_group`].
///
/// # Kernel
/// `IORING_OP_RECV` with a ring of provided buffers, Linux 5.19.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
/// std::io::Write::write_all(&mut theirs, b"ring")?;
/// drop(theirs);
/// ringmain::Runtime::new()?.block_on(async {
///     let socket = Fd::new(ours.into());
///     let pages = ops::recv_lent(&socket).await?.expect("four bytes have come");
///     assert_eq!(&pages[..], b"ring");
///     assert!(ops::recv_lent(&socket).await?.is_none(), "the end");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_RECV")]
#[doc(alias = "IOSQE_BUFFER_SELECT")]
pub fn recv_lent(socket: &impl AsRef<Fd>) -> Submission<RecvLent> {
    recv_lent_sized(socket, 1)
}

/// `recv_lent_sized(socket, bytes)`: as [`recv_lent`], into a buffer of at least this many bytes.
///
/// # Cancel safety
/// As [`recv_lent`].
///
/// # Errors
/// As [`recv_lent`]; `InvalidInput` if [`Config::lent`](crate::Config::lent) has no size that is large enough.
///
/// # Kernel
/// As [`recv_lent`].
pub fn recv_lent_sized(socket: &impl AsRef<Fd>, bytes: usize) -> Submission<RecvLent> {
    Submission::new(RecvLent { fd: socket.as_ref().hold(), bytes })
}

/// The operation of [`recv_lent`] and [`recv_lent_sized`].
#[derive(Debug)]
pub struct RecvLent {
    fd: FdHold,
    bytes: usize,
}

impl Operation for RecvLent {
    type Output = io::Result<Option<FixedBuf>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let group = Driver::current().buffer_group(self.bytes, false)?;
        sqe.recv_lent(self.fd.as_fd(), &group)
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()?;
        Ok(completion.take_buffer())
    }
}
