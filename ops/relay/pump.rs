//! One direction of a relay: from a source, through a pipe or a page, to a sink.
//!
//! The pump knows how many bytes are inside its pipe, and that decides the one hard question, whose `EAGAIN` it was.
//! It fills only when nothing is inside, so a source that would block is empty; it drains while something is inside,
//! so a sink that would block is full. Neither is ever asked about the other's readiness. A pipe that is full by
//! slots while its bytes look few is no special case: it is drained before it is filled again.
//!
//! End of file is a fill of 0 with nothing inside; only then is the sink's write side shut down, so a shutdown never
//! overtakes a byte. The route can change where nothing is inside, and only there.

mod fill;

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::Shutdown;

use super::carrier::{COPY_BYTES, Carrier, Scratch};
use super::choice::{Choice, hold_until};
use super::copying::{RingCopy, give_now, only_waits};
use super::flow::{Flow, LiveFlow, RelayRoute, RouteReason};
use super::limits::{Limiter, Limits};
use super::plan::Plan;
use super::stopped::Rest;
use super::watch::{Emptied, Watch};
use crate::ops::Read;
use crate::ops::pipe::PipePool;
use crate::ops::poll::{Readiness, Signals};
use crate::ops::route::{End, Kind, Permit, PermitPlace, RingPermits};
use crate::ops::splice::Splice;
use crate::runtime::{Driver, Sleep, SpliceFlags, Submission, sleep_until};

/// Steps in one poll before other tasks get their turn: a pair that is always ready must not starve them.
const STEPS_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Pump {
    from: End,
    to: End,
    route: RelayRoute,
    plan: Option<Plan>,
    step: Step,
    work: Work,
    live: Option<LiveFlow>,
    /// The driver's, once it is known: looking it up costs as much as taking something from it.
    scratch: Option<Rc<Scratch>>,
    pool: Option<Rc<PipePool>>,
    /// Bytes to be reserved in the sink.
    preallocate: u64,
    watch: Watch,
    emptied: Emptied,
    /// What it ends with when its watch has ended.
    failure: Option<io::Error>,
    /// Whether an end may be a file on a disk.
    takes_files: bool,
    is_taking: bool,
    is_stopping: bool,
    sink_failed: bool,
    /// Hops before it was resumed, maybe between other ends.
    spliced_by_others: u64,
    signals: Signals,
    /// Nothing has been taken since a poll said that there is something.
    source_was_ready: bool,
    disagreements: u32,
}

/// What a direction keeps when it is stopped, and goes on with when it is resumed.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) flow: Flow,
    pub(super) carrier: Carrier,
    limiter: Limiter,
    choice: Choice,
}

#[derive(Debug)]
enum Step {
    /// Nothing is known of the ends yet.
    Begin,
    /// Nothing is inside: take from the source.
    Fill,
    /// Something is inside: give it to the sink.
    Drain,
    AwaitSource(Readiness),
    /// As above, by the poll that stays armed.
    Watch,
    AwaitSink(Readiness),
    /// The source has been silent since it was emptied by the rule: ask it once more.
    Suspect,
    /// The source may have something, and is given the time to have more.
    Hold(Sleep),
    /// The rate allows nothing before then.
    Pace(Sleep),
    /// A ring splice waits for its permit.
    Permit(Hop, PermitPlace),
    /// A ring splice is with the kernel. Boxed, as the read below: the other steps are half as large, and move often.
    Ring(Hop, Box<Submission<Splice>>, Permit),
    /// A read or write of a page is with the kernel.
    Copying(Hop, Box<RingCopy>),
    Finished,
}

/// Which part of the way a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    In,
    Out,
    /// Both in one: an end is a pipe itself.
    Through,
}

impl Step {
    /// Whether, being pending, this waits for operations that are in flight to make room for its own.
    fn waits_for_room(&self) -> bool {
        match self {
            Self::AwaitSource(poll) | Self::AwaitSink(poll) => !poll.is_in_flight(),
            Self::Ring(_, splice, _) => !splice.is_in_flight(),
            Self::Copying(_, copy) => !copy.is_in_flight(),
            Self::Permit(..) => true,
            _ => false,
        }
    }
}

impl Work {
    fn new() -> Self {
        Self { flow: Flow::default(), carrier: Carrier::Nothing, limiter: Limiter::default(), choice: Choice::new() }
    }

    pub(super) fn into_carrier(mut self) -> Carrier {
        std::mem::replace(&mut self.carrier, Carrier::Nothing)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.carrier.let_go(None);
    }
}

impl Pump {
    pub(super) fn new(from: End, to: End) -> Self {
        Self::resume(from, to, Work::new())
    }

    /// Go on with what another direction had begun.
    pub(super) fn resume(from: End, to: End, work: Work) -> Self {
        let step = if work.flow.is_finished || work.flow.has_reached_limit {
            Step::Finished
        } else if work.carrier.inside() > 0 {
            Step::Drain
        } else {
            Step::Begin
        };
        Self {
            from,
            to,
            route: RelayRoute::Auto,
            plan: None,
            step,
            spliced_by_others: work.flow.hops_spliced,
            work,
            live: None,
            scratch: None,
            pool: None,
            preallocate: 0,
            watch: Watch::new(),
            emptied: Emptied::No,
            failure: None,
            takes_files: true,
            is_taking: true,
            is_stopping: false,
            sink_failed: false,
            signals: Signals::default(),
            source_was_ready: false,
            disagreements: 0,
        }
    }

    /// Refuse files on a disk, which a copy both ways makes no sense of.
    pub(super) fn without_files(mut self) -> Self {
        self.takes_files = false;
        self
    }

    pub(super) fn set_route(&mut self, route: RelayRoute) {
        self.route = route;
    }

    pub(super) fn preallocate(&mut self, bytes: u64) {
        self.preallocate = bytes;
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.work.limiter = Limiter::new(limits);
    }

    pub(super) fn set_live(&mut self, live: LiveFlow) {
        live.publish(&self.work.flow);
        self.live = Some(live);
    }

    pub(super) fn live(&mut self) -> LiveFlow {
        let live = self.live.get_or_insert_default();
        live.publish(&self.work.flow);
        live.clone()
    }

    pub(super) fn flow(&self) -> Flow {
        self.work.flow
    }

    /// Bytes that have been taken, and given.
    #[inline]
    pub(super) fn moved(&self) -> u64 {
        self.work.flow.total()
    }

    /// Whether what ended this with an error was its sink, so that its source may well have peers that go on.
    pub(super) fn sink_failed(&self) -> bool {
        self.sink_failed
    }

    /// Whether it is its rate that keeps it from moving.
    pub(super) fn is_paced(&self) -> bool {
        matches!(self.step, Step::Pace(_))
    }

    /// Whether there is nothing left to do.
    pub(super) fn has_ended(&self) -> bool {
        self.work.flow.is_finished || self.work.flow.has_reached_limit
    }

    /// Look whether a source that was emptied by the rule has been silent for long: true if it has to be asked once
    /// more, by another poll of this.
    #[inline]
    pub(super) fn is_suspect(&mut self, cx: &mut Context<'_>, driver: &Driver) -> bool {
        let is_guarded = matches!(self.step, Step::Watch) && self.emptied == Emptied::ByRule;
        if !is_guarded || !self.watch.is_guard_due() {
            return false;
        }
        if self.watch.poll_guard(cx, driver, self.work.flow.hops).is_pending() {
            return false;
        }
        self.step = Step::Suspect;
        true
    }

    /// Take no more; what is inside is still delivered.
    pub(super) fn stop_taking(&mut self) {
        self.is_taking = false;
        match &mut self.step {
            Step::Ring(Hop::In | Hop::Through, splice, _) => splice.request_cancel(),
            Step::Copying(Hop::In, read) => read.request_cancel(),
            _ => {}
        }
    }

    /// Whether [`poll`](Self::poll) would do nothing but wait on.
    ///
    /// Of the two directions of a relay mostly one has something to do. The plain version polls both.
    #[inline]
    pub(super) fn is_waiting(&self, cx: &Context<'_>) -> bool {
        matches!(self.step, Step::Watch) && self.is_taking && self.watch.is_quiet(cx)
    }

    /// Move until the source has ended, or an end is not ready.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<io::Result<()>> {
        // One that is told to end may do so while others wait.
        let _is_left = self.watch.poll_left(cx);
        let mut outcome = self.advance(cx, driver);
        if matches!(&outcome, Poll::Ready(Err(_))) {
            self.step = Step::Finished;
        }
        if !self.is_taking
            && matches!(&outcome, Poll::Ready(Err(error)) if is_cancel(error))
            && self.work.carrier.inside() == 0
        {
            // The answer of a step that was told to stop is the stop itself.
            outcome = Poll::Ready(Ok(()));
        }
        if self.watch.is_armed() && outcome.is_pending() && self.step.waits_for_room() {
            // It may be the watch that has the room.
            self.watch.retire();
        }
        if self.watch.is_armed() && outcome.is_ready() {
            self.watch.leave();
            if let (Poll::Ready(result), Poll::Pending) = (&mut outcome, self.watch.poll_left(cx)) {
                self.failure = std::mem::replace(result, Ok(())).err();
                outcome = Poll::Pending;
            }
        }
        self.publish();
        outcome
    }

    /// Stop: take back what is with the kernel, and give the sink what it takes of the rest without waiting.
    pub(super) fn poll_stop(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<()> {
        if !std::mem::replace(&mut self.is_stopping, true) {
            match &mut self.step {
                Step::AwaitSource(poll) | Step::AwaitSink(poll) => poll.request_cancel(),
                Step::Ring(_, splice, _) => splice.request_cancel(),
                Step::Copying(_, copy) => copy.request_cancel(),
                _ => {}
            }
        }
        self.watch.leave();
        // An error of a step that was told to stop is the stop itself.
        let _stopped = match &mut self.step {
            // A poll that is merely dropped would keep the stream from its owner for another turn.
            Step::AwaitSource(poll) | Step::AwaitSink(poll) => ready!(Pin::new(poll).poll(cx)).map(drop),
            Step::Ring(hop, splice, _permit) => {
                let hop = *hop;
                let outcome = ready!(Pin::new(&mut **splice).poll(cx));
                self.step = Step::Drain;
                self.settle(driver, hop, outcome)
            }
            Step::Copying(hop, copy) => {
                let hop = *hop;
                let (outcome, bytes) = ready!(copy.poll(cx));
                self.step = Step::Drain;
                self.copied(driver, hop, outcome, bytes)
            }
            _ => Ok(()),
        };
        self.step = Step::Drain;
        ready!(self.watch.poll_left(cx));
        // The first write may find out that the sink knows no way not to wait.
        while self.plan.is_some_and(|plan| !plan.waits_out)
            && self.work.carrier.inside() > 0
            && matches!(self.drain_now(driver), Ok(true))
        {}
        self.step = Step::Finished;
        if self.work.carrier.inside() == 0 {
            self.let_go();
        }
        self.publish();
        Poll::Ready(())
    }

    pub(super) fn is_taking(&self) -> bool {
        self.is_taking
    }

    /// What is left of it, to be resumed or to be taken apart. Nothing of it may be with the kernel any more.
    pub(super) fn take_rest(&mut self) -> Rest {
        let mut nothing = Work::new();
        nothing.flow = self.work.flow;
        let preallocate = if self.plan.is_none() { self.preallocate } else { 0 };
        Rest::new(std::mem::replace(&mut self.work, nothing), self.route, preallocate, self.live.clone())
    }

    /// Give the pipe or the buffer back.
    #[inline]
    fn let_go(&mut self) {
        if matches!(self.work.carrier, Carrier::Nothing) {
            return;
        }
        self.work.carrier.let_go(self.scratch.as_deref());
    }

    /// The buffer that relays of this driver copy through.
    fn scratch(&mut self, driver: &Driver) -> &Scratch {
        self.scratch.get_or_insert_with(|| driver.local(Scratch::default))
    }

    fn publish(&self) {
        if let Some(live) = &self.live {
            live.publish(&self.work.flow);
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<io::Result<()>> {
        for _ in 0..STEPS_MAX {
            if !self.is_taking && self.would_take() {
                if let Step::AwaitSource(poll) = &mut self.step {
                    // A poll that is merely dropped would keep the stream from its owner for another turn.
                    poll.request_cancel();
                    let _told = ready!(Pin::new(poll).poll(cx));
                }
                self.step = Step::Finished;
            }
            match &mut self.step {
                Step::Finished => {
                    self.watch.leave();
                    ready!(self.watch.poll_left(cx));
                    self.let_go();
                    return Poll::Ready(self.failure.take().map_or(Ok(()), Err));
                }
                Step::Begin => {
                    // A poll first: most streams have nothing yet when a relay begins.
                    if self.work.limiter.is_used_up() {
                        self.step = Step::Fill;
                    } else {
                        self.await_source()?;
                    }
                }
                Step::AwaitSource(poll) => {
                    self.signals = ready!(Pin::new(poll).poll(cx))?;
                    self.source_was_ready = true;
                    self.step = Step::Fill;
                }
                Step::Watch => {
                    let has_come = ready!(self.watch.poll(cx))?;
                    if has_come {
                        self.source_was_ready = true;
                        // Most often this is what it does next as well.
                        self.fill(driver)?;
                    } else {
                        // A poll that has ended is armed again, which asks the source.
                        self.await_source()?;
                    }
                }
                Step::AwaitSink(poll) => {
                    let outcome = ready!(Pin::new(poll).poll(cx));
                    self.sink_failed = outcome.is_err();
                    self.signals = outcome?;
                    self.step = Step::Drain;
                }
                Step::Hold(timer) | Step::Pace(timer) => {
                    ready!(Pin::new(timer).poll(cx));
                    self.step = Step::Fill;
                }
                Step::Fill => self.fill(driver)?,
                Step::Suspect => {
                    self.watch.retire();
                    // What a splice does not see would be behind urgent data.
                    self.source_was_ready = true;
                    let hops = self.work.flow.hops;
                    self.fill(driver)?;
                    if self.work.flow.hops > hops {
                        self.watch.distrust();
                    }
                }
                Step::Drain => self.drain(driver)?,
                Step::Permit(hop, place) => {
                    let hop = *hop;
                    let permit = ready!(Pin::new(place).poll(cx));
                    match self.ring_splice(driver, hop) {
                        Ok(splice) => self.step = Step::Ring(hop, Box::new(Submission::new(splice)), permit),
                        Err(step) => self.step = step,
                    }
                }
                Step::Ring(hop, splice, _permit) => {
                    let hop = *hop;
                    let outcome = ready!(Pin::new(&mut **splice).poll(cx));
                    // The worker's permit goes back here, before anything is waited for.
                    self.step = Step::Fill;
                    self.settle(driver, hop, outcome)?;
                }
                Step::Copying(hop, copy) => {
                    let hop = *hop;
                    let (outcome, bytes) = ready!(copy.poll(cx));
                    self.step = Step::Fill;
                    self.copied(driver, hop, outcome, bytes)?;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the step at hand is one that takes, or waits to take, from the source.
    fn would_take(&self) -> bool {
        match &self.step {
            Step::Begin
            | Step::Fill
            | Step::AwaitSource(_)
            | Step::Watch
            | Step::Suspect
            | Step::Hold(_)
            | Step::Pace(_) => true,
            Step::Permit(hop, _) => *hop != Hop::Out,
            _ => false,
        }
    }

    #[inline]
    fn plan(&mut self) -> io::Result<Plan> {
        match self.plan {
            Some(plan) => Ok(plan),
            None => self.make_plan(),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_plan(&mut self) -> io::Result<Plan> {
        let plan = Plan::new(&self.from, &self.to, self.route)?;
        if !self.takes_files && (plan.from == Kind::Disk || plan.to == Kind::Disk) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a stream of this relay is a file on a disk, which has no two ways; use forward for it",
            ));
        }
        if self.preallocate > 0 && plan.to == Kind::Disk {
            let at = match self.to.offset {
                Some(offset) => offset,
                None => rustix::fs::tell(&self.to.hold)?,
            };
            match rustix::fs::fallocate(&self.to.hold, FallocateFlags::KEEP_SIZE, at, self.preallocate) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.plan = Some(plan);
        Ok(plan)
    }

    /// Something is inside: one step to the sink.
    fn drain(&mut self, driver: &Driver) -> io::Result<()> {
        let plan = self.plan()?;
        if plan.splices.is_err() && self.work.carrier.is_pipe() {
            // It was filled for another sink, before the relay was stopped.
            return self.read_out(driver);
        }
        if plan.ring_out && self.work.carrier.is_pipe() {
            self.step = Step::Permit(Hop::Out, RingPermits::of(driver).place());
            return Ok(());
        }
        self.drain_now(driver).map(drop)
    }

    /// One step to the sink on this thread; false if the sink has to be waited for.
    fn drain_now(&mut self, driver: &Driver) -> io::Result<bool> {
        let plan = self.plan()?;
        match std::mem::replace(&mut self.work.carrier, Carrier::Nothing) {
            Carrier::Buffer { bytes, from, filled } if plan.waits_out => {
                self.work.carrier = Carrier::Away { from, len: bytes.len(), filled };
                self.step = Step::Copying(Hop::Out, Box::new(RingCopy::write(&self.to, bytes, from)));
                Ok(false)
            }
            Carrier::Buffer { bytes, from, filled } => {
                let (outcome, bytes) = give_now(driver, &self.to, plan.to, bytes, from);
                let would_block = is_would_block(&outcome);
                self.work.carrier = Carrier::Buffer { bytes, from, filled };
                self.settle(driver, Hop::Out, outcome)?;
                Ok(!would_block)
            }
            carrier => {
                self.work.carrier = carrier;
                let outcome = self.splice_now(driver, Hop::Out, self.work.carrier.inside());
                let would_block = is_would_block(&outcome);
                self.settle(driver, Hop::Out, outcome)?;
                Ok(!would_block)
            }
        }
    }

    /// A copying step has come to this, and its buffer is back.
    fn copied(&mut self, driver: &Driver, hop: Hop, outcome: io::Result<usize>, bytes: Vec<u8>) -> io::Result<()> {
        self.work.carrier = match (hop, &self.work.carrier) {
            (Hop::Out, Carrier::Away { from, filled, .. }) => Carrier::Buffer { bytes, from: *from, filled: *filled },
            _ => {
                // What is not filled by this hop is not inside, whatever an earlier one has left there.
                let mut bytes = bytes;
                bytes.truncate(*outcome.as_ref().unwrap_or(&0));
                let filled = bytes.len() >= COPY_BYTES;
                Carrier::Buffer { bytes, from: 0, filled }
            }
        };
        self.settle(driver, hop, outcome)
    }

    /// One step has come to this; what is the next?
    fn settle(&mut self, driver: &Driver, hop: Hop, outcome: io::Result<usize>) -> io::Result<()> {
        match (hop, outcome) {
            (Hop::Through, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.blame(driver)?,
            (Hop::Out, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.scratch(driver);
                if let Some(scratch) = &self.scratch {
                    self.work.carrier.compact(scratch);
                }
                self.step = self.await_sink();
            }
            (_, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                if self.source_was_ready && self.may_hide_bytes() {
                    return self.receive_instead(driver);
                }
                // A splice says so at urgent data as well.
                let is_proven = matches!(self.work.carrier, Carrier::Buffer { .. });
                self.emptied = if is_proven { Emptied::Proven } else { Emptied::No };
                self.let_go();
                self.work.choice.pause();
                self.await_source()?;
            }
            (Hop::Out, Ok(0)) => return self.fail(hop, io::Error::from(io::ErrorKind::WriteZero)),
            (_, Ok(0)) if self.may_hide_bytes() => return self.receive_instead(driver),
            (_, Ok(0)) => self.finish()?,
            (Hop::In, Ok(count)) => {
                self.took(driver, count);
                self.step = Step::Drain;
            }
            (Hop::Through, Ok(count)) => {
                self.disagreements = 0;
                self.took(driver, count);
                self.gave(count);
                self.step = Step::Fill;
            }
            (Hop::Out, Ok(count)) => {
                self.gave(count);
                self.work.carrier.gave(count);
                if self.work.carrier.inside() > 0 {
                    self.step = Step::Drain;
                } else {
                    self.after_hop(driver)?;
                }
            }
            (_, Err(error)) if only_waits(&error) && !self.work.carrier.is_pipe() => self.wait_in_ring(hop, error)?,
            (_, Err(error)) if self.cannot_splice(hop, &error) => self.copy_from_now_on(driver)?,
            (hop, Err(error)) => return self.fail(hop, error),
        }
        Ok(())
    }

    /// All that was taken has been given: fill again, or wait for more?
    fn after_hop(&mut self, driver: &Driver) -> io::Result<()> {
        let plan = self.plan()?;
        if self.work.carrier.was_filled() || self.work.limiter.is_used_up() || !plan.can_poll_source() {
            self.step = Step::Fill;
            return Ok(());
        }
        // The source gave less than there was room for: it is most likely empty now, and waiting for it lets the next
        // hop be a fuller one.
        self.let_go();
        if self.work.choice.holds() && self.is_taking {
            self.step = Step::Hold(sleep_until(hold_until(driver.now())));
            return Ok(());
        }
        self.await_source()
    }

    /// The kernel knows no way for this page not to wait: its ring does the waiting.
    fn wait_in_ring(&mut self, hop: Hop, error: io::Error) -> io::Result<()> {
        let plan = self.plan()?;
        let waits = if hop == Hop::Out { plan.waits_out } else { plan.waits_in };
        if waits {
            return self.fail(hop, error);
        }
        self.plan = Some(match hop {
            Hop::Out => Plan { waits_out: true, ..plan },
            _ => Plan { waits_in: true, ..plan },
        });
        self.step = if hop == Hop::Out { Step::Drain } else { Step::Fill };
        Ok(())
    }

    /// An end has no splice. What is inside a pipe by now is read out of it.
    fn copy_from_now_on(&mut self, driver: &Driver) -> io::Result<()> {
        let plan = self.plan()?;
        self.plan = Some(Plan { splices: Err(RouteReason::NoSplice), is_direct: false, ..plan });
        if self.work.carrier.is_pipe() && self.work.carrier.inside() > 0 {
            return self.read_out(driver);
        }
        self.let_go();
        self.step = Step::Fill;
        Ok(())
    }

    /// From the pipe into a buffer, for a sink that nothing can be spliced into.
    fn read_out(&mut self, driver: &Driver) -> io::Result<()> {
        let inside = self.work.carrier.inside();
        if let Carrier::Pipe { pipe, .. } = &self.work.carrier {
            let read = Read::new(pipe.reader().as_ref().hold(), Vec::with_capacity(inside), None);
            let (count, bytes) = match driver.attempt(read) {
                Ok((outcome, bytes)) => (outcome?, bytes),
                Err(_would_block) => (0, Vec::new()),
            };
            assert_eq!(count, inside, "a pipe gives all that is in it at once");
            self.work.carrier.gave(count);
            self.let_go();
            self.work.carrier = Carrier::Buffer { bytes, from: 0, filled: true };
        }
        self.step = Step::Drain;
        Ok(())
    }

    /// The source has ended, and everything before the end has left: tell the sink.
    fn finish(&mut self) -> io::Result<()> {
        self.let_go();
        self.step = Step::Finished;
        match rustix::net::shutdown(&self.to.hold, Shutdown::Write) {
            // A pipe ends when its last handle goes; a connection that has gone needs no end.
            Ok(()) | Err(Errno::NOTSOCK | Errno::NOTCONN) => {}
            Err(error) => return Err(error.into()),
        }
        self.work.flow.is_finished = true;
        Ok(())
    }

    fn fail(&mut self, hop: Hop, error: io::Error) -> io::Result<()> {
        self.sink_failed = hop == Hop::Out;
        self.step = Step::Finished;
        Err(error)
    }

    /// The splice for one part of the way.
    fn splice(&self, hop: Hop, most: usize) -> Splice {
        let (from, to) = match (&self.work.carrier, hop) {
            (Carrier::Pipe { pipe, .. }, Hop::In) => (self.from.clone(), End::from(pipe.writer())),
            (Carrier::Pipe { pipe, .. }, Hop::Out) => (End::from(pipe.reader()), self.to.clone()),
            (_, Hop::Through) => (self.from.clone(), self.to.clone()),
            _ => panic!("a splice through a pipe needs the pipe"),
        };
        Splice::between(from, to, most)
    }

    /// `splice(2)` for one part of the way, as it stands, without waiting.
    ///
    /// The plain version is an attempt of [`Splice`], which is the same call and some 250 instructions more: as with what
    /// is copied, nothing can outlive the call. A played kernel sees the attempt.
    fn splice_now(&self, driver: &Driver, hop: Hop, most: usize) -> io::Result<usize> {
        if driver.is_played() {
            let attempted = driver.attempt(self.splice(hop, most));
            return attempted.unwrap_or_else(|_would_block| Err(io::Error::from(io::ErrorKind::WouldBlock)));
        }
        let (from, to) = (self.from.hold.as_fd(), self.to.hold.as_fd());
        let (mut from_offset, mut to_offset) = (self.from.offset, self.to.offset);
        let (from, mut from_offset, to, mut to_offset) = match (&self.work.carrier, hop) {
            (Carrier::Pipe { pipe, .. }, Hop::In) => (from, from_offset.as_mut(), pipe.writer().as_fd(), None),
            (Carrier::Pipe { pipe, .. }, Hop::Out) => (pipe.reader().as_fd(), None, to, to_offset.as_mut()),
            (_, Hop::Through) => (from, from_offset.as_mut(), to, to_offset.as_mut()),
            _ => panic!("a splice through a pipe needs the pipe"),
        };
        driver.metrics().attempts.add(1);
        Ok(retry_on_intr(|| {
            let (from_offset, to_offset) = (from_offset.as_deref_mut(), to_offset.as_deref_mut());
            rustix::pipe::splice(from, from_offset, to, to_offset, most, SpliceFlags::NONBLOCK)
        })?)
    }

    /// So many bytes have left the source, for what the carrier is.
    fn took(&mut self, driver: &Driver, count: usize) {
        let (room, is_spliced) = match &mut self.work.carrier {
            Carrier::Pipe { pipe, inside, filled } => {
                *inside += count;
                *filled = count >= pipe.size();
                (pipe.size(), true)
            }
            Carrier::Nothing | Carrier::Away { .. } => (usize::MAX, true),
            Carrier::Buffer { .. } => (COPY_BYTES, false),
        };
        self.work.flow.hops_spliced += u64::from(is_spliced);
        self.count_in(driver, count, room);
    }

    fn count_in(&mut self, driver: &Driver, count: usize, room: usize) {
        self.source_was_ready = false;
        let work = &mut self.work;
        work.flow.bytes_in += count as u64;
        work.flow.hops += 1;
        work.limiter.took(count as u64);
        self.from.offset = self.from.offset.map(|offset| offset + count as u64);
        work.choice.learn(count, room, || driver.now());
    }

    fn gave(&mut self, count: usize) {
        self.work.flow.bytes_out += count as u64;
        self.to.offset = self.to.offset.map(|offset| offset + count as u64);
    }

    /// Whether this is the kernel saying that an end has no splice, before anything has moved that way.
    ///
    /// Later the same errno means something else: a TLS socket whose next record is no data.
    fn cannot_splice(&self, hop: Hop, error: &io::Error) -> bool {
        let Some(plan) = self.plan else { return false };
        // Every socket has a splice. Of other ends it is known only since they are those of this direction.
        let spliced =
            |kind| self.work.flow.hops_spliced - if kind == Kind::Socket { 0 } else { self.spliced_by_others };
        let spliced_before = match hop {
            Hop::In | Hop::Through => spliced(plan.from) > 0,
            Hop::Out => spliced(plan.to) > 1 || !self.work.carrier.is_pipe(),
        };
        self.route == RelayRoute::Auto
            && !spliced_before
            && plan.splices.is_ok()
            && error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
    }

    /// Wait for the source, in the way that is next for it.
    fn await_source(&mut self) -> io::Result<()> {
        let plan = self.plan()?;
        if plan.from == Kind::Socket && self.emptied != Emptied::No && !self.work.choice.is_bulk() {
            if self.watch.is_next(&self.from.hold) {
                // Setting a step looks what the one before has to let go of.
                if !matches!(self.step, Step::Watch) {
                    self.step = Step::Watch;
                }
                return Ok(());
            }
            if self.watch.has_ended() && self.emptied == Emptied::ByRule {
                self.step = Step::Fill;
                return Ok(());
            }
        } else if self.watch.is_armed() {
            self.watch.retire();
        }
        self.step = if plan.can_poll_source() {
            Step::AwaitSource(self.signals.wait(&self.from.hold, PollFlags::IN))
        } else {
            Step::Fill
        };
        Ok(())
    }

    fn await_sink(&self) -> Step {
        Step::AwaitSink(self.signals.wait(&self.to.hold, PollFlags::OUT))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        if matches!(self.step, Step::Ring(..)) {
            // A ring splice that is still with the kernel keeps both pipe ends through its holds. Its pipe is not given
            // back: what it will hold is not known.
            self.work.carrier = Carrier::Nothing;
        }
    }
}

fn is_would_block(outcome: &io::Result<usize>) -> bool {
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn is_cancel(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CANCELED.raw_os_error())
}
