//! Routes: how a splice or tee gets done, and the one future that does it.
//!
//! The kernel hands every `IORING_OP_SPLICE` and `IORING_OP_TEE` to a worker thread: about 14 us, and a thread parked
//! for each that waits, where `splice(2)` itself costs half a microsecond. So a transfer has routes:
//!
//! * *inline*: try the system call without waiting; on `EAGAIN` find out which end is not ready, wait for that with a
//!   poll in the ring, and try again. For ends that can be polled.
//! * *ring*: the opcode, at most [`Config::ring_splices`](crate::Config) of them at once. For an end that can block
//!   on a disk, which no poll ever tells.
//!
//! `EAGAIN` names no side, and blaming the wrong one waits for ever, so both are always looked at: the input first,
//! then the output. If both say that they are ready, the answer was out of date, and trying again is right.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags};

use super::poll::{PollOnce, Readiness, Signals};
use crate::runtime::{Driver, Fd, FdHold, Operation, Sleep, Submission, sleep};

/// How often a transfer is tried again at once when both of its ends say that they are ready and the kernel says they
/// are not. After that it waits [`DISAGREEMENT_PAUSE`]: something else is reading what the poll saw.
const DISAGREEMENTS_MAX: u32 = 8;

const DISAGREEMENT_PAUSE: Duration = Duration::from_millis(1);

/// How a splice or tee is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Inline where both ends can be polled, the ring where one can block on a disk.
    #[default]
    Auto,
    /// A non-blocking system call on the runtime's thread; waits in the ring.
    Inline,
    /// The ring's own opcode, on a kernel worker thread.
    Ring,
}

/// One end of a splice: a descriptor, and an offset if it is a file that has one.
#[derive(Clone, Debug)]
pub struct End {
    pub(super) hold: FdHold,
    pub(super) offset: Option<u64>,
}

impl End {
    /// The file at this offset, in bytes: its cursor is neither used nor moved.
    pub fn at(file: &impl AsRef<Fd>, offset: u64) -> Self {
        Self { hold: file.as_ref().hold(), offset: Some(offset) }
    }
}

impl<F: AsRef<Fd>> From<&F> for End {
    fn from(fd: &F) -> Self {
        Self { hold: fd.as_ref().hold(), offset: None }
    }
}

/// What kind of file an end is, as far as routes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pipe,
    Socket,
    /// Can be polled: a terminal, an eventfd, a character device.
    Device,
    /// Can block on a disk.
    Disk,
}

impl Kind {
    pub(super) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
            FileType::Fifo => Self::Pipe,
            FileType::Socket => Self::Socket,
            FileType::RegularFile | FileType::BlockDevice | FileType::Directory => Self::Disk,
            FileType::CharacterDevice | FileType::Symlink | FileType::Unknown => Self::Device,
        })
    }
}

/// A blocking socket must not enter a splice at all: it waits with the pipe's lock held, and then even closing that
/// pipe hangs (`SPLICE_F_NONBLOCK` acts on pipe ends only).
pub(super) fn is_blocking_socket(fd: BorrowedFd<'_>, kind: Kind) -> io::Result<bool> {
    Ok(kind == Kind::Socket && !rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK))
}

/// A splice or tee on its way: resolves with the count of bytes, 0 at the end of the input.
///
/// # Cancel safety
/// Dropped on the inline route, it has moved nothing that it has not reported. Dropped on the ring route, it may have
/// moved bytes into the output after all; [`cancel`](Self::cancel) tells.
#[must_use = "nothing moves before it is awaited"]
pub struct Transfer<O: Operation> {
    once: O,
    from: End,
    to: End,
    route: Route,
    refused: Option<io::Error>,
    cancelled: bool,
    disagreements: u32,
    signals: Signals,
    step: Step<O>,
}

enum Step<O: Operation> {
    Begin,
    Try,
    Wait(Readiness),
    Pause(Sleep),
    Permit(PermitPlace),
    Ring(Submission<O>, Permit),
    Finished,
}

impl<O: Operation<Output = io::Result<usize>> + Clone + Unpin> Transfer<O> {
    pub(super) fn new(once: O, from: End, to: End) -> Self {
        Self {
            once,
            from,
            to,
            route: Route::Auto,
            refused: None,
            cancelled: false,
            disagreements: 0,
            signals: Signals::default(),
            step: Step::Begin,
        }
    }

    pub(super) fn refuse(mut self, error: io::Error) -> Self {
        self.refused.get_or_insert(error);
        self
    }

    pub(super) fn once_mut(&mut self) -> &mut O {
        &mut self.once
    }

    /// Choose how it is done.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Ask for its end; await what this returns for the count that was moved, or `ECANCELED` if nothing was.
    #[must_use = "await it to learn what was moved"]
    pub fn cancel(mut self) -> Self {
        self.cancelled = true;
        if let Step::Ring(submission, _) = &mut self.step {
            submission.request_cancel();
        }
        self
    }

    /// Which route this takes, once it knows its ends.
    fn choose(&self) -> io::Result<Route> {
        let (from, to) = (Kind::of(self.from.hold.as_fd())?, Kind::of(self.to.hold.as_fd())?);
        for (end, kind, name) in [(&self.from, from, "input"), (&self.to, to, "output")] {
            if end.offset.is_some() && matches!(kind, Kind::Pipe | Kind::Socket) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("the {name} is a pipe or socket, which has no offset; leave the offset out"),
                ));
            }
            if is_blocking_socket(end.hold.as_fd(), kind)? {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "the {name} is a blocking socket, on which a splice would hold the pipe's lock while it waits; \
                         make it non-blocking first"
                    ),
                ));
            }
        }
        Ok(match self.route {
            Route::Auto if from == Kind::Disk || to == Kind::Disk => Route::Ring,
            Route::Auto => Route::Inline,
            forced => forced,
        })
    }

    /// The end that is not ready, by a poll of each that does not wait; `None` if both say they are.
    fn missing(&self, driver: &Driver) -> io::Result<Option<Readiness>> {
        for (end, events) in [(&self.from, PollFlags::IN), (&self.to, PollFlags::OUT)] {
            match driver.attempt(PollOnce::new(end.hold.clone(), events)) {
                Ok(ready) => drop(ready?),
                Err(_would_block) => return Ok(Some(self.signals.wait(&end.hold, events))),
            }
        }
        Ok(None)
    }

    /// The kernel says that an end is not ready.
    fn would_block(&mut self, driver: &Driver) -> io::Result<Step<O>> {
        if let Some(poll) = self.missing(driver)? {
            return Ok(Step::Wait(poll));
        }
        self.disagreements += 1;
        if self.disagreements.is_multiple_of(DISAGREEMENTS_MAX) {
            return Ok(Step::Pause(sleep(DISAGREEMENT_PAUSE)));
        }
        Ok(Step::Try)
    }
}

impl<O: Operation<Output = io::Result<usize>> + Clone + Unpin> Future for Transfer<O> {
    type Output = io::Result<usize>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let driver = Driver::current();
        loop {
            if this.cancelled && !matches!(this.step, Step::Ring(..) | Step::Finished) {
                this.step = Step::Finished;
                return Poll::Ready(Err(io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())));
            }
            match &mut this.step {
                Step::Begin => {
                    if let Some(error) = this.refused.take() {
                        this.step = Step::Finished;
                        return Poll::Ready(Err(error));
                    }
                    this.route = this.choose().inspect_err(|_| this.step = Step::Finished)?;
                    this.step = Step::Try;
                }
                Step::Try if this.route == Route::Ring => {
                    this.step = Step::Permit(RingPermits::of(&driver).place());
                }
                Step::Try => match driver.attempt(this.once.clone()) {
                    Ok(outcome) => {
                        this.step = Step::Finished;
                        return Poll::Ready(outcome);
                    }
                    Err(_would_block) => {
                        this.step = this.would_block(&driver).inspect_err(|_| this.step = Step::Finished)?;
                    }
                },
                Step::Wait(poll) => {
                    let outcome = ready!(Pin::new(poll).poll(cx));
                    this.step = Step::Try;
                    this.signals = outcome.inspect_err(|_| this.step = Step::Finished)?;
                }
                Step::Pause(pause) => {
                    ready!(Pin::new(pause).poll(cx));
                    this.step = Step::Try;
                }
                Step::Permit(place) => {
                    let permit = ready!(Pin::new(place).poll(cx));
                    this.step = Step::Ring(Submission::new(this.once.clone()), permit);
                }
                Step::Ring(submission, _permit) => {
                    let outcome = ready!(Pin::new(submission).poll(cx));
                    // The worker's permit goes back here, before anything is waited for.
                    this.step = Step::Finished;
                    match outcome {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            // Told to stop, it ends at the head of the loop as cancelled: its answer moved nothing.
                            this.step = if this.cancelled { Step::Try } else { this.would_block(&driver)? };
                        }
                        outcome => return Poll::Ready(outcome),
                    }
                }
                Step::Finished => panic!("this transfer has completed and was polled again"),
            }
        }
    }
}

impl<O: Operation> fmt::Debug for Transfer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("from", &self.from).field("to", &self.to).field("route", &self.route).finish()
    }
}

/// How many ring splices may be with the kernel at once: each may occupy a worker thread.
#[derive(Debug)]
pub(super) struct RingPermits {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
}

#[derive(Debug)]
struct Waiting {
    waker: RefCell<Option<Waker>>,
    granted: Cell<bool>,
}

/// One permit; dropping it passes it on.
#[derive(Debug)]
pub(super) struct Permit(Rc<RingPermits>);

/// A place in the queue for a permit; first come, first served.
#[derive(Debug)]
pub(super) struct PermitPlace {
    permits: Rc<RingPermits>,
    waiting: Option<Rc<Waiting>>,
}

impl RingPermits {
    pub(super) fn of(driver: &Driver) -> Rc<Self> {
        driver.local(|| Self { free: Cell::new(driver.config().ring_splices as usize), waiting: RefCell::default() })
    }

    pub(super) fn place(self: &Rc<Self>) -> PermitPlace {
        PermitPlace { permits: Rc::clone(self), waiting: None }
    }

    /// A permit has come back: to the first who waits, or to the free ones.
    fn put_back(&self) {
        let next = self.waiting.borrow_mut().pop_front();
        let Some(next) = next else {
            self.free.set(self.free.get() + 1);
            return;
        };
        next.granted.set(true);
        let waker = next.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for PermitPlace {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        if let Some(waiting) = &self.waiting {
            if waiting.granted.get() {
                self.waiting = None;
                return Poll::Ready(Permit(Rc::clone(&self.permits)));
            }
            let old = waiting.waker.replace(Some(cx.waker().clone()));
            drop(old);
            return Poll::Pending;
        }
        if self.permits.free.get() > 0 && self.permits.waiting.borrow().is_empty() {
            self.permits.free.set(self.permits.free.get() - 1);
            return Poll::Ready(Permit(Rc::clone(&self.permits)));
        }
        let waiting = Rc::new(Waiting { waker: RefCell::new(Some(cx.waker().clone())), granted: Cell::new(false) });
        self.permits.waiting.borrow_mut().push_back(Rc::clone(&waiting));
        self.waiting = Some(waiting);
        Poll::Pending
    }
}

impl Drop for PermitPlace {
    fn drop(&mut self) {
        let Some(waiting) = self.waiting.take() else { return };
        if waiting.granted.get() {
            self.permits.put_back();
        } else {
            self.permits.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, &waiting));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.put_back();
    }
}
