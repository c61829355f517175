//! Who holds each page.
//!
//! Pages are held in *runs*: those of a lease are one, however many they are, and what is done with all of it costs the
//! same. A lease that is cut at a page is two; a page that is cut inside is one of its own, with several holders. The
//! plain version is a record for each page. So each segment has whole runs, one after the other, and of these only the
//! first and the last may be others' as well.
//!
//! What a run is changes together with the counts, and each change is one of [`Magazines`], so that these always add up
//! to the whole, however many threads work. A run that has one holder is a word; where there are several, or operations
//! overlap, a lock orders them, and the counts are changed while it is held. Nothing here runs foreign code.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::counts::{Class, Counts, Kind, Shift};
use super::flights::{Change, Sharers, State, changed};
use super::layout::Layout;
use super::magazines::Magazines;
use super::runs::Runs;
use super::snapshot::Snapshot;

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

impl Hold {
    fn class(self) -> Class {
        match self {
            Self::Exclusive => Class::Leased,
            Self::Frozen => Class::Shared,
            Self::Lent => Class::Lent,
        }
    }

    /// What the word of a run says that one holder has so and nobody uses; none where it cannot.
    fn idle(self) -> Option<State> {
        match self {
            Self::Exclusive => Some(State::Idle { is_lent: false }),
            Self::Lent => Some(State::Idle { is_lent: true }),
            Self::Frozen => None,
        }
    }
}

/// A chunk that has or had memory.
#[derive(Debug)]
struct Chunk {
    runs: Runs,
    /// One for each page, of which those where a run starts are in use.
    places: Box<[Place]>,
}

/// What is known of the run that starts here.
#[derive(Debug, Default)]
struct Place {
    /// A [`State`].
    word: AtomicU64,
    /// Made when it is first needed, and kept.
    sharers: Mutex<Option<Box<Sharers>>>,
}

impl Place {
    #[inline]
    fn state(&self) -> State {
        State::of_word(self.word.load(Ordering::Acquire))
    }

    #[inline]
    fn set(&self, state: State) {
        self.word.store(state.to_word(), Ordering::Release);
    }

    /// Whether the state was still this one.
    #[inline]
    fn replace(&self, state: State, next: State) -> bool {
        self.replace_word(state.to_word(), next.to_word())
    }

    #[inline]
    fn replace_word(&self, word: u64, next: u64) -> bool {
        self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
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
    layout: Layout,
    chunks: Box<[OnceLock<Chunk>]>,
    pub(super) magazines: Magazines,
}

impl Ledger {
    /// No chunk has memory yet.
    pub(super) fn new(layout: Layout, magazines: Magazines) -> Self {
        Self { layout, chunks: (0..layout.chunks()).map(|_| OnceLock::new()).collect(), magazines }
    }

    /// The pages of a chunk have memory now, and are free.
    pub(super) fn map(&self, chunk: usize) {
        let pages = self.layout.pages_of(chunk).len();
        let mapped = self.chunks[chunk]
            .get_or_init(|| Chunk { runs: Runs::new(pages), places: (0..pages).map(|_| Place::default()).collect() });
        assert!(mapped.runs.is_empty(), "chunk {chunk} has memory already");
        let mut counts = Counts::default();
        counts.add(Class::Free, pages as isize);
        self.magazines.count(counts);
    }

    /// Nobody can be given the pages of a chunk any more, until it is mapped again: none of them is held.
    pub(super) fn unmap(&self, chunk: usize) -> Unmapped {
        let pages = self.layout.pages_of(chunk);
        let (mapped, _start) = self.chunk_of(pages.start);
        assert!(mapped.runs.is_empty(), "chunk {chunk} is given back to the system while somebody has some of it");
        let mut counts = Counts::default();
        counts.add(Class::Free, -(pages.len() as isize));
        self.magazines.count(counts);
        Unmapped(pages)
    }

    /// One holder takes a run of free pages out of this thread's magazine.
    #[inline]
    pub(super) fn take_ready(&self, pages: usize) -> Option<usize> {
        let start = self.magazines.take(pages)?;
        let (chunk, at) = self.chunk_of(start);
        let is_free = chunk.runs.len_at(at) == pages && chunk.places[at].state() == State::Ready;
        assert!(is_free, "page {start} is leased though it is not free");
        chunk.places[at].set(State::FRESH);
        Some(start)
    }

    /// One holder takes these free pages.
    pub(super) fn hold(&self, pages: Range<usize>) {
        let (chunk, at) = self.chunk_of(pages.start);
        chunk.runs.form(at, pages.len());
        chunk.places[at].set(State::FRESH);
        self.shift(Class::Free, Class::Leased, pages.len());
    }

    /// Pages that were taken are free as if they had not been.
    pub(super) fn unhold(&self, pages: Range<usize>) {
        let (chunk, at) = self.chunk_of(pages.start);
        let is_whole = chunk.runs.len_at(at) == pages.len() && chunk.places[at].state() == State::FRESH;
        assert!(is_whole, "page {} is given back though it is not as it was taken", pages.start);
        self.shift(Class::Leased, Class::Free, pages.len());
        chunk.runs.dissolve(at);
    }

    /// A run that was kept ready is the pool's.
    pub(super) fn unready(&self, start: usize) {
        let (chunk, at) = self.chunk_of(start);
        assert!(chunk.places[at].state() == State::Ready, "page {start} is kept ready though it is not free");
        chunk.runs.dissolve(at);
    }

    /// One segment less has bytes on these pages; those that are the pool's now. A run that is this thread's to keep is
    /// not among them.
    #[inline]
    pub(super) fn release(&self, pages: Range<usize>, hold: Hold) -> Range<usize> {
        let (chunk, at) = self.chunk_of(pages.start);
        let place = &chunk.places[at];
        let is_whole = chunk.runs.len_at(at) == pages.len() && Some(place.state()) == hold.idle();
        if !is_whole {
            return self.release_runs(pages, hold);
        }
        place.set(State::Ready);
        if self.magazines.keep(&pages, hold.class()) {
            return 0..0;
        }
        chunk.runs.dissolve(at);
        pages
    }

    /// A segment is cut in two before this page, or inside it.
    pub(super) fn split(&self, page: usize, is_inside: bool, hold: Hold) {
        let (chunk, at) = self.chunk_of(page);
        chunk.cut(at, page);
        if is_inside {
            if chunk.runs.len_at(at) > 1 {
                chunk.cut(at + 1, page + 1);
            }
            self.share(chunk, at, |sharers| {
                assert!(sharers.holders() < super::PAGE_BYTES, "page {page} has more holders than bytes");
                sharers.add_holder(hold)
            });
        }
    }

    /// Two segments, which now have these pages as one, were cut before this page, or inside it.
    pub(super) fn join(&self, pages: Range<usize>, page: usize, is_inside: bool, hold: Hold) {
        let (chunk, at) = self.chunk_of(page);
        if is_inside {
            self.share(chunk, at, |sharers| {
                assert!(sharers.holders() > 1, "page {page} is joined though nobody else holds it");
                sharers.remove_holder(hold)
            });
        }
        // Runs that are one segment's alone are one run again.
        for cut in [at + 1, at] {
            let border = page + cut - at;
            if pages.start < border && border < pages.end {
                chunk.uncut(cut);
            }
        }
    }

    /// A segment has its bytes in another way than before.
    pub(super) fn rehold(&self, pages: Range<usize>, from: Hold, to: Hold) {
        self.each_run(pages, |chunk, start, run| {
            let place = &chunk.places[start];
            match (from.idle(), to.idle()) {
                (Some(idle), Some(next)) if place.state() == idle => {
                    place.set(next);
                    self.shift(from.class(), to.class(), run.len());
                }
                _ => _ = self.share(chunk, start, |sharers| sharers.rehold(from, to)),
            }
        });
    }

    /// One operation more of the kernel is on these pages.
    #[inline]
    pub(super) fn begin_flight(&self, kind: Kind, pages: &Range<usize>) {
        self.change(pages, Change::Begin(kind));
    }

    /// One operation less of the kernel is on these pages.
    #[inline]
    pub(super) fn end_flight(&self, kind: Kind, pages: &Range<usize>) {
        self.change(pages, Change::End(kind));
    }

    /// The result of an operation on these pages is out, and the kernel keeps them until its notification.
    pub(super) fn await_notification(&self, kind: Kind, pages: &Range<usize>) {
        self.change(pages, Change::AwaitNotification(kind));
    }

    /// That notification has come.
    pub(super) fn end_notification(&self, pages: &Range<usize>) {
        self.change(pages, Change::EndNotification);
    }

    /// Fills in who has the pages, at one moment.
    pub(super) fn count(&self, snapshot: &mut Snapshot) {
        self.magazines.tell(snapshot);
    }

    fn shift(&self, from: Class, to: Class, pages: usize) {
        let _is_true = self.magazines.shift_if(Shift { from, to, pages }, || true);
    }

    /// Nearly every operation is on pages of one run, from its first page on, and alone. Compiled into each caller, whose
    /// change is known there.
    #[inline(always)]
    fn change(&self, pages: &Range<usize>, change: Change) {
        if pages.is_empty() {
            return;
        }
        let (chunk, at) = self.chunk_of(pages.start);
        let has_all = pages.len() <= chunk.runs.len_at(at);
        if !(has_all && self.change_word(&chunk.places[at], change, &(0..pages.len()))) {
            self.change_each(pages, change);
        }
    }

    #[inline(never)]
    fn change_each(&self, pages: &Range<usize>, change: Change) {
        let chunk_start = pages.start - self.chunk_of(pages.start).1;
        self.each_run(pages.clone(), |chunk, start, pages| {
            if !self.change_word(&chunk.places[start], change, &pages) {
                self.share(chunk, start, |sharers| sharers.change(pages, change, chunk_start + start));
            }
        });
    }

    /// Changes a run, and counts the change, if its word can say it.
    #[inline(always)]
    fn change_word(&self, place: &Place, change: Change, pages: &Range<usize>) -> bool {
        let word = place.word.load(Ordering::Acquire);
        let Some((next, shift)) = changed(word, change, pages) else { return false };
        self.magazines.shift_if(shift, || place.replace_word(word, next))
    }

    /// The runs that these pages are in, in their order: the chunk, the start, and which pages of the run are meant.
    #[inline]
    fn each_run(&self, pages: Range<usize>, mut visit: impl FnMut(&Chunk, usize, Range<usize>)) {
        if pages.is_empty() {
            return;
        }
        let (chunk, first) = self.chunk_of(pages.start);
        let (mut at, end) = (first, first + pages.len());
        while at < end {
            let run = chunk.runs.find(at);
            assert!(run.is_some(), "page {} is used though nobody holds it", pages.start + (at - first));
            let (start, len) = run.unwrap_or_default();
            let run_end = end.min(start + len);
            visit(chunk, start, at - start..run_end - start);
            at = run_end;
        }
    }

    /// What `release` does where a segment is not one run of its own.
    #[inline(never)]
    fn release_runs(&self, pages: Range<usize>, hold: Hold) -> Range<usize> {
        let (chunk, first) = self.chunk_of(pages.start);
        let (mut freed, mut runs) = (pages.end..pages.start, 0);
        self.each_run(pages.clone(), |chunk, start, run| {
            let at = pages.start + start - first;
            let is_free = if Some(chunk.places[start].state()) == hold.idle() {
                chunk.places[start].set(State::Ready);
                self.shift(hold.class(), Class::Free, run.len());
                true
            } else {
                let holders = self.share(chunk, start, |sharers| {
                    // I1: the operation owns its lease. Were it otherwise the kernel could write into the next lease.
                    let is_last = sharers.holders() == 1;
                    assert!(!is_last || !sharers.is_with_kernel(), "page {at} is released while the kernel has it");
                    sharers.remove_holder(hold)
                });
                holders == 0
            };
            if is_free {
                freed = freed.start.min(at)..freed.end.max(at + run.len());
                runs += 1;
            }
        });
        if runs == 1 && self.magazines.keep(&freed, Class::Free) || runs == 0 {
            return 0..0;
        }
        // All but the first and the last run were this segment's alone, so what has become free is in one piece.
        let mut at = first + freed.start - pages.start;
        for _ in 0..runs {
            let next = at + chunk.runs.len_at(at);
            chunk.runs.dissolve(at);
            at = next;
        }
        freed
    }

    /// Changes a run under the lock of those who share it, and counts the change; how many still hold it.
    fn share(&self, chunk: &Chunk, start: usize, change: impl FnOnce(&mut Sharers) -> Counts) -> usize {
        let place = &chunk.places[start];
        // What asserts does so before it changes anything, so what a panic left behind is still right.
        let mut sharers = place.sharers.lock().unwrap_or_else(PoisonError::into_inner);
        let sharers = sharers.get_or_insert_default();
        loop {
            let state = place.state();
            assert!(state != State::Ready, "a page is used though nobody holds it");
            if state == State::Several {
                break;
            }
            if place.replace(state, State::Several) {
                sharers.take_over(state, chunk.runs.len_at(start));
                break;
            }
        }
        self.magazines.count(change(sharers));
        // From here on whoever finds the word so may change it without the lock.
        if sharers.holders() == 0 {
            place.set(State::Ready);
        } else if let Some(state) = sharers.simple() {
            place.set(state);
        }
        sharers.holders()
    }

    /// The chunk that this page is in, and where.
    #[inline]
    fn chunk_of(&self, page: usize) -> (&Chunk, usize) {
        let chunk = self.layout.chunk_of(page);
        let start = self.layout.start_of(chunk);
        (self.chunks[chunk].get().expect("a page that is used has memory"), page - start)
    }
}

impl Chunk {
    /// A run is to start at this page of the chunk, which the program calls `page`.
    fn cut(&self, at: usize, page: usize) {
        let run = self.runs.find(at);
        assert!(run.is_some(), "page {page} is split though nobody holds it");
        let (start, _len) = run.unwrap_or_default();
        if start == at {
            return;
        }
        let state = self.places[start].state();
        assert!(matches!(state, State::Idle { .. }), "page {page} is split while the kernel has it");
        self.runs.cut(start, at);
        self.places[at].set(state);
    }

    /// Undoes a cut, if the runs on both sides of it are alike and nobody else's.
    fn uncut(&self, at: usize) {
        let Some((start, _len)) = self.runs.find(at - 1) else { return };
        let (first, second) = (self.places[start].state(), self.places[at].state());
        let is_cut = self.runs.len_at(at) > 0;
        if is_cut && first == second && matches!(first, State::Idle { .. }) {
            self.runs.join(start);
            self.places[at].set(State::FRESH);
        }
    }
}
