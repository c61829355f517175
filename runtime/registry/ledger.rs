//! Who holds each page, and who waits for some: the record behind the registry's lock.
//!
//! Waiting is strictly first come, first served. A lease that does not fit yet holds back everyone behind it, whatever
//! their size: a large lease is never starved by a stream of small ones. Nothing here runs foreign code: wakers are
//! handed out to be woken, and dropped, once the lock is released.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

use super::PAGE_BYTES;
use super::free_pages::FreePages;

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
}

#[derive(Debug)]
pub(super) struct Ledger {
    free: FreePages,
    entry_pages: usize,
    /// Per page, the segments that have bytes on it. Each has at least one of its 4096 bytes.
    holders: Box<[u16]>,
    /// In order of arrival. I7: one place for each living `Lease`, which gives it up when it is dropped.
    waiting: BTreeMap<u64, Waiter>,
    /// Granted to a place whose future has not been polled since.
    granted: BTreeMap<u64, Grant>,
    next_place: u64,
}

impl Ledger {
    pub(super) fn new(pages: usize, entry_pages: usize) -> Self {
        Self {
            free: FreePages::new(pages),
            entry_pages,
            holders: vec![0; pages].into_boxed_slice(),
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            next_place: 0,
        }
    }

    pub(super) fn pages_free(&self) -> usize {
        self.free.count()
    }

    /// Takes `bytes` now, unless somebody waits already.
    pub(super) fn try_take(&mut self, bytes: usize) -> Option<Grant> {
        if self.waiting.is_empty() { self.take(bytes) } else { None }
    }

    /// Takes a place at the end of the queue.
    pub(super) fn wait(&mut self, bytes: usize, waker: Waker) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.waiting.insert(place, Waiter { bytes, waker });
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
    pub(super) fn abandon(&mut self, place: u64, woken: &mut Vec<Waker>) -> Option<Waker> {
        let waiter = self.waiting.remove(&place);
        if let Some(grant) = self.granted.remove(&place) {
            self.put_back(grant.first_page..grant.first_page + grant.bytes.div_ceil(PAGE_BYTES), |_| false);
        }
        self.serve(woken);
        waiter.map(|waiter| waiter.waker)
    }

    /// One more segment has bytes on this page, which is held already.
    pub(super) fn share(&mut self, page: usize) {
        let holders = &mut self.holders[page];
        assert!(*holders > 0, "page {page} is split though nobody holds it");
        assert!(usize::from(*holders) < PAGE_BYTES, "page {page} has more holders than bytes");
        *holders += 1;
    }

    /// Two segments on this page have become one.
    pub(super) fn join(&mut self, page: usize) {
        let holders = &mut self.holders[page];
        assert!(*holders > 1, "page {page} is joined though nobody else holds it");
        *holders -= 1;
    }

    /// One segment less has bytes on these pages. A page that this leaves without holder is free.
    pub(super) fn release(&mut self, pages: Range<usize>, in_flight: impl Fn(usize) -> bool, woken: &mut Vec<Waker>) {
        self.put_back(pages, in_flight);
        self.serve(woken);
    }

    /// Grants what is there to those who wait, in their order, up to the first whose turn has not come.
    fn serve(&mut self, woken: &mut Vec<Waker>) {
        while let Some((&place, waiter)) = self.waiting.first_key_value() {
            let bytes = waiter.bytes;
            let Some(grant) = self.take(bytes) else {
                return;
            };
            self.granted.insert(place, grant);
            woken.extend(self.waiting.remove(&place).map(|waiter| waiter.waker));
        }
    }

    fn take(&mut self, bytes: usize) -> Option<Grant> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let first_page = self.free.take_run(pages, self.entry_pages)?;
        self.holders[first_page..first_page + pages].fill(1);
        Some(Grant { first_page, bytes })
    }

    fn put_back(&mut self, pages: Range<usize>, in_flight: impl Fn(usize) -> bool) {
        for page in pages {
            let holders = &mut self.holders[page];
            assert!(*holders > 0, "page {page} is released though nobody holds it");
            *holders -= 1;
            if *holders == 0 {
                // I1: the operation owns its lease. Were it otherwise the kernel could write into the next lease.
                assert!(!in_flight(page), "page {page} is released while the kernel has it");
                self.free.insert(page);
            }
        }
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
