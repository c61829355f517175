//! The registry: pages that are registered with the kernel once, lent out, and counted.
//!
//! Pinning pages for every operation costs more than many operations do, so the kernel lets a ring register memory
//! once. What is registered must then stay where it is for as long as the ring lives, belong to one holder at a time,
//! and come back when it is no longer needed, also when that holder is an operation whose future is long gone.
//!
//! * **I4 lease**: registered bytes are reachable through one [`FixedBuf`] only, or are read-only in one lease that several
//!   [`SharedBuf`]s hold. All of them are zeroed when they are
//!   mapped, so there is no uninitialised byte in a registry.
//! * **I5 shutdown**: the memory is unmapped after the last handle, lease and operation are gone, or never.
//! * **I7 bound**: the queue for pages has one place for each living [`Lease`] and gives it up with it.
//!
//! Addresses are reserved once, up to the bound; memory comes in *chunks*, each of which is one entry of the kernel's
//! table. A lease is a run of pages inside one chunk, so that an operation can name it by the chunk's index and an
//! address. A lease can be split at any byte; the ledger counts the holders of a page that was cut, and it is free when
//! the last of them is gone. Neither leasing nor releasing makes a system call, unless the registry grows or two threads
//! meet at a lock. What they cost, and the start and end of an operation, does not grow with the length of a lease, or
//! where the pool has to be asked with its logarithm.
//!
//! From the bottom: `mapping` is memory, `layout` cuts it in chunks, `bits`, `buddy` and `pool` find free runs, `counts` is
//! what pages count as, `magazines` keep for each thread some runs ready and its part of the counts, `runs` finds the run
//! that a page is in, `flights` is what the kernel does with one, `ledger` knows who has each, `queue` who waits, `rings`
//! which ring registered what, and `arena` holds all of these; `anchor` keeps it alive, `segment` is a range of bytes with
//! one holder, and `fixed_buf`, `shared_buf` and `lease` are what the program sees.

mod anchor;
mod arena;
mod bits;
mod buddy;
mod counts;
mod fixed_buf;
mod flights;
mod holders;
mod layout;
mod lease;
mod ledger;
mod magazines;
mod mapping;
mod pool;
mod queue;
mod registration;
mod ring_pages;
mod rings;
mod runs;
mod segment;
mod shared_buf;
mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anchor::{Anchor, Anchors};
use arena::Voice;
pub(crate) use arena::{Arena, TableChange};
pub(crate) use counts::Kind;
pub use fixed_buf::FixedBuf;
pub use holders::Holder;
use layout::Layout;
pub use lease::{Lease, LeaseMany};
use registration::Registration;
pub(crate) use ring_pages::{RingPages, Span};
pub(crate) use rings::RingSlot;
pub use shared_buf::SharedBuf;
pub use snapshot::{InFlightPages, Snapshot};

use super::config::Config;

/// What the registry counts in, whatever the machine's own pages are.
pub(crate) const PAGE_BYTES: usize = 4096;

/// `Registry` - pages of memory that rings register once and operations use many times.
///
/// A handle: clones are cheap, can be sent to other threads, and share the same pages. Rings of one process can share
/// one registry. The pages are lent out as [`FixedBuf`]s, each of which is one holder's alone, and come back when it is
/// dropped. They are 4096 bytes each, on every machine. A lease can be frozen into a [`SharedBuf`] that several read.
///
/// Where the kernel refuses to register them, mostly because RLIMIT_MEMLOCK is too low, the same calls work on the same
/// memory unregistered; [`is_registered`](Self::is_registered) and
/// [`unregistered_reason`](Self::unregistered_reason) say so.
///
/// What is *not* promised: that a free run is found whenever enough pages are free. A lease is contiguous, so that many
/// small ones can stand in the way of a large one.
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let registry = ringmain::Registry::new(16)?;
/// let mut header = registry.try_lease(5000).expect("two pages are free");
/// let body = header.split_off(100);
///
/// let snapshot = registry.snapshot();
/// assert_eq!((snapshot.pages_total, snapshot.pages_leased, snapshot.pages_free), (16, 2, 14));
/// drop((header, body));
/// assert_eq!(registry.snapshot().pages_free, 16);
/// # Ok(())
/// # }
/// ```
pub struct Registry {
    arena: Arc<Arena>,
    anchors: Anchors,
}

impl Registry {
    /// `new(pages)` - maps `pages` pages of 4096 bytes, all zero, that no ring has registered yet; it never grows.
    ///
    /// The memory is aligned for huge pages, and from 512 pages (2 MiB) on asks for them. No page is touched, so that
    /// what is never leased and never registered costs address space, and the memory of the books: some 28 bytes for
    /// each page, written at once.
    ///
    /// # Errors
    ///
    /// * `InvalidInput`: `pages` is 0, or more than the kernel's table of buffers can describe (16 TiB).
    /// * `OutOfMemory`: the kernel has no address space.
    ///
    /// # References
    ///
    /// mmap(2), madvise(2) (`MADV_HUGEPAGE`), io_uring_register(2) (`IORING_REGISTER_BUFFERS`: 1 GiB per buffer,
    /// 16384 buffers).
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Self::of(Arena::new(Layout::new(pages, pages)?, Duration::MAX)?))
    }

    /// `with_config(config)` - maps a registry with the bounds of a [`Config`]: its `pages`, `pages_max` and
    /// `pages_idle`.
    ///
    /// It begins with `pages`. A lease that does not fit lets it grow, up to `pages_max`, before anybody waits; memory
    /// that it has grown by and that is all free for as long as `pages_idle` is given back. Where the system has no memory
    /// to grow by, leases wait, and a runtime that turns with this registry asks again after a second. It grows by *chunks*, which
    /// are as long as `pages`, rounded up to a power of two, and 2 MiB at least and 1 GiB at most; no lease is longer
    /// than a chunk.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and `InvalidInput` if the bounds do not fit together.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringmain::{Config, Registry};
    ///
    /// let registry = Registry::with_config(&Config::default().pages(16).pages_max(1024))?;
    /// let small = registry.try_lease(16 * 4096).expect("all that is there is free");
    /// assert_eq!(registry.snapshot().pages_total, 16);
    /// let more = registry.try_lease(4096).expect("it grows");
    /// assert_eq!(registry.snapshot().pages_total, 16 + 512);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_config(config: &Config) -> io::Result<Self> {
        let pages_max = config.pages_max.unwrap_or(config.pages);
        let layout = Layout::new(config.pages as usize, pages_max as usize)?;
        Ok(Self::of(Arena::new(layout, config.pages_idle)?))
    }

    /// `try_lease(len)` - takes `len` bytes if they are free now and nobody waits for any.
    ///
    /// Gives `None` if the pages are not there, if somebody waits for pages (whoever came first is served first), and
    /// if no registry of this size could ever give `len` bytes, or `len` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(1)?;
    /// let lease = registry.try_lease(4096).expect("the page is free");
    /// assert!(registry.try_lease(1).is_none());
    /// drop(lease);
    /// assert!(registry.try_lease(1).is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn try_lease(&self, len: usize) -> Option<FixedBuf> {
        let run = lease::run(&self.arena.ground.layout, len, 1).ok()?;
        self.anchor().try_take(run, Location::caller(), Voice::Aloud).map(FixedBuf::new)
    }

    /// Whether a lease of so many bytes can ever be granted; the error says why not.
    pub(crate) fn check_lease(&self, len: usize) -> io::Result<()> {
        lease::run(&self.arena.ground.layout, len, 1).map(|_run| ())
    }

    /// `try_lease_aligned(len, align)` - takes `len` bytes that begin at a multiple of `align` bytes, as
    /// [`try_lease`](Self::try_lease) otherwise. For alignment see [`lease_aligned`](Self::lease_aligned).
    #[must_use]
    #[track_caller]
    pub fn try_lease_aligned(&self, len: usize, align: usize) -> Option<FixedBuf> {
        let run = lease::run(&self.arena.ground.layout, len, align).ok()?;
        self.anchor().try_take(run, Location::caller(), Voice::Aloud).map(FixedBuf::new)
    }

    /// `try_lease_many(lens)` - takes a lease of each of these lengths in bytes if all are free now and nobody waits
    /// for any; or none at all.
    #[must_use]
    #[track_caller]
    pub fn try_lease_many(&self, lens: &[usize]) -> Option<Vec<FixedBuf>> {
        let layout = &self.arena.ground.layout;
        let runs: Vec<_> = lens.iter().map(|len| lease::run(layout, *len, 1)).collect::<io::Result<_>>().ok()?;
        // Before it grows for what it will never have room for.
        let runs = lease::fits_together(layout, runs).ok()?;
        let segments = self.anchor().try_take_all(&runs, Location::caller())?;
        Some(segments.into_iter().map(FixedBuf::new).collect())
    }

    /// `lease(len)` - takes `len` bytes, and waits its turn if they are not free.
    ///
    /// The lease is one contiguous range whose capacity is exactly `len` bytes. Its pages are its own, so that it uses
    /// up whole pages of 4096 bytes. Turns are strictly first come, first served, from the first poll on: a large lease
    /// at the head of the queue holds back small ones that would fit, and is therefore never starved by them.
    ///
    /// **Do not wait while you hold.** The registry cannot know that the pages somebody waits for will be returned only
    /// after that same wait: a task that awaits a second lease while it keeps a first one can wait for itself, or for
    /// another task that does the same, for ever. Take what one piece of work needs in one lease and
    /// [split](FixedBuf::split_off) it; or take the second with [`try_lease`](Self::try_lease), and if there is none
    /// give the first one back before waiting.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its place in the queue. Pages that were granted to it and that it did not see yet
    /// go to whoever is next.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: `len` is 0, or longer than any lease of this registry could ever be, which is the whole registry
    /// if that is at most 1 GiB
    /// or a chunk of it. Never for want of free pages.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # use futures::FutureExt;
    /// let registry = ringmain::Registry::new(4)?;
    /// let first = registry.try_lease(4 * 4096).expect("all pages are free");
    /// let mut second = registry.lease(4096);
    /// assert!((&mut second).now_or_never().is_none(), "it waits");
    /// drop(first);
    /// let second = second.now_or_never().expect("its turn has come")?;
    /// assert_eq!(second.capacity(), 4096);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn lease(&self, len: usize) -> Lease {
        Lease::new(self.anchor().clone(), len, 1, Location::caller(), Voice::Aloud)
    }

    /// `lease_aligned(len, align)` - takes `len` bytes that begin at a multiple of `align` bytes, and waits its turn if
    /// they are not free.
    ///
    /// Every lease begins at a page of 4096 bytes, which is enough for O_DIRECT on every common device. `align` is a
    /// power of two up to 2 MiB, which is a huge page, or to the length of a registry that is shorter, rounded up to a
    /// power of two. As [`lease`](Self::lease) otherwise.
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease), and `InvalidInput` for another alignment.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(64)?;
    /// let _first = registry.try_lease(4096).expect("a page is free");
    /// let lease = registry.try_lease_aligned(4096, 64 * 1024).expect("such a page is free");
    /// assert!(lease.alignment() >= 64 * 1024);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn lease_aligned(&self, len: usize, align: usize) -> Lease {
        Lease::new(self.anchor().clone(), len, align, Location::caller(), Voice::Aloud)
    }

    /// `lease_many(lens)` - takes a lease of each of these lengths in bytes, in this order: all of them, or it waits its
    /// turn and holds none meanwhile.
    ///
    /// What needs several leases at once takes them so, and not one after the other: two tasks that each hold what the
    /// other waits for would wait for ever. Its place in the queue is one among the others.
    ///
    /// # Cancel safety
    ///
    /// As [`lease`](Self::lease).
    ///
    /// # Errors
    ///
    /// As [`lease`](Self::lease) for each length, and `InvalidInput` if all of them together can never be granted.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # use futures::FutureExt;
    /// let registry = ringmain::Registry::new(4)?;
    /// let [header, body] = <[_; 2]>::try_from(registry.lease_many(&[100, 8192]).now_or_never().expect("they are free")?)
    ///     .expect("two were asked for");
    /// assert_eq!((header.capacity(), body.capacity()), (100, 8192));
    /// assert!(registry.try_lease_many(&[4096, 1]).is_none(), "one page is free, and not two");
    /// assert_eq!(registry.snapshot().pages_free, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn lease_many(&self, lens: &[usize]) -> LeaseMany {
        LeaseMany::new(self.anchor().clone(), lens, Location::caller())
    }

    /// `shrink()` - gives back what the registry has grown by and what is all free, without waiting for it to be long
    /// unused; how many chunks.
    ///
    /// The memory of a chunk goes when each ring that has it registered has let go of it, which a ring does in its next
    /// turn. Until then a lease that does not fit elsewhere has it back. The pages that the registry began with stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use ringmain::{Config, Registry};
    ///
    /// let registry = Registry::with_config(&Config::default().pages(1).pages_max(1024))?;
    /// drop(registry.try_lease(4 * 4096).expect("it grows"));
    /// assert_eq!(registry.shrink(), 1);
    /// assert_eq!(registry.snapshot().pages_total, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shrink(&self) -> usize {
        self.arena.shrink(Instant::now(), Duration::ZERO)
    }

    /// `snapshot()` - who has the pages now, and what it cost so far.
    ///
    /// Who has them is exact at one moment of the call, also while other threads lease and release: the parts always
    /// sum to the total. It takes some microseconds, whatever the number of pages.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.arena.snapshot()
    }

    /// `holders()` - in a debug build, each lease that has not been given back: where it was asked for, its length in
    /// bytes, and since when; the oldest first.
    ///
    /// When the last handle of a registry goes, or the last runtime that was built with it, leases that are left are
    /// logged as a warning with the same words. A release build keeps no list: it gives none, and logs none.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(1)?;
    /// let _lease = registry.try_lease(100).expect("the page is free");
    /// if cfg!(debug_assertions) {
    ///     assert_eq!(registry.holders()[0].bytes, 100);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.arena.holders.list_all()
    }

    /// `is_registered()` - whether a living ring has these pages registered: those that the registry began with.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.arena.is_registered_at(&(0..PAGE_BYTES))
    }

    /// `unregistered_reason()` - why no ring has these pages registered, and what to do about it; `None` if one has.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(4)?;
    /// let reason = registry.unregistered_reason().expect("no runtime was built with it");
    /// assert!(reason.contains("build a runtime"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn unregistered_reason(&self) -> Option<String> {
        if self.is_registered() { None } else { Some(self.registration().reason()) }
    }

    /// [`try_lease`](Self::try_lease) while a driver is borrowed.
    #[track_caller]
    pub(crate) fn try_lease_silent(&self, len: usize) -> Option<FixedBuf> {
        let run = lease::run(&self.arena.ground.layout, len, 1).ok()?;
        self.anchor().try_take(run, Location::caller(), Voice::Silent).map(FixedBuf::new)
    }

    /// [`lease`](Self::lease) that is polled while a driver is borrowed, and dropped when none is.
    #[track_caller]
    pub(crate) fn lease_silent(&self, len: usize) -> Lease {
        Lease::new(self.anchor().clone(), len, 1, Location::caller(), Voice::Silent)
    }

    /// A place for a ring that is to use these pages, and to register them if it can; `None` if it may not, or if as
    /// many rings have this registry as it knows places for.
    pub(crate) fn attach(&self, registers: bool) -> RingPages {
        let slot = if registers { self.registration().attach() } else { None };
        RingPages::new(Arc::clone(&self.arena), slot)
    }

    /// The ring is closed and has nothing registered: another one can have its place.
    pub(crate) fn detach(&self, slot: RingSlot) {
        self.registration().detach(slot);
    }

    /// Whether any ring that registers has this registry.
    pub(crate) fn is_attached(&self) -> bool {
        self.registration().is_attached()
    }

    /// Runs with the descriptor of a ring that has the pages registered, which stays open meanwhile.
    pub(crate) fn with_source<T>(&self, clone: impl FnOnce(RawFd) -> T) -> Option<T> {
        let registration = self.registration();
        registration.source().map(clone)
    }

    /// From now on until it is detached, this ring's table may be cloned.
    pub(crate) fn set_source(&self, slot: RingSlot, ring_fd: RawFd) {
        self.registration().set_source(slot, ring_fd);
    }

    /// This ring is about to close: its table is not cloned any more.
    pub(crate) fn clear_source(&self, slot: RingSlot) {
        self.registration().clear_source(slot);
    }

    /// A ring tried to register so many bytes and the kernel answered with this error. Keeps the sentence for
    /// [`unregistered_reason`](Self::unregistered_reason), and warns the first time.
    pub(crate) fn set_refused(&self, bytes: usize, error: &io::Error) {
        self.say_refused(registration::refusal(bytes, error));
    }

    pub(crate) fn say_refused(&self, reason: String) {
        let first = self.registration().refuse(reason);
        // After the lock: who listens to the log is foreign code, and may ask this registry.
        if let Some(reason) = first {
            tracing::warn!(%reason, "memory of the registry stays unregistered");
        }
    }

    /// Whether these bytes lie in the registry, and in one chunk of it.
    #[cfg(any(test, feature = "bytes"))]
    pub(crate) fn contains(&self, addr: usize, len: usize) -> bool {
        self.arena.find(addr, len, None).is_some()
    }

    /// Never unmaps the pages (I5), because the kernel may still write to them when everybody else is gone.
    pub(crate) fn leak(&self) {
        self.arena.leak();
    }

    /// Logs what has not been given back, in a debug build, as nobody is left who could use it here.
    pub(crate) fn report_holders(&self, when: &str) {
        report(&self.holders(), when);
    }

    fn of(arena: Arc<Arena>) -> Self {
        arena.handles.fetch_add(1, Ordering::Relaxed);
        Self { arena, anchors: Anchors::default() }
    }

    /// What the leases of this thread keep the arena by.
    #[inline]
    fn anchor(&self) -> &Anchor {
        self.anchors.own(&self.arena)
    }

    fn registration(&self) -> MutexGuard<'_, Registration> {
        self.arena.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(holders: &[Holder], when: &str) {
    for holder in holders {
        tracing::warn!(%holder, when, "a lease of the registry has not been given back");
    }
}

impl Clone for Registry {
    fn clone(&self) -> Self {
        self.arena.handles.fetch_add(1, Ordering::Relaxed);
        Self { arena: Arc::clone(&self.arena), anchors: self.anchors.clone() }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.arena.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.report_holders("the last handle of the registry is dropped");
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("snapshot", &self.snapshot())
            .field("is_registered", &self.is_registered())
            .finish_non_exhaustive()
    }
}

/// The pages that a range of bytes of an arena touches.
#[inline]
fn pages_of(bytes: &Range<usize>) -> Range<usize> {
    if bytes.is_empty() { 0..0 } else { bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) }
}

fn invalid(sentence: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence)
}
