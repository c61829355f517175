//! A splice that parks one of the kernel's worker threads until it is cancelled: what the crate's own `splice` avoids,
//! and what the end of a ring has to cope with all the same.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ringmain::{Completion, Encoded, Operation, SpliceFlags, Sqe, Submission};

/// Splice from a blocking socket or pipe that has nothing to give.
pub(crate) fn parked_splice(from: impl Into<OwnedFd>, to: impl Into<OwnedFd>) -> Submission<ParkedSplice> {
    Submission::new(ParkedSplice { from: from.into(), to: to.into() })
}

pub(crate) struct ParkedSplice {
    from: OwnedFd,
    to: OwnedFd,
}

impl Operation for ParkedSplice {
    type Output = io::Result<u32>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.splice(self.from.as_fd(), None, self.to.as_fd(), None, 4096, SpliceFlags::empty())
    }

    fn decode(self, mut completion: Completion) -> io::Result<u32> {
        completion.result()
    }
}
