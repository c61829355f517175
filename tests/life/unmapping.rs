//! An allocator that gives freed memory back to the kernel at once.
//!
//! No sanitizer sees what the kernel writes. But a late write into memory that is not mapped is answered with `EFAULT`,
//! and one into memory that has been mapped again lands where the test has put its canaries. So each large allocation
//! is a mapping of its own, which ends with it; small ones are overwritten when they are freed.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The smallest allocation that is a mapping, in bytes.
pub(crate) const LARGE: usize = 32 << 10;

/// What freed small allocations are filled with.
const POISON: u8 = 0xDE;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of large allocations that are alive.
pub(crate) fn mapped() -> usize {
    MAPPED.load(Ordering::SeqCst)
}

pub(crate) struct Unmapping;

/// Whether an allocation is a mapping of its own. A page's alignment is the most that a mapping promises.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= 4096
}

// SAFETY: both kinds of memory are valid for their layout and stay where they are until they are freed, and the layout
// alone, which does not change, tells which kind it is. Tested by `freed_memory_is_not_mapped_any_more`.
unsafe impl GlobalAlloc for Unmapping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_mapped(layout) {
            // SAFETY: the caller's contract is the system allocator's. Tested by every test here.
            return unsafe { System.alloc(layout) };
        }
        // SAFETY: a new mapping at a place that the kernel picks touches nobody's memory. Tested by
        // `freed_memory_is_not_mapped_any_more`.
        let mapping = unsafe {
            mmap_anonymous(ptr::null_mut(), layout.size(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        match mapping {
            Ok(start) => {
                MAPPED.fetch_add(layout.size(), Ordering::SeqCst);
                start.cast()
            }
            Err(_) => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if !is_mapped(layout) {
            // SAFETY: the caller gives this memory up, so nobody else looks at its `size` bytes. Tested by
            // `c01_an_address_stays_until_the_kernel_has_read_it`.
            unsafe { start.write_bytes(POISON, layout.size()) };
            // SAFETY: by the caller's contract it came from `alloc` with this layout, and so from the system's.
            // Tested by every test here.
            return unsafe { System.dealloc(start, layout) };
        }
        // SAFETY: by the caller's contract it came from `alloc` with this layout, and so from a mapping of this size,
        // which nobody uses any more. Tested by `freed_memory_is_not_mapped_any_more`.
        let unmapped = unsafe { munmap(start.cast(), layout.size()) };
        if unmapped.is_err() {
            std::process::abort();
        }
        MAPPED.fetch_sub(layout.size(), Ordering::SeqCst);
    }
}
