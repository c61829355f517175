//! Address space of the registry, and the memory behind parts of it.
#![allow(unsafe_code, reason = "maps the memory that is registered, gives it back and unmaps it")]

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use super::ledger::Unmapped;
use super::{PAGE_BYTES, invalid};

/// The size and alignment of a huge page, which the kernel pins and accounts for as one.
pub(super) const HUGE_BYTES: usize = 2 << 20;

/// A reserved range of addresses. What is not [opened](Self::open) has no memory and faults.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: I4: the mapping is memory that no thread owns; what reads and writes it is a `Segment`, which reaches its own
// bytes alone. Tested by `leases_cross_threads_and_counts_still_sum`.
unsafe impl Send for Mapping {}
// SAFETY: I4: a shared mapping only gives out addresses; see above. Tested by
// `leases_cross_threads_and_counts_still_sum`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses that begin at a multiple of `align` bytes; they cost nothing.
    pub(super) fn reserve(bytes: usize, align: usize) -> io::Result<Self> {
        let too_large =
            || invalid(format!("a registry of {bytes} bytes is larger than the address space; ask for fewer pages"));
        let bytes = bytes.checked_next_multiple_of(rustix::param::page_size()).ok_or_else(too_large)?;
        // The kernel aligns a mapping to a page only, so reserve more and cut the ends off.
        let spare = if align > rustix::param::page_size() { align } else { 0 };
        let padded = bytes.checked_add(spare).ok_or_else(too_large)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: I4: a new anonymous mapping at an address of the kernel's choice aliases nothing. Tested by
        // `a_fresh_arena_is_zeroed_and_aligned`.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), flags) }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
        let mut mapping = Self { base, bytes: padded };
        let misaligned = mapping.base.addr().get() % align;
        mapping.cut_front((align - misaligned) % align)?;
        mapping.cut_back(mapping.bytes - bytes)?;
        Ok(mapping)
    }

    /// Puts zeroed memory behind these pages, which have none.
    pub(super) fn open(&self, pages: &Range<usize>) -> io::Result<()> {
        let (start, bytes) = self.whole(pages);
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: I4: giving access to addresses of this mapping changes nothing that anybody can have seen. Tested by
        // `a_fresh_arena_is_zeroed_and_aligned`.
        unsafe { mprotect(start.as_ptr().cast(), bytes, access) }?;
        if bytes >= HUGE_BYTES {
            // SAFETY: I4: the advice changes how memory is backed, never what it contains, and it is given for this
            // mapping alone. Tested by `a_fresh_arena_is_zeroed_and_aligned`.
            let advised = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
            // Huge pages make registering cheaper; where the kernel has none, small ones serve as well, and nothing is
            // to be said of it under a lock.
            let _small_pages_serve = advised;
        }
        Ok(())
    }

    /// Gives the memory behind these pages back to the system. They can be [opened](Self::open) again, and are zero then.
    pub(super) fn close(&self, unmapped: Unmapped) -> io::Result<()> {
        let (start, bytes) = self.whole(unmapped.pages());
        // SAFETY: I4: the ledger has just found that no segment has a byte of these pages, and lets none be made until
        // they are opened again; I5: no ring has them registered. Tested by
        // `a_chunk_is_given_back_only_when_every_ring_has_let_go`.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) }?;
        // SAFETY: I4: as above; whoever touched them now would fault. Tested by
        // `a_chunk_is_given_back_only_when_every_ring_has_let_go`.
        unsafe { mprotect(start.as_ptr().cast(), bytes, MprotectFlags::empty()) }?;
        Ok(())
    }

    #[inline]
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes, "offset {offset} leaves a mapping of {} bytes", self.bytes);
        self.base.map_addr(|base| base.checked_add(offset).expect("a mapping does not wrap around the address space"))
    }

    #[inline]
    pub(super) fn base_addr(&self) -> usize {
        self.base.addr().get()
    }

    /// Address and length of these pages, in whole pages of the machine. Chunks are as large as a huge page, or alone.
    fn whole(&self, pages: &Range<usize>) -> (NonNull<u8>, usize) {
        let start = pages.start * PAGE_BYTES;
        let bytes = (pages.len() * PAGE_BYTES).next_multiple_of(rustix::param::page_size());
        assert!(start + bytes <= self.bytes, "pages {pages:?} leave a mapping of {} bytes", self.bytes);
        (self.at(start), bytes)
    }

    fn cut_front(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > 0 {
            // SAFETY: I5: these bytes are the front of a mapping that was just made and that nobody has seen. Tested by
            // `a_fresh_arena_is_zeroed_and_aligned`.
            unsafe { munmap(self.base.as_ptr().cast(), bytes) }?;
            self.base = self.at(bytes);
            self.bytes -= bytes;
        }
        Ok(())
    }

    fn cut_back(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > 0 {
            let kept = self.bytes - bytes;
            // SAFETY: I5: these bytes are the end of a mapping that was just made and that nobody has seen. Tested by
            // `a_fresh_arena_is_zeroed_and_aligned`.
            unsafe { munmap(self.at(kept).as_ptr().cast(), bytes) }?;
            self.bytes = kept;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: I5: whoever could reach the mapping - a handle, a lease, or an operation that owns one - keeps it
        // alive, so nobody is left, the kernel included. Tested by `a_dropped_mapping_is_unmapped` and
        // `f03_a_lease_outlives_its_registry`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes = self.bytes, "the registry's memory could not be unmapped and is leaked");
        }
    }
}
