//! Which run of a chunk a page is in.
//!
//! A run is known by its first page, so what is done with a whole one looks at one place. Who has an address in the
//! middle of one finds the start in as many steps as the chunk has orders. The plain version notes the start at every
//! page; here it is noted at those pages alone to which clearing the lowest bit of a number, again and again, leads from
//! every page of the run: at most one of each order.

use std::sync::atomic::{AtomicU32, Ordering};

/// A place for each page of one chunk. A run's are changed by nobody but who has all of it, and read by whoever has some
/// of it: what is handed on from thread to thread hands these on as well, so that nothing here needs an order.
#[derive(Debug)]
pub(super) struct Runs(Box<[AtomicU32]>);

/// What is noted at a page.
#[derive(Clone, Copy)]
enum Mark {
    Nothing,
    /// A run of so many pages starts here.
    Start(usize),
    /// The run that this page is in started so many pages before.
    Back(usize),
}

impl Runs {
    /// None, in a chunk of so many pages.
    pub(super) fn new(pages: usize) -> Self {
        assert!(pages < 1 << 31, "a chunk of {pages} pages is longer than a buffer may be");
        Self((0..pages).map(|_| AtomicU32::new(0)).collect())
    }

    /// How many pages the run has that starts here; 0 if none does.
    #[inline]
    pub(super) fn len_at(&self, start: usize) -> usize {
        match self.mark(start) {
            Mark::Start(pages) => pages,
            Mark::Nothing | Mark::Back(_) => 0,
        }
    }

    /// Start and length of the run that this page is in.
    pub(super) fn find(&self, page: usize) -> Option<(usize, usize)> {
        let mut at = page;
        loop {
            match self.mark(at) {
                Mark::Start(pages) => return (page < at + pages).then_some((at, pages)),
                Mark::Back(distance) => {
                    let start = at - distance;
                    return Some((start, self.len_at(start))).filter(|(start, pages)| page < start + pages);
                }
                Mark::Nothing if at == 0 => return None,
                Mark::Nothing => at &= at - 1,
            }
        }
    }

    /// Makes a run of pages that are in none.
    pub(super) fn form(&self, start: usize, pages: usize) {
        assert!(pages > 0 && self.find(start).is_none(), "page {start} is in a run already");
        self.each_mark(start, pages, |at| if at == start { Mark::Start(pages) } else { Mark::Back(at - start) });
    }

    /// Its pages are in no run any more.
    pub(super) fn dissolve(&self, start: usize) {
        let pages = self.len_at(start);
        assert!(pages > 0, "no run starts at page {start}");
        self.each_mark(start, pages, |_at| Mark::Nothing);
    }

    /// Makes two runs of one: the second starts at `page`.
    pub(super) fn cut(&self, start: usize, page: usize) {
        let end = start + self.len_at(start);
        self.dissolve(start);
        self.form(start, page - start);
        self.form(page, end - page);
    }

    /// Makes one run of two that follow each other.
    pub(super) fn join(&self, start: usize) {
        let first = self.len_at(start);
        let second = self.len_at(start + first);
        self.dissolve(start);
        self.dissolve(start + first);
        self.form(start, first + second);
    }

    /// Whether no page is in a run.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|mark| mark.load(Ordering::Relaxed) == 0)
    }

    #[inline]
    fn mark(&self, at: usize) -> Mark {
        match self.0[at].load(Ordering::Relaxed) as usize {
            0 => Mark::Nothing,
            start if start % 2 == 1 => Mark::Start(start / 2),
            back => Mark::Back(back / 2),
        }
    }

    fn each_mark(&self, start: usize, pages: usize, mark: impl Fn(usize) -> Mark) {
        let mut at = start;
        while at < start + pages {
            let bits = match mark(at) {
                Mark::Nothing => 0,
                Mark::Start(pages) => pages * 2 + 1,
                Mark::Back(distance) => distance * 2,
            };
            self.0[at].store(bits as u32, Ordering::Relaxed);
            if at == 0 {
                return;
            }
            at += 1 << at.trailing_zeros();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_every_run_finds_its_start_and_others_find_none() {
        const PAGES: usize = 70;
        let runs = Runs::new(PAGES);
        for start in 0..PAGES {
            for end in start + 1..=PAGES {
                // Neighbours on both sides, of one page each.
                let neighbours = [start.checked_sub(1), (end < PAGES).then_some(end)];
                neighbours.into_iter().flatten().for_each(|page| runs.form(page, 1));
                runs.form(start, end - start);
                for page in 0..PAGES {
                    let expected = match page {
                        page if (start..end).contains(&page) => Some((start, end - start)),
                        page if neighbours.contains(&Some(page)) => Some((page, 1)),
                        _ => None,
                    };
                    assert_eq!(runs.find(page), expected, "page {page} with a run of {start}..{end}");
                }
                runs.dissolve(start);
                neighbours.into_iter().flatten().for_each(|page| runs.dissolve(page));
                assert!(runs.is_empty());
            }
        }
    }

    #[test]
    fn a_run_that_is_cut_and_joined_is_as_it_was() {
        let runs = Runs::new(100);
        runs.form(3, 90);
        runs.cut(3, 40);
        assert_eq!((runs.find(39), runs.find(40), runs.find(92)), (Some((3, 37)), Some((40, 53)), Some((40, 53))));
        runs.join(3);
        assert_eq!((runs.find(92), runs.len_at(40), runs.find(93)), (Some((3, 90)), 0, None));
        runs.dissolve(3);
        assert!(runs.is_empty());
    }

    #[test]
    #[should_panic(expected = "is in a run already")]
    fn a_page_is_in_one_run_alone() {
        let runs = Runs::new(8);
        runs.form(0, 8);
        runs.form(5, 1);
    }
}
