use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, Fill, IoBufMut, Operation, Sqe, Submission};

/// `recv(socket, buffer)`: receives what comes next on a connected socket.
///
/// Fills the buffer from its start up to its capacity, with as many bytes as are there, at least one. 0 is the end of
/// the peer's sending. Two receives in flight together take their bytes in no promised order.
///
/// # Cancel safety
/// A receive that is dropped may have taken bytes, which are then gone with the buffer.
/// [`cancel`](Submission::cancel) gives the count and the buffer back and loses nothing.
///
/// # Errors
/// Those of `recv(2)`, but for `EAGAIN`; `InvalidInput` for a buffer without capacity.
///
/// # Kernel
/// `IORING_OP_RECV`, Linux 5.6.
#[doc(alias = "IORING_OP_RECV")]
pub fn recv<B: IoBufMut>(socket: &impl AsRef<Fd>, buffer: B) -> Submission<Recv<B>> {
    Submission::new(Recv::new(socket.as_ref().hold(), buffer))
}

/// The operation of [`recv()`].
#[derive(Debug)]
pub struct Recv<B> {
    fd: FdHold,
    fill: Fill<B>,
}

impl<B: IoBufMut> Recv<B> {
    pub(super) fn new(fd: FdHold, buffer: B) -> Self {
        Self { fd, fill: Fill::new(buffer) }
    }

    /// The buffer of one that did not take place.
    pub(super) fn into_buffer(self) -> B {
        self.fill.into_inner()
    }
}

impl<B: IoBufMut> Operation for Recv<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.recv(self.fd.as_fd(), &mut self.fill)
    }

    fn decode(self, completion: Completion) -> BufResult<B> {
        self.fill.finish(completion)
    }
}
