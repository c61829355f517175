//! A registry as one ring sees it.

use std::fmt;
use std::sync::Arc;

use super::arena::Arena;
use super::counts::Kind;
use super::rings::RingSlot;

/// The pages of a registry, and which of them the ring of this place has registered.
#[derive(Clone)]
pub(crate) struct RingPages {
    arena: Arc<Arena>,
    /// `None`: this ring registers nothing.
    slot: Option<RingSlot>,
}

impl RingPages {
    pub(super) fn new(arena: Arc<Arena>, slot: Option<RingSlot>) -> Self {
        Self { arena, slot }
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(crate) fn slot(&self) -> Option<RingSlot> {
        self.slot
    }

    /// Whether these bytes lie in the registry, and in one chunk of it.
    #[inline]
    pub(crate) fn contains(&self, addr: usize, len: usize) -> bool {
        self.arena.offset_of(addr, len).is_some()
    }

    /// The index by which an operation of this ring names these bytes; `None` if the ring has them not registered, so that
    /// the plain operation has to do. No bytes have none: nothing keeps the chunk at their address.
    #[inline]
    pub(crate) fn entry_of(&self, addr: usize, len: usize) -> Option<u16> {
        if len == 0 { None } else { self.arena.entry_of(addr, self.slot?) }
    }

    /// The kernel gets these bytes, with one operation. Every call needs its own [`end_flight`](Self::end_flight) with
    /// the same range, before the lease is dropped.
    pub(crate) fn begin_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.begin_flight(kind, addr, len);
    }

    /// The final completion of an operation on these bytes has come.
    pub(crate) fn end_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.end_flight(kind, addr, len);
    }

    /// The result of an operation on these bytes is out, and the kernel keeps them until its notification. Every call
    /// needs its own [`end_notification`](Self::end_notification), which then takes the place of `end_flight`.
    pub(crate) fn await_notification(&self, kind: Kind, addr: usize, len: usize) {
        self.arena.await_notification(kind, addr, len);
    }

    /// The notification of an operation on these bytes has come.
    pub(crate) fn end_notification(&self, addr: usize, len: usize) {
        self.arena.end_notification(addr, len);
    }
}

impl fmt::Debug for RingPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPages").field("slot", &self.slot).finish_non_exhaustive()
    }
}
