use std::io;
use std::os::fd::AsFd;

use super::BufResult;
use crate::runtime::{Completion, Encoded, Fd, FdHold, IoBuf, Operation, Sqe, Submission};

/// `send(socket, buffer)`: sends on a connected socket. Never raises `SIGPIPE`.
///
/// Sends the buffer's bytes, or the first of them: the count says how many the kernel has taken, not what has arrived.
/// Two sends of one stream that are in flight together may tear each other; the handles of [`net`](super::net) do not
/// let that happen, this function does.
///
/// # Cancel safety
/// A send that is dropped may have sent some of its bytes or all. [`cancel`](Submission::cancel) tells how many.
///
/// # Errors
/// Those of `send(2)`, but for `EAGAIN`.
///
/// # Kernel
/// `IORING_OP_SEND`, Linux 5.6.
#[doc(alias = "IORING_OP_SEND")]
pub fn send<B: IoBuf>(socket: &impl AsRef<Fd>, buffer: B) -> Submission<Send<B>> {
    Submission::new(Send::new(socket.as_ref().hold(), buffer))
}

/// The operation of [`send()`].
#[derive(Debug)]
pub struct Send<B> {
    fd: FdHold,
    buffer: B,
}

impl<B: IoBuf> Send<B> {
    pub(super) fn new(fd: FdHold, buffer: B) -> Self {
        Self { fd, buffer }
    }

    /// The buffer of one that did not take place.
    pub(super) fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: IoBuf> Operation for Send<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.send(self.fd.as_fd(), self.buffer.bytes())
    }

    fn decode(self, mut completion: Completion) -> BufResult<B> {
        (completion.result().map(|count| count as usize), self.buffer)
    }
}
