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
//!
//! A slot is one allocation with its body, used again where it is. The plain version inserts a slot for each operation
//! and removes it: each of the two moves then loads what was just stored in other widths, which a processor cannot
//! forward. A slot leaves its place only where foreign code empties it, with nothing borrowed.

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
use super::completion::{Answer, Completion, Creates, is_interrupted};
use super::frame::Retry;
use super::operation::Operation;
use super::registry::Registry;
use super::ring::Cqe;
use super::sqe::poll_entry;
use super::waking::Waking;

/// Bits of `user_data` that hold the index; the rest holds the sequence.
const INDEX_BITS: u32 = 24;

const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

/// The bit of `user_data` that says that this is a cancel of the operation the rest names.
const CANCEL: u64 = 1 << 63;

/// How many items of a multishot operation wait for their consumer before it is paused.
pub(crate) const ITEMS_MAX: usize = 1024;

/// Which use of which slot: the index, and the low 39 bits of the sequence above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of a vacant slot: its index stands for no slot.
    const NONE: Self = Self(INDEX_MAX);

    fn new(index: usize, sequence: u64) -> Self {
        Self((index as u64 | sequence << INDEX_BITS) & !CANCEL)
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 & INDEX_MAX) as usize
    }

    #[inline]
    pub(crate) fn user_data(self) -> u64 {
        self.0
    }

    /// The `user_data` of the entry that cancels this.
    pub(crate) fn cancel_user_data(self) -> u64 {
        self.0 | CANCEL
    }
}

/// Whether this `user_data` is that of a cancel.
pub(crate) fn is_cancel(user_data: u64) -> bool {
    user_data & CANCEL != 0
}

#[derive(Debug)]
enum State {
    Vacant,
    Encoding,
    Queued(Stage),
    Waiting(Stage),
    Answered { result: i32, flags: u32 },
    Done(Option<Answer>),
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

/// One slot, with its body: the stable allocation that an operation has from its first poll to its end.
#[derive(Debug)]
pub(crate) struct Slot {
    key: Key,
    ticket: Ticket,
    state: State,
    cancel: Cancel,
    multishot: Option<Box<Items>>,
    waking: Option<Rc<Waking>>,
    body: Rc<Body>,
}

impl Slot {
    /// Where the operation lies.
    pub(crate) fn body(&self) -> &Rc<Body> {
        &self.body
    }

    /// The completion that nobody has taken yet, of an operation with one result.
    pub(crate) fn take_completion(&mut self) -> Option<Completion> {
        match &mut self.state {
            State::Done(answer) => Some(answer.take()?.into_completion(self.ticket)),
            _ => None,
        }
    }

    /// The waker that nobody has called yet.
    pub(crate) fn take_waking(&mut self) -> Option<Rc<Waking>> {
        self.waking.take()
    }

    /// The items of a multishot operation that nobody has taken yet.
    pub(crate) fn take_items(&mut self) -> VecDeque<Completion> {
        self.multishot.take().map_or_else(VecDeque::new, |items| items.ready)
    }

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
    slots: Slab<Box<Slot>>,
    /// The places of vacant slots.
    spare: Vec<usize>,
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
    Wake(Rc<Waking>),
    /// Push this again.
    Requeue(Key),
    /// Cancel this.
    Cancel(Key, Option<Rc<Waking>>),
    /// A cancel did not find its operation, which has not completed either: cancel it once more, later.
    CancelMissed(Key),
    /// An orphan has ended, or has got one more item: let these go.
    Dispose(Option<Box<Slot>>, Completion),
    /// No slot has this key.
    Stale,
}

/// What dropping a future leaves to the driver.
#[derive(Debug)]
pub(crate) enum Orphaned {
    /// The slot is vacant; let all of it go.
    Gone(Box<Slot>),
    /// The kernel has it; a cancel has to be sent if the flag says so.
    Kept { cancel: bool, waking: Option<Rc<Waking>>, items: VecDeque<Completion> },
}

/// What a future finds when it is polled.
#[derive(Debug)]
pub(crate) enum Polled {
    /// Not yet, and the waker that is there would wake the same task.
    Pending,
    /// Not yet, and the waker that is there would wake another task.
    OtherWaker,
    /// The operation and its completion can be taken.
    Done,
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
    Ended(Box<Slot>),
}

impl Slots {
    pub(crate) fn new(ring: u32, registry: Registry) -> Self {
        Self { slots: Slab::new(), spare: Vec::new(), registry, ring, sequence: 0, active: 0, held: 0 }
    }

    /// Vacant -> encoding.
    #[inline]
    pub(crate) fn reserve(&mut self, multishot: bool, waking: Option<Rc<Waking>>) -> (Key, Ticket, Rc<Body>) {
        self.sequence += 1;
        let ticket = Ticket { ring: self.ring, sequence: self.sequence };
        let index = match self.spare.pop() {
            Some(index) => index,
            None => self.grow(),
        };
        let key = Key::new(index, self.sequence);
        let slot = &mut *self.slots[index];
        slot.key = key;
        slot.ticket = ticket;
        slot.state = State::Encoding;
        slot.cancel = Cancel::No;
        slot.waking = waking;
        if multishot {
            slot.multishot = Some(Box::default());
        }
        self.active += 1;
        (key, ticket, Rc::clone(&slot.body))
    }

    /// One more vacant slot.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> usize {
        let index = self.slots.insert(Box::new(Slot {
            key: Key::NONE,
            ticket: Ticket::NONE,
            state: State::Vacant,
            cancel: Cancel::No,
            multishot: None,
            waking: None,
            body: Rc::new(Body::new(self.ring, self.registry.clone())),
        }));
        assert!((index as u64) < INDEX_MAX, "at most {INDEX_MAX} operations exist at once");
        index
    }

    /// The next sequence number, for an operation that needs no slot.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.sequence += 1;
        Ticket { ring: self.ring, sequence: self.sequence }
    }

    /// Encoding -> queued. A multishot operation that is armed again comes from `Next::Rearm`.
    #[inline]
    pub(crate) fn queue(&mut self, key: Key) {
        let slot = self.get_mut(key).expect("a described operation has a slot");
        assert!(matches!(slot.state, State::Encoding), "only a described operation is queued");
        slot.state = State::Queued(Stage::Operation);
    }

    /// Encoding -> vacant: the operation was refused, or describing it panicked. The waker is the caller's to drop.
    pub(crate) fn withdraw(&mut self, key: Key) -> Option<Box<Slot>> {
        self.get(key)?;
        Some(self.vacate(key))
    }

    /// Queued -> waiting: push the entry, unless the operation has gone meanwhile. Whether it was pushed.
    #[inline]
    pub(crate) fn push(&mut self, key: Key, push: impl FnOnce(Lent<'_>)) -> bool {
        let Some(slot) = self.slots.get_mut(key.index()).filter(|slot| slot.key == key) else {
            return false;
        };
        let State::Queued(stage) = slot.state else {
            return false;
        };
        slot.state = State::Waiting(stage);
        self.held += 1;
        match stage {
            Stage::Operation => slot.body.lend(push),
            Stage::Readiness => {
                let events = match slot.body.retry() {
                    Retry::Writable => PollFlags::OUT,
                    Retry::Readable | Retry::Signal | Retry::Never => PollFlags::IN,
                };
                let mut entry = poll_entry(slot.body.entry().fd, events);
                entry.user_data = key.user_data();
                push(Lent::nothing(&entry));
            }
        }
        true
    }

    /// Whether the entry that waits to be pushed must stand right before the next one.
    #[inline]
    pub(crate) fn is_linked(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| matches!(slot.state, State::Queued(Stage::Operation)) && slot.body.is_linked())
    }

    /// Settle one completion.
    #[inline]
    pub(crate) fn settle(&mut self, cqe: Cqe) -> Settled {
        let key = Key(cqe.user_data);
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.key == key);
        // What nearly every completion is: the only one of its operation, and a success.
        if let Some(slot) = slot
            && matches!(slot.state, State::Waiting(Stage::Operation))
            && slot.multishot.is_none()
            && cqe.flags & abi::MORE == 0
            && cqe.result >= 0
        {
            self.held -= 1;
            self.active -= 1;
            let (_retry, creates) = slot.body.release(false);
            slot.state = State::Done(Some(Answer::new(cqe.result, cqe.flags, creates)));
            return slot.waking.take().map_or(Settled::Nothing, Settled::Wake);
        }
        self.settle_other(cqe)
    }

    #[inline(never)]
    fn settle_other(&mut self, cqe: Cqe) -> Settled {
        let key = Key(cqe.user_data & !CANCEL);
        let Some(slot) = self.get_mut(key) else {
            // An operation may well have ended before its cancel is answered.
            return if cqe.user_data & CANCEL != 0 { Settled::Nothing } else { Settled::Stale };
        };
        if cqe.user_data & CANCEL != 0 {
            return slot.settle_cancel(key, cqe.result);
        }
        let more = cqe.flags & abi::MORE != 0;
        let slot = &mut self.slots[key.index()];
        match slot.state {
            State::Vacant | State::Encoding | State::Queued(_) | State::Done(_) => Settled::Stale,
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
                let completion = Completion::answered(slot.ticket, cqe.result, cqe.flags, creates);
                if more {
                    return Settled::Dispose(None, completion);
                }
                self.held -= 1;
                if slot.body.is_held() {
                    slot.body.release(slot.never_ran(cqe.result));
                }
                Settled::Dispose(Some(self.vacate(key)), completion)
            }
        }
    }

    /// Waiting or answered -> queued or done: the kernel has let go, and this is what it said.
    fn conclude(&mut self, key: Key, result: i32, flags: u32) -> Settled {
        self.held -= 1;
        let slot = &mut self.slots[key.index()];
        let (retry, creates) = slot.body.release(slot.never_ran(result));
        match (retry, slot.cancel) {
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
            _ => self.finish_as(key, result, flags, creates),
        }
    }

    /// Waiting, or done with items left: one completion of a multishot operation.
    fn settle_item(&mut self, key: Key, cqe: Cqe, more: bool) -> Settled {
        let slot = &mut self.slots[key.index()];
        let completion = Completion::answered(slot.ticket, cqe.result, cqe.flags, slot.body.creates());
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
            return Settled::Cancel(key, slot.waking.take());
        }
        slot.waking.take().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Waiting or answered -> done.
    fn finish(&mut self, key: Key, result: i32, flags: u32) -> Settled {
        let creates = self.slots[key.index()].body.creates();
        self.finish_as(key, result, flags, creates)
    }

    fn finish_as(&mut self, key: Key, result: i32, flags: u32, creates: Creates) -> Settled {
        self.active -= 1;
        let slot = &mut self.slots[key.index()];
        slot.state = State::Done(Some(Answer::new(result, flags, creates)));
        slot.waking.take().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Whether it is done, and whom it wakes if not.
    #[inline]
    pub(crate) fn poll(&self, key: Key, waker: &Waker) -> Polled {
        let slot = self.get(key).expect("a pending submission has a slot");
        match slot.state {
            State::Done(_) => Polled::Done,
            _ if slot.waking.as_ref().is_some_and(|there| there.will_wake(waker)) => Polled::Pending,
            _ => Polled::OtherWaker,
        }
    }

    /// Done -> vacant: the operation, its answer and whose it is, and the waker that it will not call.
    #[inline]
    pub(crate) fn take<O: Operation>(&mut self, key: Key) -> (O, Ticket, Answer, Option<Rc<Waking>>) {
        let slot =
            self.slots.get_mut(key.index()).filter(|slot| slot.key == key).expect("a done submission has a slot");
        let State::Done(answer) = &mut slot.state else {
            panic!("only a done operation is taken");
        };
        let answer = answer.take().expect("a single operation ends with one answer");
        let ticket = slot.ticket;
        let waking = slot.waking.take();
        let operation = slot.body.take::<O>();
        slot.state = State::Vacant;
        slot.key = Key::NONE;
        self.spare.push(key.index());
        (operation, ticket, answer, waking)
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
            State::Done(_) => Next::Ended(self.vacate(key)),
            _ if slot.waking.as_ref().is_some_and(|there| there.will_wake(waker)) => Next::Pending,
            _ => Next::OtherWaker,
        }
    }

    /// Put another waker in; the one that was there is the caller's to drop.
    pub(crate) fn replace_waker(&mut self, key: Key, waking: Rc<Waking>) -> Option<Rc<Waking>> {
        match self.get_mut(key) {
            Some(slot) => slot.waking.replace(waking),
            None => Some(waking),
        }
    }

    /// The future wants the operation to end. True if a cancel has to be sent for it.
    pub(crate) fn cancel(&mut self, key: Key) -> (bool, Option<Rc<Waking>>) {
        let Some(slot) = self.get_mut(key) else {
            return (false, None);
        };
        match slot.state {
            State::Queued(_) => {
                slot.cancel = Cancel::Sent;
                if let Some(items) = &mut slot.multishot {
                    items.paused = false;
                    self.active -= 1;
                    let slot = &mut self.slots[key.index()];
                    slot.state = State::Done(None);
                    return (false, slot.waking.take());
                }
                match self.finish(key, -libc::ECANCELED, 0) {
                    Settled::Wake(waking) => (false, Some(waking)),
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
            State::Vacant | State::Encoding | State::Done(_) => {
                if let Some(items) = &mut slot.multishot {
                    items.paused = false;
                }
                (false, None)
            }
        }
    }

    /// Cancel everything that works on a descriptor, by number. The driver calls it when its last handle has gone.
    pub(crate) fn cancel_descriptor(&mut self, fd: i32) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let on_it = |slot: &Slot| {
            // The entry of one that is being described cannot be looked at: foreign code is writing it, and may be
            // what dropped the handle.
            if matches!(slot.state, State::Vacant | State::Encoding | State::Done(_)) {
                return false;
            }
            let entry = slot.body.entry();
            let both_ends = entry.opcode == abi::SPLICE || entry.opcode == abi::TEE;
            entry.fd == fd || (both_ends && entry.file_index == fd)
        };
        let keys: Vec<Key> = self.slots.iter().filter(|(_, slot)| on_it(slot)).map(|(_, slot)| slot.key).collect();
        self.cancel_each(keys)
    }

    /// Cancel everything. `again` also what was cancelled before: the kernel may not have seen the operation then.
    pub(crate) fn cancel_all(&mut self, again: bool) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let mut keys: Vec<Key> = Vec::new();
        for (_, slot) in &mut self.slots {
            if again && slot.cancel == Cancel::Sent && slot.body.is_held() {
                slot.cancel = Cancel::No;
            }
            if !matches!(slot.state, State::Vacant) {
                keys.push(slot.key);
            }
        }
        self.cancel_each(keys)
    }

    fn cancel_each(&mut self, keys: Vec<Key>) -> (Vec<Key>, Vec<Rc<Waking>>) {
        let mut send = Vec::new();
        let mut wake = Vec::new();
        for key in keys {
            let (needed, waking) = self.cancel(key);
            if needed {
                send.push(key);
            }
            wake.extend(waking);
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
            State::Vacant | State::Encoding | State::Queued(_) | State::Done(_) => {
                Some(Orphaned::Gone(self.vacate(key)))
            }
            State::Waiting(_) | State::Answered { .. } | State::Orphaned => {
                slot.state = State::Orphaned;
                let cancel = slot.cancel == Cancel::No;
                if cancel {
                    slot.cancel = Cancel::Queued;
                }
                let waking = slot.waking.take();
                let items = slot.multishot.take().map_or_else(VecDeque::new, |items| items.ready);
                Some(Orphaned::Kept { cancel, waking, items })
            }
        }
    }

    /// A removed slot has been emptied: put it back for the next operation. One that is not empty comes back, for the
    /// caller to drop.
    pub(crate) fn recycle(&mut self, mut slot: Box<Slot>) -> Option<Box<Slot>> {
        let is_empty = slot.waking.is_none() && slot.multishot.is_none() && !matches!(slot.state, State::Done(Some(_)));
        if is_empty && Rc::strong_count(&slot.body) == 1 && slot.body.is_vacant() {
            slot.state = State::Vacant;
            slot.key = Key::NONE;
            let index = self.slots.insert(slot);
            self.spare.push(index);
            return None;
        }
        Some(slot)
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
    #[inline]
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Whether this operation is queued or with the kernel.
    #[inline]
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
        self.slots.len() - self.spare.len()
    }

    /// Any -> vacant, out of its place: its body is to be emptied with nothing borrowed.
    fn vacate(&mut self, key: Key) -> Box<Slot> {
        let slot = self.slots.remove(key.index());
        if !matches!(slot.state, State::Done(_)) {
            self.active -= 1;
        }
        slot
    }

    #[inline]
    fn get(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.index()).map(Box::as_ref).filter(|slot| slot.key == key)
    }

    #[inline]
    fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.index()).map(Box::as_mut).filter(|slot| slot.key == key)
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
