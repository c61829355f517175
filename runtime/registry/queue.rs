//! Who waits for pages, and the free ones: what the registry's one lock protects.
//!
//! Waiting is strictly first come, first served. A lease that does not fit yet holds back everyone behind it, whatever
//! their size: a large lease is never starved by a stream of small ones. Nothing here runs foreign code: wakers are
//! handed out to be woken, and dropped, once the lock is released.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::PAGE_BYTES;
use super::free_pages::FreePages;
use super::ledger::{Hold, Ledger};
use super::snapshot::Snapshot;

/// Pages taken out of the free ones, for one holder.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) first_page: usize,
    /// The length asked for; the pages are those that it touches.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct Waiter {
    bytes: usize,
    waker: Waker,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Queue {
    free: FreePages,
    entry_pages: usize,
    /// In order of arrival. I7: one place for each living `Lease`, which gives it up when it is dropped.
    waiting: BTreeMap<u64, Waiter>,
    /// Granted to a place whose future has not been polled since.
    granted: BTreeMap<u64, Grant>,
    next_place: u64,
    waits: u64,
    wait_total: Duration,
    wait_max: Duration,
}

impl Queue {
    pub(super) fn new(pages: usize, entry_pages: usize) -> Self {
        Self {
            free: FreePages::new(pages),
            entry_pages,
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            next_place: 0,
            waits: 0,
            wait_total: Duration::ZERO,
            wait_max: Duration::ZERO,
        }
    }

    /// Fills in who waits, and who did.
    pub(super) fn count(&self, snapshot: &mut Snapshot) {
        snapshot.waiting = self.waiting.len();
        snapshot.waits = self.waits;
        snapshot.wait_total = self.wait_total;
        snapshot.wait_max = self.wait_max;
    }

    /// Takes `bytes` now, unless somebody waits already.
    pub(super) fn try_take(&mut self, bytes: usize, ledger: &Ledger) -> Option<Grant> {
        if self.waiting.is_empty() { self.take(bytes, ledger) } else { None }
    }

    /// Takes a place at the end of the queue.
    pub(super) fn wait(&mut self, bytes: usize, waker: Waker) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.waiting.insert(place, Waiter { bytes, waker, since: Instant::now() });
        place
    }

    /// What was granted to this place. If nothing was, `waker` replaces the one known for it. The waker that is not
    /// needed any more is handed back.
    #[must_use = "dropping a waker is foreign code: do it after the lock is released"]
    pub(super) fn collect(&mut self, place: u64, waker: Waker) -> (Option<Grant>, Waker) {
        match self.waiting.get_mut(&place) {
            Some(waiter) => (None, std::mem::replace(&mut waiter.waker, waker)),
            None => (self.granted.remove(&place), waker),
        }
    }

    /// Gives up a place, and what was granted to it; those behind it may have their turn now.
    #[must_use = "dropping a waker is foreign code: do it after the lock is released"]
    pub(super) fn abandon(&mut self, place: u64, ledger: &Ledger, woken: &mut Vec<Waker>) -> Option<Waker> {
        let waiter = self.waiting.remove(&place);
        if let Some(grant) = self.granted.remove(&place) {
            let pages = grant.first_page..grant.first_page + grant.bytes.div_ceil(PAGE_BYTES);
            self.put_back(ledger.release(pages, Hold::Exclusive));
        }
        self.serve(ledger, woken);
        waiter.map(|waiter| waiter.waker)
    }

    /// Nobody holds these pages any more.
    pub(super) fn release(&mut self, pages: Range<usize>, ledger: &Ledger, woken: &mut Vec<Waker>) {
        self.put_back(pages);
        self.serve(ledger, woken);
    }

    /// Grants what is there to those who wait, in their order, up to the first whose turn has not come.
    fn serve(&mut self, ledger: &Ledger, woken: &mut Vec<Waker>) {
        while let Some((&place, waiter)) = self.waiting.first_key_value() {
            let (bytes, since) = (waiter.bytes, waiter.since);
            let Some(grant) = self.take(bytes, ledger) else {
                return;
            };
            let waited = since.elapsed();
            self.waits += 1;
            self.wait_total += waited;
            self.wait_max = self.wait_max.max(waited);
            self.granted.insert(place, grant);
            woken.extend(self.waiting.remove(&place).map(|waiter| waiter.waker));
        }
    }

    fn take(&mut self, bytes: usize, ledger: &Ledger) -> Option<Grant> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let first_page = self.free.take_run(pages, self.entry_pages)?;
        ledger.hold(first_page..first_page + pages);
        Some(Grant { first_page, bytes })
    }

    fn put_back(&mut self, pages: Range<usize>) {
        pages.for_each(|page| self.free.insert(page));
    }
}

/// Wakes in order, the rest also if one of them panics: each has been granted pages and would otherwise never know.
pub(super) fn wake_all(wakers: Vec<Waker>) {
    struct Rest(VecDeque<Waker>);
    impl Drop for Rest {
        fn drop(&mut self) {
            self.0.drain(..).for_each(Waker::wake);
        }
    }
    let mut rest = Rest(wakers.into());
    while let Some(waker) = rest.0.pop_front() {
        waker.wake();
    }
}
