//! A multishot poll whose items are merged: what it has seen since somebody last looked is one.
//!
//! Its items are sets of events, of which the union says as much as each of them in turn: so none needs a place in a
//! queue, a late consumer holds nothing up, and whoever waits keeps its waker in the slot from one to the next. The plain
//! version, which does for other multishot operations, queues a completion for each and takes the waker out.

use std::rc::Rc;
use std::task::{Poll, Waker};

use super::{Key, Slot, Slots, State};
use crate::runtime::abi;
use crate::runtime::buf::Ticket;
use crate::runtime::completion::Completion;
use crate::runtime::ring::Cqe;
use crate::runtime::waking::Waking;

/// What a poll has seen leaves for the driver to do.
#[derive(Debug)]
pub(crate) enum Noted {
    /// Nobody waits for it now.
    Nothing,
    Wake(Rc<Waking>),
}

/// What a poll has seen, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    ticket: Ticket,
    events: i32,
}

impl Readiness {
    #[inline]
    pub(crate) fn events(self) -> u32 {
        self.events.unsigned_abs()
    }

    #[inline]
    pub(crate) fn completion(self) -> Completion {
        Completion::counted(self.ticket, self.events, abi::MORE)
    }
}

impl Slots {
    /// Note what a multishot poll has seen, if that is all that this completion says. `None`: nothing has happened, and
    /// [`settle`](Self::settle) is to have it.
    pub(crate) fn note(&mut self, cqe: Cqe) -> Option<Noted> {
        let slot = self.get(Key(cqe.user_data))?;
        let flags = cqe.flags & (abi::MORE | abi::BUFFER | abi::NOTIFICATION);
        let is_plain = flags == abi::MORE && cqe.result > 0;
        if !is_plain || slot.state.get() != State::Waiting || !slot.is_multishot.get() || !slot.is_poll.get() {
            return None;
        }
        // Events are bits, and none of them is the sign.
        slot.result.set(slot.result.get() | cqe.result);
        if !slot.is_awaited.replace(false) {
            return Some(Noted::Nothing);
        }
        let waking = slot.waking.take();
        let noted = waking.as_ref().map_or(Noted::Nothing, |waking| Noted::Wake(Rc::clone(waking)));
        slot.waking.set(waking);
        Some(noted)
    }
}

impl Slot {
    /// Before it is queued: whether the items of this stream are merged.
    pub(crate) fn merge(&self, is_merged: bool, opcode: u8) {
        assert!(!is_merged || opcode == abi::POLL_ADD, "only sets of events can be merged");
        self.is_poll.set(is_merged);
        self.is_awaited.set(true);
        self.result.set(0);
    }

    /// What a multishot poll has seen that nobody has looked at.
    #[inline]
    pub(super) fn take_readiness(&self) -> Option<Completion> {
        if !self.is_poll.get() {
            return None;
        }
        let events = self.result.replace(0);
        (events != 0).then(|| Completion::counted(self.ticket(), events, abi::MORE))
    }

    /// What whoever polls the stream of a multishot poll is told. `None`: [`Slots::next`] has to have a look.
    ///
    /// It is asked for twice and more for each message of a relay, and needs neither the table nor a borrow of it.
    #[inline(always)]
    pub(crate) fn poll_readiness(&self, waker: &Waker) -> Option<Poll<Readiness>> {
        if !self.is_poll.get() || self.state.get() != State::Waiting {
            return None;
        }
        let events = self.result.replace(0);
        if events != 0 {
            return Some(Poll::Ready(Readiness { ticket: self.ticket(), events }));
        }
        if !self.will_wake(waker) {
            return None;
        }
        self.is_awaited.set(true);
        Some(Poll::Pending)
    }

    /// Whether whoever polls that would be told nothing new: to be asked where that is the likely answer.
    #[inline(always)]
    pub(crate) fn is_quiet(&self, waker: &Waker) -> bool {
        if self.result.get() != 0 || !self.is_poll.get() || self.state.get() != State::Waiting {
            return false;
        }
        let is_quiet = self.will_wake(waker);
        self.is_awaited.set(is_quiet || self.is_awaited.get());
        is_quiet
    }
}
