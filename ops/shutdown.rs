use std::io;
use std::net;
use std::os::fd::AsFd;

use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `shutdown(socket, how)`: ends one direction of a connection, or both.
///
/// Bytes that the kernel has taken to send are still sent. Runs on a worker thread of the kernel, which costs more
/// than the call itself: the streams of [`net`](super::net) have a plain call for it.
///
/// # Cancel safety
/// One that is dropped may have happened.
///
/// # Errors
/// Those of `shutdown(2)`: `ENOTCONN` when there is no connection any more.
///
/// # Kernel
/// `IORING_OP_SHUTDOWN`, Linux 5.11.
#[doc(alias = "IORING_OP_SHUTDOWN")]
pub fn shutdown(socket: &impl AsRef<Fd>, how: net::Shutdown) -> Submission<Shutdown> {
    Submission::new(Shutdown { fd: socket.as_ref().hold(), how })
}

/// The operation of [`shutdown()`].
#[derive(Debug)]
pub struct Shutdown {
    fd: FdHold,
    how: net::Shutdown,
}

impl Operation for Shutdown {
    type Output = io::Result<()>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.shutdown(self.fd.as_fd(), self.how)
    }

    fn decode(self, mut completion: Completion) -> io::Result<()> {
        completion.result().map(drop)
    }
}
