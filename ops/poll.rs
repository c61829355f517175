use std::io;
use std::os::fd::AsFd;

use rustix::event::PollFlags;

use crate::runtime::{Completion, Encoded, Fd, FdHold, Operation, Sqe, Submission};

/// `poll(fd, events)`: waits until one of the events holds, and says which do.
///
/// Moves nothing. Beside what was asked for, `ERR`, `HUP` and `NVAL` may be answered (`poll(2)`). What holds now need
/// not hold when it is used: another reader may be faster.
///
/// # Cancel safety
/// Dropping it loses nothing.
///
/// # Errors
/// Those of `poll(2)`; `ECANCELED` when the descriptor's last handle has gone. A regular file is always ready.
///
/// # Kernel
/// `IORING_OP_POLL_ADD`, Linux 5.1.
///
/// # Examples
/// ```
/// use ringmain::{Fd, PollFlags, ops};
///
/// let (_reader, writer) = std::io::pipe()?;
/// let writer = Fd::new(writer.into());
/// let events = ringmain::Runtime::new()?.block_on(ops::poll(&writer, PollFlags::OUT))?;
/// assert!(events.contains(PollFlags::OUT));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_POLL_ADD")]
pub fn poll(fd: &impl AsRef<Fd>, events: PollFlags) -> Submission<PollOnce> {
    Submission::new(PollOnce::new(fd.as_ref().hold(), events))
}

/// `readable(fd)`: waits until a read would not wait: for bytes, for the end, or for an error.
///
/// As [`poll()`] with `IN` and `RDHUP`.
///
/// # Cancel safety
/// Dropping it loses nothing.
pub fn readable(fd: &impl AsRef<Fd>) -> Submission<PollOnce> {
    poll(fd, PollFlags::IN | PollFlags::RDHUP)
}

/// `writable(fd)`: waits until a write would not wait: for room, or for an error.
///
/// As [`poll()`] with `OUT`.
///
/// # Cancel safety
/// Dropping it loses nothing.
pub fn writable(fd: &impl AsRef<Fd>) -> Submission<PollOnce> {
    poll(fd, PollFlags::OUT)
}

/// The operation of [`poll()`], [`readable`] and [`writable`].
#[derive(Debug)]
pub struct PollOnce {
    fd: FdHold,
    events: PollFlags,
}

impl PollOnce {
    pub(super) fn new(fd: FdHold, events: PollFlags) -> Self {
        Self { fd, events }
    }
}

impl Operation for PollOnce {
    type Output = io::Result<PollFlags>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        if self.fd.is_hung_up() {
            // What was waiting when the last handle went has been cancelled. What would begin to wait now, between two
            // steps of something longer, would be found by nobody.
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error()));
        }
        sqe.poll(self.fd.as_fd(), self.events)
    }

    fn decode(self, mut completion: Completion) -> io::Result<PollFlags> {
        // The kernel answers with events of 16 bits, whatever room the result has.
        completion.result().map(|events| PollFlags::from_bits_retain(events as u16))
    }
}
