//! The one future of every operation, and the one stream of every multishot operation.
//!
//! A [`Submission`] is a handle on a slot. The first poll moves the operation into one and queues its entry; later
//! polls look whether it is done; the last one moves the operation out and decodes it. Dropping it moves nothing:
//! the slot is told, and waits for the kernel.

mod answer;

use std::fmt;
use std::future::Future;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::stream::{FusedStream, Stream};

use super::body::{Body, Heading};
use super::buf::Ticket;
use super::completion::Completion;
use super::driver::{Admission, Driver};
use super::inflight::{Next, Readiness, Slot};
use super::operation::{MultishotOperation, Operation};
pub use answer::Answer;

/// One operation, not started before it is first polled.
///
/// It belongs to the runtime that is running when it is first polled.
///
/// # Cancel safety
/// Dropping it is always safe and never blocks. Before the first poll nothing has happened. After it, the kernel is
/// asked to cancel, and the operation, its buffers and its descriptors stay in the runtime until the kernel has let
/// go of them; bytes that a read had already taken by then are lost with the buffer. [`cancel`](Self::cancel) loses
/// nothing: it gives the result, the count and the buffer back.
///
/// # Panics
/// When polled again after it has completed, or inside another runtime than the one it started in.
pub struct Submission<O: Operation> {
    /// Until the operation has its slot. Beside the stage and not in it, so that neither moves with the other: a move
    /// loads what was just stored in other widths, for which a processor waits until the stores are done.
    operation: Option<O>,
    /// Left by hand when it holds something: most submissions are dropped with an empty one, and look only once whether
    /// they are.
    stage: ManuallyDrop<Stage>,
    cancelled: bool,
}

/// What a submission starts in: its driver, and its slot there.
type Admitted = (Rc<Driver>, Rc<Slot>);

/// Has a stage left, when describing its operation panics.
struct Undo<'a>(&'a mut Stage);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

enum Stage {
    Fresh,
    /// All slots are taken; a place in the queue.
    Admitting {
        driver: Rc<Driver>,
        place: u64,
    },
    InFlight {
        driver: Rc<Driver>,
        slot: Rc<Slot>,
    },
    Finished,
}

// The operation never lies pinned in here: it moves into its slot.
impl<O: Operation> Unpin for Submission<O> {}

impl<O: Operation> Submission<O> {
    /// A submission of this operation. Nothing happens before it is polled.
    pub fn new(operation: O) -> Self {
        Self { operation: Some(operation), stage: ManuallyDrop::new(Stage::Fresh), cancelled: false }
    }

    /// Ask for the end of the operation; await what this returns for what it came to.
    ///
    /// A race with success is won by success: the output then says what was done. An operation that was never polled
    /// ends with `ECANCELED` and the kernel never sees it.
    #[must_use = "await it to learn how the operation ended"]
    pub fn cancel(mut self) -> Self {
        self.request_cancel();
        self
    }

    /// As [`cancel`](Self::cancel), for a submission that lies inside a larger future.
    pub fn request_cancel(&mut self) {
        self.cancelled = true;
        if let Stage::InFlight { driver, slot } = &*self.stage {
            driver.cancel(slot);
        }
    }

    /// Whether the operation has been handed to the runtime and has not come back.
    pub fn is_in_flight(&self) -> bool {
        matches!(*self.stage, Stage::InFlight { .. })
    }

    /// The first poll, or one in the queue for a slot.
    #[inline(never)]
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<O::Output> {
        let (driver, slot) = match self.admit_at_once(cx) {
            Some(admitted) => admitted,
            None => match self.admit_otherwise(cx) {
                ControlFlow::Continue(admitted) => admitted,
                ControlFlow::Break(poll) => return poll,
            },
        };
        self.launch(driver, slot)
    }

    /// A slot, as nearly every submission finds it.
    #[inline(always)]
    fn admit_at_once(&self, cx: &mut Context<'_>) -> Option<Admitted> {
        if self.cancelled || !matches!(*self.stage, Stage::Fresh) {
            return None;
        }
        let driver = Driver::current();
        let slot = driver.admit_at_once(cx.waker())?;
        Some((driver, slot))
    }

    /// A slot, where it is not had at once.
    ///
    /// Wakers are cloned and dropped, which is foreign code and may panic, only while the stage tells where the
    /// operation is: so whatever happens, dropping this afterwards gives back what it had.
    #[inline(never)]
    fn admit_otherwise(&mut self, cx: &mut Context<'_>) -> ControlFlow<Poll<O::Output>, Admitted> {
        let (driver, place) = self.stage.whereabouts();
        if self.cancelled {
            let operation = self.take_operation();
            if let Some(place) = place {
                driver.leave(place);
            }
            return ControlFlow::Break(refuse(operation, Ticket::NONE, cancelled()));
        }
        match driver.admit(place, false, cx.waker()) {
            Admission::Closed(_waker) => ControlFlow::Break(refuse(self.take_operation(), Ticket::NONE, closed())),
            Admission::Wait(place, waker) => {
                *self.stage = Stage::Admitting { driver, place };
                drop(waker);
                ControlFlow::Break(Poll::Pending)
            }
            Admission::Granted(slot) => ControlFlow::Continue((driver, slot)),
        }
    }

    /// It has its slot: describe it, and queue it.
    ///
    /// The stage is told of the slot first, and the slot is used from there: so a panic of `encode` finds it there, and the
    /// way that has none keeps nothing at hand for it.
    #[inline(always)]
    fn launch(&mut self, driver: Rc<Driver>, slot: Rc<Slot>) -> Poll<O::Output> {
        self.stage.board(driver, slot);
        let undo = Undo(&mut self.stage);
        let (driver, slot) = undo.0.flight();
        slot.body().put(self.operation.take().expect("an operation starts once"));
        let described = slot.body().encode::<O>(slot.ticket().sequence, slot.key().user_data());
        match described.and_then(|heading| driver.check_opcode(heading.opcode).map(|()| heading)) {
            Ok(heading) => {
                // Queueing it may run foreign code, which finds it in flight.
                mem::forget(undo);
                let (driver, slot) = self.stage.flight();
                driver.queue(slot, heading);
                Poll::Pending
            }
            Err(error) => {
                mem::forget(undo);
                self.withdraw(error)
            }
        }
    }

    /// Describing it has failed: it is in its slot still, and leaves it.
    #[cold]
    #[inline(never)]
    fn withdraw(&mut self, error: io::Error) -> Poll<O::Output> {
        let (driver, slot) = self.stage.disembark();
        let (operation, ticket) = (slot.body().take::<O>(), slot.ticket());
        driver.withdraw(&slot);
        refuse(operation, ticket, error)
    }

    /// It is done: what it came to.
    #[inline(never)]
    fn land(&mut self) -> O::Output {
        let (driver, slot) = self.stage.disembark();
        if !slot.body().is_plain() {
            return land_with_more::<O>(&driver, slot);
        }
        let (operation, numbers) = driver.take::<O>(slot);
        operation.decode(numbers.completion())
    }

    /// The operation, to be handed back.
    fn take_operation(&mut self) -> O {
        self.stage.finish();
        self.operation.take().expect("an operation starts once")
    }
}

impl Stage {
    /// The driver that this is to start in, and its place in the queue there.
    #[inline]
    fn whereabouts(&self) -> (Rc<Driver>, Option<u64>) {
        match self {
            Self::Admitting { driver, place } => {
                belongs_here(driver);
                (Rc::clone(driver), Some(*place))
            }
            _ => (Driver::current(), None),
        }
    }

    /// It has a slot. What it has been goes: at most a share of the same driver.
    #[inline(always)]
    fn board(&mut self, driver: Rc<Driver>, slot: Rc<Slot>) {
        let stage = Self::InFlight { driver, slot };
        if self.is_empty() {
            self.replace_empty(stage);
        } else {
            *self = stage;
        }
    }

    /// Where it is in flight.
    #[inline(always)]
    fn flight(&self) -> (&Rc<Driver>, &Rc<Slot>) {
        match self {
            Self::InFlight { driver, slot } => (driver, slot),
            _ => panic!("an operation in flight has a slot"),
        }
    }

    /// It leaves its slot.
    #[inline(always)]
    fn disembark(&mut self) -> Admitted {
        match mem::replace(self, Self::Finished) {
            Self::InFlight { driver, slot } => (driver, slot),
            before => {
                // As in `board`.
                mem::forget(before);
                panic!("an operation in flight has a slot");
            }
        }
    }

    /// Whether it holds nothing.
    #[inline]
    fn is_empty(&self) -> bool {
        matches!(self, Self::Fresh | Self::Finished)
    }

    /// The future goes, wherever it is.
    #[inline(never)]
    fn leave(&mut self) {
        match mem::replace(self, Self::Finished) {
            Self::Fresh | Self::Finished => {}
            Self::Admitting { driver, place } => driver.leave(place),
            Self::InFlight { driver, slot } => driver.orphan(&slot),
        }
    }

    /// Nothing is left to do, but by what is done with what this has been.
    #[inline]
    fn finish(&mut self) {
        match self {
            Self::Fresh | Self::Finished => self.replace_empty(Self::Finished),
            Self::Admitting { .. } | Self::InFlight { .. } => *self = Self::Finished,
        }
    }

    /// Replace a stage that holds nothing. The plain version is an assignment, which looks at every field of what was
    /// there, for it cannot know that there is none.
    #[inline]
    fn replace_empty(&mut self, stage: Self) {
        debug_assert!(self.is_empty(), "this stage holds its driver");
        mem::forget(mem::replace(self, stage));
    }

    /// The operation is described. Queueing it may run foreign code, so the stage is told first.
    #[inline]
    fn fly(&mut self, driver: Rc<Driver>, slot: Rc<Slot>, heading: Heading) {
        self.replace_empty(Self::InFlight { driver, slot });
        if let Self::InFlight { driver, slot } = self {
            driver.queue(slot, heading);
        }
    }
}

impl<O: Operation> Future for Submission<O> {
    type Output = O::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O::Output> {
        let this = self.get_mut();
        match &*this.stage {
            Stage::Fresh | Stage::Admitting { .. } => this.start(cx),
            Stage::InFlight { driver, slot } => {
                belongs_here(driver);
                if !slot.is_done() && !driver.is_done_meanwhile(slot, cx.waker()) {
                    return Poll::Pending;
                }
                Poll::Ready(this.land())
            }
            Stage::Finished => panic!("this operation has completed and was polled again"),
        }
    }
}

impl<O: Operation> Drop for Submission<O> {
    #[inline]
    fn drop(&mut self) {
        if !self.stage.is_empty() {
            self.stage.leave();
        }
    }
}

impl<O: Operation> fmt::Debug for Submission<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &*self.stage {
            Stage::Fresh => "fresh",
            Stage::Admitting { .. } => "admitting",
            Stage::InFlight { .. } => "in flight",
            Stage::Finished => "finished",
        };
        f.debug_struct("Submission").field("stage", &stage).field("cancelled", &self.cancelled).finish()
    }
}

/// A multishot operation: one submission, a stream of what it brings.
///
/// The stream ends after the operation's last completion. When its consumer falls 1,024 items behind, the operation
/// is cancelled in the kernel and armed again once they are taken.
///
/// # Cancel safety
/// Dropping the stream cancels the operation; items that nobody took, and descriptors in them, are dropped.
///
/// # Panics
/// When polled inside another runtime than the one it started in.
pub struct Multishot<O: MultishotOperation> {
    operation: Option<O>,
    stage: Stage,
    /// Of a poll: whether what it has seen that nobody has looked at is one item.
    is_merged: bool,
}

impl<O: MultishotOperation> Unpin for Multishot<O> {}

impl<O: MultishotOperation> Multishot<O> {
    /// A stream of this operation's items. Nothing happens before it is polled.
    pub fn new(operation: O) -> Self {
        Self { operation: Some(operation), stage: Stage::Fresh, is_merged: false }
    }

    /// The same for a poll, of which one item says all that was seen since the last one was taken.
    pub(crate) fn merged(poll: O) -> Self {
        let mut stream = Self::new(poll);
        stream.is_merged = true;
        stream
    }

    /// Ask for the end of the operation: the stream yields what has already come, then how it ended if the kernel had
    /// it, then ends.
    pub fn cancel(&mut self) {
        if let Stage::InFlight { driver, slot } = &self.stage {
            driver.cancel(slot);
            return;
        }
        let operation = self.operation.take();
        if let Stage::Admitting { driver, place } = mem::replace(&mut self.stage, Stage::Finished) {
            driver.leave(place);
        }
        drop(operation);
    }

    /// As [`Submission`]'s.
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.stage, Stage::InFlight { .. })
    }

    /// As [`Submission`]'s.
    #[inline]
    fn take_operation(&mut self) -> O {
        self.stage.finish();
        self.operation.take().expect("an operation starts once")
    }

    /// The events that a poll has seen, as its stream would tell, without making an item of them. `None`: the stream has
    /// to be polled.
    #[inline(always)]
    pub(crate) fn poll_events(&self, waker: &Waker) -> Option<Poll<u32>> {
        let Stage::InFlight { driver, slot } = &self.stage else { return None };
        belongs_here(driver);
        slot.poll_readiness(waker).map(|readiness| readiness.map(Readiness::events))
    }

    /// Whether the stream of a poll has nothing new, and will wake this when it has.
    #[inline(always)]
    pub(crate) fn is_quiet(&self, waker: &Waker) -> bool {
        matches!(&self.stage, Stage::InFlight { slot, .. } if slot.is_quiet(waker))
    }

    /// As [`Submission`]'s.
    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Option<O::Item>> {
        let (driver, place) = self.stage.whereabouts();
        match driver.admit(place, true, cx.waker()) {
            Admission::Closed(_waker) => {
                let operation = self.take_operation();
                Poll::Ready(Some(operation.item(Completion::refused(Ticket::NONE, closed()))))
            }
            Admission::Wait(place, waker) => {
                self.stage = Stage::Admitting { driver, place };
                drop(waker);
                Poll::Pending
            }
            Admission::Granted(slot) => {
                let operation = self.take_operation();
                slot.body().put(operation);
                self.arm(driver, slot, None)
            }
        }
    }

    /// Describe the operation that lies in this slot, and queue it; with a waker if the slot has none.
    fn arm(&mut self, driver: Rc<Driver>, slot: Rc<Slot>, waker: Option<&Waker>) -> Poll<Option<O::Item>> {
        // Its slot is being described, and goes with a panic.
        self.stage = Stage::Finished;
        match describe(&driver, &slot, |body| {
            if let Some(waker) = waker {
                driver.replace_waker(&slot, waker);
            }
            body.encode_multishot::<O>(slot.ticket().sequence, slot.key().user_data())
        }) {
            Ok(heading) => {
                slot.merge(self.is_merged, heading.opcode);
                self.stage.fly(driver, slot, heading);
                Poll::Pending
            }
            Err(error) => {
                let (operation, ticket) = (slot.body().take::<O>(), slot.ticket());
                driver.withdraw(&slot);
                Poll::Ready(Some(operation.item(Completion::refused(ticket, error))))
            }
        }
    }
}

impl<O: MultishotOperation> Stream for Multishot<O> {
    type Item = O::Item;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<O::Item>> {
        let this = self.get_mut();
        let (driver, slot) = match &this.stage {
            Stage::Finished => return Poll::Ready(None),
            Stage::Fresh | Stage::Admitting { .. } => return this.start(cx),
            Stage::InFlight { driver, slot } => (driver, slot),
        };
        belongs_here(driver);
        if let Some(readiness) = slot.poll_readiness(cx.waker()) {
            return readiness.map(|readiness| Some(slot.body().item::<O>(readiness.completion())));
        }
        match driver.next(slot, cx.waker()) {
            Next::Item(completion) => Poll::Ready(Some(slot.body().item::<O>(completion))),
            Next::Pending => Poll::Pending,
            Next::Rearm => {
                let (driver, slot) = (Rc::clone(driver), Rc::clone(slot));
                this.arm(driver, slot, Some(cx.waker()))
            }
            Next::Ended => {
                let stage = mem::replace(&mut this.stage, Stage::Finished);
                if let Stage::InFlight { driver, slot } = stage {
                    driver.empty(&slot);
                }
                Poll::Ready(None)
            }
        }
    }
}

impl<O: MultishotOperation> FusedStream for Multishot<O> {
    fn is_terminated(&self) -> bool {
        matches!(self.stage, Stage::Finished)
    }
}

impl<O: MultishotOperation> Drop for Multishot<O> {
    fn drop(&mut self) {
        self.stage.leave();
    }
}

impl<O: MultishotOperation> fmt::Debug for Multishot<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multishot").field("in_flight", &self.is_in_flight()).finish()
    }
}

/// The output of an operation that the kernel never saw.
#[cold]
#[inline(never)]
fn refuse<O: Operation>(operation: O, ticket: Ticket, error: io::Error) -> Poll<O::Output> {
    Poll::Ready(operation.decode(Completion::refused(ticket, error)))
}

/// The output of an operation whose answer may have brought something beside its numbers.
#[inline(never)]
fn land_with_more<O: Operation>(driver: &Driver, slot: Rc<Slot>) -> O::Output {
    let (descriptor, buffer) = slot.take_brought();
    let (operation, numbers) = driver.take::<O>(slot);
    operation.decode(numbers.completion().with_descriptor(descriptor).with_buffer(buffer))
}

/// Run foreign `encode` code with nothing borrowed. On an error the operation is still in the body, for the caller to
/// take, and then to withdraw the slot; on a panic both are gone, and the ring has not been touched.
#[inline]
fn describe(
    driver: &Rc<Driver>,
    slot: &Rc<Slot>,
    encode: impl FnOnce(&Body) -> io::Result<Heading>,
) -> io::Result<Heading> {
    struct Undo<'a>(&'a Driver, &'a Rc<Slot>);
    impl Drop for Undo<'_> {
        fn drop(&mut self) {
            self.1.body().dispose();
            self.0.withdraw(self.1);
        }
    }
    let undo = Undo(driver, slot);
    let outcome = encode(slot.body()).and_then(|heading| driver.check_opcode(heading.opcode).map(|()| heading));
    mem::forget(undo);
    outcome
}

/// An operation makes progress only when its own driver is turned, so waiting for it elsewhere would never end.
#[inline]
fn belongs_here(driver: &Driver) {
    assert!(
        !driver.is_other_current(),
        "this operation was started in another ringmain runtime; await it inside the runtime it was started in"
    );
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

/// The runtime has shut down: to an operation this is a cancel that came before it started.
fn closed() -> io::Error {
    cancelled()
}
