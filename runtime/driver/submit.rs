//! What submissions ask of the driver: a slot, a push, a look whether it is done, an end.

use std::cell::RefMut;
use std::io;
use std::rc::Rc;
use std::task::Waker;

use super::turn::Core;
use super::{Admission, Driver};
use crate::runtime::body::Heading;
use crate::runtime::inflight::{Next, Numbers, Orphaned, Slot};
use crate::runtime::opcode::Opcode;
use crate::runtime::operation::Operation;
use crate::runtime::waking::Waking;

impl Driver {
    /// Vacant -> encoding, if it finds what nearly every operation does: room, and the waker of the one before.
    #[inline(always)]
    pub(crate) fn admit_at_once(&self, waker: &Waker) -> Option<Rc<Slot>> {
        let mut core = self.core.borrow_mut();
        if !core.has_room() {
            return None;
        }
        let waking = core.wakers.find(waker)?;
        Some(core.slots.reserve(false, Some(waking)))
    }

    /// Vacant -> encoding, or a place in the queue for a slot.
    #[inline(never)]
    pub(crate) fn admit(&self, place: Option<u64>, multishot: bool, waker: &Waker) -> Admission {
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
    pub(crate) fn queue(&self, slot: &Slot, heading: Heading) {
        let mut core = self.core.borrow_mut();
        core.slots.queue(slot);
        if core.outgoing.attention {
            return self.queue_with_attention(core, slot, heading);
        }
        core.outgoing.queue(slot.key(), heading.is_linked);
    }

    /// The same, when the runtime may have shut down, or a guest may have to be told.
    #[inline(never)]
    fn queue_with_attention(&self, mut core: RefMut<'_, Core>, slot: &Slot, heading: Heading) {
        if core.closed {
            let (_nothing_to_send, waking) = core.slots.cancel(slot);
            core.wake(waking);
            self.let_go(core);
        } else {
            core.outgoing.queue(slot.key(), heading.is_linked);
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

    /// Encoding -> vacant. The operation has left the body.
    pub(crate) fn withdraw(&self, slot: &Rc<Slot>) {
        let mut core = self.core.borrow_mut();
        let waking = core.slots.withdraw(slot);
        let gone = waking.and_then(|waking| core.wakers.let_go(waking));
        self.let_go(core);
        drop(gone);
    }

    /// The operation, and the numbers of its answer, when it is done; what else that brought is to be taken first. Moving an
    /// operation out of its body runs none of its code, so one borrow, which gives the slot back, does for all.
    #[inline(always)]
    pub(crate) fn take<O: Operation>(&self, slot: Rc<Slot>) -> (O, Numbers) {
        self.core.borrow_mut().slots.take::<O>(slot)
    }

    /// See to it that the right task is woken. Cloning a waker is foreign code: it runs with nothing borrowed, and the
    /// slot is looked at again after it.
    #[inline(never)]
    pub(crate) fn is_done_meanwhile(&self, slot: &Slot, waker: &Waker) -> bool {
        if slot.will_wake(waker) {
            return false;
        }
        self.replace_waker(slot, waker);
        let is_done = slot.is_done();
        if is_done && let Some(waking) = slot.take_waking() {
            // Nobody will call it.
            self.let_waking_go(waking);
        }
        is_done
    }

    #[inline(never)]
    pub(crate) fn next(&self, slot: &Slot, waker: &Waker) -> Next {
        let next = self.core.borrow_mut().slots.next(slot);
        if !matches!(next, Next::Pending) || slot.will_wake(waker) {
            return next;
        }
        self.replace_waker(slot, waker);
        self.core.borrow_mut().slots.next(slot)
    }

    pub(crate) fn replace_waker(&self, slot: &Slot, waker: &Waker) {
        let waking = self.share(waker);
        if let Some(old) = slot.replace_waking(waking) {
            self.let_waking_go(old);
        }
    }

    /// A slot has ended without waking this.
    #[inline(never)]
    pub(crate) fn let_waking_go(&self, waking: Rc<Waking>) {
        let gone = self.core.borrow_mut().wakers.let_go(waking);
        drop(gone);
    }

    /// Ask for the end of an operation. It still completes, once.
    pub(crate) fn cancel(&self, slot: &Slot) {
        let mut core = self.core.borrow_mut();
        let (send, waking) = core.slots.cancel(slot);
        core.wake(waking);
        if send {
            core.outgoing.cancel([slot.key()]);
        }
        self.let_go(core);
        self.arm_flush();
    }

    /// The future has gone.
    pub(crate) fn orphan(&self, slot: &Rc<Slot>) {
        let mut core = self.core.borrow_mut();
        match core.slots.orphan(slot) {
            Orphaned::Gone => {
                let waker = slot.take_waking().and_then(|waking| core.wakers.let_go(waking));
                self.let_go(core);
                self.empty(slot);
                drop(waker);
            }
            Orphaned::Kept { cancel, waking, items } => {
                if cancel {
                    core.outgoing.cancel([slot.key()]);
                }
                let waker = waking.and_then(|waking| core.wakers.let_go(waking));
                drop(core);
                drop((waker, items));
                self.arm_flush();
            }
        }
    }

    /// Empty a vacant slot of all that nobody has taken, which is foreign code, and keep it for the next operation: also
    /// when that code panics.
    pub(crate) fn empty(&self, slot: &Rc<Slot>) {
        struct Recycle<'a>(&'a Driver, &'a Rc<Slot>);
        impl Drop for Recycle<'_> {
            fn drop(&mut self) {
                self.0.core.borrow_mut().slots.recycle(self.1);
            }
        }
        let left = slot.take_left();
        let waking = slot.take_waking();
        let recycle = Recycle(self, slot);
        slot.body().dispose();
        drop(recycle);
        drop(left);
        if let Some(waking) = waking {
            self.let_waking_go(waking);
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
