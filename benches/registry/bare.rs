//! Registering fresh memory through the io-uring crate.
#![allow(unsafe_code, reason = "registering memory and advice about it are unsafe")]

use std::io;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use rustix::mm::{Advice, madvise};

use crate::aligned::Aligned;

/// What huge pages are aligned to.
const HUGE_PAGE: usize = 2 << 20;

/// The allocator may give out a smaller block again, with pages that are there already (mallopt(3), M_MMAP_THRESHOLD).
const ALWAYS_FRESH: usize = 33 << 20;

/// A ring with registered memory. The ring is dropped first.
pub(crate) struct Registered {
    _ring: IoUring,
    _memory: Aligned,
}

/// Registers `len` bytes that nobody has touched, so that the kernel has to find the pages too.
pub(crate) fn register(len: usize, huge: bool) -> io::Result<(Duration, Registered)> {
    let mut memory = Aligned::new(len.max(ALWAYS_FRESH), HUGE_PAGE);
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: I4 asks that the bytes are reachable in one way only; they are borrowed here, and this advice changes none
    // of them. Any other effect would crash the benchmark itself, which drops them afterwards.
    unsafe { madvise(memory.as_mut_ptr().cast(), len, advice) }?;
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: len };
    let ring = IoUring::new(8)?;
    let began = Instant::now();
    // SAFETY: I5 asks that registered memory is freed after the ring is closed, and the fields of `Registered` are
    // dropped in that order. No operation names the memory, so that no kernel could write to it too late.
    unsafe { ring.submitter().register_buffers(&[buffer]) }?;
    Ok((began.elapsed(), Registered { _ring: ring, _memory: memory }))
}
