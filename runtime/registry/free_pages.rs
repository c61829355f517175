//! The free pages: a set of page numbers that finds its lowest member fast.
//!
//! One bit a page would do, but finding a free page in a nearly full arena would walk all of it. So above the bits
//! stands a level with one bit per word below that is not zero, and so on up to a single word: taking or returning
//! one page costs one step per level, which is four for 64 GiB. Finding a longer run costs one step per gap that is
//! too small.

#[derive(Debug)]
pub(super) struct FreePages {
    /// `levels[0]` has one bit per page, set where it is free; each bit above says that a word below is not zero.
    levels: Vec<Box<[u64]>>,
    pages: usize,
    count: usize,
}

const WORD: usize = u64::BITS as usize;

impl FreePages {
    /// All of `pages` pages, free.
    pub(super) fn new(pages: usize) -> Self {
        let mut levels = Vec::new();
        let mut bits = pages;
        loop {
            let words = bits.div_ceil(WORD);
            let mut level = vec![u64::MAX; words].into_boxed_slice();
            if let Some(last) = level.last_mut()
                && !bits.is_multiple_of(WORD)
            {
                *last = (1 << (bits % WORD)) - 1;
            }
            levels.push(level);
            if words <= 1 {
                return Self { levels, pages, count: pages };
            }
            bits = words;
        }
    }

    /// Adds a page that is not in the set.
    pub(super) fn insert(&mut self, page: usize) {
        assert!(page < self.pages, "page {page} is outside an arena of {} pages", self.pages);
        assert!(self.levels[0][page / WORD] & (1 << (page % WORD)) == 0, "page {page} is free already");
        self.count += 1;
        let mut index = page;
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (index % WORD);
            if !was_empty {
                return;
            }
            index /= WORD;
        }
    }

    /// Takes the lowest run of `pages` free pages that does not cross a multiple of `entry_pages`.
    pub(super) fn take_run(&mut self, pages: usize, entry_pages: usize) -> Option<usize> {
        if pages == 0 || pages > self.count {
            return None;
        }
        let mut from = 0;
        loop {
            let start = self.first_from(from)?;
            let entry_end = (start / entry_pages + 1) * entry_pages;
            let end = start + pages;
            if end > entry_end {
                from = entry_end;
                continue;
            }
            let run_end = self.run_end(start, end);
            if run_end == end {
                (start..end).for_each(|page| self.remove(page));
                return Some(start);
            }
            from = run_end;
        }
    }

    fn remove(&mut self, page: usize) {
        self.count -= 1;
        let mut index = page;
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            *word &= !(1 << (index % WORD));
            if *word != 0 {
                return;
            }
            index /= WORD;
        }
    }

    /// The lowest free page that is not below `from`.
    fn first_from(&self, from: usize) -> Option<usize> {
        let mut index = from;
        for (height, level) in self.levels.iter().enumerate() {
            let at = index / WORD;
            let rest = level.get(at)? & (u64::MAX << (index % WORD));
            if rest != 0 {
                let top = at * WORD + rest.trailing_zeros() as usize;
                let below = self.levels[..height].iter().rev();
                return Some(below.fold(top, |word, level| word * WORD + level[word].trailing_zeros() as usize));
            }
            // Nothing in this word: one level up, look right of it.
            index = at + 1;
        }
        None
    }

    /// The first page from `start` on that is not free, or `limit` if that comes earlier.
    fn run_end(&self, start: usize, limit: usize) -> usize {
        let mut at = start;
        while at < limit {
            let left_in_word = WORD - at % WORD;
            let ones = (self.levels[0].get(at / WORD).copied().unwrap_or(0) >> (at % WORD)).trailing_ones() as usize;
            at += ones;
            if ones < left_in_word {
                break;
            }
        }
        at.min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_pages_come_lowest_first_through_every_level() {
        // Three levels, and a last word that is not full.
        let pages = WORD * WORD * 2 + 5;
        let mut free = FreePages::new(pages);
        assert_eq!(free.levels.len(), 3);
        for expected in 0..pages {
            assert_eq!(free.take_run(1, pages), Some(expected));
        }
        assert_eq!((free.take_run(1, pages), free.count), (None, 0));
        for page in [pages - 1, 70, WORD * WORD, 3] {
            free.insert(page);
        }
        for expected in [3, 70, WORD * WORD, pages - 1] {
            assert_eq!(free.take_run(1, pages), Some(expected));
        }
        assert_eq!(free.take_run(1, pages), None);
    }

    #[test]
    fn a_run_skips_gaps_that_are_too_small_and_borders_of_entries() {
        let mut free = FreePages::new(300);
        assert_eq!(free.take_run(300, 300), Some(0));
        for page in (10..14).chain(60..70).chain(120..200) {
            free.insert(page);
        }
        assert_eq!(free.take_run(5, 300), Some(60), "the gap of four is skipped");
        assert_eq!(free.take_run(70, 300), Some(120), "a run may span words");
        assert_eq!(free.take_run(5, 300), Some(65));
        assert_eq!(free.take_run(8, 193), None, "190..200 is cut in 3 and 7 by the border");
        assert_eq!(free.take_run(7, 193), Some(193));
    }

    #[test]
    #[should_panic(expected = "page 3 is free already")]
    fn a_page_cannot_be_freed_twice() {
        FreePages::new(8).insert(3);
    }
}
