//! What each thread has for itself: free runs that it keeps ready for its next lease, and its part of the counts. Threads
//! so lease and release without meeting at a lock or at a number.
//!
//! The plain version is the pool alone. Here a released run of a power of two pages goes into the *magazine* of the
//! thread that released it, up to a bound, and the next lease of that length on that thread comes from there. To the
//! ledger these pages are free. Only pages of chunks that stay are kept, so that none keeps a chunk from being given
//! back; and a lease that the pool has no room for empties all magazines before it grows the registry or waits.
//!
//! Somebody who waits comes first: from before the last look until nobody waits any more, magazines are closed, and
//! whoever leases or releases goes to the queue. A release looks whether they are under the lock of its magazine, and
//! who is about to wait closes them first and then takes each of those locks: so no page is missed.
//!
//! Every change of what pages count as is made in one step in one magazine, whichever, so that the sum over all of them,
//! taken with all of them locked, is exact at that moment; the part that one of them has may be less than nothing. The
//! most that a count ever was is exact as well, and no thread has to look at the others for it: each may raise its own
//! part up to its *room*, and all rooms together are the most so far. Only who needs more looks at all of them.

use std::array;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counts::{Class, Counts, HELD, LEVELS, Shift, WITH_KERNEL};
use super::snapshot::Snapshot;

/// Threads beyond this share magazines.
pub(super) const MAGAZINES: usize = 16;
/// Runs of 1, 2, 4 and so on up to 256 pages, 1 MiB, are kept.
const ORDERS: usize = 9;
/// The most pages that one magazine keeps: 4 MiB.
const PAGES_MAX: usize = 1024;
/// And the part of all pages that this may be, but for a single one.
const SHARE: usize = 2;

#[derive(Debug)]
pub(super) struct Magazines {
    slots: [Slot; MAGAZINES],
    pages_max: usize,
    /// Pages from here on may be given back to the system, and are not kept.
    bound: usize,
    is_closed: AtomicBool,
    /// The most that all together ever had of each level. Changed with all magazines locked.
    most: [AtomicIsize; LEVELS],
}

/// On a cache line of its own, as each is another thread's.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Magazine>);

#[derive(Debug, Default)]
struct Magazine {
    counts: Counts,
    /// Up to what its levels may rise unseen by the others.
    rooms: [isize; LEVELS],
    /// By order, the first pages of runs.
    runs: [Vec<usize>; ORDERS],
    pages: usize,
}

impl Magazine {
    /// Whether a change raises no level beyond its room.
    #[inline(always)]
    fn has_room(&self, change: [isize; LEVELS]) -> bool {
        let fits = |level: usize| change[level] <= 0 || self.counts.levels[level] + change[level] <= self.rooms[level];
        fits(HELD) && fits(WITH_KERNEL)
    }

    fn pop(&mut self, order: usize) -> Option<usize> {
        let start = self.runs[order].pop()?;
        self.pages -= 1 << order;
        Some(start)
    }

    fn push(&mut self, order: usize, start: usize) {
        self.runs[order].push(start);
        self.pages += 1 << order;
    }
}

impl Magazines {
    /// For a registry that keeps these first pages.
    pub(super) fn new(pages: usize) -> Self {
        Self::with_pages_max(pages, (pages / SHARE).clamp(1, PAGES_MAX))
    }

    /// The same with a bound, in pages, for each magazine.
    pub(super) fn with_pages_max(pages: usize, pages_max: usize) -> Self {
        Self {
            slots: Default::default(),
            pages_max,
            bound: pages,
            is_closed: AtomicBool::new(false),
            most: Default::default(),
        }
    }

    /// A run of exactly so many pages, if this thread has one ready and nobody waits. It counts as leased.
    #[inline]
    pub(super) fn take(&self, pages: usize) -> Option<usize> {
        let order = order_of(pages)?;
        let shift = Shift { from: Class::Free, to: Class::Leased, pages };
        let place = own_place();
        let mut magazine = lock(&self.slots[place]);
        if self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        if !magazine.has_room(shift.levels()) {
            drop(magazine);
            return self.take_beyond(place, order, shift);
        }
        let start = magazine.pop(order)?;
        magazine.counts.shift(shift);
        Some(start)
    }

    /// Keeps a run that nobody holds any more, and that counted as this; or not, and then it is the pool's. Either way it
    /// counts as free from now on.
    #[inline]
    pub(super) fn keep(&self, pages: &Range<usize>, from: Class) -> bool {
        let mut magazine = lock(&self.slots[own_place()]);
        // No level rises.
        magazine.counts.shift(Shift { from, to: Class::Free, pages: pages.len() });
        let Some(order) = order_of(pages.len()) else {
            return false;
        };
        let has_room = magazine.pages + pages.len() <= self.pages_max && pages.end <= self.bound;
        if !has_room || self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        magazine.push(order, pages.start);
        true
    }

    /// Pages count as something else if this is true, which nobody can see before they do.
    #[inline(always)]
    pub(super) fn shift_if(&self, shift: Shift, is_so: impl FnOnce() -> bool) -> bool {
        let place = own_place();
        let mut magazine = lock(&self.slots[place]);
        if magazine.has_room(shift.levels()) {
            let is_so = is_so();
            if is_so {
                magazine.counts.shift(shift);
            }
            return is_so;
        }
        drop(magazine);
        self.shift_beyond_if(place, shift, is_so)
    }

    #[cold]
    #[inline(never)]
    fn shift_beyond_if(&self, place: usize, shift: Shift, is_so: impl FnOnce() -> bool) -> bool {
        let mut all = self.lock_all();
        let is_so = is_so();
        if is_so {
            self.count_beyond(&mut all, place, shift.into());
        }
        is_so
    }

    /// Pages count as something else.
    pub(super) fn count(&self, change: Counts) {
        let place = own_place();
        let mut magazine = lock(&self.slots[place]);
        if magazine.has_room(change.levels) {
            magazine.counts += change;
            return;
        }
        drop(magazine);
        self.count_beyond(&mut self.lock_all(), place, change);
    }

    /// Fills in who has the pages, at one moment.
    pub(super) fn tell(&self, snapshot: &mut Snapshot) {
        let all = self.lock_all();
        let mut counts = Counts::default();
        all.iter().for_each(|magazine| counts += magazine.counts);
        let most = |level: usize| self.most[level].load(Ordering::Relaxed).unsigned_abs();
        (snapshot.pages_held_max, snapshot.pages_in_flight_max) = (most(HELD), most(WITH_KERNEL));
        drop(all);
        counts.tell(snapshot);
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

    #[cold]
    fn take_beyond(&self, place: usize, order: usize, shift: Shift) -> Option<usize> {
        let mut all = self.lock_all();
        if self.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let start = all[place].pop(order)?;
        self.count_beyond(&mut all, place, shift.into());
        Some(start)
    }

    /// Counts a change, sees whether all together have more than ever, and shares out the rooms anew: the others keep
    /// what they have as far as there is enough.
    #[cold]
    fn count_beyond(&self, all: &mut [MutexGuard<'_, Magazine>; MAGAZINES], place: usize, change: Counts) {
        all[place].counts += change;
        for level in 0..LEVELS {
            let now: isize = all.iter().map(|magazine| magazine.counts.levels[level]).sum();
            let most = self.most[level].load(Ordering::Relaxed).max(now);
            self.most[level].store(most, Ordering::Relaxed);
            let mut spare = most - now;
            for magazine in all.iter_mut().enumerate().filter(|(at, _)| *at != place).map(|(_, magazine)| magazine) {
                let room = (magazine.rooms[level] - magazine.counts.levels[level]).clamp(0, spare);
                magazine.rooms[level] = magazine.counts.levels[level] + room;
                spare -= room;
            }
            all[place].rooms[level] = all[place].counts.levels[level] + spare;
        }
    }

    /// Always in this order.
    fn lock_all(&self) -> [MutexGuard<'_, Magazine>; MAGAZINES] {
        array::from_fn(|place| lock(&self.slots[place]))
    }
}

/// This thread's.
#[inline(always)]
pub(super) fn own_place() -> usize {
    const NONE: usize = MAGAZINES;
    thread_local! {
        // Without a destructor, so that it is there for a lease that is dropped when other locals are gone; and set when it
        // is first asked for, which is one comparison.
        static PLACE: Cell<usize> = const { Cell::new(NONE) };
    }
    match PLACE.get() {
        NONE => {
            let place = new_place();
            PLACE.set(place);
            place
        }
        place => place,
    }
}

/// Threads get them in turn.
#[cold]
fn new_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed) % MAGAZINES
}

fn order_of(pages: usize) -> Option<usize> {
    let order = pages.checked_ilog2()? as usize;
    (pages.is_power_of_two() && order < ORDERS).then_some(order)
}

#[inline]
fn lock(slot: &Slot) -> MutexGuard<'_, Magazine> {
    slot.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that was leased.
    fn keep(magazines: &Magazines, run: Range<usize>) -> bool {
        magazines.keep(&run, Class::Leased)
    }

    #[test]
    fn a_run_is_kept_up_to_the_bound_and_taken_by_its_length() {
        let magazines = Magazines::with_pages_max(100, 6);
        assert!(keep(&magazines, 4..8) && keep(&magazines, 20..22));
        assert!(!keep(&magazines, 30..31), "six pages are kept");
        assert_eq!((magazines.take(2), magazines.take(2), magazines.take(8)), (Some(20), None, None));
        assert!(!keep(&magazines, 50..53) && !keep(&magazines, 99..101), "no power of two; and one that may go");
        let mut left = Vec::new();
        assert!(magazines.empty(|run| left.push((run.start, run.end))) && !magazines.empty(|_| {}));
        assert_eq!(left, [(4, 8)]);
    }

    #[test]
    fn nothing_goes_past_the_queue_while_somebody_waits() {
        let magazines = Magazines::with_pages_max(100, 6);
        assert!(keep(&magazines, 0..1));
        magazines.close();
        assert_eq!((magazines.take(1), keep(&magazines, 1..2)), (None, false));
        magazines.open();
        assert_eq!(magazines.take(1), Some(0));
    }

    #[test]
    fn a_small_registry_keeps_a_page_and_a_larger_one_half_of_its_pages() {
        let small = Magazines::new(3);
        assert!(keep(&small, 0..1) && !keep(&small, 1..2));
        let larger = Magazines::new(16);
        assert!(keep(&larger, 0..8) && !keep(&larger, 8..9));
        assert!(!keep(&Magazines::new(1 << 20), 0..512), "a longer run is the pool's");
    }
}
