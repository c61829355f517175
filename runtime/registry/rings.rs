//! Sets of rings, by their places in one registry.

use std::sync::atomic::{AtomicU64, Ordering};

/// The most rings that can have one registry at once.
pub(super) const RINGS_MAX: usize = 256;

const WORD: usize = u64::BITS as usize;

/// A ring's place in a registry, while it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingSlot(u16);

/// Read by operations of all rings, changed hardly ever.
#[derive(Debug, Default)]
pub(super) struct RingSet([AtomicU64; RINGS_MAX / WORD]);

impl RingSlot {
    /// The first place that is not among these.
    pub(super) fn first_free(taken: impl Fn(Self) -> bool) -> Option<Self> {
        (0..RINGS_MAX as u16).map(Self).find(|slot| !taken(*slot))
    }

    fn word_and_bit(self) -> (usize, u64) {
        (usize::from(self.0) / WORD, 1 << (usize::from(self.0) % WORD))
    }
}

impl RingSet {
    #[inline]
    pub(super) fn contains(&self, ring: RingSlot) -> bool {
        let (word, bit) = ring.word_and_bit();
        self.0[word].load(Ordering::Acquire) & bit != 0
    }

    pub(super) fn insert(&self, ring: RingSlot) {
        let (word, bit) = ring.word_and_bit();
        self.0[word].fetch_or(bit, Ordering::AcqRel);
    }

    /// Whether it was there.
    pub(super) fn remove(&self, ring: RingSlot) -> bool {
        let (word, bit) = ring.word_and_bit();
        self.0[word].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }
}
