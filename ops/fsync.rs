use std::io;
use std::os::fd::AsFd;

use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `fsync(fd, data_only)`: waits until what was written to a file is on its device.
///
/// With `data_only`, metadata that is not needed to read the data back (times, say) may be late (`fdatasync(2)`).
/// It covers writes that have completed when this starts, not those in flight beside it. Runs on a worker thread of
/// the kernel.
///
/// # Cancel safety
/// Dropping it loses nothing but the answer.
///
/// # Errors
/// Those of `fsync(2)`. After an error the lost data cannot be written by another fsync: it is gone from the cache.
///
/// # Kernel
/// `IORING_OP_FSYNC`, Linux 5.1.
#[doc(alias = "IORING_OP_FSYNC")]
pub fn fsync(fd: &impl AsRef<Fd>, data_only: bool) -> Submission<Fsync> {
    Submission::new(Fsync { fd: fd.as_ref().hold(), data_only })
}

/// The operation of [`fsync()`].
#[derive(Debug)]
pub struct Fsync {
    fd: FdHold,
    data_only: bool,
}

impl Operation for Fsync {
    type Output = io::Result<()>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.fsync(self.fd.as_fd(), self.data_only)
    }

    fn decode(self, mut completion: Completion) -> io::Result<()> {
        completion.result().map(drop)
    }
}
