use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};

use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `accept(listener)`: takes the next connection off a listening socket.
///
/// The new descriptor is non-blocking and close-on-exec. Who the peer is, the socket itself can say
/// (`getpeername(2)`).
///
/// # Cancel safety
/// Dropping it loses no connection silently: one that was taken for nobody is closed, and its peer sees that.
///
/// # Errors
/// Those of `accept4(2)`, but for `EAGAIN`. Out of descriptors (`EMFILE`, `ENFILE`) leaves the connection in the
/// backlog, where the next accept finds it: wait before that one, or it spins.
///
/// # Kernel
/// `IORING_OP_ACCEPT`, Linux 5.5.
#[doc(alias = "IORING_OP_ACCEPT")]
pub fn accept(listener: &impl AsRef<Fd>) -> Submission<Accept> {
    Submission::new(Accept::new(listener.as_ref().hold()))
}

/// The operation of [`accept()`], and of the listeners' own: `T` is what the new descriptor becomes.
pub struct Accept<T = OwnedFd> {
    fd: FdHold,
    _becomes: PhantomData<fn() -> T>,
}

/// What a new descriptor can become.
pub trait FromCreated: 'static {
    fn from_created(fd: OwnedFd) -> Self;
}

impl FromCreated for OwnedFd {
    fn from_created(fd: OwnedFd) -> Self {
        fd
    }
}

/// The descriptor that an opcode which makes one has made.
pub(super) fn created<T: FromCreated>(mut completion: Completion) -> io::Result<T> {
    completion.result()?;
    let fd = completion.take_descriptor().expect("an opcode that makes descriptors has made one when it succeeds");
    Ok(T::from_created(fd))
}

impl<T> Accept<T> {
    pub(super) fn new(fd: FdHold) -> Self {
        Self { fd, _becomes: PhantomData }
    }
}

impl<T: FromCreated> Operation for Accept<T> {
    type Output = io::Result<T>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.accept(self.fd.as_fd())
    }

    fn decode(self, completion: Completion) -> io::Result<T> {
        created(completion)
    }
}

impl<T> fmt::Debug for Accept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept").field("fd", &self.fd).finish()
    }
}
