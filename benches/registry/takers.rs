//! The ways to take memory and to give it back.

use std::io;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use ringmain::{FixedBuf, Registry};

/// A place that gives memory out, to several threads.
pub(crate) trait Take: Sync {
    type Buffer;

    fn take(&self) -> io::Result<Self::Buffer>;

    fn give_back(&self, buffer: Self::Buffer) {
        drop(buffer);
    }
}

/// A lease of the registry, if there is one now.
pub(crate) struct TryLease {
    registry: Registry,
    size: usize,
}

/// A lease of the registry, as a future that would wait.
pub(crate) struct LeaseFuture(TryLease);

/// The allocator.
pub(crate) struct Allocator {
    size: usize,
}

/// A stack of buffers, all made before.
pub(crate) struct MutexPool {
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl TryLease {
    /// Of a registry that has twice the pages that are held at once.
    pub(crate) fn new(size: usize, held: usize) -> io::Result<Self> {
        Ok(TryLease { registry: Registry::new(2 * held * size / 4096)?, size })
    }
}

impl Take for TryLease {
    type Buffer = FixedBuf;

    fn take(&self) -> io::Result<FixedBuf> {
        self.registry.try_lease(self.size).ok_or_else(none_left)
    }
}

impl LeaseFuture {
    pub(crate) fn new(size: usize, held: usize) -> io::Result<Self> {
        TryLease::new(size, held).map(LeaseFuture)
    }
}

impl Take for LeaseFuture {
    type Buffer = FixedBuf;

    fn take(&self) -> io::Result<FixedBuf> {
        let LeaseFuture(TryLease { registry, size }) = self;
        registry.lease(*size).now_or_never().ok_or_else(none_left)?
    }
}

impl Allocator {
    pub(crate) fn new(size: usize) -> Self {
        Allocator { size }
    }
}

impl Take for Allocator {
    type Buffer = Vec<u8>;

    fn take(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::with_capacity(self.size))
    }
}

impl MutexPool {
    pub(crate) fn new(size: usize, held: usize) -> Self {
        MutexPool { buffers: Mutex::new((0..held).map(|_| Vec::with_capacity(size)).collect()) }
    }
}

impl Take for MutexPool {
    type Buffer = Vec<u8>;

    fn take(&self) -> io::Result<Vec<u8>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or_else(none_left)
    }

    fn give_back(&self, buffer: Vec<u8>) {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

fn none_left() -> io::Error {
    io::Error::other("there is no memory left, though less is held than there is")
}
