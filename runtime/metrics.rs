//! Counters: what the driver has done, each a plain number that only grows.

use std::array;
use std::cell::Cell;
use std::fmt;

use super::opcode::Opcode;

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

/// Opcodes that can be told apart: all that the kernel has, and as many again.
const OPCODES: usize = 128;

/// A counter for each opcode. A mask in the place of a bounds check keeps a push free of branches.
pub(crate) struct ByOpcode([Counter; OPCODES]);

impl ByOpcode {
    #[inline(always)]
    pub(crate) fn add_one(&self, opcode: u8) {
        self.0[usize::from(opcode) % OPCODES].add(1);
    }
}

impl Default for ByOpcode {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

impl fmt::Debug for ByOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().enumerate().filter(|(_, count)| count.get() > 0);
        f.debug_map().entries(used).finish()
    }
}

/// What a driver has done since it was built.
#[derive(Debug, Default)]
pub struct Metrics {
    /// System calls that entered the ring.
    pub enters: Counter,
    /// Operations pushed, retries and their polls included.
    pub submissions: Counter,
    /// The same, by opcode; see [`submissions_of`](Self::submissions_of).
    pub(crate) by_opcode: ByOpcode,
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

impl Metrics {
    /// `submissions_of(opcode)`: operations of this kind pushed, retries included. The driver's own read of its eventfd is
    /// one of them; cancels are not, and have [`cancels`](Self::cancels).
    ///
    /// # Examples
    /// ```
    /// use ringmain::{Driver, Opcode, Runtime, ops};
    ///
    /// Runtime::new()?.block_on(async {
    ///     ops::nop().await?;
    ///     assert_eq!(Driver::current().metrics().submissions_of(Opcode::Nop), 1);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submissions_of(&self, opcode: Opcode) -> u64 {
        self.by_opcode.0[usize::from(opcode.code())].get()
    }
}
