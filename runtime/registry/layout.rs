//! How the address space of a registry is cut into chunks.

use std::io;
use std::ops::Range;

use super::mapping::HUGE_BYTES;
use super::{PAGE_BYTES, invalid};

/// The longest buffer that one entry of the kernel's table may describe (`io_sqe_buffer_register`: `SZ_1G`).
const CHUNK_PAGES_MAX: usize = (1 << 30) / PAGE_BYTES;
/// A chunk by which a registry grows has whole huge pages.
const CHUNK_PAGES_MIN: usize = HUGE_BYTES / PAGE_BYTES;
/// The most entries that the kernel's table has (`IORING_MAX_REG_BUFFERS`, `1U << 14`).
const CHUNKS_MAX: usize = 1 << 14;

/// Where each chunk lies: all begin at multiples of one length, a power of two pages, and the last of those that the
/// registry begins with, and of those that it grows by, may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    chunk_pages: usize,
    pages: usize,
    pages_max: usize,
    // What follows from these is asked for by every lease and operation, and takes divisions to find.
    first_chunks: usize,
    chunks: usize,
    align: usize,
    run_max: usize,
}

impl Layout {
    /// `pages` to begin with, `pages_max` at most.
    pub(super) fn new(pages: usize, pages_max: usize) -> io::Result<Self> {
        if pages == pages_max {
            return Self::with_chunk_pages(pages, pages_max, CHUNK_PAGES_MAX);
        }
        // Grown by what it began with, at least: a lease is never longer than a chunk.
        let mut chunk_pages =
            pages.checked_next_power_of_two().unwrap_or(CHUNK_PAGES_MAX).clamp(CHUNK_PAGES_MIN, CHUNK_PAGES_MAX);
        while chunk_pages < CHUNK_PAGES_MAX && pages_max.div_ceil(chunk_pages) + 1 > CHUNKS_MAX {
            chunk_pages *= 2;
        }
        Self::with_chunk_pages(pages, pages_max, chunk_pages)
    }

    /// The same with chunks of this length, so that a test can meet their borders.
    pub(super) fn with_chunk_pages(pages: usize, pages_max: usize, chunk_pages: usize) -> io::Result<Self> {
        assert!(chunk_pages.is_power_of_two(), "a chunk has a power of two pages, and not {chunk_pages}");
        if pages == 0 {
            return Err(invalid("a registry needs at least one page; ask for one or more".to_owned()));
        }
        if pages_max < pages {
            return Err(invalid(format!(
                "a registry of {pages} pages cannot be bounded to {pages_max}; ask for fewer pages or raise the bound"
            )));
        }
        let first_chunks = pages.div_ceil(chunk_pages);
        let chunks = first_chunks + (pages_max - pages).div_ceil(chunk_pages);
        if chunks > CHUNKS_MAX {
            return Err(invalid(format!(
                "a registry of {pages_max} pages needs more than the {CHUNKS_MAX} entries that the kernel's table has; \
                 ask for at most {} pages",
                CHUNKS_MAX * chunk_pages
            )));
        }
        let align_pages = if chunks == 1 { pages.next_power_of_two() } else { chunk_pages };
        let align = (align_pages * PAGE_BYTES).min(HUGE_BYTES);
        let run_max = pages.min(chunk_pages).max((pages_max - pages).min(chunk_pages));
        Ok(Self { chunk_pages, pages, pages_max, first_chunks, chunks, align, run_max })
    }

    /// How many chunks the registry begins with; they are never given back.
    pub(super) fn first_chunks(&self) -> usize {
        self.first_chunks
    }

    /// How many chunks there can be.
    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// The page after the last one that is never given back.
    pub(super) fn first_end(&self) -> usize {
        self.pages
    }

    pub(super) fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// The numbers of the pages of a chunk.
    #[inline]
    pub(super) fn pages_of(&self, chunk: usize) -> Range<usize> {
        let first = self.first_chunks();
        let left = match chunk.checked_sub(first) {
            None => self.pages - chunk * self.chunk_pages,
            Some(grown) => self.pages_max - self.pages - grown * self.chunk_pages,
        };
        let start = self.start_of(chunk);
        start..start + left.min(self.chunk_pages)
    }

    /// The number of the first page of a chunk.
    #[inline]
    pub(super) fn start_of(&self, chunk: usize) -> usize {
        chunk << self.chunk_pages.trailing_zeros()
    }

    /// The page after the last one, of all chunks.
    pub(super) fn end(&self) -> usize {
        self.pages_of(self.chunks() - 1).end
    }

    #[inline]
    pub(super) fn chunk_of(&self, page: usize) -> usize {
        // A power of two, which the compiler cannot know.
        page >> self.chunk_pages.trailing_zeros()
    }

    /// The chunk that all of these bytes lie in, by their offsets. No bytes at all lie where they were cut off, which can
    /// be the end of a chunk.
    #[inline]
    pub(super) fn chunk_at(&self, bytes: &Range<usize>) -> Option<usize> {
        let chunk = self.chunk_of(bytes.start / PAGE_BYTES);
        let last = bytes.end.max(bytes.start + 1) - 1;
        if chunk < self.chunks() && self.pages_of(chunk).contains(&(last / PAGE_BYTES)) {
            return Some(chunk);
        }
        self.chunk_before(bytes)
    }

    /// The chunk that ends where these bytes are, which are none.
    #[cold]
    fn chunk_before(&self, bytes: &Range<usize>) -> Option<usize> {
        let before = bytes.start.checked_sub(1).filter(|_| bytes.is_empty())?;
        self.chunk_at(&(before..bytes.start))
    }

    /// What every chunk begins at a multiple of, in bytes: its own length or a huge page, whichever is less.
    pub(super) fn align(&self) -> usize {
        self.align
    }

    /// The longest run, in pages, that there can ever be: it lies in one chunk.
    pub(super) fn run_max(&self) -> usize {
        self.run_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(layout: Layout) -> Vec<(usize, usize)> {
        (0..layout.chunks()).map(|chunk| layout.pages_of(chunk)).map(|pages| (pages.start, pages.len())).collect()
    }

    #[test]
    fn chunks_have_a_power_of_two_pages_but_for_the_last_of_each_kind() {
        let layout = |pages, pages_max| Layout::new(pages, pages_max).expect("a sound bound");
        assert_eq!(chunks(layout(21, 21)), [(0, 21)]);
        assert_eq!(chunks(layout(1024, 3000)), [(0, 1024), (1024, 1024), (2048, 952)]);
        assert_eq!(chunks(layout(3000, 4000)), [(0, 3000), (4096, 1000)]);
        assert_eq!(chunks(layout(8, 530)), [(0, 8), (512, 512), (1024, 10)]);
        assert_eq!(layout(8, 530).run_max(), 512);
        assert_eq!(layout(8, 16 << 20).chunks(), 1 + (16 << 20) / 2048, "chunks are longer where the table is short");
        let three = layout(3 << 17, 3 << 17);
        assert_eq!((chunks(three), three.run_max()), (vec![(0, 1 << 18), (1 << 18, 1 << 17)], 1 << 18));
    }

    #[test]
    fn bytes_are_found_in_the_one_chunk_that_has_them_all() {
        let layout = Layout::with_chunk_pages(10, 13, 4).expect("a sound bound");
        assert_eq!(chunks(layout), [(0, 4), (4, 4), (8, 2), (12, 3)]);
        let at = |start: usize, end: usize| layout.chunk_at(&(start..end));
        assert_eq!([at(0, 4 * 4096), at(4 * 4096, 4 * 4096 + 1), at(8 * 4096, 10 * 4096)], [Some(0), Some(1), Some(2)]);
        assert_eq!([at(0, 4 * 4096 + 1), at(9 * 4096, 10 * 4096 + 1), at(10 * 4096, 11 * 4096)], [None; 3]);
        assert_eq!(
            [at(14 * 4096, 15 * 4096), at(15 * 4096, 15 * 4096 + 1), at(usize::MAX - 1, usize::MAX)],
            [Some(3), None, None]
        );
        assert_eq!([at(0, 0), at(10 * 4096, 10 * 4096), at(15 * 4096, 15 * 4096)], [Some(0), Some(2), Some(3)]);
        assert_eq!([at(11 * 4096, 11 * 4096), at(16 * 4096, 16 * 4096)], [None; 2]);
    }
}
