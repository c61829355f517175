//! Completions that bring lent memory, and operations that wait for some.
//!
//! What is different about them: a completion may name a buffer that its operation never described, which then is its
//! own; several, where it is a bundle, each of which becomes an item; and `ENOBUFS` is no answer. The slot of an operation
//! that found no buffer waits, queued, with its group, which hands its key back when it has one.

use std::rc::Rc;

use super::{Cancel, ITEMS_MAX, Key, Settled, Slot, Slots, State};
use crate::runtime::abi;
use crate::runtime::completion::{Answer, Completion, Creates, Lending};
use crate::runtime::lent::{Arrival, Left};
use crate::runtime::registry::FixedBuf;
use crate::runtime::ring::{Cqe, Ring};

impl Slots {
    /// Whether some operation waits for a buffer.
    #[inline]
    pub(crate) fn is_starving(&self) -> bool {
        self.lender.is_starving()
    }

    /// Whether a turn would queue some of them, or have their group wait for pages.
    pub(crate) fn is_feeding_due(&self) -> bool {
        self.lender.is_due(self)
    }

    /// Have those queued whose turn has come; what has to be dropped when nothing is borrowed is left.
    pub(crate) fn feed(&mut self, ring: &mut Ring, queue: &mut dyn FnMut(Key), leave: &mut dyn FnMut(Left)) {
        let lender = Rc::clone(&self.lender);
        lender.feed(ring, self, queue, leave);
    }

    /// Whether the kernel has a receive into this group.
    pub(crate) fn has_lent(&self, group: u16) -> bool {
        let lends = |slot: &Rc<Slot>| {
            slot.body.is_held() && matches!(slot.body.creates(), Creates::Buffer(lending) if lending.group == group)
        };
        self.slots.iter().any(lends)
    }

    /// Whether this operation waits for a buffer: it may have been cancelled, or have gone.
    pub(crate) fn is_starved(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| slot.state.get() == State::Starved)
    }

    /// There is a buffer for this operation. Whether it still waits, and is to be pushed.
    pub(crate) fn unstarve(&self, key: Key) -> bool {
        let Some(slot) = self.get(key).filter(|slot| slot.state.get() == State::Starved) else {
            return false;
        };
        slot.state.set(State::Queued);
        true
    }

    /// Lent buffers that nobody gets, to let go of when nothing is borrowed.
    pub(crate) fn take_unclaimed(&mut self) -> impl Iterator<Item = Left> {
        self.arrived.drain(..).map(Left::Buffer)
    }

    /// How many completions were not believed since the last call.
    pub(crate) fn take_disbelieved(&mut self) -> u64 {
        std::mem::take(&mut self.disbelieved)
    }

    /// Waiting, or done with items left: one completion of a multishot operation on lent memory.
    pub(super) fn settle_arrivals(&mut self, slot: &Slot, cqe: Cqe, more: bool, lending: Lending) -> Settled {
        let first = self.arrived.len();
        let result = self.arrive(cqe.result, cqe.flags, lending);
        let items_max = self.lender.by_id(lending.group).map_or(ITEMS_MAX, |group| group.items_max(ITEMS_MAX));
        let mut items = slot.items.borrow_mut();
        // A pause is our own cancel: the stream goes on after it.
        let goes_on = slot.cancel.get() == Cancel::No || items.paused;
        let is_dry = result == -libc::ENOBUFS;
        let is_end_of_pause = items.paused && (result == -libc::ECANCELED || is_dry);
        let mut push = |result: i32, flags: u32, buffer: Option<FixedBuf>| {
            let completion = Completion::answered(slot.ticket(), result, flags, Creates::Nothing);
            items.ready.push_back(completion.with_buffer(buffer));
        };
        if more || !(is_end_of_pause || is_dry) {
            if result <= 0 || self.arrived.len() == first {
                // What nothing came into goes back with the rest.
                push(result, cqe.flags, None);
            } else {
                self.arrived.drain(first..).for_each(|buffer| push(buffer.len() as i32, cqe.flags, Some(buffer)));
            }
        } else if !goes_on {
            // It was cancelled by the program when it had no buffer: that is how it ended.
            push(-libc::ECANCELED, 0, None);
        }
        let is_full = items.ready.len() >= items_max;
        if more {
            if is_full && slot.cancel.get() == Cancel::No {
                items.paused = true;
                slot.cancel.set(Cancel::Queued);
                return Settled::Cancel(slot.key(), slot.take_waking());
            }
            return slot.take_waking().map_or(Settled::Nothing, Settled::Wake);
        }
        self.held -= 1;
        slot.body.release(slot.never_ran(result));
        if is_dry && slot.cancel.get() == Cancel::No {
            self.starve(slot, lending);
            return Settled::Nothing;
        }
        // The kernel ends a multishot for reasons of its own too, such as a full completion queue: what has brought
        // something is armed again when that was taken.
        items.paused = goes_on && (is_end_of_pause || result > 0);
        self.active -= 1;
        slot.state.set(State::Done);
        slot.take_waking().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Waiting or answered -> done, with the buffer that came; or queued, until there is one. `None`: as for any other
    /// operation.
    pub(super) fn conclude_arrival(
        &mut self,
        slot: &Slot,
        result: i32,
        flags: u32,
        lending: Lending,
    ) -> Option<Settled> {
        let first = self.arrived.len();
        let answer = self.arrive(result, flags, lending);
        let buffer = self.take_arrived(first);
        if buffer.is_some() || answer != result {
            self.active -= 1;
            slot.answer(Answer::new(answer, flags, Creates::Nothing));
            slot.buffer.set(buffer);
            slot.state.set(State::Done);
            return Some(slot.take_waking().map_or(Settled::Nothing, Settled::Wake));
        }
        if result != -libc::ENOBUFS {
            return None;
        }
        if slot.cancel.get() != Cancel::No {
            return Some(self.finish(slot, -libc::ECANCELED, 0, Creates::Nothing));
        }
        self.starve(slot, lending);
        Some(Settled::Nothing)
    }

    /// The completion of an operation that nobody watches any more. What came is let go of with the rest.
    pub(super) fn arrival_of_orphan(&mut self, slot: &Slot, cqe: Cqe, lending: Lending) -> Completion {
        let result = self.arrive(cqe.result, cqe.flags, lending);
        Completion::answered(slot.ticket(), result, cqe.flags, Creates::Nothing)
    }

    /// It found no buffer: it waits with its group, which comes back to it when it has one.
    fn starve(&self, slot: &Slot, lending: Lending) {
        slot.state.set(State::Starved);
        if let Some(group) = self.lender.by_id(lending.group) {
            group.starve(slot.key(), self);
            self.lender.starve();
        }
    }

    /// Take what a completion brings; it stands at the end of `arrived` then. The result to go on with: the kernel's own,
    /// unless that names a buffer which cannot be (I3).
    fn arrive(&mut self, result: i32, flags: u32, lending: Lending) -> i32 {
        if flags & abi::BUFFER == 0 {
            // Bytes that lie nowhere.
            return if result > 0 { self.disbelieve() } else { result };
        }
        let arrival = Arrival {
            id: (flags >> abi::BUFFER_SHIFT) as u16,
            result,
            keeps_rest: flags & abi::BUFFER_MORE != 0,
            bundle: lending.bundle,
        };
        let group = self.lender.by_id(lending.group);
        let Some(group) = group.filter(|group| group.take(arrival, &mut self.arrived)) else {
            return self.disbelieve();
        };
        if group.has_spare() {
            self.lender.starve();
        }
        result
    }

    fn disbelieve(&mut self) -> i32 {
        self.disbelieved += 1;
        -libc::EIO
    }

    /// The only buffer that came since there were so many, if it has bytes in it.
    fn take_arrived(&mut self, before: usize) -> Option<FixedBuf> {
        if self.arrived.len() > before { self.arrived.pop_if(|buffer| !buffer.is_empty()) } else { None }
    }
}
