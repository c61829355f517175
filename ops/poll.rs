use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::stream::Stream;
use rustix::event::PollFlags;

use crate::runtime::{
    Completion, Encoded, EncodedMultishot, Fd, FdHold, Multishot, MultishotOperation, MultishotSqe, Operation, Sqe,
    Submission,
};

/// `poll(fd, events)`: waits until one of the events holds, and says which do.
///
/// Moves nothing. Beside what was asked for, `ERR`, `HUP` and `NVAL` may be answered (`poll(2)`), and, as in the ring
/// nobody can do without it, `RDHUP`: a peer that has ended its direction answers a poll for `OUT` at once, whether there
/// is room or not. Look at the answer before waiting once more. What holds now need not hold when it is used: another
/// reader may be faster.
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
/// As [`poll()`] with `OUT`; see there for the peer that has ended its own direction.
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
        refuse_hung_up(&self.fd)?;
        sqe.poll(self.fd.as_fd(), self.events)
    }

    fn decode(self, mut completion: Completion) -> io::Result<PollFlags> {
        completion.result().map(answered)
    }
}

/// What the last wait for an end brought instead of what it asked for: the one, and the other.
///
/// A poll in the ring is told of `RDHUP`, `HUP` and `ERR` unasked (`IO_POLL_UNMASK`, `io_uring/poll.c`), and they may
/// hold for long: `RDHUP` while a peer that has said all it has to say reads slowly, `ERR` while an error queue is not
/// read. The plain version waits for room, finds none, and waits again, all of it at once, as long as they hold. So
/// whoever found nothing after such an answer waits for another one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signals(Option<(PollFlags, PollFlags)>);

impl Signals {
    /// Wait until this may be so.
    pub(super) fn wait(self, fd: &FdHold, events: PollFlags) -> Readiness {
        let fd = fd.clone();
        let wait = match self.0 {
            Some((asked, known)) if asked == events => {
                Wait::Change { answers: Box::new(Multishot::new(PollEach::new(fd, events))), known: Some(known) }
            }
            _ => Wait::Once(Submission::new(PollOnce::new(fd, events))),
        };
        Readiness { events, wait }
    }
}

/// A wait for an end, which brings what is to be known for the next one.
#[derive(Debug)]
pub(super) struct Readiness {
    events: PollFlags,
    wait: Wait,
}

#[derive(Debug)]
enum Wait {
    Once(Submission<PollOnce>),
    /// Boxed: hardly any wait is one.
    Change {
        answers: Box<Multishot<PollEach>>,
        known: Option<PollFlags>,
    },
}

impl Readiness {
    pub(super) fn request_cancel(&mut self) {
        match &mut self.wait {
            Wait::Once(poll) => poll.request_cancel(),
            Wait::Change { answers, .. } => answers.cancel(),
        }
    }

    /// Whether it has been handed to the runtime, and does not wait for another operation to end.
    pub(super) fn is_in_flight(&self) -> bool {
        match &self.wait {
            Wait::Once(poll) => poll.is_in_flight(),
            Wait::Change { answers, .. } => answers.is_in_flight(),
        }
    }
}

impl Future for Readiness {
    type Output = io::Result<Signals>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let answer = match &mut this.wait {
            Wait::Once(poll) => ready!(Pin::new(poll).poll(cx))?,
            Wait::Change { answers, known } => loop {
                match ready!(Pin::new(&mut **answers).poll_next(cx)).transpose()? {
                    // The first answer says what holds now, each later one that something has changed.
                    Some(answer) if known.take() == Some(answer) => {}
                    Some(answer) => break answer,
                    // The kernel may end a poll of many answers at any time. Whoever waits looks for himself.
                    None => break this.events,
                }
            },
        };
        Poll::Ready(Ok(Signals((!answer.intersects(this.events)).then_some((this.events, answer)))))
    }
}

/// One poll for all that comes: it answers once if an event holds when it is armed, and after that each time that
/// something happens, which is no promise that it holds still.
#[derive(Debug)]
pub(super) struct PollEach {
    fd: FdHold,
    events: PollFlags,
}

impl PollEach {
    pub(super) fn new(fd: FdHold, events: PollFlags) -> Self {
        Self { fd, events }
    }
}

impl MultishotOperation for PollEach {
    type Item = io::Result<PollFlags>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        refuse_hung_up(&self.fd)?;
        sqe.poll(self.fd.as_fd(), self.events)
    }

    fn item(&self, mut completion: Completion) -> io::Result<PollFlags> {
        completion.result().map(answered)
    }
}

/// What was waiting when the last handle went has been cancelled. What would begin to wait now, between two steps of
/// something longer, would be found by nobody.
fn refuse_hung_up(fd: &FdHold) -> io::Result<()> {
    if fd.is_hung_up() {
        return Err(io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error()));
    }
    Ok(())
}

/// The kernel answers with events of 16 bits, whatever room the result has.
#[inline]
pub(super) fn answered(events: u32) -> PollFlags {
    PollFlags::from_bits_retain(events as u16)
}
