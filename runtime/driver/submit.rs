//! What submissions ask of the driver: a slot, a push, a look whether it is done, an end.

use std::io;
use std::rc::Rc;
use std::task::Waker;

use super::{Admission, Driver};
use crate::runtime::buf::Ticket;
use crate::runtime::completion::Answer;
use crate::runtime::inflight::{Key, Next, Orphaned, Polled, Slot};
use crate::runtime::opcode::Opcode;
use crate::runtime::operation::Operation;
use crate::runtime::waking::Waking;

impl Driver {
    /// Vacant -> encoding, or a place in the queue for a slot.
    #[inline]
    pub(crate) fn admit(&self, place: Option<u64>, multishot: bool, waker: &Waker) -> Admission {
        let mut core = self.core.borrow_mut();
        // What nearly every operation finds: room, and the waker of the one before.
        if place.is_none()
            && core.has_room()
            && let Some(waking) = core.wakers.find(waker)
        {
            let (key, ticket, body) = core.slots.reserve(multishot, Some(waking));
            return Admission::Granted(key, ticket, body);
        }
        drop(core);
        self.admit_other(place, multishot, waker)
    }

    #[inline(never)]
    fn admit_other(&self, place: Option<u64>, multishot: bool, waker: &Waker) -> Admission {
        let waking = self.share(waker);
        self.core.borrow_mut().admit(place, multishot, waking)
    }

    /// The shared one for this waker; a new one is cloned, and the one before dropped, with nothing borrowed.
    fn share(&self, waker: &Waker) -> Rc<Waking> {
        if let Some(waking) = self.core.borrow().wakers.find(waker) {
            return waking;
        }
        let waker = waker.clone();
        let (waking, gone) = self.core.borrow_mut().wakers.share(waker);
        drop(gone);
        waking
    }

    /// Give a place in the queue for a slot up.
    pub(crate) fn leave(&self, place: u64) {
        let mut core = self.core.borrow_mut();
        let waiter = core.waiting_at(place).and_then(|at| core.waiters.remove(at));
        core.granted.remove(&place);
        let gone = waiter.and_then(|waiter| core.wakers.let_go(waiter.waking));
        self.let_go(core);
        drop(gone);
    }

    /// Encoding -> queued, or done at once: `encode` is foreign code, and may have shut this runtime down.
    #[inline]
    pub(crate) fn queue(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        core.slots.queue(key);
        if core.closed {
            let (_nothing_to_send, waking) = core.slots.cancel(key);
            core.wake(waking);
            self.let_go(core);
        } else {
            core.backlog.push_back(key);
            drop(core);
            self.arm_flush();
        }
    }

    /// Whether the kernel knows this opcode. Asked for before it sees the entry: it would answer `EINVAL`, which reads
    /// like a wrong argument.
    #[inline]
    pub(crate) fn check_opcode(&self, code: u8) -> io::Result<()> {
        if self.setup.opcodes.contains(code) { Ok(()) } else { Err(unknown_opcode(code)) }
    }

    /// Encoding -> vacant. The operation has left the body, and whoever described it its handle on that.
    pub(crate) fn withdraw(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let mut slot = core.slots.withdraw(key);
        let waking = slot.as_mut().and_then(|slot| slot.take_waking());
        let gone = waking.and_then(|waking| core.wakers.let_go(waking));
        let left = slot.and_then(|slot| core.slots.recycle(slot));
        self.let_go(core);
        drop((gone, left));
    }

    /// Keep an emptied slot for the next operation.
    pub(crate) fn recycle(&self, slot: Box<Slot>) {
        let left = self.core.borrow_mut().slots.recycle(slot);
        drop(left);
    }

    /// The operation and its answer, if it is done; if not, the right task is woken when it is.
    ///
    /// One borrow for all: moving an operation out of its body runs none of its code.
    #[inline]
    pub(crate) fn take<O: Operation>(&self, key: Key, waker: &Waker) -> Option<(O, Ticket, Answer)> {
        let mut core = self.core.borrow_mut();
        let mut polled = core.slots.poll(key, waker);
        if matches!(polled, Polled::OtherWaker) {
            // Cloning a waker is foreign code: it runs with nothing borrowed, and the slot is looked at again after it.
            drop(core);
            self.replace_waker(key, waker);
            core = self.core.borrow_mut();
            polled = core.slots.poll(key, waker);
        }
        match polled {
            Polled::Pending | Polled::OtherWaker => None,
            Polled::Done => {
                let (operation, ticket, answer, waking) = core.slots.take::<O>(key);
                if let Some(waking) = waking {
                    drop(core);
                    self.let_waking_go(waking);
                }
                Some((operation, ticket, answer))
            }
        }
    }

    pub(crate) fn next(&self, key: Key, waker: &Waker) -> Next {
        self.core.borrow_mut().slots.next(key, waker)
    }

    pub(crate) fn replace_waker(&self, key: Key, waker: &Waker) {
        let waking = self.share(waker);
        let old = self.core.borrow_mut().slots.replace_waker(key, waking);
        if let Some(old) = old {
            self.let_waking_go(old);
        }
    }

    /// A slot has ended without waking this.
    pub(crate) fn let_waking_go(&self, waking: Rc<Waking>) {
        let gone = self.core.borrow_mut().wakers.let_go(waking);
        drop(gone);
    }

    /// Ask for the end of an operation. It still completes, once.
    pub(crate) fn cancel(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        let (send, waking) = core.slots.cancel(key);
        core.wake(waking);
        if send {
            core.cancels.push_back(key);
        }
        self.let_go(core);
        self.arm_flush();
    }

    /// The future has gone.
    pub(crate) fn orphan(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        match core.slots.orphan(key) {
            None => {}
            Some(Orphaned::Gone(mut slot)) => {
                let waker = slot.take_waking().and_then(|waking| core.wakers.let_go(waking));
                self.let_go(core);
                slot.body().dispose();
                let left = (slot.take_completion(), slot.take_items());
                self.recycle(slot);
                drop((left, waker));
            }
            Some(Orphaned::Kept { cancel, waking, items }) => {
                if cancel {
                    core.cancels.push_back(key);
                }
                let waker = waking.and_then(|waking| core.wakers.let_go(waking));
                drop(core);
                drop((waker, items));
                self.arm_flush();
            }
        }
    }
}

#[cold]
fn unknown_opcode(code: u8) -> io::Error {
    match Opcode::ALL.iter().find(|opcode| opcode.code() == code) {
        Some(opcode) => opcode.unsupported(),
        None => io::Error::new(io::ErrorKind::Unsupported, format!("this kernel does not know opcode {code}")),
    }
}
