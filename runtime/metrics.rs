//! Counters: what the driver has done, each a plain number that only grows.

use std::cell::Cell;
use std::fmt;

/// One counter.
#[derive(Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.set(self.0.get() + count);
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// What a driver has done since it was built.
#[derive(Debug, Default)]
pub struct Metrics {
    /// System calls that entered the ring.
    pub enters: Counter,
    /// Operations pushed, retries and their polls included.
    pub submissions: Counter,
    /// Completions taken.
    pub completions: Counter,
    /// Operations tried inline, as one system call each.
    pub attempts: Counter,
    /// Cancels pushed.
    pub cancels: Counter,
    /// Operations pushed again after `EAGAIN` or a signal.
    pub retries: Counter,
    /// Enters that found the overflow list in use (`EBUSY`).
    pub busy: Counter,
    /// Enters made because completions had found the queue full and waited in the kernel's overflow list.
    pub overflows: Counter,
    /// Enters for which the kernel had no memory (`EAGAIN`, `ENOMEM`).
    pub starved: Counter,
    /// Zero-copy sends whose memory went to the device as it was.
    pub sends_zero_copy: Counter,
    /// Zero-copy sends whose bytes the kernel copied all the same.
    pub sends_copied: Counter,
    /// Sends that could have been zero-copy ones and were made plainly: too short, or the socket had shown that it
    /// does not pay.
    pub sends_plain: Counter,
    /// Completions that named no operation in flight, or a buffer that was not lent.
    pub stale: Counter,
}
