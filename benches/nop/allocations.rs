//! A global allocator that counts: it is the system's, with one relaxed addition before each request for memory.
#![allow(unsafe_code, reason = "a global allocator can only be written, and only call the system's, in unsafe code")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static COUNTING: Counting = Counting { requests: AtomicU64::new(0) };

/// Requests for memory by this process so far; growing a block is one too.
pub(crate) fn count() -> u64 {
    COUNTING.requests.load(Ordering::Relaxed)
}

struct Counting {
    requests: AtomicU64,
}

impl Counting {
    fn note(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every method passes its arguments unchanged to the system's allocator, which keeps the contract; the count
// beside it neither allocates nor panics. A block of the wrong size or owner would crash the benchmark itself, which
// runs through here on every start.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note();
        // SAFETY: the caller's promise about `layout` is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note();
        // SAFETY: the caller's promise about `layout` is the one that the system's allocator asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.note();
        // SAFETY: every block handed out here came from the system's allocator with the same layout.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: every block handed out here came from the system's allocator with the same layout.
        unsafe { System.dealloc(block, layout) }
    }
}
