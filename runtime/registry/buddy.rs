//! The free pages of one chunk, in blocks of a power of two.
//!
//! A block of order `n` has 2^n pages and begins at a multiple of that; its *buddy* is the other half of the block one
//! order above. A run is taken from the smallest block that has it, the lowest of these, and what it does not need goes
//! back at once: a run of five pages uses five. Blocks that are free join with their buddies, so that pages released in
//! any order are one block again when all are back.
//!
//! Where no single block has the run, several that follow each other may. So a run is found if and only if there are
//! as many free pages in a row that begin at a multiple of the alignment asked for. That search looks at every block
//! that is a quarter of the run or more, and is made only before a lease would have to wait.

use std::ops::Range;

use super::bits::Bits;

#[derive(Debug)]
pub(super) struct Buddy {
    /// By order, the free blocks: the number of each is its first page divided by its length.
    orders: Vec<Bits>,
    pages: usize,
    free: usize,
}

impl Buddy {
    /// A chunk of so many pages, all free.
    pub(super) fn new(pages: usize) -> Self {
        let orders = (0..=pages.ilog2()).map(|order| Bits::new(pages.div_ceil(1 << order))).collect();
        let mut buddy = Self { orders, pages, free: 0 };
        buddy.put(0..pages);
        buddy
    }

    pub(super) fn is_all_free(&self) -> bool {
        self.free == self.pages
    }

    /// The order of the largest free block.
    pub(super) fn largest(&self) -> Option<usize> {
        self.orders.iter().rposition(|blocks| blocks.first().is_some())
    }

    /// Takes `pages` pages in a row that begin at a multiple of `align` pages, a power of two: their first.
    pub(super) fn take(&mut self, pages: usize, align: usize) -> Option<usize> {
        if pages > self.free {
            return None;
        }
        let order = pages.next_power_of_two().max(align).ilog2() as usize;
        let block = (order..self.orders.len()).find_map(|order| Some((order, self.orders[order].first()?)));
        let start = match block {
            Some((order, block)) => block << order,
            None => self.find_run(pages, align)?,
        };
        self.carve(start, pages);
        Some(start)
    }

    /// Gives back pages that were taken, in any parts.
    pub(super) fn put(&mut self, pages: Range<usize>) {
        assert!(pages.end <= self.pages, "pages {pages:?} lie outside a chunk of {} pages", self.pages);
        self.free += pages.len();
        let mut at = pages.start;
        while at < pages.end {
            let fits = (pages.end - at).ilog2();
            let order = if at == 0 { fits } else { fits.min(at.trailing_zeros()) } as usize;
            self.put_block(order, at >> order);
            at += 1 << order;
        }
    }

    fn put_block(&mut self, mut order: usize, mut block: usize) {
        while order + 1 < self.orders.len() && self.orders[order].contains(block ^ 1) {
            self.orders[order].remove(block ^ 1);
            block >>= 1;
            order += 1;
        }
        self.orders[order].insert(block);
    }

    /// Where `pages` free pages in a row begin, in more than one block. They have one of at least a quarter of their
    /// number among them.
    fn find_run(&self, pages: usize, align: usize) -> Option<usize> {
        let least = pages.ilog2().saturating_sub(1) as usize;
        let blocks = (least..self.orders.len()).flat_map(|order| self.orders[order].iter().map(move |b| (order, b)));
        blocks.into_iter().find_map(|(order, block)| {
            let mut start = block << order;
            let mut end = start + (1 << order);
            while let Some(order) = self.block_before(start) {
                start -= 1 << order;
            }
            let aligned = start.next_multiple_of(align);
            while end < aligned + pages
                && let Some((order, block)) = self.block_of(end)
            {
                end = (block + 1) << order;
            }
            (end >= aligned + pages).then_some(aligned)
        })
    }

    /// The order of the free block that ends before this page.
    fn block_before(&self, page: usize) -> Option<usize> {
        let ends = |order: &usize| {
            page > 0 && page.is_multiple_of(1 << order) && self.orders[*order].contains((page >> order) - 1)
        };
        (0..self.orders.len()).find(ends)
    }

    /// Order and number of the free block that this page is in.
    fn block_of(&self, page: usize) -> Option<(usize, usize)> {
        let at = |order: usize| (order, page >> order);
        (0..self.orders.len()).map(at).find(|(order, block)| self.orders[*order].contains(*block))
    }

    /// Takes free pages in a row, and gives back what their first and their last block have too many.
    fn carve(&mut self, start: usize, pages: usize) {
        let mut at = start;
        while at < start + pages {
            let (order, block) = self.block_of(at).expect("the pages that were found are free");
            self.orders[order].remove(block);
            self.free -= 1 << order;
            let end = (block + 1) << order;
            self.put(block << order..at);
            self.put(end.min(start + pages).max(at)..end);
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_uses_only_what_it_needs_and_all_is_one_block_again() {
        let mut buddy = Buddy::new(64);
        assert_eq!((buddy.take(5, 1), buddy.take(3, 1), buddy.take(8, 1)), (Some(0), Some(8), Some(16)));
        assert_eq!((buddy.take(2, 1), buddy.take(1, 1)), (Some(6), Some(5)), "what the five left over");
        assert_eq!((buddy.take(1, 1), buddy.take(1, 32)), (Some(11), Some(32)));
        for pages in [16..24, 0..2, 3..8, 2..3, 8..12, 32..33] {
            buddy.put(pages);
        }
        assert!(buddy.is_all_free());
        assert_eq!((buddy.largest(), buddy.take(64, 64)), (Some(6), Some(0)));
        assert_eq!((buddy.take(1, 1), buddy.largest()), (None, None));
    }

    #[test]
    fn a_chunk_of_any_length_can_be_taken_whole() {
        for pages in [1, 3, 5, 21, 1000] {
            let mut buddy = Buddy::new(pages);
            assert_eq!((buddy.take(pages + 1, 1), buddy.take(pages, 512)), (None, Some(0)), "{pages} pages");
            buddy.put(0..pages);
            assert!(buddy.is_all_free());
        }
    }

    #[test]
    #[should_panic(expected = "is in the set already")]
    fn a_block_cannot_be_freed_twice() {
        let mut buddy = Buddy::new(8);
        buddy.take(8, 1);
        buddy.put(2..3);
        buddy.put(2..3);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a list of pages: never a page twice, found if and only if the rule says so.
        #[test]
        fn runs_are_found_exactly_where_the_rule_says(
            chunk in 1..70_usize,
            script in prop::collection::vec((any::<bool>(), 1..20_usize, 0..6_u32, any::<usize>()), 1..80),
        ) {
            let mut buddy = Buddy::new(chunk);
            let mut taken = vec![false; chunk];
            let mut runs: Vec<Range<usize>> = Vec::new();
            for (take, pages, align, which) in script {
                if take {
                    let align = 1 << align;
                    let is_free = |start: usize| start + pages <= chunk && !taken[start..start + pages].contains(&true);
                    let expected = (0..chunk).step_by(align).any(is_free);
                    let found = buddy.take(pages, align);
                    prop_assert_eq!(found.is_some(), expected, "{} pages at {}", pages, align);
                    if let Some(start) = found {
                        prop_assert!(is_free(start) && start.is_multiple_of(align));
                        taken[start..start + pages].fill(true);
                        runs.push(start..start + pages);
                    }
                } else if !runs.is_empty() {
                    let run = runs.swap_remove(which % runs.len());
                    // In two parts, the second first.
                    let cut = run.start + run.len() / 2;
                    taken[run.clone()].fill(false);
                    buddy.put(cut..run.end);
                    buddy.put(run.start..cut);
                }
            }
            runs.into_iter().for_each(|run| buddy.put(run));
            prop_assert!(buddy.is_all_free());
            prop_assert_eq!(buddy.largest(), Some(chunk.ilog2() as usize));
        }

        /// How much of a chunk cannot be had in one piece once leases of mixed lengths have come and gone at random, and
        /// three quarters of it are free: the bound is what was measured, with room.
        #[test]
        fn fragmentation_stays_bounded(seed in prop::collection::vec((1..17_usize, any::<usize>()), 2000)) {
            const PAGES: usize = 1024;
            let mut buddy = Buddy::new(PAGES);
            let mut runs: Vec<Range<usize>> = Vec::new();
            let mut used = 0;
            for (pages, which) in seed {
                while used + pages > PAGES / 4 {
                    let run = runs.swap_remove(which % runs.len());
                    used -= run.len();
                    buddy.put(run);
                }
                let start = buddy.take(pages, 1).expect("most of the chunk is free");
                used += pages;
                runs.push(start..start + pages);
            }
            let largest = 1 << buddy.largest().expect("most of the chunk is free");
            prop_assert!(largest >= PAGES / 8, "with a quarter used, the largest block is {} pages", largest);
        }
    }
}
