//! Whom a completion wakes: one clone of a task's waker, shared by all its slots.
//!
//! The plain version keeps a clone of the waker in each slot. Cloning, waking and dropping one are each an atomic
//! operation on the task's count, and a task with 32 operations in flight is then woken 32 times for what one turn
//! brings. Here the slots of a task share one clone by a plain count, and a turn wakes it once. What that saves was
//! measured together with slots that stay in their place (`inflight`): by callgrind 2,233 instructions of user code for
//! each NOP became 1,448 in batches of 1, and 1,404 became 776 in batches of 32.
//!
//! The last waker seen is kept at hand, because the next operation is most often the same task's, but not beyond the
//! next turn: nothing of a task that has ended is kept while the ring sleeps.
//!
//! A waker is foreign code. Nothing here clones, wakes or drops one: what has to go is handed to the caller, who lets
//! it go when the driver is no longer borrowed.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

/// How many emptied places are kept for the next waker.
const SPARE_MAX: usize = 1024;

/// A waker that several slots share.
#[derive(Debug)]
pub(crate) struct Waking {
    /// `None` only in a spare one.
    waker: Option<Waker>,
    /// It waits to be woken already.
    is_queued: Cell<bool>,
}

/// The wakers of one driver.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    last: Option<Rc<Waking>>,
    spare: Vec<Rc<Waking>>,
}

impl Waking {
    /// Whether this would wake the same task as that waker.
    #[inline]
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.waker.as_ref().is_some_and(|there| there.will_wake(waker))
    }

    /// Note that it waits to be woken; false if it did so already.
    #[inline]
    pub(crate) fn enqueue(&self) -> bool {
        !self.is_queued.replace(true)
    }

    /// It is about to be woken: what happens from here on deserves another wake.
    #[inline]
    pub(crate) fn dequeue(&self) {
        self.is_queued.set(false);
    }

    /// Wake the task. Foreign code: nothing may be borrowed.
    #[inline]
    pub(crate) fn wake_by_ref(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Wakers {
    /// The shared one for this waker, if it is the last that was seen.
    #[inline]
    pub(crate) fn find(&self, waker: &Waker) -> Option<Rc<Waking>> {
        self.last.as_ref().filter(|last| last.will_wake(waker)).map(Rc::clone)
    }

    /// Share a clone of a waker. The second value is for the caller to drop.
    pub(crate) fn share(&mut self, waker: Waker) -> (Rc<Waking>, Option<Waker>) {
        let gone = self.forget_last();
        let mut waker = Some(waker);
        let reused = self.spare.pop().and_then(|mut spare| {
            Rc::get_mut(&mut spare)?.waker = waker.take();
            Some(spare)
        });
        let waking = reused.unwrap_or_else(|| Rc::new(Waking { waker, is_queued: Cell::new(false) }));
        self.last = Some(Rc::clone(&waking));
        (waking, gone)
    }

    /// Whether the last waker is shared by no slot.
    #[inline]
    pub(crate) fn has_unused(&self) -> bool {
        self.last.as_ref().is_some_and(|last| Rc::strong_count(last) == 1)
    }

    /// Keep the last waker no longer if no slot shares it. It is the caller's to drop.
    pub(crate) fn forget_unused(&mut self) -> Option<Waker> {
        if self.has_unused() { self.forget_last() } else { None }
    }

    /// Keep the last waker no longer. It is the caller's to drop if no slot shares it.
    pub(crate) fn forget_last(&mut self) -> Option<Waker> {
        let last = self.last.take()?;
        self.unshare(last).ok()
    }

    /// The waker itself, if nothing else shares it.
    #[inline]
    pub(crate) fn unshare(&mut self, mut waking: Rc<Waking>) -> Result<Waker, Rc<Waking>> {
        let Some(waker) = Rc::get_mut(&mut waking).and_then(|alone| alone.waker.take()) else {
            return Err(waking);
        };
        if self.spare.len() < SPARE_MAX {
            self.spare.push(waking);
        }
        Ok(waker)
    }

    /// A slot that will not wake this any more shares it no longer: if no other does, nothing of its task is kept.
    pub(crate) fn let_go(&mut self, waking: Rc<Waking>) -> Option<Waker> {
        self.unshare(waking).ok().or_else(|| self.forget_unused())
    }
}
