//! A global allocator that counts: it is the system's, and notes beside how many bytes were asked for, and how many at
//! most at once.
#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// Begin to count anew.
pub(crate) fn reset() {
    BYTES.store(0, Ordering::SeqCst);
    LARGEST.store(0, Ordering::SeqCst);
}

/// Bytes asked for since, by all threads, and the most of one request.
pub(crate) fn counted() -> (usize, usize) {
    (BYTES.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst))
}

pub(crate) struct Counting;

fn note(bytes: usize) {
    BYTES.fetch_add(bytes, Ordering::Relaxed);
    LARGEST.fetch_max(bytes, Ordering::Relaxed);
}

// SAFETY: every method passes its arguments unchanged to the system's allocator, which keeps the contract; the counts
// beside it neither allocate nor panic. Tested by every test here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's contract is the system allocator's. Tested by every test here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as above: each block came from the system's allocator with this layout. Tested by every test here.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above. Tested by every test here.
        unsafe { System.dealloc(block, layout) }
    }
}
