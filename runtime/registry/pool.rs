//! The chunks, and which of their pages nobody has.
//!
//! A chunk is *absent* (addresses without memory), *live* (its free pages can be taken), or *draining*: it was all free
//! for long, so that nothing of it is taken any more, and each ring that has it registered is to let go of it. Only
//! then is its memory given back and the chunk absent. Until then a lease that does not fit elsewhere has it live again.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::bits::Bits;
use super::buddy::Buddy;
use super::layout::Layout;

/// A run of pages to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) bytes: usize,
    pub(super) pages: usize,
    /// In pages, a power of two.
    pub(super) align: usize,
}

#[derive(Debug)]
enum Chunk {
    Absent,
    Live {
        buddy: Buddy,
        /// Since when all of it is free, if it is one that can be given back.
        free_since: Option<Instant>,
    },
    Draining,
}

#[derive(Debug)]
pub(super) struct Pool {
    layout: Layout,
    chunks: Vec<Chunk>,
    /// By order, the live chunks whose largest free block has it: so that a run comes from the fullest chunk that has
    /// it, and others become free as a whole.
    by_largest: Vec<Bits>,
}

impl Pool {
    /// No chunk has memory yet.
    pub(super) fn new(layout: Layout) -> Self {
        let orders = layout.run_max().ilog2() as usize + 1;
        Self {
            layout,
            chunks: (0..layout.chunks()).map(|_| Chunk::Absent).collect(),
            by_largest: (0..orders).map(|_| Bits::new(layout.chunks())).collect(),
        }
    }

    /// Whether all of these can be taken at once when nothing else is: the longest first, as the queue takes them.
    ///
    /// The plain version opens all chunks. Those of full length are alike until something is taken from them, and come
    /// last; so one of these that is whole stands for all that are, and the cost does not grow with the bound.
    pub(super) fn would_fit(layout: Layout, runs: &[Run]) -> bool {
        Self::new(layout).all_fit(runs)
    }

    /// Of a pool that has no memory yet.
    fn all_fit(&mut self, runs: &[Run]) -> bool {
        let layout = self.layout;
        // One block, and the others' are smaller. Where the longest is none, there are two chunks at most.
        let is_full = |chunk: &usize| {
            let pages = layout.pages_of(*chunk).len();
            pages == layout.run_max() && pages.is_power_of_two()
        };
        let (mut whole, short): (Vec<usize>, Vec<usize>) = (0..layout.chunks()).rev().partition(is_full);
        short.into_iter().for_each(|chunk| self.open(chunk));
        let mut runs = runs.to_vec();
        runs.sort_by_key(|run| std::cmp::Reverse(run.pages));
        runs.into_iter().all(|run| {
            if self.by_largest.last().is_some_and(|chunks| chunks.first().is_none()) {
                whole.pop().into_iter().for_each(|chunk| self.open(chunk));
            }
            self.take(run).is_some()
        })
    }

    /// Takes a run out of the free pages, if they are there: its first page.
    pub(super) fn take(&mut self, run: Run) -> Option<usize> {
        // The chunks whose largest block has it come first; in others several blocks may have it together.
        let least = run.pages.ilog2().saturating_sub(1) as usize;
        let enough = run.pages.next_power_of_two().max(run.align).ilog2() as usize;
        let sure = (enough..self.by_largest.len()).find_map(|order| self.by_largest[order].first());
        if let Some(chunk) = sure {
            return self.take_from(chunk, run);
        }
        let maybe: Vec<usize> =
            (least..enough.min(self.by_largest.len())).flat_map(|order| self.by_largest[order].iter()).collect();
        maybe.into_iter().find_map(|chunk| self.take_from(chunk, run))
    }

    /// Gives back pages that were taken; `now` is asked for only if a whole chunk has become free.
    pub(super) fn put(&mut self, pages: Range<usize>, now: impl FnOnce() -> Instant) {
        let chunk = self.layout.chunk_of(pages.start);
        let start = self.layout.pages_of(chunk).start;
        let can_go = chunk >= self.layout.first_chunks();
        let Chunk::Live { buddy, free_since } = &mut self.chunks[chunk] else {
            panic!("pages {pages:?} are given back to a chunk that has no memory");
        };
        let before = buddy.largest();
        buddy.put(pages.start - start..pages.end - start);
        if can_go && buddy.is_all_free() {
            *free_since = Some(now());
        }
        let after = buddy.largest();
        self.relist(chunk, before, after);
    }

    /// The chunk that a growth is to be of: long enough for this run, and without memory.
    pub(super) fn absent(&self, run: Run) -> Option<usize> {
        let chunks = self.layout.first_chunks()..self.layout.chunks();
        chunks.into_iter().find(|chunk| {
            matches!(self.chunks[*chunk], Chunk::Absent) && self.layout.pages_of(*chunk).len() >= run.pages
        })
    }

    /// A draining chunk that is long enough for this run, live again.
    pub(super) fn revive(&mut self, run: Run) -> Option<usize> {
        let is_fit = |chunk: &usize| {
            matches!(self.chunks[*chunk], Chunk::Draining) && self.layout.pages_of(*chunk).len() >= run.pages
        };
        let chunk = (0..self.chunks.len()).find(is_fit)?;
        self.open(chunk);
        Some(chunk)
    }

    /// This chunk has memory now, or again, and all of it is free.
    pub(super) fn open(&mut self, chunk: usize) {
        let buddy = Buddy::new(self.layout.pages_of(chunk).len());
        let largest = buddy.largest();
        self.chunks[chunk] = Chunk::Live { buddy, free_since: None };
        self.relist(chunk, None, largest);
    }

    /// Lets no page be taken any more from chunks that have been all free for this long; which these are.
    pub(super) fn drain(&mut self, now: Instant, idle: Duration) -> Vec<usize> {
        let mut drained = Vec::new();
        for chunk in self.layout.first_chunks()..self.chunks.len() {
            let Chunk::Live { buddy, free_since: Some(since) } = &self.chunks[chunk] else { continue };
            if buddy.is_all_free() && now.saturating_duration_since(*since) >= idle {
                let largest = buddy.largest();
                self.relist(chunk, largest, None);
                self.chunks[chunk] = Chunk::Draining;
                drained.push(chunk);
            }
        }
        drained
    }

    /// When the next chunk will have been free for this long.
    pub(super) fn next_drain(&self, idle: Duration) -> Option<Instant> {
        let since = |chunk: &Chunk| match chunk {
            Chunk::Live { free_since, .. } => *free_since,
            Chunk::Absent | Chunk::Draining => None,
        };
        self.chunks.iter().filter_map(since).min()?.checked_add(idle)
    }

    /// The memory of this draining chunk has been given back.
    pub(super) fn close(&mut self, chunk: usize) {
        assert!(self.is_draining(chunk), "chunk {chunk} is given back though its pages can be taken");
        self.chunks[chunk] = Chunk::Absent;
    }

    pub(super) fn is_live(&self, chunk: usize) -> bool {
        matches!(self.chunks[chunk], Chunk::Live { .. })
    }

    pub(super) fn is_draining(&self, chunk: usize) -> bool {
        matches!(self.chunks[chunk], Chunk::Draining)
    }

    fn take_from(&mut self, chunk: usize, run: Run) -> Option<usize> {
        let Chunk::Live { buddy, free_since } = &mut self.chunks[chunk] else {
            return None;
        };
        let before = buddy.largest();
        let start = buddy.take(run.pages, run.align)?;
        *free_since = None;
        let after = buddy.largest();
        self.relist(chunk, before, after);
        Some(self.layout.pages_of(chunk).start + start)
    }

    fn relist(&mut self, chunk: usize, before: Option<usize>, after: Option<usize>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.by_largest[before].remove(chunk);
        }
        if let Some(after) = after {
            self.by_largest[after].insert(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_fits_is_what_can_be_taken_when_all_chunks_are_there(
            pages in 1..40_usize,
            more in 0..40_usize,
            order in 0..7_u32,
            lens in prop::collection::vec(1..20_usize, 0..12),
        ) {
            let layout = Layout::with_chunk_pages(pages, pages + more, 1 << order).expect("a sound bound");
            let run = |pages: usize| Run { bytes: pages * 4096, pages, align: 1 };
            let mut runs: Vec<Run> = lens.into_iter().map(|pages| run(pages.min(layout.run_max()))).collect();
            runs.sort_by_key(|run| std::cmp::Reverse(run.pages));
            let mut pool = Pool::new(layout);
            (0..layout.chunks()).for_each(|chunk| pool.open(chunk));
            let expected = runs.iter().all(|run| pool.take(*run).is_some());
            prop_assert_eq!(Pool::would_fit(layout, &runs), expected, "{:?} of {:?}", runs, layout);
        }
    }

    #[test]
    fn whether_leases_fit_together_costs_no_more_where_the_bound_is_huge() {
        let layout = Layout::new(16, 16 << 20).expect("a sound bound");
        let run = Run { bytes: 4096, pages: 1, align: 1 };
        let mut pool = Pool::new(layout);
        assert!(pool.all_fit(&[run, run]));
        assert_eq!((0..layout.chunks()).filter(|chunk| pool.is_live(*chunk)).count(), 3, "of thousands");
    }
}
