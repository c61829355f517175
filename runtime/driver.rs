//! One turn: flush, enter, reap, settle.
//!
//! The driver owns the ring and the slots and is the only one to enter the kernel. A turn stages what is queued
//! (cancels first, they free what others wait for), makes one system call that submits it and sleeps only if nothing
//! is ready, takes every completion, settles each in its slot, and *then*, with nothing borrowed any more, wakes the
//! wakers and drops what has to go: wakers, operations and descriptors are foreign code (or may block), and foreign
//! code may come back here.
//!
//! What the kernel says to an enter is handled here and nowhere else:
//!
//! | errno            | meaning                                  | what happens                                          |
//! |------------------|------------------------------------------|-------------------------------------------------------|
//! | EINTR            | a signal came                            | the turn ends early, the next one goes on             |
//! | EBUSY            | completions wait in the overflow list    | reap, then enter again                                |
//! | EAGAIN, ENOMEM   | no memory for a request now              | what was not taken stays staged; a millisecond's pause|
//! | EBADR            | a completion was lost                    | fatal: something would wait for ever                  |
//! | any other        | the ring is not usable from here         | fatal                                                 |
//!
//! The driver needs no executor: [`turn`](Driver::turn), [`event_fd`](Driver::event_fd) and
//! [`next_deadline`](Driver::next_deadline) are what a guest of another event loop needs.

mod after;
mod attempt;
#[cfg(test)]
mod tests;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;

use super::abi;
use super::block_on::Park;
use super::body::{Body, Lent};
use super::buf::Ticket;
use super::completion::Answer;
use super::config::Config;
use super::entry::Entry;
use super::error::{BuildError, Demand};
use super::inflight::{Key, Next, Orphaned, Polled, Settled, Slot, Slots};
use super::metrics::Metrics;
use super::opcode::Opcode;
use super::operation::Operation;
use super::registry::Registry;
use super::ring::setup::Setup;
use super::ring::{KernelRing, Ring, Script, ScriptedRing, Wait};
use super::sqe::Frame;
use super::time::Timers;
use super::unpark::{ReadWakes, Unpark};
use super::waking::{Wakers, Waking};
use after::After;

/// How often one turn enters again for what the kernel could not post at once. The rest comes with the next turn, so
/// that an endless stream of completions cannot keep tasks from running.
const ROUNDS_MAX: usize = 16;

/// How long a turn pauses when the kernel has no memory for a request.
const STARVED_PAUSE: Duration = Duration::from_millis(1);

/// How long shutdown waits for completions before it sends its cancels once more: an operation that a worker thread
/// had not begun when the first one came is found by a later one.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

/// The unit of the registry, in bytes.
const PAGE_BYTES: u64 = 4096;

/// How long a cancel that did not find its operation waits before it is sent once more.
const CANCEL_MISSED_PAUSE: Duration = Duration::from_millis(1);

static NEXT_RING: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The drivers of this thread: a descriptor whose last handle goes asks each to cancel what is pending on it.
    static DRIVERS: RefCell<Vec<Weak<Driver>>> = const { RefCell::new(Vec::new()) };
    /// The driver that futures polled now belong to.
    static CURRENT: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// A ring, the operations it carries, and the clock: everything of a runtime but its tasks.
pub struct Driver {
    core: RefCell<Core>,
    id: u32,
    setup: Setup,
    config: Config,
    registry: Registry,
    unpark: Arc<Unpark>,
    timers: Rc<Timers>,
    frame: RefCell<Frame>,
    locals: RefCell<HashMap<TypeId, Rc<dyn Any>>>,
    metrics: Metrics,
    guest: Guest,
    /// A played kernel is entered by its test alone, and nobody else wakes it.
    has_unpark: bool,
}

/// What stands between a guest of another loop and this driver.
#[derive(Debug, Default)]
struct Guest {
    eventfd: RefCell<Option<Rc<OwnedFd>>>,
    /// A push made outside a turn has signalled the eventfd already.
    flush_armed: Cell<bool>,
    turning: Cell<bool>,
}

struct Core {
    ring: Ring,
    slots: Slots,
    cancels: VecDeque<Key>,
    /// Cancels that missed, to be sent once more after a turn that waits no longer than [`CANCEL_MISSED_PAUSE`].
    missed: Vec<Key>,
    backlog: VecDeque<Key>,
    /// In the order of their places, so that one of many is found by halving.
    waiters: VecDeque<Waiter>,
    granted: BTreeSet<u64>,
    next_waiter: u64,
    wakers: Wakers,
    operations_max: usize,
    /// The read of the eventfd of `unpark`, once it was made. It takes no place from the program's operations.
    armed: Option<Key>,
    after: After,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    place: u64,
    waking: Rc<Waking>,
}

/// The answer to an operation that wants a slot.
#[derive(Debug)]
pub(crate) enum Admission {
    Granted(Key, Ticket, Rc<Body>),
    /// As many operations as the configuration allows are in flight; this is the place in the queue. With a waker that
    /// is not needed any more: dropping it is foreign code, and the caller has to know first where its operation is.
    Wait(u64, Option<Waker>),
    /// The runtime has shut down. With a waker as above.
    Closed(Option<Waker>),
}

/// While it lives, futures polled on this thread belong to this driver.
#[derive(Debug)]
#[must_use = "the driver is current only while the guard lives"]
pub struct Entered {
    previous: Option<Rc<Driver>>,
}

impl Driver {
    /// Build a ring and all that belongs to it, bound to this thread.
    ///
    /// # Errors
    /// [`BuildError`] says which of kernel, seccomp, sysctl, resource limit or configuration forbids it, and what
    /// to do about it.
    pub fn new(config: &Config) -> Result<Rc<Self>, BuildError> {
        let (ring, setup) = KernelRing::build(config)?;
        Self::assemble(Ring::Kernel(Box::new(ring)), setup, config)
    }

    /// Build a driver on a ring that a test plays.
    ///
    /// # Errors
    /// [`BuildError`] if the configuration is invalid, or out of memory or descriptors.
    pub fn scripted(config: &Config) -> Result<(Rc<Self>, Script), BuildError> {
        config.validate()?;
        let (ring, script) = ScriptedRing::new(config.entries as usize, config.completions as usize);
        let driver = Self::assemble(Ring::Scripted(ring), Setup::scripted(config), config)?;
        Ok((driver, script))
    }

    fn assemble(mut ring: Ring, setup: Setup, config: &Config) -> Result<Rc<Self>, BuildError> {
        // Two rings of one number would believe each other's completions (I3).
        let id = NEXT_RING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1))
            .expect("a process builds fewer than 4 billion rings");
        let bytes = u64::from(config.pages) * PAGE_BYTES;
        let registry = Registry::new(config.pages as usize).map_err(|error| {
            BuildError::refused(Demand { doing: format!("map the registry's {} pages", config.pages), bytes }, error)
        })?;
        if config.register_pages {
            match ring.register(&registry) {
                Ok(()) => registry.set_registered(id),
                Err(error) => registry.set_refused(&error),
            }
        }
        let timers = Rc::new(Timers::new(ring.clock()));
        let has_unpark = matches!(ring, Ring::Kernel(_));
        let unpark = Arc::new(Unpark::new().map_err(|error| {
            BuildError::refused(Demand { doing: "make the eventfd that other threads wake by".into(), bytes: 0 }, error)
        })?);
        let driver = Rc::new(Self {
            core: RefCell::new(Core {
                ring,
                slots: Slots::new(id, registry.clone()),
                cancels: VecDeque::new(),
                missed: Vec::new(),
                backlog: VecDeque::new(),
                waiters: VecDeque::new(),
                granted: BTreeSet::new(),
                next_waiter: 0,
                wakers: Wakers::default(),
                operations_max: config.operations as usize,
                armed: None,
                after: After::default(),
                closed: false,
            }),
            id,
            setup,
            config: config.clone(),
            unpark,
            timers,
            frame: RefCell::new(Frame::new(id, registry.clone())),
            registry,
            locals: RefCell::new(HashMap::new()),
            metrics: Metrics::default(),
            guest: Guest::default(),
            has_unpark,
        });
        let listed = DRIVERS.try_with(|drivers| {
            let mut drivers = drivers.borrow_mut();
            drivers.retain(|driver| driver.strong_count() > 0);
            drivers.push(Rc::downgrade(&driver));
        });
        if listed.is_err() {
            tracing::debug!("built while its thread ends: handles that are dropped from here on cancel nothing");
        }
        Ok(driver)
    }

    /// The driver that futures polled on this thread belong to now.
    ///
    /// # Panics
    /// If no runtime is running on this thread.
    #[inline]
    pub fn current() -> Rc<Self> {
        Self::try_current().expect(
            "no ringmain runtime is running on this thread: await this inside Runtime::block_on or a spawned task",
        )
    }

    /// The driver that futures polled on this thread belong to now, if there is one.
    #[inline]
    pub fn try_current() -> Option<Rc<Self>> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Whether futures polled on this thread belong to another driver now.
    #[inline]
    pub(crate) fn is_other_current(driver: &Rc<Self>) -> bool {
        let other = |current: &RefCell<Option<Rc<Self>>>| {
            current.borrow().as_ref().is_some_and(|current| !Rc::ptr_eq(current, driver))
        };
        CURRENT.try_with(other).unwrap_or(false)
    }

    /// Make this the driver that futures polled on this thread belong to, while the guard lives.
    ///
    /// At the end of a thread, when its locals are gone, there is nothing to be current in: then this does nothing. A
    /// runtime that is kept in a thread-local is dropped that late.
    pub fn enter(self: &Rc<Self>) -> Entered {
        let previous = CURRENT.try_with(|current| current.borrow_mut().replace(Rc::clone(self)));
        Entered { previous: previous.ok().flatten() }
    }

    /// `turn(wait)`: flush, one enter, reap everything, settle, then wake.
    ///
    /// Returns when at least one completion was settled, or when `wait` is over, or earlier: a signal or a wake from
    /// another thread ends a turn too. Does not fire timers; see [`fire_timers`](Self::fire_timers).
    ///
    /// # Errors
    /// Only what makes the ring unusable: see the module's table.
    ///
    /// # Panics
    /// With the payload of a waker, or of an operation's drop, that panicked; every other one has run by then.
    pub fn turn(&self, wait: Wait) -> io::Result<()> {
        let mut core = self.core.borrow_mut();
        if let Some(waker) = core.wakers.forget_unused() {
            // Dropping a waker is foreign code.
            drop(core);
            drop(waker);
            core = self.core.borrow_mut();
        }
        self.guest.turning.set(true);
        if self.has_unpark && core.armed.is_none_or(|key| !core.slots.is_active(key)) {
            drop(core);
            self.arm_unpark();
            core = self.core.borrow_mut();
        }
        let outcome = core.turn(wait, &self.metrics);
        let has_more = core.has_queued() || core.ring.more_work();
        drop(core);
        self.guest.turning.set(false);
        self.disarm_flush();
        if has_more {
            // A retry after EAGAIN, a submit that fell short: no completion will announce these to a guest.
            self.arm_flush();
        }
        self.carry_out();
        outcome
    }

    /// Wake every timer that is due.
    pub fn fire_timers(&self) {
        self.timers.fire(self.now());
    }

    /// When the next timer is due: the longest that a turn may wait.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.next_deadline();
        let core = self.core.borrow();
        let cancel = (!core.missed.is_empty()).then(|| core.ring.now() + CANCEL_MISSED_PAUSE);
        timer.into_iter().chain(cancel).min()
    }

    /// An eventfd that is readable when a turn has something to do: completions, wakes from other threads, and
    /// operations queued outside a turn. A hint: it may be readable for nothing.
    ///
    /// A guest polls this and not the ring's own descriptor: with deferred task work (`IORING_SETUP_DEFER_TASKRUN`)
    /// nothing ever wakes an epoll on that one.
    ///
    /// # Errors
    /// Out of descriptors, or the ring refuses to signal it.
    pub fn event_fd(&self) -> io::Result<Rc<OwnedFd>> {
        if let Some(eventfd) = &*self.guest.eventfd.borrow() {
            return Ok(Rc::clone(eventfd));
        }
        let eventfd = Rc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.core.borrow_mut().ring.register_eventfd(eventfd.as_fd())?;
        *self.guest.eventfd.borrow_mut() = Some(Rc::clone(&eventfd));
        self.arm_flush();
        Ok(eventfd)
    }

    /// Whether something is queued that only a turn brings to the kernel.
    pub fn has_queued(&self) -> bool {
        self.core.borrow().has_queued()
    }

    /// The time, by the ring's clock.
    pub fn now(&self) -> Instant {
        self.timers.now()
    }

    /// What was chosen when the ring was built.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The bounds this driver keeps.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The registered pages of this ring.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What this driver has done so far.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How many operations are queued or held by the kernel, the driver's own read of its eventfd left out.
    pub fn operations_active(&self) -> usize {
        self.core.borrow().operations()
    }

    /// How many slots are in use: operations in flight, and results that no future has taken yet. The driver's own
    /// one is left out.
    pub fn slots_used(&self) -> usize {
        let core = self.core.borrow();
        let own = core.armed.is_some_and(|key| core.slots.is_used(key));
        core.slots.len() - usize::from(own)
    }

    /// Something that exists once for each driver, made when it is first asked for and dropped at shutdown.
    pub(crate) fn local<T: 'static>(&self, make: impl FnOnce() -> T) -> Rc<T> {
        let key = TypeId::of::<T>();
        let there = self.locals.borrow().get(&key).cloned();
        let value = there.unwrap_or_else(|| {
            let made: Rc<dyn Any> = Rc::new(make());
            Rc::clone(self.locals.borrow_mut().entry(key).or_insert(made))
        });
        value.downcast().expect("a local is stored under its own type")
    }

    pub(crate) fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    /// Vacant -> encoding, or a place in the queue for a slot.
    #[inline]
    pub(crate) fn admit(&self, place: Option<u64>, multishot: bool, waker: &Waker) -> Admission {
        let mut core = self.core.borrow_mut();
        // What nearly every operation finds: room, and the waker of the one before.
        if place.is_none()
            && core.has_room()
            && let Some(waking) = core.wakers.find(waker)
        {
            let (key, ticket, body) = core.slots.reserve(multishot, Some(waking));
            return Admission::Granted(key, ticket, body);
        }
        drop(core);
        self.admit_other(place, multishot, waker)
    }

    #[inline(never)]
    fn admit_other(&self, place: Option<u64>, multishot: bool, waker: &Waker) -> Admission {
        let waking = self.share(waker);
        self.core.borrow_mut().admit(place, multishot, waking)
    }

    /// The shared one for this waker; a new one is cloned, and the one before dropped, with nothing borrowed.
    fn share(&self, waker: &Waker) -> Rc<Waking> {
        if let Some(waking) = self.core.borrow().wakers.find(waker) {
            return waking;
        }
        let waker = waker.clone();
        let (waking, gone) = self.core.borrow_mut().wakers.share(waker);
        drop(gone);
        waking
    }

    /// Give a place in the queue for a slot up.
    pub(crate) fn leave(&self, place: u64) {
        let mut core = self.core.borrow_mut();
        let waiter = core.waiting_at(place).and_then(|at| core.waiters.remove(at));
        core.granted.remove(&place);
        let gone = waiter.and_then(|waiter| core.wakers.let_go(waiter.waking));
        self.let_go(core);
        drop(gone);
    }

    /// Encoding -> queued, or done at once: `encode` is foreign code, and may have shut this runtime down.
    #[inline]
    pub(crate) fn queue(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        core.slots.queue(key);
        if core.closed {
            let (_nothing_to_send, waking) = core.slots.cancel(key);
            core.wake(waking);
            self.let_go(core);
        } else {
            core.backlog.push_back(key);
            drop(core);
            self.arm_flush();
        }
    }

    /// Whether the kernel knows this opcode. Asked for before it sees the entry: it would answer `EINVAL`, which reads
    /// like a wrong argument.
    pub(crate) fn check_opcode(&self, code: u8) -> io::Result<()> {
        if self.setup.opcodes.contains(code) {
            return Ok(());
        }
        Err(match Opcode::ALL.iter().find(|opcode| opcode.code() == code) {
            Some(opcode) => opcode.unsupported(),
            None => io::Error::new(io::ErrorKind::Unsupported, format!("this kernel does not know opcode {code}")),
        })
    }

    /// Encoding -> vacant. The operation has left the body, and whoever described it its handle on that.
    pub(crate) fn withdraw(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let mut slot = core.slots.withdraw(key);
        let waking = slot.as_mut().and_then(|slot| slot.take_waking());
        let gone = waking.and_then(|waking| core.wakers.let_go(waking));
        let left = slot.and_then(|slot| core.slots.recycle(slot));
        self.let_go(core);
        drop((gone, left));
    }

    /// Keep an emptied slot for the next operation.
    pub(crate) fn recycle(&self, slot: Box<Slot>) {
        let left = self.core.borrow_mut().slots.recycle(slot);
        drop(left);
    }

    /// The operation and its answer, if it is done; if not, the right task is woken when it is.
    ///
    /// One borrow for all: moving an operation out of its body runs none of its code.
    #[inline]
    pub(crate) fn take<O: Operation>(&self, key: Key, waker: &Waker) -> Option<(O, Ticket, Answer)> {
        let mut core = self.core.borrow_mut();
        let mut polled = core.slots.poll(key, waker);
        if matches!(polled, Polled::OtherWaker) {
            // Cloning a waker is foreign code: it runs with nothing borrowed, and the slot is looked at again after it.
            drop(core);
            self.replace_waker(key, waker);
            core = self.core.borrow_mut();
            polled = core.slots.poll(key, waker);
        }
        match polled {
            Polled::Pending | Polled::OtherWaker => None,
            Polled::Done => {
                let (operation, ticket, answer, waking) = core.slots.take::<O>(key);
                if let Some(waking) = waking {
                    drop(core);
                    self.let_waking_go(waking);
                }
                Some((operation, ticket, answer))
            }
        }
    }

    pub(crate) fn next(&self, key: Key, waker: &Waker) -> Next {
        self.core.borrow_mut().slots.next(key, waker)
    }

    pub(crate) fn replace_waker(&self, key: Key, waker: &Waker) {
        let waking = self.share(waker);
        let old = self.core.borrow_mut().slots.replace_waker(key, waking);
        if let Some(old) = old {
            self.let_waking_go(old);
        }
    }

    /// A slot has ended without waking this.
    pub(crate) fn let_waking_go(&self, waking: Rc<Waking>) {
        let gone = self.core.borrow_mut().wakers.let_go(waking);
        drop(gone);
    }

    /// Ask for the end of an operation. It still completes, once.
    pub(crate) fn cancel(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let (send, waking) = core.slots.cancel(key);
        core.wake(waking);
        if send {
            core.cancels.push_back(key);
        }
        self.let_go(core);
        self.arm_flush();
    }

    /// The future has gone.
    pub(crate) fn orphan(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        match core.slots.orphan(key) {
            None => {}
            Some(Orphaned::Gone(mut slot)) => {
                let waker = slot.take_waking().and_then(|waking| core.wakers.let_go(waking));
                self.let_go(core);
                slot.body().dispose();
                let left = (slot.take_completion(), slot.take_items());
                self.recycle(slot);
                drop((left, waker));
            }
            Some(Orphaned::Kept { cancel, waking, items }) => {
                if cancel {
                    core.cancels.push_back(key);
                }
                let waker = waking.and_then(|waking| core.wakers.let_go(waking));
                drop(core);
                drop((waker, items));
                self.arm_flush();
            }
        }
    }

    /// Ask every driver of this thread to cancel what is pending on a descriptor whose last handle has gone.
    pub(crate) fn hang_up(fd: BorrowedFd<'_>) {
        use std::os::fd::AsRawFd;
        // After the thread's locals are gone no driver is left either.
        let drivers = DRIVERS.try_with(|drivers| drivers.borrow().iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
        for driver in drivers.unwrap_or_default() {
            let mut core = driver.core.borrow_mut();
            let (keys, wakings) = core.slots.cancel_descriptor(fd.as_raw_fd());
            core.cancels.extend(keys);
            core.wake(wakings);
            driver.let_go(core);
            driver.arm_flush();
        }
    }

    /// Cancel everything, reap every completion, refuse what comes after.
    ///
    /// Waits for the kernel as long as [`Config::shutdown_timeout`] says. What it does not let go of by then (a
    /// worker stuck in an uninterruptible sleep, say) is leaked together with the registry's pages: freeing it would
    /// hand memory to others that the kernel may still write. A future that outlives this resolves with what its
    /// operation came to, or with `ECANCELED`.
    pub fn shutdown(&self) {
        {
            let mut core = self.core.borrow_mut();
            if core.closed {
                return;
            }
            core.closed = true;
            let waiters = std::mem::take(&mut core.waiters);
            core.wake(waiters.into_iter().map(|waiter| waiter.waking));
            core.granted.clear();
            let started = core.ring.now();
            let mut again = false;
            loop {
                let (keys, wakings) = core.slots.cancel_all(again);
                core.cancels.extend(keys);
                core.wake(wakings);
                again = true;
                if core.slots.held() == 0 {
                    break;
                }
                let elapsed = core.ring.now().duration_since(started);
                let Some(left) = self.config.shutdown_timeout.checked_sub(elapsed).filter(|left| !left.is_zero())
                else {
                    break;
                };
                let turned = core.turn(Wait::Until(Some(left.min(CANCEL_AGAIN))), &self.metrics);
                drop(core);
                // A panic of foreign code must not keep the kernel's memory from being waited for.
                if catch_unwind(AssertUnwindSafe(|| self.carry_out())).is_err() {
                    tracing::error!("a waker or an operation's drop panicked during shutdown");
                }
                if let Err(error) = &turned {
                    tracing::error!(%error, "the ring failed during shutdown");
                }
                core = self.core.borrow_mut();
                if turned.is_err() {
                    break;
                }
            }
            let leaked = core.slots.leak_held();
            let registered = self.registry.is_registered_on(self.id);
            self.registry.set_unregistered(self.id);
            let unregistered = if leaked == 0 && registered { core.ring.unregister() } else { Ok(()) };
            if leaked > 0 {
                self.registry.leak();
            }
            // A future that outlives its runtime, or is leaked, keeps this driver, but not the kernel's ring: closing
            // that also ends its worker threads. A played one owns foreign code, so it goes when nothing is borrowed.
            let ring = std::mem::replace(&mut core.ring, Ring::Closed);
            let last = core.wakers.forget_last();
            drop(core);
            drop(ring);
            if let Err(error) = unregistered {
                tracing::warn!(%error, "the registry's pages stay pinned until the ring is gone");
            }
            if leaked > 0 {
                tracing::error!(leaked, "the kernel did not let go of these operations in time; they are leaked");
            }
            self.carry_out();
            drop(last);
        }
        let locals = std::mem::take(&mut *self.locals.borrow_mut());
        drop(locals);
    }

    /// See to it that a read of the eventfd that other threads wake by is in flight: the one operation that the
    /// driver has of its own, which ends a sleep as any other completion does.
    #[cold]
    fn arm_unpark(&self) {
        let mut core = self.core.borrow_mut();
        if let Some(key) = core.armed.take() {
            let (read, _ticket, _count, _no_waker) = core.slots.take::<ReadWakes>(key);
            drop(core);
            drop(read);
            core = self.core.borrow_mut();
        }
        if core.closed {
            return;
        }
        let (key, ticket, body) = core.slots.reserve(false, None);
        drop(core);
        body.put(ReadWakes::new(&self.unpark), ticket, key.user_data());
        let encoded = body.encode::<ReadWakes>();
        assert!(encoded.is_ok(), "a read of eight bytes can be described");
        let mut core = self.core.borrow_mut();
        core.armed = Some(key);
        core.slots.queue(key);
        core.backlog.push_back(key);
    }

    /// A guest's loop sleeps on the eventfd: tell it, once, that a turn has something to bring to the kernel.
    #[inline]
    fn arm_flush(&self) {
        if self.guest.turning.get() || self.guest.flush_armed.get() {
            return;
        }
        if let Some(eventfd) = &*self.guest.eventfd.borrow() {
            // Fails only when the counter is full, and then it is readable, which is all that is wanted.
            let _counter_full = rustix::io::write(eventfd, &1u64.to_ne_bytes());
            self.guest.flush_armed.set(true);
        }
    }

    fn disarm_flush(&self) {
        self.guest.flush_armed.set(false);
    }
}

impl Park for Driver {
    fn turn(&self, wait: Wait) -> io::Result<()> {
        Self::turn(self, wait)
    }

    fn now(&self) -> Instant {
        Self::now(self)
    }

    fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    fn unpark(&self) -> &Arc<Unpark> {
        &self.unpark
    }

    fn shutdown(&self) {
        Self::shutdown(self);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("id", &self.id).field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        // The thread's locals may be gone already; then so is the current driver.
        let entered = CURRENT.try_with(|current| std::mem::replace(&mut *current.borrow_mut(), previous));
        drop(entered);
    }
}

impl Core {
    fn turn(&mut self, wait: Wait, metrics: &Metrics) -> io::Result<()> {
        self.flush(metrics)?;
        let missed = std::mem::take(&mut self.missed);
        let wait = match wait {
            _ if self.ring.is_ready() || self.after.len() > 0 => Wait::No,
            Wait::Until(limit) if !missed.is_empty() => {
                Wait::Until(Some(limit.map_or(CANCEL_MISSED_PAUSE, |limit| limit.min(CANCEL_MISSED_PAUSE))))
            }
            wait => wait,
        };
        // Without anything staged, deferred or to wait for, the completions that are there can be had for nothing.
        if wait != Wait::No || self.ring.staged() > 0 || self.ring.more_work() {
            self.enter(wait, metrics)?;
        }
        self.reap(metrics);
        if !missed.is_empty() {
            self.cancels.extend(missed);
        }
        for _ in 0..ROUNDS_MAX {
            if !self.ring.more_work() {
                break;
            }
            metrics.overflows.add(u64::from(self.ring.is_overflowing()));
            self.enter(Wait::No, metrics)?;
            self.reap(metrics);
        }
        if !self.waiters.is_empty() {
            self.grant();
        }
        Ok(())
    }

    /// Stage what is queued: cancels, then operations in the order of their first polls.
    #[inline]
    fn flush(&mut self, metrics: &Metrics) -> io::Result<()> {
        while let Some(&key) = self.cancels.front() {
            if !self.make_room(1, metrics)? {
                return Ok(());
            }
            self.cancels.pop_front();
            if self.slots.push_cancel(key) {
                metrics.cancels.add(1);
                self.ring.push(Lent::nothing(&cancel_entry(key)));
            }
        }
        while let Some(&first) = self.backlog.front() {
            // A linked chain must be taken by one enter: the kernel ends a chain at the end of a submission.
            let chain = if self.slots.is_linked(first) { self.chain() } else { 1 };
            if self.ring.space() < chain && !self.make_room(chain, metrics)? {
                return Ok(());
            }
            for _ in 0..chain {
                let Some(key) = self.backlog.pop_front() else {
                    break;
                };
                let Self { ring, slots, .. } = self;
                if slots.push(key, |lent| ring.push(lent)) {
                    metrics.submissions.add(1);
                }
            }
        }
        Ok(())
    }

    /// The length of the linked chain at the head of the queue.
    fn chain(&self) -> usize {
        self.backlog.iter().take_while(|key| self.slots.is_linked(**key)).count() + 1
    }

    /// Space for this many entries, by submitting what is staged if need be. False: the kernel takes none now.
    fn make_room(&mut self, entries: usize, metrics: &Metrics) -> io::Result<bool> {
        if self.ring.space() < entries {
            self.enter(Wait::No, metrics)?;
            self.reap(metrics);
        }
        Ok(self.ring.space() >= entries)
    }

    fn enter(&mut self, wait: Wait, metrics: &Metrics) -> io::Result<()> {
        metrics.enters.add(1);
        let error = match self.ring.enter(wait) {
            Ok(_taken) => return Ok(()),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            Some(libc::EBUSY) => {
                metrics.busy.add(1);
                self.reap(metrics);
                Ok(())
            }
            Some(libc::EAGAIN | libc::ENOMEM) => {
                metrics.starved.add(1);
                if !self.ring.is_ready() {
                    std::thread::sleep(STARVED_PAUSE);
                }
                Ok(())
            }
            Some(libc::EBADR) => Err(io::Error::other(
                "the kernel ran out of memory and lost a completion (EBADR); an operation would wait for ever",
            )),
            _ => Err(error),
        }
    }

    fn reap(&mut self, metrics: &Metrics) {
        let Self { ring, slots, after, backlog, cancels, missed, .. } = self;
        let mut reaped = 0;
        ring.reap(|cqe| {
            reaped += 1;
            match slots.settle(cqe) {
                Settled::Nothing => {}
                Settled::Wake(waking) => after.wake(waking),
                Settled::Requeue(key) => {
                    metrics.retries.add(1);
                    backlog.push_back(key);
                }
                Settled::Cancel(key, waking) => {
                    cancels.push_back(key);
                    if let Some(waking) = waking {
                        after.wake(waking);
                    }
                }
                Settled::CancelMissed(key) => missed.push(key),
                Settled::Dispose(slot, completion) => after.disposals.push_back((slot, completion)),
                Settled::Stale => {
                    metrics.stale.add(1);
                    after.reports.push_back(cqe.user_data);
                }
            }
        });
        metrics.completions.add(reaped);
    }

    /// Whether an operation that comes now need not wait for another.
    #[inline]
    fn has_room(&self) -> bool {
        // Nearly always there is room even with the driver's own operation counted in.
        let bound = self.operations_max - self.granted.len();
        !self.closed && self.waiters.is_empty() && (self.slots.active() < bound || self.operations() < bound)
    }

    #[inline(never)]
    fn admit(&mut self, place: Option<u64>, multishot: bool, waking: Rc<Waking>) -> Admission {
        if self.closed {
            return Admission::Closed(self.wakers.let_go(waking));
        }
        let granted = place.is_some_and(|place| self.granted.remove(&place));
        if !granted && !(place.is_none() && self.has_room()) {
            if let Some(at) = place.and_then(|place| self.waiting_at(place)) {
                let waiter = &mut self.waiters[at];
                let old = std::mem::replace(&mut waiter.waking, waking);
                return Admission::Wait(waiter.place, self.wakers.let_go(old));
            }
            let place = self.next_waiter;
            self.next_waiter += 1;
            self.waiters.push_back(Waiter { place, waking });
            return Admission::Wait(place, None);
        }
        let (key, ticket, body) = self.slots.reserve(multishot, Some(waking));
        Admission::Granted(key, ticket, body)
    }

    /// Note that these are to be woken when nothing is borrowed any more.
    fn wake(&mut self, wakings: impl IntoIterator<Item = Rc<Waking>>) {
        for waking in wakings {
            self.after.wake(waking);
        }
    }

    fn waiting_at(&self, place: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&place, |waiter| waiter.place).ok()
    }

    fn has_queued(&self) -> bool {
        !self.backlog.is_empty() || !self.cancels.is_empty() || !self.missed.is_empty() || self.ring.staged() > 0
    }

    /// The program's operations that are queued or held by the kernel.
    fn operations(&self) -> usize {
        let own = self.armed.is_some_and(|key| self.slots.is_active(key));
        self.slots.active() - usize::from(own)
    }

    /// Give slots that have become free to those who wait, in their order.
    fn grant(&mut self) {
        while self.operations() + self.granted.len() < self.operations_max
            && let Some(waiter) = self.waiters.pop_front()
        {
            self.granted.insert(waiter.place);
            self.after.wake(waiter.waking);
        }
    }
}

fn cancel_entry(key: Key) -> Entry {
    Entry {
        opcode: abi::ASYNC_CANCEL,
        fd: -1,
        addr: key.user_data(),
        user_data: key.cancel_user_data(),
        ..Entry::default()
    }
}
