//! The pipes of relays: few, small at first, and used again.
//!
//! What a pipe costs is not its memory, which an empty one has hardly any of, but its part in two limits: descriptors,
//! and the pages that the pipes of one user may hold together (`pipe-user-pages-soft`, 64 MiB). Beyond the second one
//! the kernel refuses to enlarge a pipe, and makes new ones of two slots. So the pool is bounded in pipes and in bytes,
//! asks what it got, and hands out nothing rather than a pipe that is worse than a copy.
//!
//! A pipe that still holds bytes of one transfer must never carry another: such a one is closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::{PipeReader, PipeWriter, pipe};
use crate::runtime::Driver;

/// What the kernel gives to whoever asks for nothing. A pipe that is smaller was cut short by a limit.
const SIZE_DEFAULT: usize = 64 * 1024;

/// How many pipes are kept although as many are not in use.
const FREE_MIN: usize = 8;

/// A bounded store of empty pipes, one for each driver.
///
/// A pipe is made when none is free and the bound allows it, and closed rather than kept when it holds bytes or when
/// more are free than are used.
#[derive(Debug)]
pub(in crate::ops) struct PipePool {
    #[expect(clippy::vec_box, reason = "a pipe that is taken and given back keeps its memory")]
    free: RefCell<Vec<Box<Ends>>>,
    out: Cell<usize>,
    /// Room of all pipes, free and out.
    bytes: Cell<usize>,
    made: Cell<u64>,
    pipes_max: usize,
    bytes_max: usize,
    size_max: usize,
}

/// A pipe out of the pool. Dropped, it is closed; [`give_back`](Self::give_back) keeps an empty one.
#[derive(Debug)]
pub(in crate::ops) struct PooledPipe {
    ends: Box<Ends>,
    place: Place,
}

#[derive(Debug)]
struct Ends {
    reader: PipeReader,
    writer: PipeWriter,
    size: usize,
}

/// One of the pipes that may be out, and its part of the bytes.
#[derive(Debug)]
struct Place {
    pool: Rc<PipePool>,
    bytes: usize,
}

impl PipePool {
    /// The pool of this driver.
    pub(in crate::ops) fn of(driver: &Driver) -> Rc<Self> {
        let config = driver.config();
        driver.local(|| Self::new(config.pipes as usize, config.pipe_size as usize, bytes_allowed()))
    }

    fn new(pipes_max: usize, size_max: usize, bytes_max: usize) -> Self {
        Self {
            free: RefCell::new(Vec::new()),
            out: Cell::new(0),
            bytes: Cell::new(0),
            made: Cell::new(0),
            pipes_max,
            bytes_max,
            size_max,
        }
    }

    /// An empty pipe of `wanted` bytes, or as near to that as can be had; `None` when as many as allowed are out, or the
    /// process is out of descriptors, or its user out of pages.
    pub(in crate::ops) fn take(self: &Rc<Self>, wanted: usize) -> Option<PooledPipe> {
        if self.out.get() >= self.pipes_max {
            return None;
        }
        let ends = match self.best(wanted) {
            Some(ends) => ends,
            None => self.make()?,
        };
        let place = Place::new(self, ends.size);
        let mut pipe = PooledPipe { ends, place };
        pipe.grow(wanted);
        Some(pipe)
    }

    /// The free pipe that suits best: the last one used that is large enough, or else the last one used.
    fn best(&self, wanted: usize) -> Option<Box<Ends>> {
        let mut free = self.free.borrow_mut();
        let wanted = wanted.min(self.size_max);
        let at = free.iter().rposition(|ends| ends.size >= wanted).or(free.len().checked_sub(1))?;
        let ends = free.remove(at);
        self.bytes.set(self.bytes.get() - ends.size);
        Some(ends)
    }

    fn make(&self) -> Option<Box<Ends>> {
        let (reader, writer) = pipe().ok()?;
        let mut size = reader.size().ok()?;
        self.made.set(self.made.get() + 1);
        if size < SIZE_DEFAULT.min(self.size_max) || self.bytes.get() + size > self.bytes_max {
            return None;
        }
        if self.size_max < size {
            size = writer.grow(self.size_max).ok()?;
        }
        Some(Box::new(Ends { reader, writer, size }))
    }

    /// Keep an empty pipe, and close those that have not been used for the longest time if there are too many.
    fn keep(&self, ends: Box<Ends>) {
        let mut free = self.free.borrow_mut();
        self.bytes.set(self.bytes.get() + ends.size);
        free.push(ends);
        while free.len() > FREE_MIN.max(self.out.get()) {
            let unused = free.remove(0);
            self.bytes.set(self.bytes.get() - unused.size);
        }
    }
}

impl PooledPipe {
    pub(in crate::ops) fn reader(&self) -> &PipeReader {
        &self.ends.reader
    }

    pub(in crate::ops) fn writer(&self) -> &PipeWriter {
        &self.ends.writer
    }

    /// The room it got, in bytes.
    pub(in crate::ops) fn size(&self) -> usize {
        self.ends.size
    }

    /// Ask for room for `wanted` bytes; the size it has then is [`size`](Self::size).
    pub(in crate::ops) fn grow(&mut self, wanted: usize) {
        let pool = &self.place.pool;
        let wanted = wanted.min(pool.size_max);
        let others = pool.bytes.get() - self.ends.size;
        // Those that are not out yet are to have the default size, as many of them as half of the bytes allow.
        let reserved = (pool.pipes_max - pool.out.get()).saturating_mul(SIZE_DEFAULT).min(pool.bytes_max / 2);
        if wanted > self.ends.size && (others + wanted).saturating_add(reserved) <= pool.bytes_max {
            // A refusal leaves it as it is.
            self.ends.size = self.ends.writer.grow(wanted).unwrap_or(self.ends.size);
            self.place.resize(self.ends.size);
        }
    }

    /// The largest that a pipe of its pool may become.
    pub(in crate::ops) fn size_max(&self) -> usize {
        self.place.pool.size_max
    }

    /// Return it to its pool. `inside` says how many bytes it still holds: any, and it is closed.
    pub(in crate::ops) fn give_back(self, inside: usize) {
        let Self { ends, place } = self;
        let pool = Rc::clone(&place.pool);
        drop(place);
        if inside == 0 {
            pool.keep(ends);
        }
    }

    /// The end to read from, for somebody who wants what is inside. The pipe is none of the pool's any more.
    pub(in crate::ops) fn into_reader(self) -> PipeReader {
        self.ends.reader
    }
}

impl Place {
    fn new(pool: &Rc<PipePool>, bytes: usize) -> Self {
        pool.out.set(pool.out.get() + 1);
        pool.bytes.set(pool.bytes.get() + bytes);
        Self { pool: Rc::clone(pool), bytes }
    }

    fn resize(&mut self, bytes: usize) {
        self.pool.bytes.set(self.pool.bytes.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.resize(0);
        self.pool.out.set(self.pool.out.get() - 1);
    }
}

/// Bytes that the pipes of one pool may hold together: three quarters of what its user may have, so that the other
/// pipes of the machine do not feel it.
///
/// Several threads have several pools. Each of them asks the kernel in the end, which counts them all.
fn bytes_allowed() -> usize {
    let pages =
        std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft").ok().and_then(|text| text.trim().parse().ok());
    match pages {
        // Zero says: no limit. A machine without procfs does not tell, and refuses what is too much.
        None | Some(0) => usize::MAX,
        Some(pages) => rustix::param::page_size().saturating_mul(pages) / 4 * 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    const SMALL: usize = 64 * 1024;

    fn pool(pipes_max: usize) -> Rc<PipePool> {
        Rc::new(PipePool::new(pipes_max, 1 << 20, 4 << 20))
    }

    #[test]
    fn a_pipe_with_residue_is_closed_and_not_reused() {
        let pool = pool(1);
        let pipe = pool.take(SMALL).unwrap();
        rustix::io::write(pipe.writer(), b"old bytes").unwrap();
        pipe.give_back(9);
        let pipe = pool.take(SMALL).expect("the closed pipe makes room for a new one");
        let mut byte = [0u8];
        assert_eq!(rustix::io::read(pipe.reader(), &mut byte), Err(Errno::AGAIN), "a fresh pipe is empty");
    }

    #[test]
    fn a_pipe_that_is_dropped_makes_room_for_another() {
        let pool = pool(1);
        drop(pool.take(SMALL).unwrap());
        assert!(pool.take(SMALL).is_some(), "wherever it was dropped");
    }

    #[test]
    fn the_pool_hands_out_no_more_than_its_bound() {
        let pool = pool(2);
        let first = pool.take(SMALL).unwrap();
        let _second = pool.take(SMALL).unwrap();
        assert!(pool.take(SMALL).is_none());
        first.give_back(0);
        assert!(pool.take(SMALL).is_some());
    }

    #[test]
    fn a_pipe_is_small_until_it_is_asked_to_grow() {
        let pool = pool(4);
        let mut pipe = pool.take(SMALL).unwrap();
        assert_eq!((pipe.size(), pool.bytes.get()), (SMALL, SMALL));
        pipe.grow(256 * 1024);
        assert_eq!((pipe.size(), pool.bytes.get()), (256 * 1024, 256 * 1024));
        pipe.grow(1 << 30);
        assert_eq!(pipe.size(), 1 << 20, "the largest that was configured");
        pipe.give_back(0);
        let small = pool.take(SMALL).unwrap();
        small.give_back(0);
        drop(pool.take(256 * 1024).unwrap());
        assert_eq!(pool.bytes.get(), 0, "what is closed is not counted");
    }

    #[test]
    fn a_large_pipe_goes_to_whoever_wants_a_large_one() {
        let pool = pool(4);
        let (large, small) = (pool.take(1 << 20).unwrap(), pool.take(SMALL).unwrap());
        large.give_back(0);
        small.give_back(0);
        assert_eq!(pool.take(SMALL).unwrap().size(), SMALL, "the one used last, if it does");
        assert_eq!(pool.take(1 << 20).unwrap().size(), 1 << 20);
    }

    #[test]
    fn l06_no_more_bytes_than_allowed_are_asked_for() {
        let pool = Rc::new(PipePool::new(16, 1 << 20, 2 << 20));
        let mut pipes: Vec<_> = (0..16).map_while(|_| pool.take(1 << 20)).collect();
        assert!(pool.bytes.get() <= 2 << 20);
        assert_eq!(pipes.iter().filter(|pipe| pipe.size() == 1 << 20).count(), 1, "one grows, and others stay small");
        assert_eq!(pipes.len(), 16, "so that there is one for each");
        pipes.clear();
        assert_eq!((pool.bytes.get(), pool.out.get()), (0, 0));
    }

    #[test]
    fn a_pool_that_may_have_more_pipes_than_bytes_still_lets_some_grow() {
        let pool = Rc::new(PipePool::new(100_000, 1 << 20, 8 << 20));
        let pipes: Vec<_> = (0..100).map_while(|_| pool.take(1 << 20)).collect();
        assert_eq!(pipes.iter().filter(|pipe| pipe.size() == 1 << 20).count(), 4, "in one half of the bytes");
        assert_eq!(pipes.iter().filter(|pipe| pipe.size() == SMALL).count(), 64, "and small ones in the other");
        assert_eq!(pipes.len(), 68);
    }

    #[test]
    fn x08_many_small_transfers_make_few_pipes_and_an_idle_pool_shrinks() {
        let pool = pool(64);
        for _ in 0..100_000 {
            pool.take(SMALL).unwrap().give_back(0);
        }
        assert_eq!(pool.made.get(), 1);
        let pipes: Vec<_> = (0..60).map(|_| pool.take(SMALL).unwrap()).collect();
        for pipe in pipes {
            pipe.give_back(0);
        }
        assert_eq!(pool.made.get(), 60);
        assert!(pool.free.borrow().len() <= FREE_MIN, "{} are kept", pool.free.borrow().len());
    }

    #[test]
    fn a_pool_goes_with_its_driver() {
        let (driver, _script) = Driver::scripted(&crate::Config::default()).unwrap();
        let pool = PipePool::of(&driver);
        pool.take(SMALL).unwrap().give_back(0);
        let late = pool.take(SMALL).unwrap();
        let weak = Rc::downgrade(&pool);
        drop((driver, pool));
        late.give_back(0);
        assert_eq!(weak.strong_count(), 0, "a pipe that comes back late keeps nothing");
    }

    #[test]
    fn the_allowance_is_a_part_of_the_limit() {
        assert!(bytes_allowed() >= SIZE_DEFAULT);
    }

    #[test]
    fn a_user_without_pages_gets_no_pipe() {
        // A pool that may hold nothing stands for a user whose pages are used up.
        let pool = Rc::new(PipePool::new(4, 1 << 20, 0));
        assert!(pool.take(SMALL).is_none());
        assert_eq!(pool.out.get(), 0);
    }
}
