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

mod attempt;
#[cfg(test)]
mod tests;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
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
use super::completion::Completion;
use super::config::Config;
use super::entry::Entry;
use super::error::{BuildError, Demand};
use super::inflight::{Key, Next, Orphaned, Polled, Settled, Slots};
use super::metrics::Metrics;
use super::opcode::Opcode;
use super::registry::Registry;
use super::ring::setup::Setup;
use super::ring::{KernelRing, Ring, Script, ScriptedRing, Wait};
use super::sqe::Frame;
use super::time::Timers;
use super::unpark::{ReadWakes, Unpark};

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
    operations_max: usize,
    /// The read of the eventfd of `unpark`, once it was made. It takes no place from the program's operations.
    armed: Option<Key>,
    after: Vec<After>,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    place: u64,
    waker: Waker,
}

/// What a turn leaves to do when nothing is borrowed any more.
#[derive(Debug)]
enum After {
    Wake(Waker),
    Dispose(Option<Rc<Body>>, Completion),
    /// Say that a completion of this `user_data` names nothing: who listens to the log is foreign code too.
    Report(u64),
}

/// The answer to an operation that wants a slot.
#[derive(Debug)]
pub(crate) enum Admission {
    Granted(Key, Ticket, Rc<Body>),
    /// As many operations as the configuration allows are in flight; this is the place in the queue.
    Wait(u64),
    /// The runtime has shut down.
    Closed,
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
                operations_max: config.operations as usize,
                armed: None,
                after: Vec::new(),
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
    pub fn current() -> Rc<Self> {
        Self::try_current().expect(
            "no ringmain runtime is running on this thread: await this inside Runtime::block_on or a spawned task",
        )
    }

    /// The driver that futures polled on this thread belong to now, if there is one.
    pub fn try_current() -> Option<Rc<Self>> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
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
        self.guest.turning.set(true);
        self.arm_unpark();
        let mut core = self.core.borrow_mut();
        let outcome = core.turn(wait, &self.metrics);
        let after = std::mem::take(&mut core.after);
        let has_more = core.has_queued() || core.ring.more_work();
        drop(core);
        self.guest.turning.set(false);
        self.disarm_flush();
        if has_more {
            // A retry after EAGAIN, a submit that fell short: no completion will announce these to a guest.
            self.arm_flush();
        }
        self.carry_out(after);
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

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    /// Vacant -> encoding, or a place in the queue for a slot. With the waker that is not needed in there: dropping it
    /// is foreign code, and the caller has to know first where its operation is.
    pub(crate) fn admit(&self, place: Option<u64>, multishot: bool, waker: Waker) -> (Admission, Option<Waker>) {
        self.core.borrow_mut().admit(place, multishot, waker)
    }

    /// Give a place in the queue for a slot up.
    pub(crate) fn leave(&self, place: u64) {
        let mut core = self.core.borrow_mut();
        let waiter = core.waiting_at(place).and_then(|at| core.waiters.remove(at));
        core.granted.remove(&place);
        self.let_go(core);
        drop(waiter);
    }

    /// Encoding -> queued, or done at once: `encode` is foreign code, and may have shut this runtime down.
    pub(crate) fn queue(&self, key: Key, waker: Waker) {
        let mut core = self.core.borrow_mut();
        let old = core.slots.queue(key, waker);
        if core.closed {
            let (_nothing_to_send, waker) = core.slots.cancel(key);
            core.after.extend(waker.map(After::Wake));
            self.let_go(core);
        } else {
            core.backlog.push_back(key);
            drop(core);
            self.arm_flush();
        }
        drop(old);
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

    /// Encoding -> vacant. The operation is still in the body; give that back when it is empty.
    pub(crate) fn withdraw(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let gone = core.slots.withdraw(key);
        self.let_go(core);
        drop(gone);
    }

    /// Keep an emptied body for the next operation.
    pub(crate) fn recycle(&self, body: Rc<Body>) {
        self.core.borrow_mut().slots.recycle(body);
    }

    pub(crate) fn poll(&self, key: Key, waker: &Waker) -> Polled {
        self.core.borrow_mut().slots.poll(key, waker)
    }

    pub(crate) fn next(&self, key: Key, waker: &Waker) -> Next {
        self.core.borrow_mut().slots.next(key, waker)
    }

    pub(crate) fn replace_waker(&self, key: Key, waker: Waker) {
        let old = self.core.borrow_mut().slots.replace_waker(key, waker);
        drop(old);
    }

    /// Ask for the end of an operation. It still completes, once.
    pub(crate) fn cancel(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let (send, waker) = core.slots.cancel(key);
        core.after.extend(waker.map(After::Wake));
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
            Some(Orphaned::Gone(body, completion, waker, items)) => {
                self.let_go(core);
                body.dispose();
                self.recycle(body);
                drop((completion, waker, items));
            }
            Some(Orphaned::Kept { cancel, waker, items }) => {
                if cancel {
                    core.cancels.push_back(key);
                }
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
            let (keys, wakers) = core.slots.cancel_descriptor(fd.as_raw_fd());
            core.cancels.extend(keys);
            core.after.extend(wakers.into_iter().map(After::Wake));
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
            for waiter in std::mem::take(&mut core.waiters) {
                core.after.push(After::Wake(waiter.waker));
            }
            core.granted.clear();
            let started = core.ring.now();
            let mut again = false;
            loop {
                let (keys, wakers) = core.slots.cancel_all(again);
                core.cancels.extend(keys);
                core.after.extend(wakers.into_iter().map(After::Wake));
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
                let after = std::mem::take(&mut core.after);
                drop(core);
                // A panic of foreign code must not keep the kernel's memory from being waited for.
                if catch_unwind(AssertUnwindSafe(|| self.carry_out(after))).is_err() {
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
            let after = std::mem::take(&mut core.after);
            drop(core);
            drop(ring);
            if let Err(error) = unregistered {
                tracing::warn!(%error, "the registry's pages stay pinned until the ring is gone");
            }
            if leaked > 0 {
                tracing::error!(leaked, "the kernel did not let go of these operations in time; they are leaked");
            }
            self.carry_out(after);
        }
        let locals = std::mem::take(&mut *self.locals.borrow_mut());
        drop(locals);
    }

    /// End a borrow of the core: grant what has become free, then do what is left to do.
    fn let_go(&self, mut core: std::cell::RefMut<'_, Core>) {
        core.grant();
        // Inside a turn's own foreign code there may be nothing to do here; an empty vector costs nothing.
        let after = std::mem::take(&mut core.after);
        drop(core);
        self.carry_out(after);
    }

    /// Run the foreign code of a turn: all of it, also when some of it panics.
    fn carry_out(&self, mut after: Vec<After>) {
        let mut panic = None;
        for step in after.drain(..) {
            let outcome = catch_unwind(AssertUnwindSafe(|| match step {
                After::Wake(waker) => waker.wake(),
                After::Report(user_data) => tracing::warn!(user_data, "a completion names no operation in flight"),
                After::Dispose(body, completion) => {
                    drop(completion);
                    if let Some(body) = body {
                        body.dispose();
                        self.recycle(body);
                    }
                }
            }));
            match outcome {
                Ok(()) => {}
                Err(payload) if panic.is_none() => panic = Some(payload),
                // Its destructor is foreign code too, and there are others to wake.
                Err(payload) => std::mem::forget(payload),
            }
        }
        let mut core = self.core.borrow_mut();
        if core.after.capacity() < after.capacity() && core.after.is_empty() {
            core.after = after;
        }
        drop(core);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// See to it that a read of the eventfd that other threads wake by is in flight: the one operation that the
    /// driver has of its own, which ends a sleep as any other completion does.
    fn arm_unpark(&self) {
        if !self.has_unpark {
            return;
        }
        let armed = self.core.borrow().armed;
        if let Some(key) = armed {
            match self.poll(key, Waker::noop()) {
                Polled::Pending | Polled::OtherWaker => return,
                Polled::Done(body, _completion, waker) => {
                    drop(waker);
                    body.dispose();
                    self.recycle(body);
                }
            }
        }
        let (key, ticket, body) = {
            let mut core = self.core.borrow_mut();
            core.armed = None;
            if core.closed {
                return;
            }
            core.slots.reserve(false)
        };
        body.put(ReadWakes::new(&self.unpark), ticket);
        let encoded = body.encode::<ReadWakes>();
        assert!(encoded.is_ok(), "a read of eight bytes can be described");
        let mut core = self.core.borrow_mut();
        core.armed = Some(key);
        core.slots.queue(key, Waker::noop().clone());
        core.backlog.push_back(key);
    }

    /// A guest's loop sleeps on the eventfd: tell it, once, that a turn has something to bring to the kernel.
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
            _ if self.ring.is_ready() || !self.after.is_empty() => Wait::No,
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
        self.cancels.extend(missed);
        for _ in 0..ROUNDS_MAX {
            if !self.ring.more_work() {
                break;
            }
            metrics.overflows.add(u64::from(self.ring.is_overflowing()));
            self.enter(Wait::No, metrics)?;
            self.reap(metrics);
        }
        self.grant();
        Ok(())
    }

    /// Stage what is queued: cancels, then operations in the order of their first polls.
    fn flush(&mut self, metrics: &Metrics) -> io::Result<()> {
        while let Some(&key) = self.cancels.front() {
            if !self.make_room(1, metrics)? {
                return Ok(());
            }
            self.cancels.pop_front();
            if self.slots.push_cancel(key) {
                metrics.cancels.add(1);
                self.ring.push(Lent::nothing(cancel_entry(key)));
            }
        }
        while !self.backlog.is_empty() {
            // A linked chain must be taken by one enter: the kernel ends a chain at the end of a submission.
            let chain = self.backlog.iter().take_while(|key| self.slots.is_linked(**key)).count() + 1;
            if !self.make_room(chain, metrics)? {
                return Ok(());
            }
            for _ in 0..chain {
                let Some(key) = self.backlog.pop_front() else {
                    break;
                };
                if let Some(lent) = self.slots.push(key) {
                    metrics.submissions.add(1);
                    self.ring.push(lent);
                }
            }
        }
        Ok(())
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
                Settled::Wake(waker) => after.push(After::Wake(waker)),
                Settled::Requeue(key) => {
                    metrics.retries.add(1);
                    backlog.push_back(key);
                }
                Settled::Cancel(key, waker) => {
                    cancels.push_back(key);
                    after.extend(waker.map(After::Wake));
                }
                Settled::CancelMissed(key) => missed.push(key),
                Settled::Dispose(body, completion) => after.push(After::Dispose(body, completion)),
                Settled::Stale => {
                    metrics.stale.add(1);
                    after.push(After::Report(cqe.user_data));
                }
            }
        });
        metrics.completions.add(reaped);
    }

    fn admit(&mut self, place: Option<u64>, multishot: bool, waker: Waker) -> (Admission, Option<Waker>) {
        if self.closed {
            return (Admission::Closed, Some(waker));
        }
        let granted = place.is_some_and(|place| self.granted.remove(&place));
        let free = self.waiters.is_empty() && self.operations() + self.granted.len() < self.operations_max;
        let admitted = granted || (place.is_none() && free);
        if !admitted {
            if let Some(at) = place.and_then(|place| self.waiting_at(place)) {
                let waiter = &mut self.waiters[at];
                let old = std::mem::replace(&mut waiter.waker, waker);
                return (Admission::Wait(waiter.place), Some(old));
            }
            let place = self.next_waiter;
            self.next_waiter += 1;
            self.waiters.push_back(Waiter { place, waker });
            return (Admission::Wait(place), None);
        }
        let (key, ticket, body) = self.slots.reserve(multishot);
        (Admission::Granted(key, ticket, body), Some(waker))
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
            self.after.push(After::Wake(waiter.waker));
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
