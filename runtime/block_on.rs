//! The runtime's loop: poll, run, turn; and its end.
//!
//! One pass polls the main future if it was woken, runs one round of ready tasks, and gives the ring one turn, which
//! sleeps only if nothing is ready. A round ends early when the kernel has less to do than is queued for it. So a
//! completion waits for at most one round, however busy the tasks are, and the tasks for at most one turn, however busy
//! the ring is.

use std::fmt;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::Instant;

use super::context::{self, Context};
use super::driver::Driver;
use super::executor::{Executor, JoinHandle};
use super::ring::Wait;
use super::time::Timers;
use super::unpark::Unpark;

/// What the loop needs from the driver.
pub(crate) trait Park {
    /// Submits, waits as told, and wakes what completed. A sleep ends at the latest when [`Park::unpark`] is written to.
    fn turn(&self, wait: Wait) -> io::Result<()>;
    /// The runtime's clock, which all timers go by.
    fn now(&self) -> Instant;
    /// The timers that go by it.
    fn timers(&self) -> &Rc<Timers>;
    /// What ends a sleep from another thread.
    fn unpark(&self) -> &Arc<Unpark>;
    /// Cancels and reaps all that is in flight. Called once, when every task is gone.
    fn shutdown(&self);
}

/// A runtime of one thread: its tasks, its timers and its ring.
///
/// It lives on the thread that made it. Dropping it drops every task on that thread, waits for wakes that other threads
/// have begun, and then lets the ring finish; wakers and handles that are left over do nothing from then on.
///
/// # Processes that fork
/// A process may start others at any time, with anything in flight: nothing changes for it. What a child by `fork(2)` may do
/// with its copy of the runtime is exec or `_exit(2)`, as `std::process::Command` does. It must not call, poll or drop the
/// runtime, its operations, its leases and registry, or anything else made from them, nor end by `exit(3)` or a return from
/// `main` where that drops one of them. The ring's memory is not the child's (`MADV_DONTFORK`), so that it dies of `SIGSEGV`
/// when it looks at it; where only the descriptors are used, they are the parent's ring still. Its own runtime is one that it
/// builds after an exec.
///
/// Descriptors of rings, and what operations make, are close-on-exec; a child that neither execs nor ends keeps the
/// parent's ring, and each socket that was open, from going. Pages of the registry are private memory: the child has
/// copies, made at the fork for what is pinned, so that the kernel goes on writing into the parent's.
///
/// # References
/// `fork(2)`, `madvise(2)` (`MADV_DONTFORK`), `_exit(2)`; `copy_present_page` in `mm/memory.c`.
pub struct Runtime {
    context: Rc<Context>,
    /// What `context` sees as its park; `None` in a test that has a park without a ring.
    pub(super) driver: Option<Rc<Driver>>,
    tasks_per_turn: usize,
}

impl Runtime {
    /// A runtime over `park` that runs at most `tasks_per_turn` tasks between two turns.
    pub(crate) fn with_park(park: Rc<dyn Park>, tasks_per_turn: usize) -> Runtime {
        assert!(tasks_per_turn > 0, "a runtime must run at least one task per turn");
        let unpark = park.unpark().clone();
        let executor = Executor::new(unpark.clone());
        let timers = park.timers().clone();
        Runtime { context: Rc::new(Context { executor, timers, unpark, park }), driver: None, tasks_per_turn }
    }

    /// Runs a future to its end, and the tasks beside it. Returns what the future returned.
    ///
    /// Tasks that are not finished by then stay, and go on in the next `block_on`.
    ///
    /// # Panics
    /// When called inside of a runtime, on the same thread: it would block the outer one. When the future panics; the
    /// runtime can be used again then. When the kernel refuses to enter the ring for good.
    ///
    /// # Examples
    /// ```
    /// # fn example(runtime: &ringmain::Runtime) {
    /// assert_eq!(runtime.block_on(async { 6 * 7 }), 42);
    /// # }
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        if context::with_current(|_| ()).is_some() {
            panic!("block_on was called inside of a runtime, which it would block: await the future, or spawn it");
        }
        // Declared before the future, so that it outlives it: the future's destructor may spawn.
        let _entered = (context::enter(self.context.clone()), self.driver.as_ref().map(Driver::enter));
        let mut future = pin!(future);
        let woken = Arc::new(MainWaker {
            woken: AtomicBool::new(false),
            woken_here: AtomicBool::new(true),
            unpark: self.context.unpark.clone(),
        });
        let waker = Waker::from(woken.clone());
        let mut cx = std::task::Context::from_waker(&waker);
        loop {
            if woken.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                return output;
            }
            let has_run = self.context.executor.has_ready();
            if has_run {
                let is_starved = || self.driver.as_ref().is_some_and(|driver| driver.is_kernel_starved());
                self.context.executor.run_some(self.tasks_per_turn, is_starved);
            }
            self.turn(&woken, has_run);
        }
    }

    /// Puts a future onto this runtime as a task of its own; it runs while [`Runtime::block_on`] does.
    ///
    /// # Examples
    /// ```
    /// # fn example(runtime: &ringmain::Runtime) {
    /// let task = runtime.spawn(async { 6 * 7 });
    /// assert_eq!(runtime.block_on(task).unwrap(), 42);
    /// # }
    /// ```
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        self.context.executor.spawn(future)
    }

    /// `has_run`: a task was ready in this pass, and so another may be.
    #[inline(always)]
    fn turn(&self, main: &MainWaker, has_run: bool) {
        let Context { executor, timers, unpark, park } = &*self.context;
        // Most turns sleep without a limit: nothing is ready, no timer is set, and the sleep stands announced. While it
        // stands, whoever wakes from elsewhere ends the sleep; so there is nothing of theirs to look for.
        let has_ready = main.is_woken_here() || (has_run && executor.has_ready());
        let is_idle = !has_ready && timers.is_empty();
        let wait = if is_idle && unpark.is_asleep() { Wait::Until(None) } else { self.wait(main) };
        let turned = match &self.driver {
            Some(driver) => driver.turn(wait),
            None => park.turn(wait),
        };
        unpark.awake();
        if turned.is_err() || !timers.is_empty() {
            self.end_turn(turned);
        }
    }

    #[inline(never)]
    fn end_turn(&self, turned: io::Result<()>) {
        let Context { timers, park, .. } = &*self.context;
        if let Err(error) = turned {
            panic!("the ring cannot be entered any more: {error}; drop this runtime and build a new one");
        }
        if timers.next_deadline().is_some() {
            timers.fire(park.now());
        }
    }

    /// How long the next turn may wait. The sleep is announced before it is allowed: a wake that came since the last look
    /// at the queues refuses it, and they are looked at again.
    #[inline(never)]
    fn wait(&self, main: &MainWaker) -> Wait {
        let Context { executor, timers, unpark, park } = &*self.context;
        while !main.is_woken() && !executor.has_ready() {
            let left = timers.next_deadline().map(|deadline| deadline.saturating_duration_since(park.now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            if unpark.prepare_sleep() {
                return Wait::Until(left);
            }
        }
        unpark.stay_awake();
        Wait::No
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // The destructors of the tasks may call the free functions; those get this runtime, which refuses.
        let _entered = (context::enter(self.context.clone()), self.driver.as_ref().map(Driver::enter));
        self.context.executor.shutdown();
        self.context.timers.close();
        self.context.park.shutdown();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("tasks_per_turn", &self.tasks_per_turn).finish_non_exhaustive()
    }
}

/// Wakes the main future of one `block_on`.
///
/// Two flags, because nearly every wake comes from a completion, on the runtime's own thread, where a plain store will
/// do. With one flag, the plain version, each of them is two atomic exchanges.
struct MainWaker {
    /// Set from other threads.
    woken: AtomicBool,
    /// Set and taken on the runtime's own thread only.
    woken_here: AtomicBool,
    unpark: Arc<Unpark>,
}

impl MainWaker {
    fn is_woken(&self) -> bool {
        self.is_woken_here() || self.woken.load(Ordering::Acquire)
    }

    #[inline]
    fn is_woken_here(&self) -> bool {
        self.woken_here.load(Ordering::Relaxed)
    }

    /// A plain load first: most passes are not for the main future. A wake from elsewhere that comes with one from here
    /// is left for the next pass.
    #[inline]
    fn take(&self) -> bool {
        if self.is_woken_here() {
            self.woken_here.store(false, Ordering::Relaxed);
            return true;
        }
        self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        // On the runtime's own thread the loop looks at the flag before it sleeps. During a turn the sleep is still
        // announced there, so that going through `unpark` would cost a write that only ends the next sleep early.
        if context::is_within(&self.unpark) {
            self.woken_here.store(true, Ordering::Relaxed);
            return;
        }
        self.wake_from_elsewhere();
    }
}

impl MainWaker {
    #[inline(never)]
    fn wake_from_elsewhere(&self) {
        // A swap, where a store would do, so that every write of the flag is part of one chain that loom can follow.
        self.woken.swap(true, Ordering::AcqRel);
        self.unpark.wake();
    }
}
