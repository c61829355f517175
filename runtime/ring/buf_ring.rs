//! The ring of provided buffers: the queue, shared with the kernel, of the memory that it may receive into.
//!
//! The memory of the queue is our own mapping, given to the kernel by address. The other kind, which the kernel
//! allocates and the program maps (`IOU_PBUF_RING_MMAP`), is never used: kernels from 6.4 to 6.6.4 freed those pages
//! while they were still mapped (CVE-2024-0582).
//!
//! The kernel takes buffers from the head, which it keeps to itself; the program adds at the tail, which lies in the
//! last field of the first place. A place is written while the kernel does not look at it, that is before the tail has
//! passed it. What the buffers are, and who gets them back, is the business of a group in `runtime/lent/`.
#![allow(unsafe_code, reason = "memory shared with the kernel: the places and the tail of a ring of buffers")]

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The most places that a ring has (`io_register_pbuf_ring`: less than 65,536, a power of two).
pub(crate) const PLACES_MAX: u16 = 1 << 15;

/// One buffer as the kernel sees it in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) id: u16,
}

/// The places, and how many buffers were ever put into them.
pub(crate) struct BufRing {
    base: NonNull<BufRingEntry>,
    places: u16,
    tail: Cell<u16>,
}

impl BufRing {
    /// A ring with room for this many buffers at once, all places empty; at least one, and a power of two.
    pub(crate) fn new(places: u16) -> io::Result<Self> {
        assert!(places.is_power_of_two() && places <= PLACES_MAX, "a ring of buffers has 1, 2, 4, .. 32768 places");
        let bytes = usize::from(places) * size_of::<BufRingEntry>();
        // SAFETY: I2: a new anonymous mapping at an address of the kernel's choice aliases nothing; it is aligned to a
        // page, as the kernel asks, and zero, which is an empty ring. Tested by
        // `p07_the_memory_of_the_ring_is_ours_and_is_unmapped_after_its_end`.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("the kernel mapped memory at address 0"))?;
        Ok(Self { base, places, tail: Cell::new(0) })
    }

    /// Where the kernel finds it.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn places(&self) -> u16 {
        self.places
    }

    /// How many buffers were ever put in, modulo 65,536: the kernel's tail.
    pub(crate) fn tail(&self) -> u16 {
        self.tail.get()
    }

    /// Put one more buffer in, and let the kernel see it. The place must be free: of the buffers put in, the kernel has
    /// taken all but less than [`places`](Self::places).
    pub(crate) fn offer(&self, offer: Offer) {
        let tail = self.tail.get();
        let mut place = self.place(tail);
        // SAFETY: I2: the place lies in the mapping (`place`), and the kernel does not look at it before the tail has
        // passed it; only this thread makes references into the ring, and none outlives this function. Tested by
        // `a_ring_of_buffers_holds_what_was_put_in_where_the_kernel_looks`.
        let entry = unsafe { place.as_mut() };
        entry.set_addr(offer.address);
        entry.set_len(offer.len);
        entry.set_bid(offer.id);
        self.tail.set(tail.wrapping_add(1));
        self.shared_tail().store(self.tail.get(), Ordering::Release);
    }

    /// What lies in the place of the buffer that was put in as number `position`, modulo 65,536. For a played kernel:
    /// the real one moves the front of a place while it fills a buffer in steps.
    pub(crate) fn offered(&self, position: u16) -> Offer {
        // SAFETY: I2: the place lies in the mapping (`place`) and holds plain numbers; the ring of a played kernel is
        // written by this thread alone. Tested by `a_ring_of_buffers_holds_what_was_put_in_where_the_kernel_looks`.
        let entry = unsafe { self.place(position).as_ref() };
        Offer { address: entry.addr(), len: entry.len(), id: entry.bid() }
    }

    fn place(&self, position: u16) -> NonNull<BufRingEntry> {
        let at = usize::from(position & (self.places - 1));
        self.base.map_addr(|base| {
            base.checked_add(at * size_of::<BufRingEntry>()).expect("a mapping does not wrap around the address space")
        })
    }

    fn shared_tail(&self) -> &AtomicU16 {
        // SAFETY: I2: `base` is the address of the first place of a mapping that was zeroed when it was made. Tested by
        // `a_ring_of_buffers_holds_what_was_put_in_where_the_kernel_looks`.
        let tail = unsafe { BufRingEntry::tail(self.base.as_ptr()) };
        // SAFETY: I2: the tail is aligned, lies in the mapping, which lives as long as `self`, and from here on is
        // reached by this atomic alone; the kernel only reads it. Tested by
        // `a_ring_of_buffers_holds_what_was_put_in_where_the_kernel_looks`.
        unsafe { AtomicU16::from_ptr(tail.cast_mut()) }
    }
}

impl Drop for BufRing {
    fn drop(&mut self) {
        let bytes = usize::from(self.places) * size_of::<BufRingEntry>();
        // SAFETY: I5: the group drops a ring only when the kernel has not got it, or has let go of it, and leaks it
        // otherwise; and no reference into it outlives the call that made it. Tested by
        // `p07_the_memory_of_the_ring_is_ours_and_is_unmapped_after_its_end`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        if let Err(error) = unmapped {
            tracing::error!(%error, bytes, "a ring of buffers could not be unmapped and is leaked");
        }
    }
}

impl fmt::Debug for BufRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufRing").field("places", &self.places).field("tail", &self.tail).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_buffers_holds_what_was_put_in_where_the_kernel_looks() {
        let ring = BufRing::new(4).unwrap();
        assert!(ring.address().is_multiple_of(4096), "the kernel takes the address of a page only");
        let offer = |id: u16| Offer { address: 0x1000 * u64::from(id), len: u32::from(id) + 100, id };
        for id in 0..6 {
            ring.offer(offer(id));
            assert_eq!(ring.shared_tail().load(Ordering::Acquire), id + 1, "the tail tells the kernel of it");
        }
        // Four places: those of the first two were used again.
        assert_eq!([2, 3, 4, 5].map(|position| ring.offered(position)), [2, 3, 4, 5].map(offer));
        assert_eq!(ring.offered(0), offer(4), "writing a place leaves the tail in it alone");
    }
}
