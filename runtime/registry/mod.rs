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
//! One mapping is the *arena*. It is registered as few entries of at most 1 GiB each, and a lease is a run of pages
//! inside one entry, so that an operation can name it by the entry's index and an address. A lease can be split at any
//! byte; the ledger counts the holders of each page, and the page is free when the last of them is gone. Neither
//! leasing nor releasing makes a system call, unless two threads meet at the lock.

mod arena;
mod fixed_buf;
mod free_pages;
mod holders;
mod lease;
mod ledger;
mod queue;
mod registration;
mod shared_buf;
mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use arena::Arena;
pub use fixed_buf::FixedBuf;
pub use holders::Holder;
pub use lease::Lease;
pub(crate) use ledger::Kind;
use registration::Registration;
pub use shared_buf::SharedBuf;
pub use snapshot::{InFlightPages, Snapshot};

/// What the registry counts in, whatever the machine's own pages are.
pub(crate) const PAGE_BYTES: usize = 4096;

/// `Registry` - pages of memory that rings register once and operations use many times.
///
/// A handle: clones are cheap, can be sent to other threads, and share the same pages. Rings of one process can share
/// one registry. The pages are lent out as [`FixedBuf`]s, each of which is one holder's alone, and come back when it is
/// dropped. They are 4096 bytes each, on every machine.
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
}

impl Registry {
    /// `new(pages)` - maps `pages` pages of 4096 bytes, all zero, that no ring has registered yet.
    ///
    /// From 512 pages (2 MiB) on the memory is aligned for huge pages and asks for them. No page is touched, so that
    /// what is never leased and never registered costs address space only.
    ///
    /// # Errors
    ///
    /// * `InvalidInput`: `pages` is 0, or more than the kernel's table of buffers can describe (16 TiB).
    /// * `OutOfMemory`: the kernel has no address space or memory to promise.
    ///
    /// # References
    ///
    /// mmap(2), madvise(2) (`MADV_HUGEPAGE`), io_uring_register(2) (`IORING_REGISTER_BUFFERS`: 1 GiB per buffer,
    /// 16384 buffers).
    pub fn new(pages: usize) -> io::Result<Self> {
        Ok(Self::of(Arena::new(pages)?))
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
        self.arena.try_take(len, Location::caller()).map(FixedBuf::new)
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
    /// or 1 GiB, whichever is less. Never for want of free pages.
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
        Lease::new(Arc::clone(&self.arena), len, Location::caller())
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

    /// `is_registered()` - whether a living ring has these pages registered.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration().is_anywhere()
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
        self.registration().reason()
    }

    /// Whether this ring has the pages registered, so that an operation on it may name them by index.
    pub(crate) fn is_registered_on(&self, ring_id: u32) -> bool {
        self.registration().is_on(ring_id)
    }

    /// This ring has registered all of [`entries`](Self::entries).
    pub(crate) fn set_registered(&self, ring_id: u32) {
        self.registration_mut().add(ring_id);
        self.arena.registrations.fetch_add(self.entries().count() as u64, Ordering::Relaxed);
    }

    /// This ring has unregistered the pages, or is gone.
    pub(crate) fn set_unregistered(&self, ring_id: u32) {
        self.registration_mut().remove(ring_id);
    }

    /// A ring tried to register the pages and the kernel answered with this error. Keeps the sentence for
    /// [`unregistered_reason`](Self::unregistered_reason), and warns the first time.
    pub(crate) fn set_refused(&self, error: &io::Error) {
        let bytes = self.snapshot().pages_total * PAGE_BYTES;
        let first = self.registration_mut().refuse(bytes, error);
        // After the lock: who listens to the log is foreign code, and may ask this registry.
        if let Some(reason) = first {
            tracing::warn!(%reason, "the registry runs unregistered");
        }
    }

    /// What to register: address and length in bytes of each entry, in the order of their indices.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        self.arena.entries()
    }

    /// The index of the entry that this address lies in; `None` if it is not in this registry.
    pub(crate) fn entry_of(&self, addr: usize) -> Option<u16> {
        self.arena.entry_of(addr)
    }

    /// Whether these bytes lie in this registry, and all of them in one entry.
    pub(crate) fn contains(&self, addr: usize, len: usize) -> bool {
        self.arena.offset_of(addr, len).is_some()
    }

    /// The kernel gets these bytes, with one operation. Every call needs its own [`end_flight`](Self::end_flight) with
    /// the same range, before the lease is dropped.
    pub(crate) fn begin_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.begin_flight(kind, addr, len);
    }

    /// The final completion of an operation on these bytes has come.
    pub(crate) fn end_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.end_flight(kind, addr, len);
    }

    /// The result of an operation on these bytes is out, and the kernel keeps them until its notification. Every call
    /// needs its own [`end_notification`](Self::end_notification), which then takes the place of `end_flight`.
    pub(crate) fn await_notification(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.await_notification(kind, addr, len);
    }

    /// The notification of an operation on these bytes has come.
    pub(crate) fn end_notification(&self, addr: usize, len: usize) {
        self.arena.end_notification(addr, len);
    }

    /// Never unmaps the pages (I5), because the kernel may still write to them when everybody else is gone.
    pub(crate) fn leak(&self) {
        self.arena.leak();
    }

    // Nothing that can panic half way runs under this lock, so what a poisoned one guards is still right.
    /// Logs what has not been given back, in a debug build, as nobody is left who could use it here.
    pub(crate) fn report_holders(&self, when: &str) {
        report(&self.holders(), when);
    }

    fn of(arena: Arc<Arena>) -> Self {
        arena.handles.fetch_add(1, Ordering::Relaxed);
        Self { arena }
    }

    fn registration(&self) -> RwLockReadGuard<'_, Registration> {
        self.arena.registration.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn registration_mut(&self) -> RwLockWriteGuard<'_, Registration> {
        self.arena.registration.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(holders: &[Holder], when: &str) {
    for holder in holders {
        tracing::warn!(%holder, when, "a lease of the registry has not been given back");
    }
}

impl Clone for Registry {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.arena))
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
fn pages_of(bytes: &Range<usize>) -> Range<usize> {
    if bytes.is_empty() { 0..0 } else { bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) }
}
