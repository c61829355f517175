//! Free runs that a thread keeps ready for its next lease, so that threads do not meet at the queue's lock.
//!
//! The plain version is the pool alone. Here a released run of a small power of two pages goes into the *magazine* of
//! the thread that released it, up to a bound, and the next lease of that length on that thread comes from there. To the
//! ledger these pages are free. Only pages of chunks that stay are kept, so that none keeps a chunk from being given
//! back; and a lease that the pool has no room for empties all magazines before it grows the registry or waits.
//!
//! Somebody who waits comes first: from before the last look until nobody waits any more, magazines are closed, and
//! whoever leases or releases goes to the queue. A release looks whether they are under the lock of its magazine, and
//! who is about to wait closes them first and then takes each of those locks: so no page is missed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads beyond this share magazines.
const MAGAZINES: usize = 16;
/// Runs of 1, 2, 4, 8 and 16 pages are kept.
const ORDERS: usize = 5;
/// The most pages that one magazine keeps: 256 KiB.
const PAGES_MAX: usize = 64;
/// And the part of all pages that this may be, but for a single one.
const SHARE: usize = 4;

#[derive(Debug)]
pub(super) struct Magazines {
    slots: [Slot; MAGAZINES],
    pages_max: usize,
    /// Pages from here on may be given back to the system, and are not kept.
    bound: usize,
    is_closed: AtomicBool,
}

/// On a cache line of its own, as each is another thread's.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Magazine>);

#[derive(Debug, Default)]
struct Magazine {
    /// By order, the first pages of runs.
    runs: [Vec<usize>; ORDERS],
    pages: usize,
}

impl Magazines {
    /// For a registry that keeps these first pages.
    pub(super) fn new(pages: usize) -> Self {
        Self::with_pages_max(pages, (pages / SHARE).clamp(1, PAGES_MAX))
    }

    /// The same with a bound, in pages, for each magazine.
    pub(super) fn with_pages_max(pages: usize, pages_max: usize) -> Self {
        Self { slots: Default::default(), pages_max, bound: pages, is_closed: AtomicBool::new(false) }
    }

    /// A run of exactly so many pages, if this thread has one ready and nobody waits.
    pub(super) fn take(&self, pages: usize) -> Option<usize> {
        let order = order_of(pages)?;
        let mut magazine = self.own();
        if self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let start = magazine.runs[order].pop()?;
        magazine.pages -= pages;
        Some(start)
    }

    /// Keeps a run that nobody holds; or not, and then it is the pool's.
    pub(super) fn keep(&self, pages: &Range<usize>) -> bool {
        let Some(order) = order_of(pages.len()) else {
            return false;
        };
        let mut magazine = self.own();
        let has_room = magazine.pages + pages.len() <= self.pages_max && pages.end <= self.bound;
        if !has_room || self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        magazine.runs[order].push(pages.start);
        magazine.pages += pages.len();
        true
    }

    /// Takes all runs out; whether there were any.
    pub(super) fn empty(&self, mut put: impl FnMut(Range<usize>)) -> bool {
        let mut any = false;
        for slot in &self.slots {
            let mut magazine = lock(slot);
            any |= magazine.pages > 0;
            magazine.pages = 0;
            for (order, runs) in magazine.runs.iter_mut().enumerate() {
                runs.drain(..).for_each(|start| put(start..start + (1 << order)));
            }
        }
        any
    }

    /// Somebody is about to wait: from here on nothing is kept, and nothing is taken past the queue. What was kept is
    /// to be [emptied](Self::empty) next.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Nobody waits.
    pub(super) fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// This thread's.
    fn own(&self) -> MutexGuard<'_, Magazine> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static PLACE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        // A lease may be dropped when the thread's locals are gone.
        let place = PLACE.try_with(|place| *place).unwrap_or(0);
        lock(&self.slots[place % MAGAZINES])
    }
}

fn order_of(pages: usize) -> Option<usize> {
    let order = pages.checked_ilog2()? as usize;
    (pages.is_power_of_two() && order < ORDERS).then_some(order)
}

fn lock(slot: &Slot) -> MutexGuard<'_, Magazine> {
    slot.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_kept_up_to_the_bound_and_taken_by_its_length() {
        let magazines = Magazines::with_pages_max(100, 6);
        assert!(magazines.keep(&(4..8)) && magazines.keep(&(20..22)));
        assert!(!magazines.keep(&(30..31)), "six pages are kept");
        assert_eq!((magazines.take(2), magazines.take(2), magazines.take(8)), (Some(20), None, None));
        assert!(!magazines.keep(&(50..53)) && !magazines.keep(&(99..101)), "no power of two; and one that may go");
        let mut left = Vec::new();
        assert!(magazines.empty(|run| left.push((run.start, run.end))) && !magazines.empty(|_| {}));
        assert_eq!(left, [(4, 8)]);
    }

    #[test]
    fn nothing_goes_past_the_queue_while_somebody_waits() {
        let magazines = Magazines::with_pages_max(100, 6);
        assert!(magazines.keep(&(0..1)));
        magazines.close();
        assert_eq!((magazines.take(1), magazines.keep(&(1..2))), (None, false));
        magazines.open();
        assert_eq!(magazines.take(1), Some(0));
    }

    #[test]
    fn a_small_registry_keeps_a_page_and_a_larger_one_a_quarter_of_its_pages() {
        let small = Magazines::new(3);
        assert!(small.keep(&(0..1)) && !small.keep(&(1..2)));
        let larger = Magazines::new(16);
        assert!(larger.keep(&(0..4)) && !larger.keep(&(4..5)));
        assert!(!Magazines::new(1 << 20).keep(&(0..32)), "a longer run is the pool's");
    }
}
