//! What is left to do when nothing is borrowed any more: wakers, and what has to be dropped, are foreign code, which may
//! come back here, and may panic.

use std::cell::{Cell, RefMut};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::Driver;
use super::turn::Core;
use crate::runtime::completion::Completion;
use crate::runtime::inflight::Slot;
use crate::runtime::lent::Left;
use crate::runtime::waking::Waking;

/// What a turn leaves to do when nothing is borrowed any more.
#[derive(Debug, Default)]
pub(super) struct After {
    /// The first to be woken: most turns have no other, and need no queue.
    first: Option<Rc<Waking>>,
    wakes: VecDeque<Rc<Waking>>,
    pub(super) disposals: VecDeque<(Option<Rc<Slot>>, Completion)>,
    /// What there seldom is, in one queue.
    pub(super) rest: VecDeque<Rest>,
}

#[derive(Debug)]
pub(super) enum Rest {
    /// A completion that names nothing, by its `user_data`: who listens to the log is foreign code too.
    Report(u64),
    /// Lent memory that nobody gets, or a place in the queue for more.
    Lent(Left),
}

impl After {
    /// Have this woken, once, however many completions ask for it.
    #[inline]
    pub(super) fn wake(&mut self, waking: Rc<Waking>) {
        if !waking.enqueue() {
            return;
        }
        if self.first.is_none() && self.wakes.is_empty() {
            self.first = Some(waking);
        } else {
            self.wakes.push_back(waking);
        }
    }

    /// The one task to be woken, if no other is. Whether there is more to do than to wake, the turn knows.
    #[inline]
    pub(super) fn take_sole_wake(&mut self) -> Option<Rc<Waking>> {
        if self.wakes.is_empty() { self.first.take() } else { None }
    }

    /// Whether somebody is to be woken.
    #[inline]
    pub(super) fn has_to_wake(&self) -> bool {
        self.first.is_some() || !self.wakes.is_empty()
    }

    fn next_wake(&mut self) -> Option<Rc<Waking>> {
        self.first.take().or_else(|| self.wakes.pop_front())
    }

    pub(super) fn has_any(&self) -> bool {
        self.len() > 0
    }

    /// Whether there is more to do than to wake.
    pub(super) fn has_to_drop(&self) -> bool {
        !(self.disposals.is_empty() && self.rest.is_empty())
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.wakes.len() + self.disposals.len() + self.rest.len()
    }
}

impl Driver {
    /// End a borrow of the core: grant what has become free, then do what is left to do.
    pub(super) fn let_go(&self, mut core: RefMut<'_, Core>) {
        core.grant();
        drop(core);
        self.carry_out();
    }

    /// Run the foreign code that is left to run: all of it, also when some of it panics.
    ///
    /// One catch for all of it, which is entered again only after a panic.
    pub(super) fn carry_out(&self) {
        let mut panic = None;
        // What this leads to besides is for the next turn: foreign code must not keep this one for ever.
        let left = Cell::new(self.core.borrow().after.len());
        while left.get() > 0 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    self.carry_out_one();
                }
            }));
            match outcome {
                Ok(()) => {}
                Err(payload) if panic.is_none() => panic = Some(payload),
                // Its destructor is foreign code too, and there are others to wake.
                Err(payload) => std::mem::forget(payload),
            }
        }
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn carry_out_one(&self) {
        let mut core = self.core.borrow_mut();
        if let Some(waking) = core.after.next_wake() {
            drop(core);
            self.wake(waking);
        } else if let Some((slot, completion)) = core.after.disposals.pop_front() {
            drop(core);
            drop(completion);
            if let Some(slot) = slot {
                self.empty(&slot);
            }
        } else if let Some(rest) = core.after.rest.pop_front() {
            drop(core);
            match rest {
                Rest::Report(user_data) => tracing::warn!(user_data, "a completion names no operation in flight"),
                Rest::Lent(left) => left.leave(),
            }
        }
    }

    /// Wake a task, by value if no slot shares its waker: that spares its count two steps.
    #[inline(always)]
    pub(super) fn wake(&self, waking: Rc<Waking>) {
        waking.dequeue();
        if Rc::strong_count(&waking) > 1 {
            return waking.wake_by_ref();
        }
        self.wake_unshared(waking);
    }

    #[inline(never)]
    fn wake_unshared(&self, waking: Rc<Waking>) {
        let unshared = self.core.borrow_mut().wakers.unshare(waking);
        if let Ok(waker) = unshared {
            waker.wake();
        }
    }
}
