//! A registry as one ring sees it.

use std::fmt;
use std::ops::Range;
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

/// Bytes of a registry that an entry names, as one ring sees them: found once, when the entry is described. The plain
/// version is their address, from which whoever begins and ends an operation finds their pages again.
#[derive(Debug)]
pub(crate) struct Span {
    /// In one chunk.
    pub(super) pages: Range<usize>,
    pub(super) index: Option<u16>,
}

impl Span {
    /// The index by which an operation of this ring names these bytes; `None` if the ring has them not registered, so that
    /// the plain operation has to do. No bytes have none: nothing keeps the chunk at their address.
    #[inline]
    pub(crate) fn index(&self) -> Option<u16> {
        self.index
    }
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

    /// These bytes, if they lie in the registry and in one chunk of it.
    #[inline]
    pub(crate) fn find(&self, addr: usize, len: usize) -> Option<Span> {
        self.arena.find(addr, len, self.slot)
    }

    /// The kernel gets these bytes, with one operation. Every call needs its own [`end_flight`](Self::end_flight) with
    /// the same ones, before the lease is dropped.
    #[inline]
    pub(crate) fn begin_flight(&self, kind: Kind, span: &Span) {
        self.arena.ground.ledger.begin_flight(kind, &span.pages);
    }

    /// The final completion of an operation on these bytes has come.
    #[inline]
    pub(crate) fn end_flight(&self, kind: Kind, span: &Span) {
        self.arena.ground.ledger.end_flight(kind, &span.pages);
    }

    /// The result of an operation on these bytes is out, and the kernel keeps them until its notification. Every call
    /// needs its own [`end_notification`](Self::end_notification), which then takes the place of `end_flight`.
    pub(crate) fn await_notification(&self, kind: Kind, span: &Span) {
        self.arena.ground.ledger.await_notification(kind, &span.pages);
    }

    /// The notification of an operation on these bytes has come.
    pub(crate) fn end_notification(&self, span: &Span) {
        self.arena.ground.ledger.end_notification(&span.pages);
    }
}

impl fmt::Debug for RingPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPages").field("slot", &self.slot).finish_non_exhaustive()
    }
}
