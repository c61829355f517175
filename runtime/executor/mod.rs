//! The executor: tasks of one thread, in the order in which they became ready.
//!
//! The problem: a task may hold anything, `Rc` included, so it is polled and dropped on its own thread only; yet its
//! waker may be used anywhere and at any time, also after the runtime is gone. async-task keeps the cell of a task sound;
//! what is decided here is where a woken task goes, and that at the end none is left for another thread to drop.
//!
//! * A wake on the runtime's thread puts the task into a plain queue; any other goes through a locked one and, if the
//!   thread sleeps, ends its sleep (`unpark`). Each task is in at most one queue, once, so both are bounded by the
//!   number of tasks (I7).
//! * A round runs what was ready when it began, or the first of that. A task that wakes itself runs again in the next round, after the
//!   completions in between have had their turn.
//! * Shutdown wakes every task and waits until each has come back through a queue to be dropped here (I5, I6).

mod queue;
mod task;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::unpark::Unpark;
use queue::{Local, Ready, Shared};
pub use task::{JoinError, JoinHandle};

/// Tasks after which a round asks whether it is to end.
const ASK_AFTER: usize = 4;

/// The tasks of one runtime.
#[derive(Debug)]
pub(crate) struct Executor {
    local: Rc<Local>,
    shared: Arc<Shared>,
    closing: Cell<bool>,
    /// Whether a task is being polled or dropped, further up on this thread's stack.
    running: Cell<bool>,
}

impl Executor {
    /// An executor for the calling thread; `unpark` ends that thread's sleep.
    pub(crate) fn new(unpark: Arc<Unpark>) -> Executor {
        Executor {
            local: Rc::default(),
            shared: Arc::new(Shared::new(unpark)),
            closing: Cell::new(false),
            running: Cell::new(false),
        }
    }

    /// Queues a new task. Once shutdown has begun the future is dropped on the spot and the handle answers *cancelled*.
    pub(crate) fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        if self.closing.get() {
            task::contain("a future that was spawned during shutdown", || drop(future));
            return JoinHandle::refused(self.shared.clone());
        }
        let (ready, handle) = task::new(future, &self.shared);
        self.local.push(ready);
        handle
    }

    /// Runs at most `max` tasks, of those that are ready now. Returns how many it ran. Asks once in [`ASK_AFTER`] tasks
    /// whether it is to end earlier.
    #[inline]
    pub(crate) fn run_some(&self, max: usize, ends_early: impl Fn() -> bool) -> usize {
        if self.shared.has_remote() {
            self.shared.take_remote(&self.local);
        }
        let round = self.local.len().min(max);
        for ran in 0..round {
            let Some(ready) = self.local.pop() else {
                return ran;
            };
            self.run(ready);
            if ran % ASK_AFTER == ASK_AFTER - 1 && ends_early() {
                return ran + 1;
            }
        }
        round
    }

    /// Whether a task waits to be run.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.local.len() > 0 || self.shared.has_remote()
    }

    /// Whether `shared` is this executor's: how a waker on this thread finds the way without a lock.
    fn owns(&self, shared: &Shared) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.shared), shared)
    }

    /// Drops the future of every task, here and now. A wake that another thread has begun is waited for: its task
    /// is on the way into a queue, and must not be left for that thread to drop.
    ///
    /// Called from inside of a task (`exit` in a task, with the runtime in a thread-local) it leaks that task, and those
    /// on their way: the task cannot end before its caller does.
    pub(crate) fn shutdown(&self) {
        if self.closing.replace(true) {
            return;
        }
        self.shared.begin_closing();
        // From here on every live task is scheduled: it is in a queue, or a thread is about to put it there.
        self.shared.wake_all();
        loop {
            self.shared.take_remote(&self.local);
            while let Some(ready) = self.local.pop() {
                drop(ready);
            }
            if self.shared.is_idle() || self.running.get() {
                break;
            }
            self.shared.wait_for_remote();
        }
        self.shared.close();
    }

    fn run(&self, ready: Ready) {
        self.running.set(true);
        if self.shared.is_aborted(*ready.metadata()) {
            // Dropping it drops the future, and then tells the handle.
            drop(ready);
        } else {
            ready.run();
        }
        self.running.set(false);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shutdown();
    }
}
