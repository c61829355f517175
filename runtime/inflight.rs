//! The slots: who owns an operation, at every moment between its first poll and its last completion.
//!
//! The slot owns the operation; the future only watches. Dropping or leaking the future moves nothing: it marks the
//! slot, and the slot waits for the kernel. The states, and the only ways out of each:
//!
//! | state    | who has the memory                                                | leaves by                                      |
//! |----------|-------------------------------------------------------------------|------------------------------------------------|
//! | vacant   | nobody                                                            | first poll                                     |
//! | encoding | slot; foreign code is describing the entry                        | entry made -> queued; error, panic -> vacant   |
//! | queued   | slot; the kernel has not seen it, or has handed it back to retry  | push -> waiting; cancel -> done; drop -> vacant|
//! | waiting  | kernel; a multishot one has a queue of items beside it            | last completion -> done; EAGAIN -> queued (for |
//! |          |                                                                   | a poll, then itself); first of two completions |
//! |          |                                                                   | -> answered; drop -> orphaned                  |
//! | answered | kernel still: the result is out, the notification is to come      | notification -> done, or as an EAGAIN does     |
//! |          |                                                                   | from waiting; drop -> orphaned                 |
//! | done     | slot; not polled yet                                              | poll -> vacant; drop -> vacant                 |
//! | orphaned | kernel; the future is gone and its cancel is queued or sent       | last completion -> vacant                      |
//!
//! Everything here is plain state and runs no foreign code: wakers, operations and descriptors that have to go are
//! handed to the caller, who lets them go when the driver is no longer borrowed. Capacity counts what is queued or
//! held by the kernel; done slots wait for their future for as long as it likes and block nobody.
//!
//! A [`Key`] is an index and a sequence number. The kernel carries both back in `user_data`, so a completion for a
//! slot that has since been used again names a sequence that no slot has: it is counted and ignored (I3).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use rustix::event::PollFlags;
use slab::Slab;

use super::abi;
use super::body::{Body, Lent};
use super::buf::Ticket;
use super::completion::{Completion, Creates, is_interrupted};
use super::registry::Registry;
use super::ring::Cqe;
use super::sqe::{Retry, poll_entry};

/// Bits of `user_data` that hold the index; the rest holds the sequence.
const INDEX_BITS: u32 = 24;

const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

/// The bit of `user_data` that says that this is a cancel of the operation the rest names.
const CANCEL: u64 = 1 << 63;

/// How many items of a multishot operation wait for their consumer before it is paused.
pub(crate) const ITEMS_MAX: usize = 1024;

/// Which use of which slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    sequence: u64,
}

impl Key {
    pub(crate) fn user_data(self) -> u64 {
        (u64::from(self.index) | self.sequence << INDEX_BITS) & !CANCEL
    }

    /// The `user_data` of the entry that cancels this.
    pub(crate) fn cancel_user_data(self) -> u64 {
        self.user_data() | CANCEL
    }
}

/// Whether this `user_data` is that of a cancel.
pub(crate) fn is_cancel(user_data: u64) -> bool {
    user_data & CANCEL != 0
}

#[derive(Debug)]
enum State {
    Encoding,
    Queued(Stage),
    Waiting(Stage),
    Answered { result: i32, flags: u32 },
    Done(Option<Completion>),
    Orphaned,
}

/// What is in the queue, or with the kernel: the operation, or the poll that precedes another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Operation,
    Readiness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    Queued,
    Sent,
}

#[derive(Debug)]
struct Slot {
    sequence: u64,
    state: State,
    cancel: Cancel,
    multishot: Option<Box<Items>>,
    waker: Option<Waker>,
    body: Rc<Body>,
}

impl Slot {
    /// Whether this answer says that a cancel came before the operation began. `ECANCELED` alone does not: a file system
    /// in user space can answer a flush with it, when the number has been released.
    fn never_ran(&self, result: i32) -> bool {
        result == -libc::ECANCELED && self.cancel != Cancel::No
    }
}

/// What a multishot operation has brought that nobody has taken yet.
#[derive(Debug, Default)]
struct Items {
    ready: VecDeque<Completion>,
    /// The queue ran full and the operation was cancelled for it; it is armed again when the queue is empty.
    paused: bool,
}

/// All slots of one ring.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Slab<Slot>,
    spare: Vec<Rc<Body>>,
    registry: Registry,
    ring: u32,
    sequence: u64,
    active: usize,
    held: usize,
}

/// What a completion asks of the driver.
#[derive(Debug)]
pub(crate) enum Settled {
    /// Nothing to do.
    Nothing,
    /// Somebody waits for this.
    Wake(Waker),
    /// Push this again.
    Requeue(Key),
    /// Cancel this.
    Cancel(Key, Option<Waker>),
    /// A cancel did not find its operation, which has not completed either: cancel it once more, later.
    CancelMissed(Key),
    /// An orphan has ended, or has got one more item: let these go.
    Dispose(Option<Rc<Body>>, Completion),
    /// No slot has this key.
    Stale,
}

/// What dropping a future leaves to the driver.
#[derive(Debug)]
pub(crate) enum Orphaned {
    /// The slot is vacant; let these go.
    Gone(Rc<Body>, Option<Completion>, Option<Waker>, VecDeque<Completion>),
    /// The kernel has it; a cancel has to be sent if the flag says so.
    Kept { cancel: bool, waker: Option<Waker>, items: VecDeque<Completion> },
}

/// What a future finds when it is polled.
#[derive(Debug)]
pub(crate) enum Polled {
    /// Not yet, and the waker that is there would wake the same task.
    Pending,
    /// Not yet, and the waker that is there would wake another task.
    OtherWaker,
    /// The slot is vacant again; the operation is in the body.
    Done(Rc<Body>, Completion, Option<Waker>),
}

/// What a stream finds when it is polled.
#[derive(Debug)]
pub(crate) enum Next {
    /// One item, to be translated by the operation in the body.
    Item(Rc<Body>, Completion),
    /// Nothing yet; as for [`Polled`].
    Pending,
    OtherWaker,
    /// It was paused and its queue is empty: describe the entry again, then `queue` it.
    Rearm(Rc<Body>),
    /// It has ended and everything was taken; the slot is vacant.
    Ended(Rc<Body>, Option<Waker>),
}

impl Slots {
    pub(crate) fn new(ring: u32, registry: Registry) -> Self {
        Self { slots: Slab::new(), spare: Vec::new(), registry, ring, sequence: 0, active: 0, held: 0 }
    }

    /// Vacant -> encoding.
    pub(crate) fn reserve(&mut self, multishot: bool) -> (Key, Ticket, Rc<Body>) {
        self.sequence += 1;
        let sequence = self.sequence;
        let body = self.spare.pop().unwrap_or_else(|| Rc::new(Body::new(self.ring, self.registry.clone())));
        let index = self.slots.insert(Slot {
            sequence,
            state: State::Encoding,
            cancel: Cancel::No,
            multishot: multishot.then(Box::default),
            waker: None,
            body: Rc::clone(&body),
        });
        assert!((index as u64) < INDEX_MAX, "at most {INDEX_MAX} operations exist at once");
        self.active += 1;
        (Key { index: index as u32, sequence }, Ticket { ring: self.ring, sequence }, body)
    }

    /// The next sequence number, for an operation that needs no slot.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.sequence += 1;
        Ticket { ring: self.ring, sequence: self.sequence }
    }

    /// Encoding -> queued. A multishot operation that is armed again comes from `Next::Rearm`.
    pub(crate) fn queue(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        let Some(slot) = self.get_mut(key) else {
            return Some(waker);
        };
        assert!(matches!(slot.state, State::Encoding), "only a described operation is queued");
        slot.state = State::Queued(Stage::Operation);
        slot.waker.replace(waker)
    }

    /// Encoding -> vacant: the operation was refused, or describing it panicked. The waker is the caller's to drop.
    pub(crate) fn withdraw(&mut self, key: Key) -> Option<(Rc<Body>, Option<Waker>)> {
        self.get(key)?;
        let slot = self.vacate(key);
        Some((slot.body, slot.waker))
    }

    /// Queued -> waiting: the entry to push, unless the operation has gone meanwhile.
    pub(crate) fn push(&mut self, key: Key) -> Option<Lent> {
        let slot = self.get_mut(key)?;
        let State::Queued(stage) = slot.state else {
            return None;
        };
        slot.state = State::Waiting(stage);
        let lent = match stage {
            Stage::Operation => slot.body.lend(key.user_data()),
            Stage::Readiness => {
                let events = match slot.body.retry() {
                    Retry::Writable => PollFlags::OUT,
                    Retry::Readable | Retry::Signal | Retry::Never => PollFlags::IN,
                };
                let mut entry = poll_entry(slot.body.entry().fd, events);
                entry.user_data = key.user_data();
                Lent::nothing(entry)
            }
        };
        self.held += 1;
        Some(lent)
    }

    /// Whether the entry that waits to be pushed must stand right before the next one.
    pub(crate) fn is_linked(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| {
            matches!(slot.state, State::Queued(Stage::Operation)) && slot.body.entry().flags & abi::LINK != 0
        })
    }

    /// Settle one completion.
    pub(crate) fn settle(&mut self, cqe: Cqe) -> Settled {
        let Some(key) = self.key_of(cqe.user_data) else {
            // An operation may well have ended before its cancel is answered.
            return if cqe.user_data & CANCEL != 0 { Settled::Nothing } else { Settled::Stale };
        };
        let more = cqe.flags & abi::MORE != 0;
        let slot = &mut self.slots[key.index as usize];
        if cqe.user_data & CANCEL != 0 {
            return slot.settle_cancel(key, cqe.result);
        }
        match slot.state {
            State::Encoding | State::Queued(_) | State::Done(_) => Settled::Stale,
            // A poll that waits once has one answer; going on by another would leave two entries under one key.
            State::Waiting(Stage::Readiness) if more => Settled::Stale,
            State::Waiting(Stage::Readiness) => {
                self.held -= 1;
                if cqe.result < 0 || slot.cancel != Cancel::No {
                    let result = if cqe.result < 0 { cqe.result } else { -libc::ECANCELED };
                    return self.finish(key, result, cqe.flags);
                }
                slot.state = State::Queued(Stage::Operation);
                Settled::Requeue(key)
            }
            State::Waiting(Stage::Operation) if slot.multishot.is_some() => self.settle_item(key, cqe, more),
            State::Waiting(Stage::Operation) => {
                if more {
                    slot.state = State::Answered { result: cqe.result, flags: cqe.flags };
                    return Settled::Nothing;
                }
                self.conclude(key, cqe.result, cqe.flags)
            }
            State::Answered { result, flags } => {
                if more {
                    return Settled::Stale;
                }
                self.conclude(key, result, flags)
            }
            State::Orphaned => {
                // The notification of a zero-copy send carries a usage report, and the answer to the poll before a
                // retry a set of events: only the operation's own answer can be a descriptor.
                let creates = if slot.body.is_held() { slot.body.creates() } else { Creates::Nothing };
                let completion = Completion::answered(slot.body.ticket(), cqe.result, cqe.flags, creates);
                if more {
                    return Settled::Dispose(None, completion);
                }
                self.held -= 1;
                if slot.body.is_held() {
                    slot.body.release(slot.never_ran(cqe.result));
                }
                Settled::Dispose(Some(self.vacate(key).body), completion)
            }
        }
    }

    /// Waiting or answered -> queued or done: the kernel has let go, and this is what it said.
    fn conclude(&mut self, key: Key, result: i32, flags: u32) -> Settled {
        self.held -= 1;
        let slot = &mut self.slots[key.index as usize];
        slot.body.release(slot.never_ran(result));
        match (slot.body.retry(), slot.cancel) {
            (Retry::Readable | Retry::Writable, Cancel::No) if result == -libc::EAGAIN => {
                slot.state = State::Queued(Stage::Readiness);
                Settled::Requeue(key)
            }
            (Retry::Readable | Retry::Writable | Retry::Signal, Cancel::No) if is_interrupted(result) => {
                slot.state = State::Queued(Stage::Operation);
                Settled::Requeue(key)
            }
            // What a retry would have hidden was ended by the cancel.
            (Retry::Readable | Retry::Writable, _) if result == -libc::EAGAIN => {
                self.finish(key, -libc::ECANCELED, flags)
            }
            (_, Cancel::Queued | Cancel::Sent) if is_interrupted(result) => self.finish(key, -libc::ECANCELED, flags),
            _ => self.finish(key, result, flags),
        }
    }

    /// Waiting, or done with items left: one completion of a multishot operation.
    fn settle_item(&mut self, key: Key, cqe: Cqe, more: bool) -> Settled {
        let slot = &mut self.slots[key.index as usize];
        let completion = Completion::answered(slot.body.ticket(), cqe.result, cqe.flags, slot.body.creates());
        let items = slot.multishot.as_mut().expect("a multishot slot has a queue of items");
        if !more && items.paused && completion.was_cancelled() {
            // The end that we asked for: no item, and the stream goes on from here.
            drop(completion);
        } else {
            items.paused &= more;
            items.ready.push_back(completion);
        }
        let full = items.ready.len() >= ITEMS_MAX;
        if !more {
            self.held -= 1;
            self.active -= 1;
            slot.body.release(slot.never_ran(cqe.result));
            slot.state = State::Done(None);
        } else if full && slot.cancel == Cancel::No {
            items.paused = true;
            slot.cancel = Cancel::Queued;
            return Settled::Cancel(key, slot.waker.take());
        }
        slot.waker.take().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Waiting or answered -> done.
    fn finish(&mut self, key: Key, result: i32, flags: u32) -> Settled {
        self.active -= 1;
        let slot = &mut self.slots[key.index as usize];
        let completion = Completion::answered(slot.body.ticket(), result, flags, slot.body.creates());
        slot.state = State::Done(Some(completion));
        slot.waker.take().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Done -> vacant, if it is done.
    pub(crate) fn poll(&mut self, key: Key, waker: &Waker) -> Polled {
        let slot = self.get_mut(key).expect("a pending submission has a slot");
        match &mut slot.state {
            State::Done(completion) => {
                let completion = completion.take().expect("a single operation ends with one completion");
                let slot = self.vacate(key);
                Polled::Done(slot.body, completion, slot.waker)
            }
            _ if slot.waker.as_ref().is_some_and(|there| there.will_wake(waker)) => Polled::Pending,
            _ => Polled::OtherWaker,
        }
    }

    /// The next item of a multishot operation.
    pub(crate) fn next(&mut self, key: Key, waker: &Waker) -> Next {
        let slot = self.get_mut(key).expect("a pending stream has a slot");
        let items = slot.multishot.as_mut().expect("a stream's slot is a multishot one");
        if let Some(completion) = items.ready.pop_front() {
            return Next::Item(Rc::clone(&slot.body), completion);
        }
        match slot.state {
            State::Done(_) if items.paused => {
                items.paused = false;
                slot.cancel = Cancel::No;
                slot.state = State::Encoding;
                let body = Rc::clone(&slot.body);
                self.active += 1;
                Next::Rearm(body)
            }
            State::Done(_) => {
                let slot = self.vacate(key);
                Next::Ended(slot.body, slot.waker)
            }
            _ if slot.waker.as_ref().is_some_and(|there| there.will_wake(waker)) => Next::Pending,
            _ => Next::OtherWaker,
        }
    }

    /// Put another waker in; the one that was there is the caller's to drop.
    pub(crate) fn replace_waker(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.get_mut(key) {
            Some(slot) => slot.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// The future wants the operation to end. True if a cancel has to be sent for it.
    pub(crate) fn cancel(&mut self, key: Key) -> (bool, Option<Waker>) {
        let Some(slot) = self.get_mut(key) else {
            return (false, None);
        };
        match slot.state {
            State::Queued(_) => {
                slot.cancel = Cancel::Sent;
                if let Some(items) = &mut slot.multishot {
                    items.paused = false;
                    self.active -= 1;
                    let slot = &mut self.slots[key.index as usize];
                    slot.state = State::Done(None);
                    return (false, slot.waker.take());
                }
                match self.finish(key, -libc::ECANCELED, 0) {
                    Settled::Wake(waker) => (false, Some(waker)),
                    _ => (false, None),
                }
            }
            State::Waiting(_) | State::Answered { .. } | State::Orphaned => {
                if let Some(items) = &mut slot.multishot {
                    items.paused = false;
                }
                let first = slot.cancel == Cancel::No;
                slot.cancel = if first { Cancel::Queued } else { slot.cancel };
                (first, None)
            }
            State::Encoding | State::Done(_) => {
                if let Some(items) = &mut slot.multishot {
                    items.paused = false;
                }
                (false, None)
            }
        }
    }

    /// Cancel everything that works on a descriptor, by number. The driver calls it when its last handle has gone.
    pub(crate) fn cancel_descriptor(&mut self, fd: i32) -> (Vec<Key>, Vec<Waker>) {
        let on_it = |slot: &Slot| {
            // The entry of one that is being described cannot be looked at: foreign code is writing it, and may be
            // what dropped the handle.
            if matches!(slot.state, State::Encoding | State::Done(_)) {
                return false;
            }
            let entry = slot.body.entry();
            let both_ends = entry.opcode == abi::SPLICE || entry.opcode == abi::TEE;
            entry.fd == fd || (both_ends && entry.file_index == fd)
        };
        let keys: Vec<Key> = self.slots.iter().filter(|(_, slot)| on_it(slot)).map(key_at).collect();
        self.cancel_each(keys)
    }

    /// Cancel everything. `again` also what was cancelled before: the kernel may not have seen the operation then.
    pub(crate) fn cancel_all(&mut self, again: bool) -> (Vec<Key>, Vec<Waker>) {
        let mut keys: Vec<Key> = Vec::new();
        for (index, slot) in &mut self.slots {
            if again && slot.cancel == Cancel::Sent && slot.body.is_held() {
                slot.cancel = Cancel::No;
            }
            keys.push(key_at((index, slot)));
        }
        self.cancel_each(keys)
    }

    fn cancel_each(&mut self, keys: Vec<Key>) -> (Vec<Key>, Vec<Waker>) {
        let mut send = Vec::new();
        let mut wake = Vec::new();
        for key in keys {
            let (needed, waker) = self.cancel(key);
            if needed {
                send.push(key);
            }
            wake.extend(waker);
        }
        (send, wake)
    }

    /// The queued cancel of this operation is about to be pushed; false if it is no longer needed.
    pub(crate) fn push_cancel(&mut self, key: Key) -> bool {
        let Some(slot) = self.get_mut(key) else {
            return false;
        };
        let needed = matches!(slot.state, State::Waiting(_) | State::Answered { .. } | State::Orphaned);
        if slot.cancel == Cancel::Queued {
            slot.cancel = Cancel::Sent;
        }
        needed
    }

    /// The future has gone.
    pub(crate) fn orphan(&mut self, key: Key) -> Option<Orphaned> {
        let slot = self.get_mut(key)?;
        match &mut slot.state {
            State::Encoding | State::Queued(_) | State::Done(_) => {
                let slot = self.vacate(key);
                let completion = match slot.state {
                    State::Done(completion) => completion,
                    _ => None,
                };
                let items = slot.multishot.map_or_else(VecDeque::new, |items| items.ready);
                Some(Orphaned::Gone(slot.body, completion, slot.waker, items))
            }
            State::Waiting(_) | State::Answered { .. } | State::Orphaned => {
                slot.state = State::Orphaned;
                let cancel = slot.cancel == Cancel::No;
                if cancel {
                    slot.cancel = Cancel::Queued;
                }
                let waker = slot.waker.take();
                let items = slot.multishot.take().map_or_else(VecDeque::new, |items| items.ready);
                Some(Orphaned::Kept { cancel, waker, items })
            }
        }
    }

    /// A body is empty again; keep it for the next operation.
    pub(crate) fn recycle(&mut self, body: Rc<Body>) {
        if Rc::strong_count(&body) == 1 && !body.is_held() {
            self.spare.push(body);
        }
    }

    /// The kernel does not let go: forget every operation that it may still touch, so that none is ever freed (I5).
    pub(crate) fn leak_held(&self) -> usize {
        let mut leaked = 0;
        for (_, slot) in &self.slots {
            if slot.body.is_held() {
                std::mem::forget(Rc::clone(&slot.body));
                leaked += 1;
            }
        }
        leaked
    }

    /// Operations queued or with the kernel: what capacity counts.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Whether this operation is queued or with the kernel.
    pub(crate) fn is_active(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| !matches!(slot.state, State::Done(_)))
    }

    /// Whether this operation has a slot.
    pub(crate) fn is_used(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    /// Entries that the kernel has not answered for the last time.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Slots in use, done ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    fn vacate(&mut self, key: Key) -> Slot {
        let slot = self.slots.remove(key.index as usize);
        if !matches!(slot.state, State::Done(_)) {
            self.active -= 1;
        }
        slot
    }

    fn get(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.index as usize).filter(|slot| slot.sequence == key.sequence)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.index as usize).filter(|slot| slot.sequence == key.sequence)
    }

    /// The slot that this `user_data` names, if it is still the same use of it.
    fn key_of(&self, user_data: u64) -> Option<Key> {
        let index = (user_data & INDEX_MAX) as u32;
        let slot = self.slots.get(index as usize)?;
        let key = Key { index, sequence: slot.sequence };
        (key.user_data() == user_data & !CANCEL).then_some(key)
    }
}

impl Slot {
    /// The answer to the cancel of this operation, which is still in its slot. What became of the operation its own
    /// completion says, so only one answer matters: that the kernel did not find it. It looks in its queues, and an
    /// operation that is being moved from one to the other just then is in none of them.
    fn settle_cancel(&mut self, key: Key, result: i32) -> Settled {
        let with_kernel = matches!(self.state, State::Waiting(_) | State::Answered { .. } | State::Orphaned);
        if result == -libc::ENOENT && with_kernel && self.cancel == Cancel::Sent {
            self.cancel = Cancel::Queued;
            return Settled::CancelMissed(key);
        }
        Settled::Nothing
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Shutdown has done this already, unless it was broken off by a panic.
        self.leak_held();
    }
}

fn key_at((index, slot): (usize, &Slot)) -> Key {
    Key { index: index as u32, sequence: slot.sequence }
}
