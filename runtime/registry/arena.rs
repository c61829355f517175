//! One registry's memory: chunks of it, who has the pages, who waits for some, and which rings have registered what.
//!
//! The kernel checks a registered buffer by address and keeps its pages by reference, so memory that is registered
//! must never be unmapped, moved or handed to two holders while an operation may touch it. The addresses are reserved
//! once and unmapped when the last lease and the last handle are gone (I5); the memory behind a chunk is given back
//! only when all of it is free and each ring has let go of it.
//!
//! Locks are taken in this order: queue, those who share a run (`ledger`), magazine. No foreign code runs under any of them.

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::holders::Holders;
use super::layout::Layout;
use super::ledger::{Hold, Ledger};
use super::magazines::Magazines;
use super::mapping::Mapping;
use super::pool::Run;
use super::queue::{Grant, Later, Queue};
use super::registration::Registration;
use super::ring_pages::Span;
use super::rings::{RingSet, RingSlot};
use super::segment::Segment;
use super::snapshot::Snapshot;
use super::{PAGE_BYTES, pages_of};

/// Where a lease was asked for.
pub(super) type Place = &'static Location<'static>;

/// What a chunk needs when it is taken from and grown, without the queue for it.
pub(super) struct Ground {
    pub(super) layout: Layout,
    pub(super) mapping: Mapping,
    pub(super) ledger: Ledger,
    chunks: Box<[ChunkRings]>,
    /// Rises whenever a ring's table of buffers may have to follow.
    generation: AtomicU64,
    /// Something may have to be done after a time: a chunk that is all free be given back, or growth be tried again.
    pub(super) has_due: AtomicBool,
}

/// Which rings have a chunk in their tables.
#[derive(Debug, Default)]
struct ChunkRings {
    /// Operations of these may name it by index.
    registered: RingSet,
    /// Those of these may also still be about to register it or to let go of it: its memory stays.
    pinning: RingSet,
}

/// Whether what is to be logged may be now: who listens to the log is foreign code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    Aloud,
    /// The caller has a driver borrowed: the next one who may says it.
    Silent,
}

/// A change that a ring has to make to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableChange {
    /// Register this chunk; it is pinned already.
    Register(usize),
    /// Clear the entry of this chunk, and tell when the kernel has let go of it.
    Clear(usize),
}

pub(crate) struct Arena {
    pub(super) ground: Ground,
    queue: Mutex<Queue>,
    pub(super) holders: Holders,
    /// Handles: when the last one goes, leases that are left are suspect.
    pub(super) handles: AtomicUsize,
    pub(super) registrations: AtomicU64,
    pub(super) registration: Mutex<Registration>,
    /// How long a chunk is all free before it is given back.
    idle: Duration,
}

impl Arena {
    pub(super) fn new(layout: Layout, idle: Duration) -> io::Result<Arc<Self>> {
        Self::with_magazines(layout, idle, Magazines::new(layout.first_end()))
    }

    /// The same with magazines of another size, so that a test can meet their bounds.
    pub(super) fn with_magazines(layout: Layout, idle: Duration, magazines: Magazines) -> io::Result<Arc<Self>> {
        let bytes = layout.end().checked_mul(PAGE_BYTES).expect("the table of buffers bounds the length");
        let ground = Ground {
            layout,
            mapping: Mapping::reserve(bytes, layout.align())?,
            ledger: Ledger::new(layout, magazines),
            chunks: (0..layout.chunks()).map(|_| ChunkRings::default()).collect(),
            generation: AtomicU64::new(0),
            has_due: AtomicBool::new(false),
        };
        let mut queue = Queue::new(layout);
        (0..layout.first_chunks()).try_for_each(|chunk| queue.open(chunk, &ground))?;
        Ok(Arc::new(Self {
            ground,
            queue: Mutex::new(queue),
            holders: Holders::default(),
            handles: AtomicUsize::new(0),
            registrations: AtomicU64::new(0),
            registration: Mutex::default(),
            idle,
        }))
    }

    /// Makes this memory live as long as the process (I5): the kernel did not let go of it in the time allowed.
    pub(crate) fn leak(self: &Arc<Self>) {
        std::mem::forget(Arc::clone(self));
    }

    /// A run that this thread keeps ready, if nobody waits: without the queue.
    #[inline]
    pub(super) fn take_ready(&self, run: Run) -> Option<Grant> {
        if run.align > 1 {
            return None;
        }
        let first_page = self.ground.ledger.take_ready(run.pages)?;
        Some(Grant { first_page, bytes: run.bytes })
    }

    /// Whoever holds grants, here and below, has to make segments of them before foreign code runs: a panic in that would
    /// lose them.
    pub(super) fn try_take(&self, run: Run, voice: Voice, hold: impl FnOnce(Grant) -> Segment) -> Option<Segment> {
        let (grant, later) = self.under_lock(|queue, later| queue.try_take(run, &self.ground, later));
        let segment = grant.map(hold);
        self.carry_out(later, voice);
        segment
    }

    /// Takes all of the runs at once if nobody waits and they are there; else takes a place at the end of the queue, and
    /// says which before any foreign code runs.
    pub(super) fn take_or_wait(
        &self,
        runs: &[Run],
        waker: &Waker,
        voice: Voice,
        hold: impl FnOnce(Vec<Grant>) -> Vec<Segment>,
        seat: impl FnOnce(u64),
    ) -> Option<Vec<Segment>> {
        // Cloned and, where it is not needed, dropped with nothing locked: both are foreign code.
        let mut waker = Some(waker.clone());
        let (outcome, later) = self.under_lock(|queue, later| {
            let waiting = || waker.take().expect("the waker is taken once");
            queue.take_or_wait(runs, waiting, &self.ground, later)
        });
        let segments = outcome.map(hold).map_err(seat).ok();
        self.carry_out(later, voice);
        drop(waker);
        segments
    }

    pub(super) fn try_take_all(
        &self,
        runs: &[Run],
        hold: impl FnOnce(Vec<Grant>) -> Vec<Segment>,
    ) -> Option<Vec<Segment>> {
        let (grants, later) = self.under_lock(|queue, later| queue.try_take_all(runs, &self.ground, later));
        let segments = grants.map(hold);
        self.carry_out(later, Voice::Aloud);
        segments
    }

    /// What was granted to this place in the queue, if anything was; else remembers whom to wake.
    pub(super) fn collect(
        &self,
        ticket: u64,
        waker: &Waker,
        hold: impl FnOnce(Vec<Grant>) -> Vec<Segment>,
    ) -> Option<Vec<Segment>> {
        let waker = waker.clone();
        let (grants, unneeded) = self.look(|queue| queue.collect(ticket, waker));
        let segments = grants.map(hold);
        drop(unneeded);
        segments
    }

    /// Gives up a place in the queue, with what may have been granted to it.
    pub(super) fn abandon(&self, ticket: u64) {
        let waker = self.locked(|queue, later| queue.abandon(ticket, &self.ground, later));
        drop(waker);
    }

    /// One segment less has these bytes.
    pub(super) fn release(&self, bytes: &Range<usize>, hold: Hold) {
        let freed = self.ground.ledger.release(pages_of(bytes), hold);
        if !freed.is_empty() {
            self.locked(|queue, later| queue.release(freed, &self.ground, later));
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot =
            Snapshot { registrations: self.registrations.load(Ordering::Relaxed), ..Snapshot::default() };
        // Under the lock under which chunks come and go, so that each is counted as a whole or not at all.
        self.look(|queue| {
            queue.count(&mut snapshot);
            self.ground.ledger.count(&mut snapshot);
        });
        snapshot
    }

    /// These bytes, if they lie in the arena and in one chunk of it, as this ring sees them, or none that has anything
    /// registered.
    #[inline]
    pub(super) fn find(&self, addr: usize, len: usize, ring: Option<RingSlot>) -> Option<Span> {
        let offset = addr.checked_sub(self.ground.mapping.base_addr())?;
        let bytes = offset..offset.checked_add(len)?;
        let chunk = self.ground.layout.chunk_at(&bytes)?;
        let is_registered = |ring: &RingSlot| len > 0 && self.ground.chunks[chunk].registered.contains(*ring);
        let index = ring.filter(is_registered).and_then(|_ring| u16::try_from(chunk).ok());
        Some(Span { pages: pages_of(&bytes), index })
    }

    /// Runs under the lock; then warns and wakes.
    fn locked<T>(&self, work: impl FnOnce(&mut Queue, &mut Later) -> T) -> T {
        let (outcome, later) = self.under_lock(work);
        self.carry_out(later, Voice::Aloud);
        outcome
    }

    fn under_lock<T>(&self, work: impl FnOnce(&mut Queue, &mut Later) -> T) -> (T, Later) {
        self.look(|queue| {
            let mut later = queue.take_unsaid();
            (work(queue, &mut later), later)
        })
    }

    /// Runs under the lock what leaves nothing to do.
    fn look<T>(&self, look: impl FnOnce(&mut Queue) -> T) -> T {
        // What asserts in there does so before a page could be taken for free: a queue that a panic left behind is
        // still right.
        look(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn carry_out(&self, later: Later, voice: Voice) {
        match voice {
            Voice::Aloud => later.carry_out(),
            Voice::Silent if later.is_empty() => {}
            Voice::Silent => self.look(|queue| queue.leave_unsaid(later)),
        }
    }
}

/// What rings do with the chunks.
impl Arena {
    /// Address and length in bytes of a chunk.
    pub(crate) fn region(&self, chunk: usize) -> (NonNull<u8>, usize) {
        let pages = self.ground.layout.pages_of(chunk);
        (self.ground.mapping.at(pages.start * PAGE_BYTES), pages.len() * PAGE_BYTES)
    }

    /// How many chunks the registry begins with. They stay, so that one call registers them all.
    pub(crate) fn first_chunks(&self) -> usize {
        self.ground.layout.first_chunks()
    }

    /// How many chunks there can be.
    pub(crate) fn chunks(&self) -> usize {
        self.ground.layout.chunks()
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.ground.generation.load(Ordering::Acquire)
    }

    /// This ring is about to register the chunk, so that its memory has to stay.
    pub(crate) fn pin(&self, chunk: usize, ring: RingSlot) {
        self.ground.chunks[chunk].pinning.insert(ring);
    }

    /// This ring has registered the chunk, which it had pinned.
    pub(crate) fn set_registered(&self, chunk: usize, ring: RingSlot) {
        self.ground.chunks[chunk].registered.insert(ring);
        self.registrations.fetch_add(1, Ordering::Relaxed);
    }

    /// What this ring has to change in its table; chunks to be registered are pinned by it from here on.
    pub(crate) fn table_changes(&self, ring: RingSlot) -> Vec<TableChange> {
        self.look(|queue| {
            let grown = self.first_chunks()..self.chunks();
            let change = |chunk: usize| {
                let rings = &self.ground.chunks[chunk];
                if queue.is_live(chunk) && !rings.pinning.contains(ring) {
                    rings.pinning.insert(ring);
                    return Some(TableChange::Register(chunk));
                }
                (queue.is_draining(chunk) && rings.registered.remove(ring)).then_some(TableChange::Clear(chunk))
            };
            grown.filter_map(change).collect()
        })
    }

    pub(crate) fn is_draining(&self, chunk: usize) -> bool {
        self.look(|queue| queue.is_draining(chunk))
    }

    /// The kernel has let go of what this ring had registered of the chunk, or has refused to register it.
    pub(crate) fn unpin(&self, chunk: usize, ring: RingSlot) {
        self.locked(|queue, later| {
            self.ground.chunks[chunk].pinning.remove(ring);
            queue.settle_draining(chunk, &self.ground, later);
        });
    }

    /// This ring has nothing registered any more.
    pub(crate) fn forget_ring(&self, ring: RingSlot) {
        self.locked(|queue, later| {
            for (chunk, rings) in self.ground.chunks.iter().enumerate() {
                rings.registered.remove(ring);
                if rings.pinning.remove(ring) {
                    queue.settle_draining(chunk, &self.ground, later);
                }
            }
        });
    }

    /// Operations of this ring name nothing by index any more; what it has registered stays pinned.
    pub(crate) fn set_unregistered(&self, ring: RingSlot) {
        self.ground.chunks.iter().for_each(|rings| _ = rings.registered.remove(ring));
    }

    /// Whether any ring has these bytes registered.
    pub(super) fn is_registered_at(&self, bytes: &Range<usize>) -> bool {
        let chunk = self.ground.layout.chunk_at(bytes);
        chunk.is_some_and(|chunk| !self.ground.chunks[chunk].registered.is_empty())
    }

    /// Gives back chunks that have been all free since so long before `now`, and grows for those who wait if the system has
    /// memory again.
    pub(super) fn shrink(&self, now: Instant, idle: Duration) -> usize {
        self.locked(|queue, later| queue.shrink(now, idle, &self.ground, later))
    }

    /// Does what is due.
    pub(crate) fn trim(&self, now: Instant) {
        self.shrink(now, self.idle);
    }

    /// When the next chunk will be long unused, or growth is to be tried again.
    #[inline]
    pub(crate) fn next_trim(&self) -> Option<Instant> {
        // Asked for in each turn, and hardly ever true.
        if self.ground.has_due.load(Ordering::Relaxed) { self.next_due() } else { None }
    }

    #[cold]
    fn next_due(&self) -> Option<Instant> {
        self.look(|queue| queue.next_due(self.idle, &self.ground))
    }
}

impl Ground {
    /// Puts memory behind a chunk and counts its pages as free.
    pub(super) fn open(&self, chunk: usize) -> io::Result<()> {
        let pages = self.layout.pages_of(chunk);
        self.mapping.open(&pages)?;
        self.ledger.map(chunk);
        Ok(())
    }

    /// Gives the memory of a chunk back, if no ring has it.
    pub(super) fn close(&self, chunk: usize) -> Option<io::Result<()>> {
        if !self.chunks[chunk].pinning.is_empty() {
            return None;
        }
        Some(self.mapping.close(self.ledger.unmap(chunk)))
    }

    /// Tells each ring to look at its table.
    pub(super) fn announce(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("layout", &self.ground.layout).field("snapshot", &self.snapshot()).finish()
    }
}
