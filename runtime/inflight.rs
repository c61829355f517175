//! The slots: who owns an operation, at every moment between its first poll and its last completion.
//!
//! The slot owns the operation; the future only watches. Dropping or leaking the future moves nothing: it marks the
//! slot, and the slot waits for the kernel. The states, and the only ways out of each:
//!
//! | state    | who has the memory                                                | leaves by                                      |
//! |----------|-------------------------------------------------------------------|------------------------------------------------|
//! | vacant   | nobody                                                            | first poll                                     |
//! | encoding | slot; foreign code is describing the entry                        | entry made -> queued; error, panic -> vacant   |
//! | queued   | slot; the kernel has not seen it, or has handed it back to retry, | push -> waiting; cancel -> done; drop -> vacant|
//! |          | perhaps until a lent page is there (`arrivals`)                   |                                                |
//! | waiting  | kernel; a multishot one has a queue of items beside it            | last completion -> done; EAGAIN -> queued (for |
//! |          |                                                                   | a poll, then itself); first of two completions |
//! |          |                                                                   | -> answered; drop -> orphaned                  |
//! | notified | kernel: a zero-copy send whose notification came before its  | result -> as from waiting; drop -> orphaned    |
//! |          | result                                                           |                                                |
//! | answered | kernel still: the result can be had, the notification is to come  | notification -> done, or as an EAGAIN does     |
//! |          |                                                                   | from waiting; drop -> orphaned, with no cancel |
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
//! A slot is one shared allocation with its body, made once, used again where it is, and in its place in the table for
//! as long as the ring. Its future holds it too, and so needs neither the table nor a borrow of it to learn whether its
//! operation is done. The plain version keeps each slot in the table alone and looks it up by its key at every step. A
//! slot that foreign code has to empty is vacant at once, and comes back to the spare ones when it has been emptied.

mod answered;
mod arrivals;
mod cancelling;
mod readiness;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;

use rustix::event::PollFlags;

use super::abi;
use super::body::{Body, Lent};
use super::buf::Ticket;
use super::completion::{Answer, Completion, Creates, is_interrupted};
use super::entry::Entry;
use super::frame::Retry;
use super::lent::Lender;
use super::metrics::Metrics;
use super::operation::Operation;
use super::registry::{FixedBuf, RingPages};
use super::ring::Cqe;
use super::sqe::poll_entry;
use super::waking::Waking;
pub(crate) use readiness::{Noted, Readiness};

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

/// The `user_data` of the completion that says that the kernel has let go of registered memory: no slot has its index.
pub(crate) fn tag(number: u64) -> u64 {
    Key::new(INDEX_MAX as usize, number).0
}

/// Whether this `user_data` is one of [`tag`].
pub(crate) fn is_tag(user_data: u64) -> bool {
    user_data & INDEX_MAX == INDEX_MAX && !is_cancel(user_data)
}

/// Whether this `user_data` is that of a cancel.
pub(crate) fn is_cancel(user_data: u64) -> bool {
    user_data & CANCEL != 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    Encoding,
    /// The operation is in the queue.
    Queued,
    /// The poll that precedes another try is in the queue.
    QueuedPoll,
    /// Not in the queue, but with its group of lent buffers, which had none.
    Starved,
    /// The operation is with the kernel.
    Waiting,
    /// The poll that precedes another try is with the kernel.
    WaitingPoll,
    /// As waiting, but for its notification, which has come.
    Notified,
    Answered,
    Done,
    Orphaned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    Queued,
    Sent,
}

/// One slot, with its body: the stable allocation that an operation has from its first poll to its end.
pub(crate) struct Slot {
    index: usize,
    ring: u32,
    key: Cell<Key>,
    /// Which of its ring's submissions has it now.
    sequence: Cell<u64>,
    state: Cell<State>,
    cancel: Cell<Cancel>,
    is_multishot: Cell<bool>,
    /// A multishot poll, whose items are one while nobody takes them (`readiness`).
    is_poll: Cell<bool>,
    /// Whoever polls that has found nothing since it was last woken.
    is_awaited: Cell<bool>,
    /// What was answered, from the first answer on until it is taken.
    result: Cell<i32>,
    flags: Cell<u32>,
    /// What a notification said that came before the result.
    notice: Cell<Option<i32>>,
    descriptor: Cell<Option<OwnedFd>>,
    /// If the flags tell of one.
    buffer: Cell<Option<FixedBuf>>,
    /// Those of a multishot operation.
    items: RefCell<Items>,
    waking: Cell<Option<Rc<Waking>>>,
    body: Body,
}

impl Slot {
    /// Which use of this slot is the present one.
    #[inline]
    pub(crate) fn key(&self) -> Key {
        self.key.get()
    }

    /// Whose it is now.
    #[inline]
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket { ring: self.ring, sequence: self.sequence.get() }
    }

    /// Where the operation lies.
    #[inline]
    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// Whether the operation can be taken.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.get() == State::Done
    }

    /// Whether the waker that is there would wake the same task as that one.
    #[inline]
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        let waking = self.waking.take();
        let will_wake = waking.as_ref().is_some_and(|there| there.will_wake(waker));
        self.waking.set(waking);
        will_wake
    }

    /// Put another waker in; the one that was there is the caller's to drop.
    pub(crate) fn replace_waking(&self, waking: Rc<Waking>) -> Option<Rc<Waking>> {
        self.waking.replace(Some(waking))
    }

    /// The waker that nobody has called yet.
    #[inline]
    pub(crate) fn take_waking(&self) -> Option<Rc<Waking>> {
        self.waking.take()
    }

    /// What the operation came to, and what of it nobody has taken yet: a descriptor, a buffer, items.
    pub(crate) fn take_left(&self) -> (Option<OwnedFd>, Option<FixedBuf>, VecDeque<Completion>) {
        (self.descriptor.take(), self.buffer.take(), std::mem::take(&mut self.items.borrow_mut().ready))
    }

    /// What came with the answer beside its numbers, once.
    pub(crate) fn take_brought(&self) -> (Option<OwnedFd>, Option<FixedBuf>) {
        (self.descriptor.take(), self.buffer.take())
    }

    fn answer(&self, Answer { result, flags, descriptor }: Answer) {
        self.result.set(result);
        self.flags.set(flags);
        if descriptor.is_some() {
            self.descriptor.set(descriptor);
        }
    }

    /// Whether this answer says that a cancel came before the operation began. `ECANCELED` alone does not: a file system
    /// in user space can answer a flush with it, when the number has been released.
    fn never_ran(&self, result: i32) -> bool {
        result == -libc::ECANCELED && self.cancel.get() != Cancel::No
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("key", &self.key)
            .field("state", &self.state)
            .field("body", &self.body)
            .finish_non_exhaustive()
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
    slots: Vec<Rc<Slot>>,
    /// Those vacant slots that are empty.
    spare: Vec<Rc<Slot>>,
    /// How many vacant slots are still being emptied.
    emptying: usize,
    pages: RingPages,
    lender: Rc<Lender>,
    /// Lent buffers that nobody gets, to be let go of when nothing is borrowed; and, while one completion is settled,
    /// those that it brought.
    arrived: Vec<FixedBuf>,
    /// Completions that named a buffer which the kernel has not got.
    disbelieved: u64,
    ring: u32,
    sequence: u64,
    active: usize,
    held: usize,
    takes_fixed_vectors: bool,
}

/// Whose answer it is, and what it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    ticket: Ticket,
    result: i32,
    flags: u32,
}

impl Numbers {
    #[inline(always)]
    pub(crate) fn completion(self) -> Completion {
        Completion::counted(self.ticket, self.result, self.flags)
    }
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
    Dispose(Option<Rc<Slot>>, Completion),
    /// No slot has this key.
    Stale,
}

/// What dropping a future leaves to the driver.
#[derive(Debug)]
pub(crate) enum Orphaned {
    /// The slot is vacant; let all of it go.
    Gone,
    /// The kernel has it; a cancel has to be sent if the flag says so.
    Kept { cancel: bool, waking: Option<Rc<Waking>>, items: VecDeque<Completion> },
}

/// What a stream finds when it is polled.
#[derive(Debug)]
pub(crate) enum Next {
    /// One item, to be translated by the operation in the body.
    Item(Completion),
    /// Nothing yet.
    Pending,
    /// It was paused and its queue is empty: describe the entry again, then `queue` it.
    Rearm,
    /// It has ended and everything was taken; the slot is vacant.
    Ended,
}

impl Slots {
    pub(crate) fn new(ring: u32, pages: RingPages, lender: Rc<Lender>, takes_fixed_vectors: bool) -> Self {
        Self {
            slots: Vec::new(),
            spare: Vec::new(),
            emptying: 0,
            pages,
            lender,
            arrived: Vec::new(),
            disbelieved: 0,
            ring,
            sequence: 0,
            active: 0,
            held: 0,
            takes_fixed_vectors,
        }
    }

    /// Vacant -> encoding.
    #[inline]
    pub(crate) fn reserve(&mut self, multishot: bool, waking: Option<Rc<Waking>>) -> Rc<Slot> {
        self.sequence += 1;
        let slot = match self.spare.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        slot.key.set(Key::new(slot.index, self.sequence));
        slot.sequence.set(self.sequence);
        slot.state.set(State::Encoding);
        slot.cancel.set(Cancel::No);
        slot.is_multishot.set(multishot);
        // A vacant slot has none: to set one would look for it, to drop it.
        std::mem::forget(slot.waking.replace(waking));
        if multishot {
            let mut items = slot.items.borrow_mut();
            assert!(items.ready.is_empty(), "the items of one stream were left to the next");
            items.paused = false;
            slot.is_poll.set(false);
        }
        self.active += 1;
        slot
    }

    /// One more vacant slot.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Rc<Slot> {
        let index = self.slots.len();
        assert!((index as u64) < INDEX_MAX, "at most {INDEX_MAX} operations exist at once");
        let slot = Rc::new(Slot {
            index,
            ring: self.ring,
            key: Cell::new(Key::NONE),
            sequence: Cell::new(0),
            state: Cell::new(State::Vacant),
            cancel: Cell::new(Cancel::No),
            is_multishot: Cell::new(false),
            is_poll: Cell::new(false),
            is_awaited: Cell::new(false),
            result: Cell::new(0),
            flags: Cell::new(0),
            notice: Cell::new(None),
            descriptor: Cell::new(None),
            buffer: Cell::new(None),
            items: RefCell::default(),
            waking: Cell::new(None),
            body: Body::new(self.ring, self.pages.clone(), self.takes_fixed_vectors),
        });
        self.slots.push(Rc::clone(&slot));
        slot
    }

    /// The next sequence number, for an operation that needs no slot.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.sequence += 1;
        Ticket { ring: self.ring, sequence: self.sequence }
    }

    /// Encoding -> queued. A multishot operation that is armed again comes from `Next::Rearm`.
    #[inline]
    pub(crate) fn queue(&mut self, slot: &Slot) {
        assert!(slot.state.get() == State::Encoding, "only a described operation is queued");
        slot.state.set(State::Queued);
    }

    /// Encoding -> vacant: the operation was refused, or describing it panicked, and it has left its body. The waker is
    /// the caller's to drop.
    pub(crate) fn withdraw(&mut self, slot: &Rc<Slot>) -> Option<Rc<Waking>> {
        assert!(slot.state.get() == State::Encoding, "only an operation that is being described is withdrawn");
        let waking = slot.take_waking();
        self.vacate(slot);
        self.recycle(slot);
        waking
    }

    /// Queued -> waiting: push the entry, unless the operation has gone meanwhile. Whether it was pushed; the caller counts
    /// those that were, and has them [`held`](Self::hold).
    #[inline(always)]
    pub(crate) fn push(&self, key: Key, mut push: impl FnMut(Lent<'_>)) -> bool {
        let Some(slot) = self.get(key) else {
            return false;
        };
        if slot.state.get() != State::Queued {
            let Some(entry) = slot.retry_poll() else {
                return false;
            };
            push(Lent::nothing(&entry));
            return true;
        }
        slot.state.set(State::Waiting);
        slot.body.lend(push);
        true
    }

    /// So many entries were pushed.
    #[inline]
    pub(crate) fn hold(&mut self, entries: usize) {
        self.held += entries;
    }

    /// Whether the entry that waits to be pushed must stand right before the next one.
    #[inline]
    pub(crate) fn is_linked(&self, key: Key) -> bool {
        self.get(key).is_some_and(|slot| slot.state.get() == State::Queued && slot.body.is_linked())
    }

    /// Settle one completion, if it is what nearly every one is: the only one of its operation, a success, and waited
    /// for. The caller counts those, and has them [`let go`](Self::let_go). `None`: nothing has happened, and
    /// [`settle`](Self::settle) is to have it.
    #[inline(always)]
    pub(crate) fn complete(&self, cqe: Cqe) -> Option<Rc<Waking>> {
        let slot = self.get(Key(cqe.user_data))?;
        let flags = cqe.flags & (abi::MORE | abi::BUFFER | abi::NOTIFICATION);
        if slot.state.get() != State::Waiting || slot.is_multishot.get() || flags != 0 || cqe.result < 0 {
            return None;
        }
        let waking = slot.take_waking()?;
        match slot.body.release_success() {
            Creates::Nothing => {
                slot.result.set(cqe.result);
                slot.flags.set(cqe.flags);
            }
            creates => slot.answer(Answer::new(cqe.result, cqe.flags, creates)),
        }
        slot.state.set(State::Done);
        Some(waking)
    }

    /// So many operations are done that the kernel had.
    #[inline]
    pub(crate) fn let_go(&mut self, operations: usize) {
        self.held -= operations;
        self.active -= operations;
    }

    /// Settle one completion.
    #[inline(never)]
    pub(crate) fn settle(&mut self, cqe: Cqe, metrics: &Metrics) -> Settled {
        let key = Key(cqe.user_data & !CANCEL);
        let Some(slot) = self.get(key).map(Rc::clone) else {
            // An operation may well have ended before its cancel is answered.
            return if cqe.user_data & CANCEL != 0 { Settled::Nothing } else { Settled::Stale };
        };
        if cqe.user_data & CANCEL != 0 {
            return slot.settle_cancel(cqe.result);
        }
        let more = cqe.flags & abi::MORE != 0;
        match slot.state.get() {
            State::Vacant | State::Encoding | State::Done => Settled::Stale,
            State::Queued | State::QueuedPoll | State::Starved => Settled::Stale,
            // A poll that waits once has one answer; going on by another would leave two entries under one key.
            State::WaitingPoll if more => Settled::Stale,
            State::WaitingPoll => {
                self.held -= 1;
                if cqe.result < 0 || slot.cancel.get() != Cancel::No {
                    let result = if cqe.result < 0 { cqe.result } else { -libc::ECANCELED };
                    return self.finish(&slot, result, cqe.flags, Creates::Nothing);
                }
                slot.state.set(State::Queued);
                Settled::Requeue(key)
            }
            State::Waiting if slot.is_multishot.get() => self.settle_item(&slot, cqe, more),
            State::Waiting if slot.is_notified_first(cqe) => slot.notify_early(cqe),
            State::Waiting if more => slot.answer_early(cqe),
            State::Waiting => self.conclude(&slot, cqe.result, cqe.flags),
            State::Notified if cqe.flags & abi::NOTIFICATION != 0 => Settled::Stale,
            State::Notified => {
                slot.learn_late(cqe, metrics);
                self.conclude(&slot, cqe.result, cqe.flags)
            }
            State::Answered => {
                if more {
                    return Settled::Stale;
                }
                slot.learn(cqe.result, metrics);
                self.conclude(&slot, slot.result.get(), slot.flags.get())
            }
            State::Orphaned if slot.is_notified_first(cqe) => slot.notify_early(cqe),
            State::Orphaned => {
                // The notification of a zero-copy send carries a usage report, and the answer to the poll before a
                // retry a set of events: only the operation's own answer can be a descriptor.
                let creates = if slot.body.is_held() { slot.body.creates() } else { Creates::Nothing };
                let completion = match creates {
                    Creates::Buffer(lending) => self.arrival_of_orphan(&slot, cqe, lending),
                    creates => Completion::answered(slot.ticket(), cqe.result, cqe.flags, creates),
                };
                if more && !slot.is_notified() {
                    slot.answer_orphan(cqe);
                    return Settled::Dispose(None, completion);
                }
                if slot.is_answered() {
                    slot.learn(cqe.result, metrics);
                }
                slot.learn_late(cqe, metrics);
                self.held -= 1;
                if slot.body.is_held() {
                    slot.body.release(slot.never_ran(cqe.result));
                }
                self.vacate(&slot);
                Settled::Dispose(Some(slot), completion)
            }
        }
    }

    /// Waiting, notified or answered -> queued or done: the kernel has let go, and this is what it said.
    fn conclude(&mut self, slot: &Slot, result: i32, flags: u32) -> Settled {
        self.held -= 1;
        let (retry, creates) = slot.body.release(slot.never_ran(result));
        if let Creates::Buffer(lending) = creates
            && let Some(settled) = self.conclude_arrival(slot, result, flags, lending)
        {
            return settled;
        }
        match (retry, slot.cancel.get()) {
            (Retry::Readable | Retry::Writable, Cancel::No) if result == -libc::EAGAIN => {
                slot.state.set(State::QueuedPoll);
                Settled::Requeue(slot.key())
            }
            (Retry::Readable | Retry::Writable | Retry::Signal, Cancel::No) if is_interrupted(result) => {
                slot.state.set(State::Queued);
                Settled::Requeue(slot.key())
            }
            // What a retry would have hidden was ended by the cancel.
            (Retry::Readable | Retry::Writable, _) if result == -libc::EAGAIN => {
                self.finish(slot, -libc::ECANCELED, flags, creates)
            }
            (_, Cancel::Queued | Cancel::Sent) if is_interrupted(result) => {
                self.finish(slot, -libc::ECANCELED, flags, creates)
            }
            _ => self.finish(slot, result, flags, creates),
        }
    }

    /// Waiting, or done with items left: one completion of a multishot operation.
    fn settle_item(&mut self, slot: &Slot, cqe: Cqe, more: bool) -> Settled {
        if let Creates::Buffer(lending) = slot.body.creates() {
            return self.settle_arrivals(slot, cqe, more, lending);
        }
        let completion = Completion::answered(slot.ticket(), cqe.result, cqe.flags, slot.body.creates());
        let mut items = slot.items.borrow_mut();
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
            slot.state.set(State::Done);
        } else if full && slot.cancel.get() == Cancel::No {
            items.paused = true;
            slot.cancel.set(Cancel::Queued);
            return Settled::Cancel(slot.key(), slot.take_waking());
        }
        slot.take_waking().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Queued, waiting or answered -> done.
    fn finish(&mut self, slot: &Slot, result: i32, flags: u32, creates: Creates) -> Settled {
        self.active -= 1;
        slot.answer(Answer::new(result, flags, creates));
        slot.state.set(State::Done);
        slot.take_waking().map_or(Settled::Nothing, Settled::Wake)
    }

    /// Done -> vacant: the operation, and the numbers of its answer, which become a completion where it is decoded. The
    /// waker that it will not call, and what else the answer brought, are to be taken first.
    #[inline(always)]
    pub(crate) fn take<O: Operation>(&mut self, slot: Rc<Slot>) -> (O, Numbers) {
        assert!(slot.is_done(), "only a done operation is taken");
        let numbers = Numbers { ticket: slot.ticket(), result: slot.result.get(), flags: slot.flags.get() };
        let operation = slot.body.take::<O>();
        slot.state.set(State::Vacant);
        slot.key.set(Key::NONE);
        self.spare.push(slot);
        (operation, numbers)
    }

    /// The next item of a multishot operation.
    pub(crate) fn next(&mut self, slot: &Slot) -> Next {
        if let Some(readiness) = slot.take_readiness() {
            return Next::Item(readiness);
        }
        let mut items = slot.items.borrow_mut();
        if let Some(completion) = items.ready.pop_front() {
            return Next::Item(completion);
        }
        match slot.state.get() {
            State::Done if items.paused => {
                items.paused = false;
                slot.cancel.set(Cancel::No);
                slot.state.set(State::Encoding);
                self.active += 1;
                Next::Rearm
            }
            State::Done => {
                self.vacate(slot);
                Next::Ended
            }
            _ => {
                slot.is_awaited.set(true);
                Next::Pending
            }
        }
    }

    /// The future has gone. A slot that is vacant now is to be emptied, and to be recycled then.
    pub(crate) fn orphan(&mut self, slot: &Slot) -> Orphaned {
        if !slot.is_with_kernel() {
            self.vacate(slot);
            return Orphaned::Gone;
        }
        slot.state.set(State::Orphaned);
        let cancel = slot.cancel.get() == Cancel::No && !slot.is_answered();
        if cancel {
            slot.cancel.set(Cancel::Queued);
        }
        let (_no_descriptor, _no_buffer, items) = slot.take_left();
        Orphaned::Kept { cancel, waking: slot.take_waking(), items }
    }

    /// A vacant slot has been emptied: put it back for the next operation.
    pub(crate) fn recycle(&mut self, slot: &Rc<Slot>) {
        assert!(
            slot.state.get() == State::Vacant && slot.body.is_vacant(),
            "a slot is used again when its operation has left it"
        );
        self.emptying -= 1;
        self.spare.push(Rc::clone(slot));
    }

    /// The kernel does not let go: forget every operation that it may still touch, so that none is ever freed (I5).
    pub(crate) fn leak_held(&self) -> usize {
        let mut leaked = 0;
        for slot in &self.slots {
            if slot.body.is_held() {
                std::mem::forget(Rc::clone(slot));
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

    /// Entries that the kernel has not answered for the last time.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Slots in use, done ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.spare.len() - self.emptying
    }

    /// Any -> vacant: its body is to be emptied with nothing borrowed, and the slot to be recycled then.
    fn vacate(&mut self, slot: &Slot) {
        if slot.state.get() != State::Done {
            self.active -= 1;
        }
        slot.state.set(State::Vacant);
        slot.key.set(Key::NONE);
        self.emptying += 1;
    }

    #[inline]
    fn get(&self, key: Key) -> Option<&Rc<Slot>> {
        self.slots.get(key.index()).filter(|slot| slot.key.get() == key)
    }
}

impl Slot {
    /// Queued -> waiting, for what comes before another try: the entry of that poll.
    #[cold]
    #[inline(never)]
    fn retry_poll(&self) -> Option<Entry> {
        if self.state.get() != State::QueuedPoll {
            return None;
        }
        self.state.set(State::WaitingPoll);
        let events = match self.body.retry() {
            Retry::Writable => PollFlags::OUT,
            Retry::Readable | Retry::Signal | Retry::Never => PollFlags::IN,
        };
        let mut entry = poll_entry(self.body.entry().fd, events);
        entry.user_data = self.key().user_data();
        Some(entry)
    }

    /// Whether it is queued or with the kernel.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.state.get(), State::Vacant | State::Done)
    }

    /// Whether it is in use, be it for a result that nobody has taken yet.
    pub(crate) fn is_used(&self) -> bool {
        self.state.get() != State::Vacant
    }

    /// Whether it is a stream that has ended for its consumer alone, to be armed again.
    fn is_paused(&self) -> bool {
        self.is_done() && self.is_multishot.get() && self.items.borrow().paused
    }

    fn is_with_kernel(&self) -> bool {
        matches!(
            self.state.get(),
            State::Waiting | State::WaitingPoll | State::Notified | State::Answered | State::Orphaned
        )
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // Shutdown has done this already, unless it was broken off by a panic.
        self.leak_held();
    }
}
