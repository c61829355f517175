use std::io;
use std::os::fd::OwnedFd;

use crate::runtime::{Completion, Encoded, Operation, Sqe, Submission};

/// `close(fd)`: closes a descriptor, and tells what the last close of a file had to say.
///
/// On some filesystems (NFS, quotas) that is where a failed write is reported; [`fsync`](super::fsync()) is what makes
/// sure of one.
///
/// # Cancel safety
/// The descriptor is closed in any case; a dropped one does not say with what result.
///
/// # Errors
/// Those of `close(2)`. The descriptor is gone whatever the error: there is nothing to repeat.
///
/// # Kernel
/// `IORING_OP_CLOSE`, Linux 5.6.
#[doc(alias = "IORING_OP_CLOSE")]
pub fn close(fd: OwnedFd) -> Submission<Close> {
    Submission::new(Close { fd: Some(Ok(fd)) })
}

/// The operation of [`close()`].
#[derive(Debug)]
pub struct Close {
    fd: Option<io::Result<OwnedFd>>,
}

impl Close {
    /// A close that cannot take place, and says so when it is awaited.
    pub(super) fn refused(error: io::Error) -> Self {
        Self { fd: Some(Err(error)) }
    }
}

impl Operation for Close {
    type Output = io::Result<()>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        match self.fd.take() {
            Some(Ok(fd)) => sqe.close(fd),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "this descriptor has been closed already")),
        }
    }

    fn decode(self, mut completion: Completion) -> io::Result<()> {
        completion.result().map(drop)
    }
}
