use std::io;
use std::os::fd::AsFd;

use socket2::SockAddr;

use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `connect(socket, address)`: connects a socket that the program has made itself.
///
/// The streams of [`net`](super::net) make their own.
///
/// # Cancel safety
/// A connect that is dropped may have connected, or may have left the socket half-way: use it for nothing else.
///
/// # Errors
/// Those of `connect(2)`, but for `EINPROGRESS`: this waits. A non-blocking Unix socket whose peer's backlog is full
/// answers `EAGAIN`, as the kernel has no event to wait for there.
///
/// # Kernel
/// `IORING_OP_CONNECT`, Linux 5.5.
#[doc(alias = "IORING_OP_CONNECT")]
pub fn connect(socket: &impl AsRef<Fd>, address: impl Into<SockAddr>) -> Submission<Connect> {
    Submission::new(Connect { fd: socket.as_ref().hold(), address: address.into() })
}

/// The operation of [`connect()`].
#[derive(Debug)]
pub struct Connect {
    fd: FdHold,
    // In the operation, as the kernel may read it later than the call that submits it.
    address: SockAddr,
}

impl Operation for Connect {
    type Output = io::Result<()>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.connect(self.fd.as_fd(), &self.address)
    }

    fn decode(self, mut completion: Completion) -> io::Result<()> {
        completion.result().map(drop)
    }
}
