//! What the registry tells of its pages.

use std::time::Duration;

/// `Snapshot` - who has the pages of a [`Registry`](super::Registry), in pages of 4096 bytes, and what it cost so far.
///
/// Every page counts once, so that `pages_total` is always the sum of `pages_free`, `pages_leased`, `pages_shared`,
/// `pages_lent`, `pages_in_flight` and `pages_notifying`. Where a page has several holders, because a lease was split
/// inside it or has several readers, the last of these that holds is what it counts as: awaiting a notification comes
/// before in flight, then lent, shared and leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// All pages that have memory now.
    pub pages_total: usize,
    /// Nobody has them. Pages that a thread keeps ready for its next lease are among them.
    pub pages_free: usize,
    /// The program has them, exclusively: a [`FixedBuf`](super::FixedBuf) does, or a [`Lease`](super::Lease) that was
    /// granted them and has not been polled since.
    pub pages_leased: usize,
    /// The program has them, read-only: a [`SharedBuf`](super::SharedBuf) does.
    pub pages_shared: usize,
    /// They lie in a ring of provided buffers, for the kernel to pick.
    pub pages_lent: usize,
    /// The kernel has them: at least one operation on them has not completed.
    pub pages_in_flight: usize,
    /// The kernel has them still: a zero-copy send has given its result, and its notification is to come.
    pub pages_notifying: usize,
    /// Those in flight, by what is done with them.
    pub in_flight: InFlightPages,
    /// The most pages that were not free at once, so far.
    pub pages_held_max: usize,
    /// The most pages that the kernel had at once, in flight or awaiting a notification, so far.
    pub pages_in_flight_max: usize,
    /// Leases that wait for pages now.
    pub waiting: usize,
    /// Leases that had to wait and were granted what they waited for, so far.
    pub waits: u64,
    /// How long these waited, all together.
    pub wait_total: Duration,
    /// How long the one of these waited that waited longest.
    pub wait_max: Duration,
    /// Chunks of memory that were mapped, so far: those that the registry began with, and each by which it grew.
    pub chunks_mapped: u64,
    /// Chunks that were registered with a ring, so far, each counted once for each ring.
    pub registrations: u64,
}

/// `InFlightPages` - the pages in flight of a [`Snapshot`], by what operations do with them.
///
/// A page on which operations of several kinds are in flight counts as the first of read, receive, write, send and
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlightPages {
    /// Being filled from a file or a pipe, or from a socket by a read.
    pub read: usize,
    /// Being written.
    pub write: usize,
    /// Being filled by a receive.
    pub receive: usize,
    /// Being sent.
    pub send: usize,
    /// Anything else.
    pub other: usize,
}

impl InFlightPages {
    pub(super) fn sum(&self) -> usize {
        self.read + self.write + self.receive + self.send + self.other
    }
}
