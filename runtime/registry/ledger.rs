//! Who holds each page: one record a page, and the sum of each kind.
//!
//! Every change of a page's record moves the page from one sum to another under the same lock, so the sums always add
//! up to the whole, however many threads work. The plain version is one lock around all records; here they lie in
//! *stripes* of neighbouring pages with a lock each, so that threads that work on different pages rarely meet, and a
//! snapshot takes all of the locks for as long as it reads the sums. Nothing here runs foreign code.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::snapshot::{InFlightPages, Snapshot};
use crate::runtime::abi;

/// Neighbouring pages that lie in one stripe: a lease of this length takes one lock.
const BLOCK_PAGES: usize = 16;
const STRIPES_MAX: usize = 64;

/// What an operation does with the pages of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Receive,
    Send,
    Other,
}

impl Kind {
    const COUNT: usize = 5;

    /// What an entry of this opcode does with them.
    pub(crate) fn of(opcode: u8) -> Self {
        match opcode {
            abi::READ | abi::READV | abi::READ_FIXED | abi::READV_FIXED => Self::Read,
            abi::WRITE | abi::WRITEV | abi::WRITE_FIXED | abi::WRITEV_FIXED => Self::Write,
            abi::RECV => Self::Receive,
            abi::SEND | abi::SEND_ZC | abi::SENDMSG | abi::SENDMSG_ZC => Self::Send,
            _ => Self::Other,
        }
    }
}

/// How a segment has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// As a lease that one holder may write to.
    Exclusive,
    /// Read-only, by several.
    Frozen,
    /// In a ring of buffers from which the kernel picks.
    Lent,
}

/// What a page counts as: the last of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Absent,
    Free,
    Leased,
    Shared,
    Lent,
    InFlight(Kind),
    Notifying,
}

impl Class {
    const COUNT: usize = 6 + Kind::COUNT;

    fn index(self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Free => 1,
            Self::Leased => 2,
            Self::Shared => 3,
            Self::Lent => 4,
            Self::Notifying => 5,
            Self::InFlight(kind) => 6 + kind as usize,
        }
    }

    fn is_with_kernel(self) -> bool {
        matches!(self, Self::InFlight(_) | Self::Notifying)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Operations of each kind that the kernel holds on it.
    flights: [u32; Kind::COUNT],
    /// Zero-copy sends whose result is out and whose notification is to come.
    notifying: u32,
    /// Segments that have bytes on it, each at least one of its 4096; of these, how many are frozen, and lent.
    holders: u16,
    frozen: u16,
    lent: u16,
    /// Whether there is memory.
    is_mapped: bool,
    /// Whether any of the first two is not zero, so that most changes need not look at them.
    is_with_kernel: bool,
}

impl Page {
    fn class(&self) -> Class {
        match self {
            Self { is_with_kernel: true, .. } => self.class_with_kernel(),
            Self { is_mapped: false, .. } => Class::Absent,
            Self { holders: 0, .. } => Class::Free,
            Self { lent: 1.., .. } => Class::Lent,
            Self { frozen: 1.., .. } => Class::Shared,
            _ => Class::Leased,
        }
    }

    fn class_with_kernel(&self) -> Class {
        const KINDS: [Kind; Kind::COUNT] = [Kind::Read, Kind::Receive, Kind::Write, Kind::Send, Kind::Other];
        if self.notifying > 0 {
            return Class::Notifying;
        }
        let kind = KINDS.into_iter().find(|kind| self.flights[*kind as usize] > 0);
        Class::InFlight(kind.expect("an operation of some kind is on a page that the kernel has"))
    }

    fn see_kernel(&mut self) {
        self.is_with_kernel = self.notifying > 0 || self.flights.iter().any(|flights| *flights > 0);
    }

    fn count(&mut self, hold: Hold) -> Option<&mut u16> {
        match hold {
            Hold::Exclusive => None,
            Hold::Frozen => Some(&mut self.frozen),
            Hold::Lent => Some(&mut self.lent),
        }
    }

    fn add_holder(&mut self, hold: Hold) {
        self.holders += 1;
        if let Some(count) = self.count(hold) {
            *count += 1;
        }
    }

    fn remove_holder(&mut self, hold: Hold) {
        self.holders -= 1;
        if let Some(count) = self.count(hold) {
            *count -= 1;
        }
    }
}

/// A part of the records, with its own sums. On a cache line of its own: threads that work on different stripes do not
/// disturb each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    pages: Vec<Page>,
    sums: [usize; Class::COUNT],
}

/// Pages that nobody holds and nobody can be given: their memory can go.
#[derive(Debug)]
pub(super) struct Unmapped(Range<usize>);

impl Unmapped {
    pub(super) fn pages(&self) -> &Range<usize> {
        &self.0
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    stripes: Box<[Stripe]>,
    /// For the high-water marks alone; the sums are the truth.
    held: HighWater,
    with_kernel: HighWater,
}

impl Ledger {
    /// Records for at most so many pages, none of which has memory yet.
    pub(super) fn new(pages_max: usize) -> Self {
        let stripes = pages_max.div_ceil(BLOCK_PAGES).clamp(1, STRIPES_MAX);
        Self {
            stripes: (0..stripes).map(|_| Stripe::default()).collect(),
            held: HighWater::default(),
            with_kernel: HighWater::default(),
        }
    }

    /// These pages have memory now, and are free.
    pub(super) fn map(&self, pages: Range<usize>) {
        self.change(pages, |at, page| {
            assert!(!page.is_mapped, "page {at} has memory already");
            page.is_mapped = true;
        });
    }

    /// Nobody can be given these pages any more, until they are mapped again: none of them is held.
    pub(super) fn unmap(&self, pages: Range<usize>) -> Unmapped {
        self.change(pages.clone(), |at, page| {
            assert!(page.class() == Class::Free, "page {at} is given back to the system while somebody has it");
            page.is_mapped = false;
        });
        Unmapped(pages)
    }

    /// One holder takes these free pages.
    pub(super) fn hold(&self, pages: Range<usize>) {
        self.held.add(pages.len());
        // The plain version is `change`. All of these go from one sum to one other.
        self.each_block(pages, |first, pages, sums| {
            for (at, page) in (first..).zip(&*pages) {
                let is_free = page.is_mapped && page.holders == 0 && !page.is_with_kernel;
                assert!(is_free, "page {at} is leased though it is not free");
            }
            pages.iter_mut().for_each(|page| page.holders = 1);
            sums[Class::Free.index()] -= pages.len();
            sums[Class::Leased.index()] += pages.len();
        });
    }

    /// One segment more has bytes on this page, which is held already.
    pub(super) fn share(&self, page: usize, hold: Hold) {
        self.change(page..page + 1, |at, page| {
            assert!(page.holders > 0, "page {at} is split though nobody holds it");
            assert!(usize::from(page.holders) < super::PAGE_BYTES, "page {at} has more holders than bytes");
            page.add_holder(hold);
        });
    }

    /// Two segments on this page have become one.
    pub(super) fn join(&self, page: usize, hold: Hold) {
        self.change(page..page + 1, |at, page| {
            assert!(page.holders > 1, "page {at} is joined though nobody else holds it");
            page.remove_holder(hold);
        });
    }

    /// A segment has its bytes in another way than before.
    pub(super) fn rehold(&self, pages: Range<usize>, from: Hold, to: Hold) {
        self.change(pages, |at, page| {
            assert!(page.holders > 0, "page {at} changes its way of being held though nobody holds it");
            page.remove_holder(from);
            page.add_holder(to);
        });
    }

    /// One segment less has bytes on these pages; those that nobody holds now.
    pub(super) fn release(&self, pages: Range<usize>, hold: Hold) -> Range<usize> {
        // All but the first and the last page are this segment's alone, so what becomes free is one run.
        let mut freed = pages.end..pages.start;
        self.each_block(pages, |first, pages, sums| {
            for (at, page) in (first..).zip(pages) {
                assert!(page.holders > 0, "page {at} is released though nobody holds it");
                let before = page.class();
                if page.holders == 1 {
                    // I1: the operation owns its lease. Were it otherwise the kernel could write into the next lease.
                    assert!(!page.is_with_kernel, "page {at} is released while the kernel has it");
                    freed = freed.start.min(at)..freed.end.max(at + 1);
                }
                page.remove_holder(hold);
                // No page comes to the kernel or from it by this.
                sums[before.index()] -= 1;
                sums[page.class().index()] += 1;
            }
        });
        let freed = freed.start..freed.end.max(freed.start);
        self.held.remove(freed.len());
        freed
    }

    /// One operation more of the kernel is on these pages.
    pub(super) fn begin_flight(&self, kind: Kind, pages: Range<usize>) {
        self.change(pages, |at, page| {
            let flights = &mut page.flights[kind as usize];
            assert!(*flights < u32::MAX, "page {at} has more operations in flight than a ring can hold");
            *flights += 1;
            page.is_with_kernel = true;
        });
    }

    /// One operation less of the kernel is on these pages.
    pub(super) fn end_flight(&self, kind: Kind, pages: Range<usize>) {
        self.change(pages, |at, page| {
            let flights = &mut page.flights[kind as usize];
            assert!(*flights > 0, "page {at} ends a flight that never began");
            *flights -= 1;
            page.see_kernel();
        });
    }

    /// The result of an operation on these pages is out, and the kernel keeps them until its notification.
    pub(super) fn await_notification(&self, kind: Kind, pages: Range<usize>) {
        self.change(pages, |at, page| {
            let flights = &mut page.flights[kind as usize];
            assert!(*flights > 0, "page {at} awaits the notification of an operation that never began");
            *flights -= 1;
            page.notifying += 1;
        });
    }

    /// That notification has come.
    pub(super) fn end_notification(&self, pages: Range<usize>) {
        self.change(pages, |at, page| {
            assert!(page.notifying > 0, "page {at} has a notification that nobody awaits");
            page.notifying -= 1;
            page.see_kernel();
        });
    }

    /// Fills in who has the pages, at one moment.
    pub(super) fn count(&self, snapshot: &mut Snapshot) {
        let locked: Vec<_> = self.stripes.iter().map(lock).collect();
        let sum = |class: Class| locked.iter().map(|records| records.sums[class.index()]).sum::<usize>();
        let flying = |kind| sum(Class::InFlight(kind));
        snapshot.in_flight = InFlightPages {
            read: flying(Kind::Read),
            write: flying(Kind::Write),
            receive: flying(Kind::Receive),
            send: flying(Kind::Send),
            other: flying(Kind::Other),
        };
        snapshot.pages_in_flight = snapshot.in_flight.sum();
        snapshot.pages_free = sum(Class::Free);
        snapshot.pages_leased = sum(Class::Leased);
        snapshot.pages_shared = sum(Class::Shared);
        snapshot.pages_lent = sum(Class::Lent);
        snapshot.pages_notifying = sum(Class::Notifying);
        drop(locked);
        snapshot.pages_total = snapshot.pages_free
            + snapshot.pages_leased
            + snapshot.pages_shared
            + snapshot.pages_lent
            + snapshot.pages_in_flight
            + snapshot.pages_notifying;
        snapshot.pages_held_max = self.held.max();
        snapshot.pages_in_flight_max = self.with_kernel.max();
    }

    /// Changes the record of each of these pages, in order. What asserts leaves its own page as it was.
    fn change(&self, pages: Range<usize>, mut change: impl FnMut(usize, &mut Page)) {
        let (mut came, mut went) = (0, 0);
        self.each_block(pages, |first, pages, sums| {
            for (at, page) in (first..).zip(pages) {
                let before = page.class();
                change(at, page);
                let after = page.class();
                if before != after {
                    sums[before.index()] -= 1;
                    sums[after.index()] += 1;
                    came += usize::from(after.is_with_kernel() && !before.is_with_kernel());
                    went += usize::from(before.is_with_kernel() && !after.is_with_kernel());
                }
            }
        });
        self.with_kernel.add(came);
        self.with_kernel.remove(went);
    }

    /// Takes the lock of each block of these pages, in order: the number of its first page that is meant, these pages'
    /// records, and the sums of the stripe.
    fn each_block(&self, pages: Range<usize>, mut visit: impl FnMut(usize, &mut [Page], &mut [usize; Class::COUNT])) {
        let mut at = pages.start;
        while at < pages.end {
            let block = at / BLOCK_PAGES;
            let end = pages.end.min((block + 1) * BLOCK_PAGES);
            let first = block / self.stripes.len() * BLOCK_PAGES;
            let mut records = lock(&self.stripes[block % self.stripes.len()]);
            let Records { pages, sums } = &mut *records;
            if pages.len() < first + BLOCK_PAGES {
                sums[Class::Absent.index()] += first + BLOCK_PAGES - pages.len();
                pages.resize(first + BLOCK_PAGES, Page::default());
            }
            let start = first + at % BLOCK_PAGES;
            visit(at, &mut pages[start..start + (end - at)], sums);
            at = end;
        }
    }
}

/// What asserts under the lock does so before it changes its page, so a stripe that a panic left behind is still right.
fn lock(stripe: &Stripe) -> MutexGuard<'_, Records> {
    stripe.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number, and the most that it ever was.
#[derive(Debug, Default)]
struct HighWater {
    now: AtomicUsize,
    max: AtomicUsize,
}

impl HighWater {
    fn add(&self, pages: usize) {
        if pages > 0 {
            let now = self.now.fetch_add(pages, Ordering::Relaxed) + pages;
            if now > self.max.load(Ordering::Relaxed) {
                self.max.fetch_max(now, Ordering::Relaxed);
            }
        }
    }

    fn remove(&self, pages: usize) {
        if pages > 0 {
            self.now.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }
}
