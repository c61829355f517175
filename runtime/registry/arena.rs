//! The memory itself: one mapping, and segments of it that nobody else can reach.
//!
//! The kernel checks a registered buffer by address and keeps its pages by reference, so memory that is registered
//! must never be unmapped, moved or handed to two holders while an operation may touch it. Everything that proves
//! this is in this file: the mapping is made once and unmapped when the last [`Segment`] and the last handle are gone
//! (I5), and a [`Segment`] is made only from pages that the ledger has just taken out of its free pages, or by cutting
//! another one in two (I4). The rest of the registry is safe code on top.
#![allow(unsafe_code, reason = "maps, unmaps and hands out the registered memory; nothing else in the registry does")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Waker;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::holders::Holders;
use super::ledger::{Hold, Kind, Ledger};
use super::queue::{Grant, Queue, wake_all};
use super::registration::Registration;
use super::snapshot::Snapshot;
use super::{PAGE_BYTES, pages_of};

/// The longest buffer that one entry of the kernel's table may describe (`io_sqe_buffer_register`: `SZ_1G`).
const ENTRY_BYTES_MAX: usize = 1 << 30;
/// The most entries that the kernel's table has (`IORING_MAX_REG_BUFFERS`, `1U << 14`).
const ENTRIES_MAX: usize = 1 << 14;
/// The size and alignment of a huge page, which the kernel pins and accounts for as one.
const HUGE_BYTES: usize = 2 << 20;

/// Where a lease was asked for.
type Place = &'static Location<'static>;

/// One mapping of zeroed pages, the record of who holds each, and the rings that have it registered.
pub(crate) struct Arena {
    mapping: Mapping,
    entry_pages: usize,
    ledger: Ledger,
    queue: Mutex<Queue>,
    pub(super) holders: Holders,
    /// Handles: when the last one goes, leases that are left are suspect.
    pub(super) handles: AtomicUsize,
    pub(super) registrations: AtomicU64,
    pub(super) registration: RwLock<Registration>,
}

impl Arena {
    /// Maps `pages` pages of 4 KiB, to be registered as entries of at most 1 GiB.
    pub(super) fn new(pages: usize) -> io::Result<Arc<Self>> {
        Self::with_entry_pages(pages, ENTRY_BYTES_MAX / PAGE_BYTES)
    }

    /// The same with smaller entries, so that a test can meet their borders.
    pub(super) fn with_entry_pages(pages: usize, entry_pages: usize) -> io::Result<Arc<Self>> {
        assert!(entry_pages > 0, "an entry of the registry holds at least one page");
        if pages == 0 {
            return Err(invalid("a registry needs at least one page; ask for one or more".to_owned()));
        }
        if pages.div_ceil(entry_pages) > ENTRIES_MAX {
            return Err(invalid(format!(
                "a registry of {pages} pages needs more than the {ENTRIES_MAX} entries that the kernel's table has; \
                 ask for at most {} pages",
                ENTRIES_MAX.saturating_mul(entry_pages)
            )));
        }
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or_else(|| {
            invalid(format!("a registry of {pages} pages is larger than the address space; ask for fewer pages"))
        })?;
        let ledger = Ledger::new(pages);
        ledger.map(0..pages);
        Ok(Arc::new(Self {
            mapping: Mapping::new(bytes)?,
            entry_pages,
            ledger,
            queue: Mutex::new(Queue::new(pages, entry_pages)),
            holders: Holders::default(),
            handles: AtomicUsize::new(0),
            registrations: AtomicU64::new(0),
            registration: RwLock::default(),
        }))
    }

    /// The address and length in bytes of each entry to register, in the order of their indices.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        let entry_bytes = self.entry_pages * PAGE_BYTES;
        (0..self.mapping.bytes)
            .step_by(entry_bytes)
            .map(move |start| (self.mapping.at(start), entry_bytes.min(self.mapping.bytes - start)))
    }

    /// Makes this memory live as long as the process (I5): the kernel did not let go of it in the time allowed.
    pub(crate) fn leak(self: &Arc<Self>) {
        std::mem::forget(Arc::clone(self));
    }

    /// Whether a living ring has this memory registered.
    pub(super) fn is_registered(&self) -> bool {
        self.registration.read().unwrap_or_else(PoisonError::into_inner).is_anywhere()
    }

    /// The longest lease, in bytes, that could ever be granted: a lease never crosses an entry.
    pub(super) fn lease_bytes_max(&self) -> usize {
        (self.entry_pages * PAGE_BYTES).min(self.mapping.bytes)
    }

    pub(super) fn try_take(self: &Arc<Self>, bytes: usize, place: Place) -> Option<Segment> {
        let grant = self.queue().try_take(bytes, &self.ledger)?;
        Some(self.segment(grant, place))
    }

    /// Takes `bytes` at once if nobody waits and they are there; else takes a place at the end of the queue.
    pub(super) fn take_or_wait(self: &Arc<Self>, bytes: usize, waker: Waker, place: Place) -> Result<Segment, u64> {
        // The waker outlives the guard where it is not needed: dropping it is foreign code.
        let mut unused = Some(waker);
        let outcome = {
            let mut queue = self.queue();
            match queue.try_take(bytes, &self.ledger) {
                Some(grant) => Ok(grant),
                None => Err(queue.wait(bytes, unused.take().expect("the waker is taken once"))),
            }
        };
        outcome.map(|grant| self.segment(grant, place))
    }

    /// What was granted to this place in the queue, if anything was; else remembers whom to wake.
    pub(super) fn collect(self: &Arc<Self>, ticket: u64, waker: Waker, place: Place) -> Option<Segment> {
        // The waker that is not needed any more is dropped after the guard: that is foreign code.
        let (grant, _unneeded) = self.queue().collect(ticket, waker);
        grant.map(|grant| self.segment(grant, place))
    }

    /// Gives up a place in the queue, with what may have been granted to it.
    pub(super) fn abandon(&self, ticket: u64) {
        let mut woken = Vec::new();
        let waker = self.queue().abandon(ticket, &self.ledger, &mut woken);
        drop(waker);
        wake_all(woken);
    }

    /// Counts one more operation of the kernel on the pages of these bytes.
    pub(super) fn begin_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.ledger.begin_flight(kind, self.pages_at(addr, len));
    }

    /// Counts one operation of the kernel less on the pages of these bytes.
    pub(super) fn end_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.ledger.end_flight(kind, self.pages_at(addr, len));
    }

    /// An operation on these bytes has given its result, and the kernel keeps them until its notification.
    pub(super) fn await_notification(&self, kind: Kind, addr: usize, len: usize) {
        self.ledger.await_notification(kind, self.pages_at(addr, len));
    }

    pub(super) fn end_notification(&self, addr: usize, len: usize) {
        self.ledger.end_notification(self.pages_at(addr, len));
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            chunks_mapped: self.entries().count() as u64,
            registrations: self.registrations.load(Ordering::Relaxed),
            ..Snapshot::default()
        };
        self.queue().count(&mut snapshot);
        self.ledger.count(&mut snapshot);
        snapshot
    }

    /// The entry whose memory `addr` is in.
    pub(super) fn entry_of(&self, addr: usize) -> Option<u16> {
        let offset = self.offset_of(addr, 1)?;
        u16::try_from(offset / (self.entry_pages * PAGE_BYTES)).ok()
    }

    /// Where in the arena these bytes begin, if they lie in it and in one entry of it.
    pub(super) fn offset_of(&self, addr: usize, len: usize) -> Option<usize> {
        let offset = addr.checked_sub(self.mapping.base.addr().get())?;
        let end = offset.checked_add(len).filter(|end| *end <= self.mapping.bytes)?;
        self.is_in_one_entry(&(offset..end)).then_some(offset)
    }

    fn is_in_one_entry(&self, bytes: &Range<usize>) -> bool {
        let entry_bytes = self.entry_pages * PAGE_BYTES;
        bytes.is_empty() || bytes.start / entry_bytes == (bytes.end - 1) / entry_bytes
    }

    fn pages_at(&self, addr: usize, len: usize) -> Range<usize> {
        let offset = self.offset_of(addr, len);
        assert!(offset.is_some(), "an operation on {len} bytes at {addr:#x} leaves the registered memory");
        offset.map_or(0..0, |offset| pages_of(&(offset..offset + len)))
    }

    fn segment(self: &Arc<Self>, grant: Grant, place: Place) -> Segment {
        let start = grant.first_page * PAGE_BYTES;
        let id = self.holders.add(place, grant.bytes);
        Segment { arena: Arc::clone(self), bytes: start..start + grant.bytes, hold: Hold::Exclusive, id }
    }

    fn release(&self, bytes: &Range<usize>, hold: Hold) {
        let freed = self.ledger.release(pages_of(bytes), hold);
        if !freed.is_empty() {
            let mut woken = Vec::new();
            self.queue().release(freed, &self.ledger, &mut woken);
            wake_all(woken);
        }
    }

    /// No foreign code runs while the queue is locked, and what asserts in there does so before a page could be
    /// taken for free: a queue that a panic left behind is still right.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("base", &self.mapping.base).field("snapshot", &self.snapshot()).finish()
    }
}

/// A range of bytes of an arena that belongs to one holder alone; its pages go back when it is dropped.
pub(super) struct Segment {
    arena: Arc<Arena>,
    /// I4: no two segments have a byte in common, and each page of this range counts this holder.
    bytes: Range<usize>,
    hold: Hold,
    /// In the list of holders.
    id: u64,
}

impl Segment {
    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.arena.mapping.at(self.bytes.start).as_ptr();
        // SAFETY: I4, I5: the range lies in the mapping, which the `Arc` keeps mapped and which was zeroed when it was
        // made; the only way to write to it is `bytes_mut` of this segment, which needs it exclusively, or an
        // operation, which owns the segment. Tested by `leases_never_overlap_and_counts_always_sum`.
        unsafe { slice::from_raw_parts(start, self.bytes.len()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.arena.mapping.at(self.bytes.start).as_ptr();
        // SAFETY: I4, I5: as in `bytes`; and no two segments have a byte in common, so that an exclusive borrow of the
        // segment is one of its bytes. Tested by `leases_never_overlap_and_counts_always_sum`.
        unsafe { slice::from_raw_parts_mut(start, self.bytes.len()) }
    }

    /// Cuts this segment in two; `self` keeps the first `at` bytes.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.bytes.len(), "cannot split a lease of {} bytes at byte {at}", self.bytes.len());
        let cut = self.bytes.start + at;
        // Only a cut inside a page leaves that page with one holder more.
        if !cut.is_multiple_of(PAGE_BYTES) && cut != self.bytes.start && cut != self.bytes.end {
            self.arena.ledger.share(cut / PAGE_BYTES, self.hold);
        }
        let id = self.arena.holders.split(self.id, at, self.bytes.end - cut);
        let rest = Self { arena: Arc::clone(&self.arena), bytes: cut..self.bytes.end, hold: self.hold, id };
        self.bytes.end = cut;
        rest
    }

    /// Joins the segment that begins where this one ends; else gives it back.
    pub(super) fn unsplit(&mut self, mut next: Self) -> Result<(), Self> {
        let cut = self.bytes.end;
        let is_alike = Arc::ptr_eq(&self.arena, &next.arena) && self.hold == next.hold;
        let is_adjacent = is_alike && cut == next.bytes.start;
        let both = self.bytes.start..next.bytes.end;
        if !is_adjacent || !self.arena.is_in_one_entry(&both) {
            return Err(next);
        }
        let (has_front, has_back) = (!self.bytes.is_empty(), !next.bytes.is_empty());
        // From here on the bytes are this segment's, and the other one has none to release.
        next.bytes.start = next.bytes.end;
        self.bytes = both;
        self.arena.holders.resize(self.id, self.bytes.len());
        // A page that was cut had a holder for each part.
        if has_front && has_back && !cut.is_multiple_of(PAGE_BYTES) {
            self.arena.ledger.join(cut / PAGE_BYTES, self.hold);
        }
        Ok(())
    }

    /// From now on its pages count as held in this way.
    pub(super) fn set_hold(&mut self, hold: Hold) {
        if self.hold != hold {
            self.arena.ledger.rehold(pages_of(&self.bytes), self.hold, hold);
            self.hold = hold;
        }
    }

    /// The largest power of two, in bytes, that the address is a multiple of; at most a huge page.
    pub(super) fn alignment(&self) -> usize {
        let addr = self.arena.mapping.at(self.bytes.start).addr().get();
        1 << addr.trailing_zeros().min(HUGE_BYTES.trailing_zeros())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.arena.holders.remove(self.id);
        if !self.bytes.is_empty() {
            self.arena.release(&self.bytes, self.hold);
        }
    }
}

/// Anonymous private memory that is unmapped when this is dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: I4: the mapping is memory that no thread owns; what reads and writes it is a `Segment`, which reaches its own
// bytes alone. Tested by `leases_cross_threads_and_counts_still_sum`.
unsafe impl Send for Mapping {}
// SAFETY: I4: a shared mapping only gives out addresses; see above. Tested by
// `leases_cross_threads_and_counts_still_sum`.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        if bytes < HUGE_BYTES {
            return Self::map(bytes);
        }
        // The kernel aligns a mapping to a page only, so map one huge page more and cut the ends off.
        let padded = bytes.checked_add(HUGE_BYTES).ok_or_else(|| {
            invalid(format!("a registry of {bytes} bytes is larger than the address space; ask for fewer pages"))
        })?;
        let mut mapping = Self::map(padded)?;
        let misaligned = mapping.base.addr().get() % HUGE_BYTES;
        mapping.cut_front((HUGE_BYTES - misaligned) % HUGE_BYTES)?;
        mapping.cut_back(mapping.bytes - bytes)?;
        mapping.ask_for_huge_pages();
        Ok(mapping)
    }

    fn map(bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: I4: a new anonymous mapping at an address of the kernel's choice aliases nothing. Tested by
        // `a_fresh_arena_is_zeroed_and_aligned`.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
        Ok(Self { base, bytes })
    }

    fn cut_front(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > 0 {
            // SAFETY: I5: these bytes are the front of a mapping that was just made and that nobody has seen. Tested by
            // `a_fresh_arena_is_zeroed_and_aligned`.
            unsafe { munmap(self.base.as_ptr().cast(), bytes) }?;
            self.base = self.at(bytes);
            self.bytes -= bytes;
        }
        Ok(())
    }

    fn cut_back(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > 0 {
            let kept = self.bytes - bytes;
            // SAFETY: I5: these bytes are the end of a mapping that was just made and that nobody has seen. Tested by
            // `a_fresh_arena_is_zeroed_and_aligned`.
            unsafe { munmap(self.at(kept).as_ptr().cast(), bytes) }?;
            self.bytes = kept;
        }
        Ok(())
    }

    /// Huge pages make registering cheaper; where the kernel has none, small ones serve as well.
    fn ask_for_huge_pages(&self) {
        // SAFETY: I4: the advice changes how memory is backed, never what it contains, and it is given for this mapping
        // alone. Tested by `a_fresh_arena_is_zeroed_and_aligned`.
        let advised = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        if let Err(error) = advised {
            tracing::debug!(%error, bytes = self.bytes, "no huge pages for the registry, which uses small ones");
        }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes, "offset {offset} leaves a mapping of {} bytes", self.bytes);
        self.base.map_addr(|base| base.checked_add(offset).expect("a mapping does not wrap around the address space"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: I5: whoever could reach the mapping - a handle, a lease, or an operation that owns one - keeps it
        // alive, so nobody is left, the kernel included. Tested by `a_dropped_mapping_is_unmapped` and
        // `f03_a_lease_outlives_its_registry`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes = self.bytes, "the registry's memory could not be unmapped and is leaked");
        }
    }
}

fn invalid(sentence: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence)
}
