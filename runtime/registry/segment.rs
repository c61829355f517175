//! A range of bytes that belongs to one holder alone.
//!
//! A segment is made only from pages that the ledger has just counted as held, or by cutting another one in two (I4), and
//! keeps the arena alive (I5): the rest of the registry is safe code on top.
#![allow(unsafe_code, reason = "makes slices of the registered memory, each for one holder; nothing else does")]

use std::ops::Range;
use std::panic::Location;
use std::slice;
use std::sync::Arc;

use super::anchor::Anchor;
use super::ledger::Hold;
use super::mapping::HUGE_BYTES;
use super::queue::Grant;
use super::{PAGE_BYTES, pages_of};

/// A range of bytes of an arena that belongs to one holder alone; its pages go back when it is dropped.
pub(super) struct Segment {
    anchor: Anchor,
    /// I4: no two segments have a byte in common, and each page of this range counts this holder.
    bytes: Range<usize>,
    hold: Hold,
    /// In the list of holders.
    id: u64,
}

impl Segment {
    /// Pages that the pool has just given, and that the ledger counts as held by one.
    pub(super) fn new(anchor: Anchor, grant: Grant, place: &'static Location<'static>) -> Self {
        let start = grant.first_page * PAGE_BYTES;
        let id = anchor.holders.add(place, grant.bytes);
        Self { anchor, bytes: start..start + grant.bytes, hold: Hold::Exclusive, id }
    }

    /// Whether a living ring has these bytes registered.
    pub(super) fn is_registered(&self) -> bool {
        self.anchor.is_registered_at(&self.bytes)
    }

    pub(super) fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        let start = self.anchor.ground.mapping.at(self.bytes.start).as_ptr();
        // SAFETY: I4, I5: the range lies in the mapping, which the anchor keeps mapped and which was zeroed when it was
        // made; the only way to write to it is `bytes_mut` of this segment, which needs it exclusively, or an
        // operation, which owns the segment. Tested by `leases_never_overlap_and_counts_always_sum`.
        unsafe { slice::from_raw_parts(start, self.bytes.len()) }
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.anchor.ground.mapping.at(self.bytes.start).as_ptr();
        // SAFETY: I4, I5: as in `bytes`; and no two segments have a byte in common, so that an exclusive borrow of the
        // segment is one of its bytes. Tested by `leases_never_overlap_and_counts_always_sum`.
        unsafe { slice::from_raw_parts_mut(start, self.bytes.len()) }
    }

    /// Cuts this segment in two; `self` keeps the first `at` bytes.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.bytes.len(), "cannot split a lease of {} bytes at byte {at}", self.bytes.len());
        let cut = self.bytes.start + at;
        if cut != self.bytes.start && cut != self.bytes.end {
            self.anchor.ground.ledger.split(cut / PAGE_BYTES, !cut.is_multiple_of(PAGE_BYTES), self.hold);
        }
        let id = self.anchor.holders.split(self.id, at, self.bytes.end - cut);
        let rest = Self { anchor: self.anchor.clone(), bytes: cut..self.bytes.end, hold: self.hold, id };
        self.bytes.end = cut;
        rest
    }

    /// Joins the segment that begins where this one ends; else gives it back.
    pub(super) fn unsplit(&mut self, mut next: Self) -> Result<(), Self> {
        let cut = self.bytes.end;
        let is_alike = Arc::ptr_eq(self.anchor.arena(), next.anchor.arena()) && self.hold == next.hold;
        let is_adjacent = is_alike && cut == next.bytes.start;
        let both = self.bytes.start..next.bytes.end;
        if !is_adjacent || self.anchor.ground.layout.chunk_at(&both).is_none() {
            return Err(next);
        }
        let (has_front, has_back) = (!self.bytes.is_empty(), !next.bytes.is_empty());
        // From here on the bytes are this segment's, and the other one has none to release.
        next.bytes.start = next.bytes.end;
        self.bytes = both;
        self.anchor.holders.resize(self.id, self.bytes.len());
        if has_front && has_back {
            let is_inside = !cut.is_multiple_of(PAGE_BYTES);
            self.anchor.ground.ledger.join(pages_of(&self.bytes), cut / PAGE_BYTES, is_inside, self.hold);
        }
        Ok(())
    }

    /// From now on its pages count as held in this way.
    pub(super) fn set_hold(&mut self, hold: Hold) {
        if self.hold != hold {
            self.anchor.ground.ledger.rehold(pages_of(&self.bytes), self.hold, hold);
            self.hold = hold;
        }
    }

    /// The largest power of two, in bytes, that the address is a multiple of; at most a huge page.
    pub(super) fn alignment(&self) -> usize {
        let addr = self.anchor.ground.mapping.at(self.bytes.start).addr().get();
        1 << addr.trailing_zeros().min(HUGE_BYTES.trailing_zeros())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.anchor.holders.remove(self.id);
        if !self.bytes.is_empty() {
            self.anchor.release(&self.bytes, self.hold);
        }
    }
}
