//! One turn: flush, enter, reap, settle.
//!
//! The driver owns the ring and the slots and is the only one to enter the kernel. A turn stages what is queued
//! (cancels first, they free what others wait for), makes one system call that submits it and sleeps only if nothing
//! is ready, takes every completion, settles each in its slot, and *then*, with nothing borrowed any more, wakes the
//! wakers and drops what has to go: wakers, operations and descriptors are foreign code (or may block), and foreign
//! code may come back here.
//!
//! The driver needs no executor: [`turn`](Driver::turn), [`event_fd`](Driver::event_fd) and
//! [`next_deadline`](Driver::next_deadline) are what a guest of another event loop needs.

mod after;
mod attempt;
mod end;
mod submit;
mod table;
#[cfg(test)]
mod tests;
mod turn;

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;
use std::time::Instant;

use rustix::event::EventfdFlags;

use turn::{CANCEL_MISSED_PAUSE, Core, Outgoing};

use super::block_on::Park;
use super::config::Config;
use super::error::{BuildError, Demand};
use super::frame::Frame;
use super::inflight::{Slot, Slots};
use super::lent::{BufferGroup, Lender};
use super::metrics::Metrics;
use super::opcode::Opcode;
#[cfg(test)]
use super::opcode::OpcodeSet;
use super::registry::{Registry, RingPages};
use super::ring::setup::Setup;
use super::ring::{KernelRing, Queues, Ring, Script, ScriptedRing, Wait};
use super::time::Timers;
use super::unpark::{ReadWakes, Unpark};
use super::waking::Wakers;
use after::After;
use table::Table;

/// The unit of the registry, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Operations that an enter is made for while tasks are ready: it costs as much as some of them do.
const WORTH_A_TURN: usize = 4;

static NEXT_RING: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The drivers of this thread: a descriptor whose last handle goes asks each to cancel what is pending on it.
    static DRIVERS: RefCell<Vec<Weak<Driver>>> = const { RefCell::new(Vec::new()) };
    /// The driver that futures polled now belong to.
    /// Not dropped with the thread, so that a look at it need not ask whether it was: every guard takes out what it has
    /// put in, and a guard that is forgotten leaks its driver.
    static CURRENT: Cell<ManuallyDrop<Option<Rc<Driver>>>> = const { Cell::new(ManuallyDrop::new(None)) };
    /// Its number, 0 for none: to compare it needs no borrow, and no look whether the thread is ending.
    static CURRENT_ID: Cell<u32> = const { Cell::new(0) };
}

/// A ring, the operations it carries, and the clock: everything of a runtime but its tasks.
pub struct Driver {
    core: RefCell<Core>,
    id: u32,
    setup: Setup,
    config: Config,
    registry: Registry,
    /// The same as this ring sees it.
    pages: RingPages,
    lender: Rc<Lender>,
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
    /// Whether there is one: what every operation asks.
    is_there: Cell<bool>,
    eventfd: RefCell<Option<Rc<OwnedFd>>>,
    /// A push made outside a turn has signalled the eventfd already.
    flush_armed: Cell<bool>,
    turning: Cell<bool>,
}

/// The answer to an operation that wants a slot.
#[derive(Debug)]
pub(crate) enum Admission {
    Granted(Rc<Slot>),
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
        Self::build(config, None)
    }

    /// The same with the pages of a registry that is there already.
    pub(crate) fn build(config: &Config, registry: Option<&Registry>) -> Result<Rc<Self>, BuildError> {
        let (ring, setup) = KernelRing::build(config)?;
        Self::assemble(Ring::Kernel(Box::new(ring)), setup, config, registry)
    }

    /// Build a driver on a ring that a test plays.
    ///
    /// # Errors
    /// [`BuildError`] if the configuration is invalid, or out of memory or descriptors.
    pub fn scripted(config: &Config) -> Result<(Rc<Self>, Script), BuildError> {
        Self::build_scripted(config, None)
    }

    pub(crate) fn build_scripted(
        config: &Config,
        registry: Option<&Registry>,
    ) -> Result<(Rc<Self>, Script), BuildError> {
        config.validate()?;
        let (ring, script) = ScriptedRing::new(config.entries as usize, config.completions as usize);
        let driver = Self::assemble(Ring::Scripted(ring), Setup::scripted(config), config, registry)?;
        Ok((driver, script))
    }

    /// As [`scripted`](Self::scripted), on a kernel that does not know some opcodes.
    #[cfg(test)]
    pub(crate) fn scripted_without(unknown: &[Opcode], config: &Config) -> Result<(Rc<Self>, Script), BuildError> {
        let (ring, script) = ScriptedRing::new(config.entries as usize, config.completions as usize);
        let opcodes = OpcodeSet::collect(|code| unknown.iter().all(|opcode| opcode.code() != code));
        let setup = Setup { opcodes, ..Setup::scripted(config) };
        let driver = Self::assemble(Ring::Scripted(ring), setup, config, None)?;
        Ok((driver, script))
    }

    fn assemble(
        mut ring: Ring,
        setup: Setup,
        config: &Config,
        registry: Option<&Registry>,
    ) -> Result<Rc<Self>, BuildError> {
        // Two rings of one number would believe each other's completions (I3).
        let id = NEXT_RING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1))
            .expect("a process builds fewer than 4 billion rings");
        let takes_fixed_vectors = setup.supports(Opcode::ReadvFixed);
        let registry = match registry {
            Some(registry) => registry.clone(),
            None => Registry::with_config(config).map_err(|error| {
                let bytes = u64::from(config.pages) * PAGE_BYTES;
                let doing = format!("map the registry's {} pages", config.pages);
                BuildError::refused(Demand { doing, bytes }, error)
            })?,
        };
        let unpark = Arc::new(Unpark::new().map_err(|error| {
            BuildError::refused(Demand { doing: "make the eventfd that other threads wake by".into(), bytes: 0 }, error)
        })?);
        // Nothing fails from here on: a place in the registry is given up by shutdown alone.
        let table = Table::attach(&registry, &mut ring, config.register_pages);
        let pages = table.pages().clone();
        let timers = Rc::new(Timers::new(ring.clock()));
        let has_unpark = matches!(ring, Ring::Kernel(_));
        let lender = Rc::new(Lender::new(id, registry.clone(), Arc::clone(&unpark), config.lent_sizes()));
        let driver = Rc::new(Self {
            core: RefCell::new(Core {
                ring,
                table,
                slots: Slots::new(id, pages.clone(), Rc::clone(&lender), takes_fixed_vectors),
                outgoing: Outgoing::default(),
                waiters: VecDeque::new(),
                granted: BTreeSet::new(),
                next_waiter: 0,
                wakers: Wakers::default(),
                operations_max: config.operations as usize,
                armed: None,
                after: After::default(),
                has_guest: false,
                closed: false,
            }),
            id,
            setup,
            config: config.clone(),
            lender,
            unpark,
            timers,
            frame: RefCell::new(Frame::new(id, pages.clone(), takes_fixed_vectors)),
            registry,
            pages,
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
    #[inline(always)]
    pub fn current() -> Rc<Self> {
        Self::try_current().expect(
            "no ringmain runtime is running on this thread: await this inside Runtime::block_on or a spawned task",
        )
    }

    /// The driver that futures polled on this thread belong to now, if there is one.
    #[inline(always)]
    pub fn try_current() -> Option<Rc<Self>> {
        CURRENT.with(|current| {
            let driver = current.replace(ManuallyDrop::new(None));
            let found = Option::clone(&driver);
            current.set(driver);
            found
        })
    }

    /// Whether futures polled on this thread belong to another driver now.
    #[inline]
    pub(crate) fn is_other_current(&self) -> bool {
        let current = CURRENT_ID.get();
        if current == self.id {
            return false;
        }
        current != 0
    }

    /// Make this the driver that futures polled on this thread belong to, while the guard lives.
    pub fn enter(self: &Rc<Self>) -> Entered {
        let driver = ManuallyDrop::new(Some(Rc::clone(self)));
        let previous = CURRENT.with(|current| current.replace(driver));
        CURRENT_ID.set(self.id);
        Entered { previous: ManuallyDrop::into_inner(previous) }
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
        if self.pages.arena().next_trim().is_some() {
            return self.full_turn(wait);
        }
        let mut core = self.core.borrow_mut();
        if core.outgoing.attention || core.wakers.has_unused() || core.table.is_behind() {
            drop(core);
            return self.full_turn(wait);
        }
        let outcome = core.turn(wait, &self.metrics);
        // Nearly always what is left to do is to wake one task, which needs neither a second borrow nor a catch.
        let sole = if core.outgoing.attention { None } else { core.after.take_sole_wake() };
        match sole {
            Some(waking) => {
                drop(core);
                self.wake(waking);
            }
            None => self.end_turn(core),
        }
        outcome
    }

    /// A turn that may have to see to what is out of the ordinary, before it or in it.
    #[inline(never)]
    fn full_turn(&self, wait: Wait) -> io::Result<()> {
        let wait = self.trim_pages(wait);
        // Foreign code may have woken somebody, which no completion says.
        let wait = if self.prepare_turn() { Wait::No } else { wait };
        let mut core = self.core.borrow_mut();
        self.guest.turning.set(core.has_guest);
        let outcome = core.full_turn(wait, &self.metrics);
        self.end_turn(core);
        outcome
    }

    /// What a turn may have to see to before it brings anything to the kernel. Whether foreign code has run.
    #[inline(never)]
    fn prepare_turn(&self) -> bool {
        let mut core = self.core.borrow_mut();
        let mut has_run = false;
        if let Some(waker) = core.wakers.forget_unused() {
            // Dropping a waker is foreign code.
            drop(core);
            drop(waker);
            has_run = true;
            core = self.core.borrow_mut();
        }
        if self.has_unpark && core.armed.as_ref().is_none_or(|slot| !slot.is_active()) {
            drop(core);
            self.arm_unpark();
            core = self.core.borrow_mut();
        }
        core.sync_table();
        has_run
    }

    /// What a turn may leave, beside one task to be woken.
    #[inline(never)]
    fn end_turn(&self, mut core: RefMut<'_, Core>) {
        let news = core.table.take_news();
        if core.has_guest {
            self.guest.turning.set(false);
            self.guest.flush_armed.set(false);
            if core.has_queued() || core.ring.more_work() {
                // A retry after EAGAIN, a submit that fell short: no completion will announce these to a guest.
                self.arm_flush();
            }
        }
        drop(core);
        if let Some(news) = news {
            self.tell_registry(*news);
        }
        self.carry_out();
    }

    /// Wake every timer that is due.
    pub fn fire_timers(&self) {
        self.timers.fire(self.now());
    }

    /// When the next timer is due: the longest that a turn may wait.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.timers.next_deadline();
        let core = self.core.borrow();
        let cancel = (!core.outgoing.missed.is_empty()).then(|| core.ring.now() + CANCEL_MISSED_PAUSE);
        timer.into_iter().chain(cancel).chain(self.pages.arena().next_trim()).chain(self.lender.next_try()).min()
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
        let mut core = self.core.borrow_mut();
        core.ring.register_eventfd(eventfd.as_fd())?;
        core.has_guest = true;
        core.outgoing.attention = true;
        drop(core);
        *self.guest.eventfd.borrow_mut() = Some(Rc::clone(&eventfd));
        self.guest.is_there.set(true);
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

    /// `buffer_group(bytes, incremental)`: memory that is lent to this ring in buffers of at least so many bytes, the
    /// smallest that [`Config::lent`](crate::Config::lent) has.
    ///
    /// Made when it is first asked for: its buffers are leased from the registry then. *Incremental* buffers serve
    /// several receives each, from front to back; where the kernel has none, whole ones serve in their place.
    ///
    /// # Errors
    /// `InvalidInput`: no size is large enough. `Unsupported`: the kernel has no rings of provided buffers. `OutOfMemory`:
    /// `RLIMIT_MEMLOCK` is too low for one. `ECANCELED`: the runtime has shut down.
    ///
    /// # Kernel
    /// Linux 5.19, incremental buffers Linux 6.12.
    pub fn buffer_group(&self, bytes: usize, incremental: bool) -> io::Result<BufferGroup> {
        let group = self.lender.group(&mut self.core.borrow_mut().ring, bytes, incremental);
        self.lender.report();
        group
    }

    /// Whether this driver's kernel is played by a test, system calls included: nothing may be done past it then.
    pub(crate) fn is_played(&self) -> bool {
        !self.has_unpark
    }

    /// Whether the kernel has less to do than is queued for it, and that is worth a turn.
    ///
    /// The plain version runs all tasks that are ready first. When a disk has answered a whole batch at once, it then stands
    /// still until the last of them has asked for more.
    pub(crate) fn is_kernel_starved(&self) -> bool {
        let core = self.core.borrow();
        let queued = core.outgoing.queued();
        queued >= WORTH_A_TURN && core.slots.held() < queued
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
        let own = core.armed.as_ref().is_some_and(|slot| slot.is_used());
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

    /// See to it that a read of the eventfd that other threads wake by is in flight: the one operation that the
    /// driver has of its own, which ends a sleep as any other completion does.
    #[cold]
    fn arm_unpark(&self) {
        let mut core = self.core.borrow_mut();
        if let Some(slot) = core.armed.take() {
            let (read, _count) = core.slots.take::<ReadWakes>(slot);
            drop(core);
            drop(read);
            core = self.core.borrow_mut();
        }
        if core.closed {
            return;
        }
        let slot = core.slots.reserve(false, None);
        drop(core);
        slot.body().put(ReadWakes::new(&self.unpark));
        let encoded = slot.body().encode::<ReadWakes>(slot.ticket().sequence, slot.key().user_data());
        assert!(encoded.is_ok(), "a read of eight bytes can be described");
        let mut core = self.core.borrow_mut();
        core.slots.queue(&slot);
        core.outgoing.queue(slot.key(), false);
        core.armed = Some(slot);
    }

    /// A guest's loop sleeps on the eventfd: tell it, once, that a turn has something to bring to the kernel.
    #[inline]
    fn arm_flush(&self) {
        if self.guest.is_there.get() {
            self.signal_guest();
        }
    }

    #[cold]
    fn signal_guest(&self) {
        if self.guest.turning.get() || self.guest.flush_armed.get() {
            return;
        }
        if let Some(eventfd) = &*self.guest.eventfd.borrow() {
            // Fails only when the counter is full, and then it is readable, which is all that is wanted.
            let _counter_full = rustix::io::write(eventfd, &1u64.to_ne_bytes());
            self.guest.flush_armed.set(true);
        }
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

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("id", &self.id).field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        CURRENT_ID.set(previous.as_ref().map_or(0, |driver| driver.id));
        let entered = CURRENT.with(|current| current.replace(ManuallyDrop::new(previous)));
        drop(ManuallyDrop::into_inner(entered));
    }
}
