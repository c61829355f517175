//! How an operation is asked to end before its time: by its future, with its descriptor, or with the runtime.
//!
//! The kernel decides the race. What is not with it ends at once; for what is, a cancel is queued, once, and the
//! operation's own completion says what came of it.

use std::rc::Rc;

use super::{Cancel, Key, Settled, Slot, Slots, State};
use crate::runtime::abi;
use crate::runtime::completion::{Completion, Creates};
use crate::runtime::waking::Waking;

impl Slots {
    /// The future wants the operation to end. True if a cancel has to be sent for it.
    pub(crate) fn cancel(&mut self, slot: &Slot) -> (bool, Option<Rc<Waking>>) {
        if slot.is_multishot.get() {
            slot.items.borrow_mut().paused = false;
        }
        match slot.state.get() {
            State::Queued | State::QueuedPoll | State::Starved => {
                slot.cancel.set(Cancel::Sent);
                if slot.is_multishot.get() {
                    self.active -= 1;
                    slot.state.set(State::Done);
                    return (false, slot.take_waking());
                }
                match self.finish(slot, -libc::ECANCELED, 0, Creates::Nothing) {
                    Settled::Wake(waking) => (false, Some(waking)),
                    _ => (false, None),
                }
            }
            // A notification comes when it comes. Only another try after it can be prevented.
            State::Answered | State::Orphaned if slot.is_answered() => {
                slot.cancel.set(Cancel::Sent);
                (false, None)
            }
            State::Waiting | State::WaitingPoll | State::Notified | State::Answered | State::Orphaned => {
                let first = slot.cancel.get() == Cancel::No;
                if first {
                    slot.cancel.set(Cancel::Queued);
                }
                (first, None)
            }
            State::Vacant | State::Encoding | State::Done => (false, None),
        }
    }

    /// Cancel everything that works on a descriptor, by number. The driver calls it when its last handle has gone.
    pub(crate) fn cancel_descriptor(&mut self, fd: i32) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let on_it = |slot: &Slot| {
            // The entry of one that is being described cannot be looked at: foreign code is writing it, and may be
            // what dropped the handle.
            if matches!(slot.state.get(), State::Vacant | State::Encoding) || slot.is_done() && !slot.is_paused() {
                return false;
            }
            let entry = slot.body.entry();
            let both_ends = entry.opcode == abi::SPLICE || entry.opcode == abi::TEE;
            entry.fd == fd || (both_ends && entry.file_index == fd)
        };
        let slots: Vec<Rc<Slot>> = self.slots.iter().filter(|slot| on_it(slot)).cloned().collect();
        self.cancel_each(&slots)
    }

    /// Cancel everything. `again` also what was cancelled before: the kernel may not have seen the operation then.
    pub(crate) fn cancel_all(&mut self, again: bool) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let used = |slot: &&Rc<Slot>| slot.state.get() != State::Vacant;
        let slots: Vec<Rc<Slot>> = self.slots.iter().filter(used).cloned().collect();
        for slot in &slots {
            if again && slot.cancel.get() == Cancel::Sent && slot.body.is_held() {
                slot.cancel.set(Cancel::No);
            }
        }
        self.cancel_each(&slots)
    }

    fn cancel_each(&mut self, slots: &[Rc<Slot>]) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let mut send = Vec::new();
        let mut wake = Vec::new();
        for slot in slots {
            slot.interrupt();
            let (needed, waking) = self.cancel(slot);
            if needed {
                send.push(slot.key());
            }
            wake.extend(waking);
        }
        (send, wake)
    }

    /// The queued cancel of this operation is about to be pushed; false if it is no longer needed.
    pub(crate) fn push_cancel(&mut self, key: Key) -> bool {
        let Some(slot) = self.get(key) else {
            return false;
        };
        if slot.cancel.get() == Cancel::Queued {
            slot.cancel.set(Cancel::Sent);
        }
        slot.is_with_kernel() && !slot.is_answered()
    }
}

impl Slot {
    /// It is about to be cancelled, and not by its consumer: who reads a stream that is not with the kernel, which would
    /// say so, must not take that for its end.
    fn interrupt(&self) {
        let waits = matches!(self.state.get(), State::Queued | State::QueuedPoll | State::Starved) || self.is_paused();
        if waits && self.is_multishot.get() {
            let completion = Completion::answered(self.ticket(), -libc::ECANCELED, 0, Creates::Nothing);
            self.items.borrow_mut().ready.push_back(completion);
        }
    }

    /// The answer to the cancel of this operation, which is still in its slot. What became of the operation its own
    /// completion says, so only one answer matters: that the kernel did not find it. It looks in its queues, and an
    /// operation that is being moved from one to the other just then is in none of them.
    pub(super) fn settle_cancel(&self, result: i32) -> Settled {
        // One that is answered is in none of them for good: its cancel would miss again and again.
        let is_findable = self.is_with_kernel() && !self.is_answered();
        if result == -libc::ENOENT && is_findable && self.cancel.get() == Cancel::Sent {
            self.cancel.set(Cancel::Queued);
            return Settled::CancelMissed(self.key());
        }
        Settled::Nothing
    }
}
