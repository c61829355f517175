//! Random scripts, played on a driver whose kernel is scripted and on a naive model beside it.
//!
//! A script is a string of bytes, three to a step, so that a property test and a fuzzer drive the same interpreter.
//! The model keeps a list of operations with a phase each, and queues as plain lists. From the driver it takes only
//! two numbers after a turn: how many entries were pushed and how many completions were taken, since how far a turn
//! gets depends on failures that the script injects. Which ones they were, and what follows, it says by itself.
//!
//! What it claims after every step: nothing completes early, twice or otherwise than the kernel said; every buffer is
//! in one place, and comes back once; whoever has to be woken was; and the driver's and the registry's counts are
//! the model's.

mod operation;

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringmain::{Config, Driver, Entered, Entry, FixedBuf, Registry, Script, Submission, Wait};
use rustix::io::Errno;

use operation::{Drops, Kind, Played, errno};

const OPERATIONS_MAX: usize = 6;
const PAGES: usize = 5;
/// Futures that exist at once; further starts are skipped.
const FUTURES_MAX: usize = 24;

// `include/uapi/linux/io_uring.h`.
const POLL_ADD: u8 = 6;
const ASYNC_CANCEL: u8 = 14;
const CQE_MORE: u32 = 1 << 1;
const CQE_NOTIFICATION: u32 = 1 << 3;

/// Play a script to its end, and then the end of the driver.
///
/// # Panics
/// If driver and model differ.
pub(crate) fn play(script: &[u8]) {
    let (ending, steps) = script.split_first().unwrap_or((&0, &[]));
    let mut play = Play::new();
    for step in steps.chunks_exact(3) {
        play.step(step[0], step[1].into(), step[2]);
        play.check();
    }
    play.end(ending % 2 == 0);
}

/// Where an operation is, by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fresh,
    Admitting,
    Granted,
    Queued(Stage),
    /// Pushed: the kernel may touch its memory, unless it is a poll.
    Pushed(Stage),
    /// A result is out, and the notification to come.
    Answered(i32),
    Done(i32),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Operation,
    Readiness,
}

struct Flight {
    kind: Kind,
    phase: Phase,
    future: Option<Submission<Played>>,
    cancelled: bool,
    user_data: Option<u64>,
    woken: Arc<Woken>,
    /// Must have been woken since it was last polled.
    owed_a_wake: bool,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the played kernel has posted, and whose it is.
#[derive(Clone, Copy, Debug)]
enum Posted {
    To { id: usize, result: i32, more: bool },
    Nobody,
    Stale,
}

struct Play {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    registry: Registry,
    flights: Vec<Flight>,
    drops: Drops,
    backlog: VecDeque<(usize, Stage)>,
    /// Pushed, and not seen by the played kernel.
    staged: VecDeque<(usize, Stage)>,
    posted: VecDeque<Posted>,
    waiting: VecDeque<usize>,
    leases: Vec<FixedBuf>,
    orders_seen: u64,
    pushes: u64,
    taken: u64,
    stale: u64,
    failures: usize,
    closed: bool,
    /// What the events of a poll would be, were they read as a descriptor.
    bystander: std::io::PipeWriter,
    bystanders_peer: std::io::PipeReader,
    null: Rc<OwnedFd>,
}

impl Play {
    fn new() -> Self {
        let config = Config::default()
            .entries(4)
            .completions(8)
            .operations(OPERATIONS_MAX as u32)
            .ring_splices(1)
            .pages(PAGES as u32);
        let (driver, script) = Driver::scripted(&config).expect("a scripted driver needs no kernel");
        let (bystanders_peer, bystander) = std::io::pipe().expect("there are descriptors");
        rustix::io::ioctl_fionbio(&bystanders_peer, true).expect("a pipe can be made non-blocking");
        Self {
            registry: driver.registry().clone(),
            _entered: driver.enter(),
            driver,
            script,
            flights: Vec::new(),
            drops: Drops::default(),
            backlog: VecDeque::new(),
            staged: VecDeque::new(),
            posted: VecDeque::new(),
            waiting: VecDeque::new(),
            leases: Vec::new(),
            orders_seen: 0,
            pushes: 0,
            taken: 0,
            stale: 0,
            failures: 0,
            closed: false,
            bystander,
            bystanders_peer,
            null: Rc::new(std::fs::File::open("/dev/null").expect("there is a null device").into()),
        }
    }

    fn step(&mut self, code: u8, pick: usize, detail: u8) {
        match code % 16 {
            0 | 1 => {
                if let Some(id) = self.create(pick) {
                    self.poll(id);
                }
            }
            2 => {
                self.create(pick);
            }
            3 | 4 => self.with_future(pick, Self::poll),
            5 => self.with_future(pick, Self::drop_future),
            6 => self.with_future(pick, Self::cancel),
            7..=9 => self.answer(pick, detail),
            10 | 11 => self.turn(),
            12 => self.fail_enter(pick),
            13 => self.script.take_only(pick % 3),
            14 => match detail % 3 {
                0 => self.leases.extend(self.registry.try_lease(1 + pick)),
                1 => drop(self.leases.pop()),
                _ => self.post_stale(pick),
            },
            _ if pick.is_multiple_of(32) => self.shutdown(),
            _ => self.turn(),
        }
    }

    fn create(&mut self, pick: usize) -> Option<usize> {
        if self.flights.iter().filter(|flight| flight.future.is_some()).count() == FUTURES_MAX {
            return None;
        }
        let kind = Kind::ALL[pick % Kind::ALL.len()];
        let lease = if kind.is_fixed() {
            let free = self.registry.snapshot().pages_free;
            let lease = self.registry.try_lease(operation::BYTES);
            assert_eq!(lease.is_some(), free > 0, "a lease of one page is had exactly when a page is free");
            Some(lease?)
        } else {
            None
        };
        let id = self.flights.len();
        let played = Played::new(kind, Rc::clone(&self.null), lease, self.drops.token(id));
        self.flights.push(Flight {
            kind,
            phase: Phase::Fresh,
            future: Some(Submission::new(played)),
            cancelled: false,
            user_data: None,
            woken: Arc::default(),
            owed_a_wake: false,
        });
        Some(id)
    }

    /// Do this with one of the futures that exist.
    fn with_future(&mut self, pick: usize, action: impl FnOnce(&mut Self, usize)) {
        let ids: Vec<usize> = (0..self.flights.len()).filter(|id| self.flights[*id].future.is_some()).collect();
        if !ids.is_empty() {
            action(self, ids[pick % ids.len()]);
        }
    }

    fn poll(&mut self, id: usize) {
        let expected = self.expect_poll(id);
        let flight = &mut self.flights[id];
        flight.woken.0.store(false, Ordering::Relaxed);
        flight.owed_a_wake = false;
        let waker = Waker::from(Arc::clone(&flight.woken));
        let future = flight.future.as_mut().expect("only futures that exist are polled");
        match (Pin::new(future).poll(&mut Context::from_waker(&waker)), expected) {
            (Poll::Pending, None) => {}
            (Poll::Ready(output), Some(result)) => {
                output.check(flight.kind, result);
                flight.future = None;
                flight.phase = Phase::Gone;
                drop(output);
                self.grant();
            }
            (Poll::Pending, Some(result)) => panic!("operation {id} should be done with {result}, and is not"),
            (Poll::Ready(output), None) => panic!("operation {id} is done too early: {output:?}"),
        }
    }

    /// What a poll makes of an operation, and the result if it is ready.
    fn expect_poll(&mut self, id: usize) -> Option<i32> {
        let Flight { phase, cancelled, .. } = self.flights[id];
        match phase {
            Phase::Fresh | Phase::Admitting | Phase::Granted if cancelled || self.closed => {
                self.waiting.retain(|waiting| *waiting != id);
                Some(-Errno::CANCELED.raw_os_error())
            }
            Phase::Fresh if !self.waiting.is_empty() || self.taken_places() >= OPERATIONS_MAX => {
                self.flights[id].phase = Phase::Admitting;
                self.waiting.push_back(id);
                None
            }
            Phase::Fresh | Phase::Granted => {
                self.flights[id].phase = Phase::Queued(Stage::Operation);
                self.backlog.push_back((id, Stage::Operation));
                None
            }
            Phase::Done(result) => Some(result),
            Phase::Admitting | Phase::Queued(_) | Phase::Pushed(_) | Phase::Answered(_) => None,
            Phase::Gone => panic!("operation {id} is gone and has a future"),
        }
    }

    fn drop_future(&mut self, id: usize) {
        self.flights[id].future = None;
        match self.flights[id].phase {
            Phase::Pushed(_) | Phase::Answered(_) => {}
            _ => {
                self.backlog.retain(|(queued, _)| *queued != id);
                self.waiting.retain(|waiting| *waiting != id);
                self.flights[id].phase = Phase::Gone;
            }
        }
        self.grant();
    }

    fn cancel(&mut self, id: usize) {
        self.flights[id].future.as_mut().expect("only futures that exist are cancelled").request_cancel();
        self.flights[id].cancelled = true;
        if let Phase::Queued(_) = self.flights[id].phase {
            self.backlog.retain(|(queued, _)| *queued != id);
            self.finish(id, -Errno::CANCELED.raw_os_error());
        }
        self.grant();
    }

    /// Let the played kernel answer one of the entries that it has.
    fn answer(&mut self, pick: usize, detail: u8) {
        let pending = self.script.pending();
        if pending.is_empty() {
            return;
        }
        let entry = pending[pick % pending.len()].entry;
        if entry.opcode == ASYNC_CANCEL {
            self.script.complete(entry.user_data, [0, -errno(Errno::NOENT), -errno(Errno::ALREADY)][pick % 3]);
            self.posted.push_back(Posted::Nobody);
            return;
        }
        let id = self.owner(&entry);
        // What was posted and not yet taken is part of what the kernel has said already.
        let answered = matches!(self.flights[id].phase, Phase::Answered(_))
            || self.posted.iter().any(|posted| matches!(posted, Posted::To { id: to, .. } if *to == id));
        let bad = |errno: Errno| (-errno.raw_os_error(), 0);
        let (result, flags) = match detail % 8 {
            _ if answered => (i32::MIN, CQE_NOTIFICATION),
            _ if entry.opcode == POLL_ADD && detail % 8 < 6 => (self.bystander.as_raw_fd(), 0),
            3 => bad(Errno::IO),
            4 => bad(Errno::AGAIN),
            5 => bad(Errno::INTR),
            6 => bad(Errno::CANCELED),
            2 => (self.flights[id].kind.most().min(i32::from(detail / 8)), 0),
            _ => (self.flights[id].kind.most(), 0),
        };
        let first_of_two = !answered && self.flights[id].kind == Kind::SendZc && entry.opcode != POLL_ADD;
        let more = first_of_two && detail < 192;
        let flags = if more { CQE_MORE } else { flags };
        if self.flights[id].kind == Kind::Accept && entry.opcode != POLL_ADD && result >= 0 {
            let made = self.null.try_clone().expect("there are descriptors");
            let result = made.as_raw_fd();
            self.script.complete_with_descriptor(entry.user_data, made, flags);
            self.posted.push_back(Posted::To { id, result, more });
            return;
        }
        self.script.complete_with(entry.user_data, result, flags);
        self.posted.push_back(Posted::To { id, result, more });
    }

    /// A completion once more, for an operation that has had its last one.
    fn post_stale(&mut self, pick: usize) {
        let over = |flight: &&Flight| matches!(flight.phase, Phase::Done(_) | Phase::Gone);
        let ended: Vec<u64> = self.flights.iter().filter(over).filter_map(|flight| flight.user_data).collect();
        if !ended.is_empty() && !self.closed {
            self.script.complete(ended[pick % ended.len()], 1);
            self.posted.push_back(Posted::Stale);
        }
    }

    /// Two at most, so that a turn, which enters up to sixteen times, always gets through.
    fn fail_enter(&mut self, pick: usize) {
        if self.failures < 2 {
            self.failures += 1;
            self.script.fail_enter(errno([Errno::INTR, Errno::AGAIN, Errno::BUSY, Errno::NOMEM][pick % 4]));
        }
    }

    fn turn(&mut self) {
        let enters = self.driver.metrics().enters.get();
        self.driver.turn(Wait::No).expect("no failure of the script's is fatal");
        let entered = usize::try_from(self.driver.metrics().enters.get() - enters).expect("a turn enters rarely");
        self.failures = self.failures.saturating_sub(entered);
        self.settle_taken();
        let pushes = self.driver.metrics().submissions.get();
        for _ in self.pushes..pushes {
            let (id, stage) = self.backlog.pop_front().expect("only what is queued is pushed");
            self.flights[id].phase = Phase::Pushed(stage);
            self.staged.push_back((id, stage));
        }
        self.pushes = pushes;
        self.see_entries();
        self.grant();
    }

    /// Settle as many completions as the driver has taken, in the order in which they were posted.
    fn settle_taken(&mut self) {
        let taken = self.driver.metrics().completions.get();
        for _ in self.taken..taken {
            match self.posted.pop_front().expect("only what was posted is taken") {
                Posted::Nobody => {}
                Posted::Stale => self.stale += 1,
                Posted::To { id, result, more } => self.settle(id, result, more),
            }
        }
        self.taken = taken;
        assert_eq!(self.driver.metrics().stale.get(), self.stale, "stale completions are counted, and no others");
    }

    fn settle(&mut self, id: usize, result: i32, more: bool) {
        let flight = &mut self.flights[id];
        match flight.phase {
            Phase::Pushed(Stage::Operation) if more => flight.phase = Phase::Answered(result),
            _ if flight.future.is_none() => flight.phase = Phase::Gone,
            Phase::Pushed(Stage::Readiness) if result < 0 => self.finish(id, result),
            Phase::Pushed(Stage::Readiness) if flight.cancelled => self.finish(id, -errno(Errno::CANCELED)),
            Phase::Pushed(Stage::Readiness) => self.requeue(id, Stage::Operation),
            Phase::Pushed(Stage::Operation) => self.conclude(id, result),
            Phase::Answered(result) => self.conclude(id, result),
            phase => panic!("operation {id} was answered while {phase:?}"),
        }
    }

    fn conclude(&mut self, id: usize, result: i32) {
        let Flight { kind, cancelled, .. } = self.flights[id];
        let would_wait = kind.is_retried() && result == -errno(Errno::AGAIN);
        let interrupted = result == -errno(Errno::INTR);
        match (would_wait, interrupted, cancelled) {
            (true, _, true) | (_, true, true) => self.finish(id, -errno(Errno::CANCELED)),
            (true, _, false) => self.requeue(id, Stage::Readiness),
            (_, true, false) if kind.is_retried() => self.requeue(id, Stage::Operation),
            _ => self.finish(id, result),
        }
    }

    fn requeue(&mut self, id: usize, stage: Stage) {
        self.flights[id].phase = Phase::Queued(stage);
        self.backlog.push_back((id, stage));
    }

    fn finish(&mut self, id: usize, result: i32) {
        self.flights[id].phase = Phase::Done(result);
        self.flights[id].owed_a_wake = true;
    }

    /// Learn which entries the played kernel was given: in the order in which they were pushed.
    fn see_entries(&mut self) {
        let pending = self.script.pending();
        for new in pending.iter().filter(|pending| pending.order >= self.orders_seen) {
            if new.entry.opcode == ASYNC_CANCEL {
                self.check_cancel(&new.entry, pending.iter().map(|pending| pending.entry));
                continue;
            }
            let (id, stage) = self.staged.pop_front().expect("the kernel gets only what was pushed");
            let flight = &mut self.flights[id];
            let opcode = if stage == Stage::Readiness { POLL_ADD } else { flight.kind.opcode() };
            assert_eq!(new.entry.opcode, opcode, "operation {id} reaches the kernel in its turn");
            assert!(flight.user_data.is_none_or(|known| known == new.entry.user_data), "a retry keeps its name");
            flight.user_data = Some(new.entry.user_data);
        }
        self.orders_seen = pending.iter().map(|pending| pending.order + 1).max().unwrap_or(0).max(self.orders_seen);
    }

    fn check_cancel(&self, cancel: &Entry, pending: impl Iterator<Item = Entry>) {
        let target = self.flights.iter().find(|flight| flight.user_data == Some(cancel.addr));
        // One that is not known yet is staged behind the cancel that names it.
        assert!(
            target.is_none_or(|flight| flight.cancelled || flight.future.is_none()),
            "only what was cancelled or dropped is cancelled in the kernel"
        );
        let cancels = pending.filter(|entry| entry.opcode == ASYNC_CANCEL && entry.addr == cancel.addr).count();
        assert_eq!(cancels, 1, "one cancel is enough");
    }

    fn owner(&self, entry: &Entry) -> usize {
        let is_its = |flight: &Flight| flight.user_data == Some(entry.user_data);
        self.flights.iter().position(is_its).expect("the kernel has only entries of operations")
    }

    /// Shut down, with a kernel that ends what is cancelled.
    fn shutdown(&mut self) {
        self.script.play(|kernel| {
            for pending in kernel.pending() {
                let result = if pending.entry.opcode == ASYNC_CANCEL { 0 } else { -errno(Errno::CANCELED) };
                kernel.complete(pending.entry.user_data, result);
            }
        });
        self.driver.shutdown();
        self.closed = true;
        self.driver.turn(Wait::No).expect("a turn after the end does nothing");
        self.script.play(|_| {});
        self.failures = 0;
        self.backlog.clear();
        self.staged.clear();
        for waiting in std::mem::take(&mut self.waiting) {
            self.flights[waiting].owed_a_wake = true;
        }
        for id in 0..self.flights.len() {
            self.flights[id].cancelled |= !matches!(self.flights[id].phase, Phase::Fresh | Phase::Admitting);
            if let Phase::Queued(_) = self.flights[id].phase {
                self.finish(id, -errno(Errno::CANCELED));
            }
        }
        let mut stale = 0;
        for posted in std::mem::take(&mut self.posted) {
            match posted {
                Posted::Nobody => {}
                Posted::Stale => stale += 1,
                Posted::To { id, result, more } => self.settle(id, result, more),
            }
        }
        // With nothing in flight it did not look at what had been posted for nobody.
        let counted = self.driver.metrics().stale.get();
        assert!((self.stale..=self.stale + stale).contains(&counted), "no other completion was taken for stale");
        self.stale = counted;
        for id in 0..self.flights.len() {
            if let Phase::Pushed(_) | Phase::Answered(_) = self.flights[id].phase {
                self.settle(id, -errno(Errno::CANCELED), false);
            }
        }
        self.taken = self.driver.metrics().completions.get();
        self.pushes = self.driver.metrics().submissions.get();
        self.orders_seen = u64::MAX;
    }

    /// Places in the bound on operations that are taken, or promised.
    fn taken_places(&self) -> usize {
        self.count(|flight| {
            matches!(flight.phase, Phase::Queued(_) | Phase::Pushed(_) | Phase::Answered(_) | Phase::Granted)
        })
    }

    fn grant(&mut self) {
        while self.taken_places() < OPERATIONS_MAX
            && let Some(id) = self.waiting.pop_front()
        {
            self.flights[id].phase = Phase::Granted;
            self.flights[id].owed_a_wake = true;
        }
    }

    fn count(&self, predicate: impl Fn(&Flight) -> bool) -> usize {
        self.flights.iter().filter(|flight| predicate(flight)).count()
    }

    fn check(&mut self) {
        let granted = self.count(|flight| flight.phase == Phase::Granted);
        let active = self.taken_places() - granted;
        let done = self.count(|flight| matches!(flight.phase, Phase::Done(_)));
        assert_eq!(self.driver.operations_active(), active, "operations that are queued or with the kernel");
        assert_eq!(self.driver.slots_used(), active + done, "slots in use");
        for (id, flight) in self.flights.iter().enumerate() {
            let gone = usize::from(flight.phase == Phase::Gone);
            assert_eq!(self.drops.of(id), gone, "operation {id}, {:?}, is in one place, and ends once", flight.phase);
            if flight.owed_a_wake {
                assert!(flight.woken.0.load(Ordering::Relaxed), "operation {id}, {:?}, was not woken", flight.phase);
            }
        }
        let counts = self.registry.snapshot();
        let in_flight = self.count(|flight| {
            flight.kind.is_fixed() && matches!(flight.phase, Phase::Pushed(Stage::Operation) | Phase::Answered(_))
        });
        let owned = self.count(|flight| flight.kind.is_fixed() && flight.phase != Phase::Gone);
        assert_eq!(counts.pages_in_flight, in_flight, "pages that the kernel has");
        assert_eq!(counts.pages_leased, owned - in_flight + self.leases.len(), "pages that the program has");
        assert_eq!(counts.pages_free, PAGES - owned - self.leases.len(), "pages that nobody has");
        let peer = self.bystanders_peer.read(&mut [0]);
        assert!(peer.is_err(), "a descriptor was closed by somebody who did not own it");
    }

    /// Bring everything home, by completing it or by shutting down, and see that nothing is left.
    fn end(mut self, drains: bool) {
        if drains && !self.closed {
            self.drain();
        } else if !self.closed {
            self.shutdown();
        }
        self.check();
        for id in 0..self.flights.len() {
            if self.flights[id].future.is_some() {
                self.poll(id);
                assert_eq!(self.flights[id].phase, Phase::Gone, "operation {id} is over");
            }
        }
        self.leases.clear();
        self.check();
        assert_eq!((self.driver.operations_active(), self.driver.slots_used()), (0, 0), "nothing is left");
        assert_eq!(self.registry.snapshot().pages_free, PAGES, "every page is back");
    }

    fn drain(&mut self) {
        // Each operation may be retried, or have to wait for a place, a few times.
        for _ in 0..16 + 8 * self.flights.len() {
            for id in 0..self.flights.len() {
                if self.flights[id].future.is_some() {
                    self.poll(id);
                }
            }
            self.check();
            self.turn();
            self.check();
            for at in (0..self.script.pending().len()).rev() {
                self.answer(at, 255);
            }
            if self.count(|flight| flight.phase != Phase::Gone) == 0 && self.posted.is_empty() {
                return;
            }
        }
        panic!("what the kernel answers has to end");
    }
}
