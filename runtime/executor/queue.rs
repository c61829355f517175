//! Where a woken task goes, and the list of those that live.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, ThreadId};

use async_task::Runnable;
use slab::Slab;

use crate::runtime::context;
use crate::runtime::unpark::Unpark;

/// A task that waits to be run, or dropped, on its own thread.
pub(super) type Ready = Runnable<TaskId>;

/// Names one task of an executor. The index is used again, the serial number never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskId {
    index: usize,
    serial: u64,
}

/// The queue of the runtime's own thread. No foreign code runs while it is borrowed.
#[derive(Debug, Default)]
pub(crate) struct Local(RefCell<VecDeque<Ready>>);

impl Local {
    #[inline]
    pub(super) fn push(&self, ready: Ready) {
        self.0.borrow_mut().push_back(ready);
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<Ready> {
        self.0.borrow_mut().pop_front()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// What wakers and handles reach from any thread.
#[derive(Debug)]
pub(super) struct Shared {
    remote: Mutex<Remote>,
    /// How many tasks `remote` has, to look without the lock. A stale answer is harmless: `Unpark::wake` follows each push.
    remote_len: AtomicUsize,
    /// Signalled for each push while the executor closes.
    arrived: Condvar,
    active: Mutex<Active>,
    /// How many active tasks are aborted and not yet dropped: nearly always 0, so that a run costs one load.
    aborted: AtomicUsize,
    unpark: Arc<Unpark>,
    owner: ThreadId,
}

#[derive(Debug, Default)]
struct Remote {
    queue: VecDeque<Ready>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// The owner drops the tasks and waits for those on their way.
    Closing,
    /// No task lives.
    Closed,
}

/// The tasks whose futures live. Their wakers keep the cells alive, so the last waker elsewhere drops no future.
#[derive(Debug, Default)]
struct Active {
    tasks: Slab<ActiveTask>,
    next_serial: u64,
}

#[derive(Debug)]
struct ActiveTask {
    serial: u64,
    /// `None` until the cell exists.
    waker: Option<Waker>,
    aborted: bool,
}

impl Shared {
    pub(super) fn new(unpark: Arc<Unpark>) -> Shared {
        Shared {
            remote: Mutex::default(),
            remote_len: AtomicUsize::new(0),
            arrived: Condvar::new(),
            active: Mutex::default(),
            aborted: AtomicUsize::new(0),
            unpark,
            owner: thread::current().id(),
        }
    }

    /// Puts a woken task into a queue. Called by its waker, on any thread.
    #[inline]
    pub(super) fn schedule(&self, ready: Ready) {
        let mut ready = Some(ready);
        context::with_current(|context| {
            if context.executor.owns(self)
                && let Some(ready) = ready.take()
            {
                context.executor.local.push(ready);
            }
        });
        if let Some(ready) = ready {
            self.schedule_remote(ready);
        }
    }

    #[inline(never)]
    fn schedule_remote(&self, ready: Ready) {
        let mut remote = lock(&self.remote);
        let phase = remote.phase;
        if phase == Phase::Closed {
            drop(remote);
            self.refuse(ready);
            return;
        }
        remote.queue.push_back(ready);
        self.remote_len.store(remote.queue.len(), Ordering::Release);
        drop(remote);
        match phase {
            Phase::Closing => self.arrived.notify_one(),
            Phase::Open | Phase::Closed => self.unpark.wake(),
        }
    }

    /// Closing ends when no future lives, and a task without one is never scheduled, so nothing comes here. If it did, a
    /// leak is the one answer that neither drops a future on a foreign thread nor keeps it in a queue nobody reads.
    fn refuse(&self, ready: Ready) {
        if thread::current().id() == self.owner {
            drop(ready);
        } else {
            tracing::error!("a task was woken after its executor had closed, on another thread: it is leaked");
            mem::forget(ready);
        }
    }

    /// Moves what other threads queued behind what `local` has.
    pub(super) fn take_remote(&self, local: &Local) {
        if !self.has_remote() {
            return;
        }
        let mut remote = lock(&self.remote);
        local.0.borrow_mut().append(&mut remote.queue);
        self.remote_len.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn has_remote(&self) -> bool {
        self.remote_len.load(Ordering::Acquire) != 0
    }

    /// Lists a task whose cell is about to be made.
    pub(super) fn admit(&self) -> TaskId {
        let mut active = lock(&self.active);
        let serial = active.next_serial;
        active.next_serial += 1;
        let index = active.tasks.insert(ActiveTask { serial, waker: None, aborted: false });
        TaskId { index, serial }
    }

    pub(super) fn set_waker(&self, id: TaskId, waker: Waker) {
        if let Some(task) = lock(&self.active).find(id) {
            task.waker = Some(waker);
        }
    }

    /// Strikes a task whose future is gone.
    pub(super) fn retire(&self, id: TaskId) {
        let mut active = lock(&self.active);
        let task = active.find(id).is_some().then(|| active.tasks.remove(id.index));
        drop(active);
        // The waker goes after the lock, for it may take the cell, and so anything, with it.
        if task.is_some_and(|task| task.aborted) {
            self.aborted.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Marks a task and wakes it, so that its thread drops it instead of running it. A task that is gone is left alone.
    pub(super) fn abort(&self, id: TaskId) {
        let mut active = lock(&self.active);
        let Some(task) = active.find(id).filter(|task| !task.aborted) else {
            return;
        };
        task.aborted = true;
        let waker = task.waker.clone();
        self.aborted.fetch_add(1, Ordering::AcqRel);
        drop(active);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    #[inline]
    pub(super) fn is_aborted(&self, id: TaskId) -> bool {
        self.aborted.load(Ordering::Acquire) != 0 && lock(&self.active).find(id).is_some_and(|task| task.aborted)
    }

    pub(super) fn begin_closing(&self) {
        lock(&self.remote).phase = Phase::Closing;
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn is_closing(&self) -> bool {
        lock(&self.remote).phase == Phase::Closing
    }

    pub(super) fn wake_all(&self) {
        let wakers: Vec<Waker> = lock(&self.active).tasks.iter().filter_map(|(_, task)| task.waker.clone()).collect();
        for waker in wakers {
            waker.wake();
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        lock(&self.active).tasks.is_empty()
    }

    /// Blocks until another thread has queued a task: it already holds one, and only has to push it.
    pub(super) fn wait_for_remote(&self) {
        let mut remote = lock(&self.remote);
        while remote.queue.is_empty() {
            remote = self.arrived.wait(remote).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn close(&self) {
        lock(&self.remote).phase = Phase::Closed;
    }
}

impl Active {
    fn find(&mut self, id: TaskId) -> Option<&mut ActiveTask> {
        self.tasks.get_mut(id.index).filter(|task| task.serial == id.serial)
    }
}

/// No foreign code runs under these locks, so a poisoned one has nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
