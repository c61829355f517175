//! The half of the driver that is borrowed: the ring, the slots and the queues between them. It runs no foreign code;
//! what has to be woken or dropped is left in [`After`].
//!
//! What the kernel says to an enter is handled here and nowhere else:
//!
//! | errno            | meaning                                  | what happens                                          |
//! |------------------|------------------------------------------|-------------------------------------------------------|
//! | EINTR            | a signal came                            | the turn ends early, the next one goes on             |
//! | EBUSY            | completions wait in the overflow list    | reap, then enter again                                |
//! | EAGAIN, ENOMEM   | no memory for a request now              | what was not taken stays staged; a millisecond's pause|
//! | EBADR            | a completion was lost                    | fatal: something would wait for ever                  |
//! | any other        | the ring is not usable from here         | fatal                                                 |

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use super::Admission;
use super::after::{After, Rest};
use super::table::Table;
use crate::runtime::abi;
use crate::runtime::body::Lent;
use crate::runtime::entry::Entry;
use crate::runtime::inflight::{Key, Noted, Settled, Slot, Slots};
use crate::runtime::metrics::Metrics;
use crate::runtime::ring::{Cqe, Queues, Ring, Wait};
use crate::runtime::waking::{Wakers, Waking};

/// How often one turn enters again for what the kernel could not post at once. The rest comes with the next turn, so
/// that an endless stream of completions cannot keep tasks from running.
const ROUNDS_MAX: usize = 16;

/// How long a turn pauses when the kernel has no memory for a request.
const STARVED_PAUSE: Duration = Duration::from_millis(1);

/// How long a cancel that did not find its operation waits before it is sent once more.
pub(super) const CANCEL_MISSED_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Core {
    pub(super) ring: Ring,
    pub(super) table: Table,
    pub(super) slots: Slots,
    pub(super) outgoing: Outgoing,
    /// In the order of their places, so that one of many is found by halving.
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) granted: BTreeSet<u64>,
    pub(super) next_waiter: u64,
    pub(super) wakers: Wakers,
    pub(super) operations_max: usize,
    /// The read of the eventfd of `unpark`, once it was made. It takes no place from the program's operations.
    pub(super) armed: Option<Rc<Slot>>,
    pub(super) after: After,
    /// A guest of another loop has to be told of each thing that is queued outside a turn, or left by one.
    pub(super) has_guest: bool,
    pub(super) closed: bool,
}

/// What waits to be brought to the kernel.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// There may be something out of the ordinary to do in the next turn. Whatever leaves such a thing sets it, and a turn
    /// that has seen to all of them looks whether there are any left. So a turn without has nothing to look for: no
    /// cancels, no linked entries, nobody who waits for a slot or a buffer, nothing left over, no guest, and it is not closed.
    pub(super) attention: bool,
    cancels: VecDeque<Key>,
    /// Cancels that missed, to be sent once more after a turn that waits no longer than [`CANCEL_MISSED_PAUSE`].
    pub(super) missed: Vec<Key>,
    backlog: Vec<Key>,
    /// Whether an entry in the backlog may have to stand right before the next one.
    has_links: bool,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) place: u64,
    pub(super) waking: Rc<Waking>,
}

impl Core {
    /// One turn with nothing out of the ordinary to do, compiled into the one place that makes nearly all of them, and what
    /// each has once into it: what is rare in one is calls.
    #[inline(always)]
    pub(super) fn turn(&mut self, wait: Wait, metrics: &Metrics) -> io::Result<()> {
        debug_assert!(!self.needs_attention(), "whatever leaves something out of the ordinary has to say so");
        let Self { ring, table, slots, after, outgoing, .. } = self;
        let exchanged = match ring {
            Ring::Kernel(ring) => outgoing.exchange(&mut **ring, wait, table, slots, after, metrics),
            ring => outgoing.exchange(ring, wait, table, slots, after, metrics),
        };
        match exchanged {
            Some(Ok(false)) => Ok(()),
            Some(exchanged) => self.exchange_rest(exchanged, metrics),
            None => self.full_turn(wait, metrics),
        }
    }

    /// A turn that sees to what is out of the ordinary.
    #[inline(never)]
    pub(super) fn full_turn(&mut self, wait: Wait, metrics: &Metrics) -> io::Result<()> {
        let feeds_late = self.slots.is_starving() && !self.feed_early();
        self.flush_in_parts(metrics)?;
        // Those of earlier turns: what misses from here on waits for the next one.
        let missed = self.outgoing.missed.len();
        let wait = match wait {
            _ if self.after.has_any() => Wait::No,
            Wait::Until(limit) if missed > 0 => {
                Wait::Until(Some(limit.map_or(CANCEL_MISSED_PAUSE, |limit| limit.min(CANCEL_MISSED_PAUSE))))
            }
            wait => wait,
        };
        // Without anything staged, deferred or to wait for, the completions that are there can be had for nothing. With
        // something staged it is the kernel that does not wait if completions are there.
        if self.ring.staged() > 0 || (wait != Wait::No && !self.ring.is_ready()) || self.ring.more_work() {
            self.enter(wait, metrics)?;
        }
        self.reap(metrics);
        if missed > 0 {
            let Outgoing { cancels, missed: all, .. } = &mut self.outgoing;
            cancels.extend(all.drain(..missed));
        }
        self.exchange_rest(Ok(true), metrics)?;
        self.grant();
        if feeds_late {
            self.feed();
        }
        self.outgoing.attention = self.needs_attention();
        Ok(())
    }

    /// Whether something out of the ordinary is left to do.
    fn needs_attention(&self) -> bool {
        let Outgoing { cancels, missed, has_links, .. } = &self.outgoing;
        let has_to_send = !(cancels.is_empty() && missed.is_empty()) || *has_links;
        let somebody_waits = !(self.waiters.is_empty() && self.granted.is_empty()) || self.slots.is_starving();
        // The read of the eventfd is described with nothing borrowed, by the turn itself.
        let is_unarmed = self.armed.as_ref().is_some_and(|slot| !slot.is_active());
        let is_watched = self.closed || self.has_guest;
        has_to_send || somebody_waits || is_unarmed || is_watched || self.table.has_news() || self.after.has_to_drop()
    }

    /// What the kernel has more, and what it says to an enter that it refused.
    #[inline(never)]
    fn exchange_rest(&mut self, exchanged: io::Result<bool>, metrics: &Metrics) -> io::Result<()> {
        if let Err(error) = exchanged {
            self.settle_enter(error, metrics)?;
            self.reap(metrics);
        }
        for _ in 0..ROUNDS_MAX {
            if !self.ring.more_work() {
                break;
            }
            metrics.overflows.add(u64::from(self.ring.is_overflowing()));
            self.enter_and_reap_again(metrics)?;
        }
        Ok(())
    }

    /// Queue what waited for a lent buffer, once a turn: now, or, which is what false says, after what is there to be
    /// reaped, for that may have used the buffers that seem to be left.
    #[cold]
    fn feed_early(&mut self) -> bool {
        let is_time = !self.ring.is_ready();
        if is_time {
            self.feed();
        }
        is_time
    }

    fn feed(&mut self) {
        let Self { ring, slots, outgoing, after, .. } = self;
        slots.feed(ring, &mut |key| outgoing.queue(key, false), &mut |left| after.rest.push_back(Rest::Lent(left)));
    }

    /// Stage what is queued: cancels, then operations in the order of their first polls.
    #[inline(never)]
    fn flush_in_parts(&mut self, metrics: &Metrics) -> io::Result<()> {
        while let Some(&key) = self.outgoing.cancels.front() {
            if !self.make_room(1, metrics)? {
                return Ok(());
            }
            self.outgoing.cancels.pop_front();
            if self.slots.push_cancel(key) {
                metrics.cancels.add(1);
                self.ring.stage(Lent::nothing(&cancel_entry(key)));
            }
        }
        let mut pushed = 0;
        let outcome = self.push_in_parts(&mut pushed, metrics);
        self.outgoing.backlog.drain(..pushed);
        self.outgoing.has_links &= !self.outgoing.backlog.is_empty();
        outcome
    }

    /// Push the backlog from its head on. `pushed` counts how far that went, also when the ring fails: what comes back for
    /// another try meanwhile lines up behind.
    fn push_in_parts(&mut self, pushed: &mut usize, metrics: &Metrics) -> io::Result<()> {
        while *pushed < self.outgoing.backlog.len() {
            // A linked chain must be taken by one enter: the kernel ends a chain at the end of a submission.
            let chain = self.chain(*pushed);
            if self.ring.space() < chain && !self.make_room(chain, metrics)? {
                return Ok(());
            }
            let end = self.outgoing.backlog.len().min(*pushed + chain);
            let Self { ring, slots, outgoing, .. } = self;
            push_each(&outgoing.backlog[*pushed..end], ring, slots, metrics);
            *pushed = end;
        }
        Ok(())
    }

    /// The length of the linked chain that begins at this place of the backlog.
    fn chain(&self, first: usize) -> usize {
        self.outgoing.backlog[first..].iter().take_while(|key| self.slots.is_linked(**key)).count() + 1
    }

    /// Space for this many entries, by submitting what is staged if need be. False: the kernel takes none now.
    fn make_room(&mut self, entries: usize, metrics: &Metrics) -> io::Result<bool> {
        if self.ring.space() < entries {
            self.enter_and_reap_again(metrics)?;
        }
        Ok(self.ring.space() >= entries)
    }

    #[inline(never)]
    fn enter_and_reap_again(&mut self, metrics: &Metrics) -> io::Result<()> {
        self.enter(Wait::No, metrics)?;
        self.reap(metrics);
        Ok(())
    }

    fn enter(&mut self, wait: Wait, metrics: &Metrics) -> io::Result<()> {
        metrics.enters.add(1);
        match self.ring.enter(wait) {
            Ok(()) => Ok(()),
            Err(error) => self.settle_enter(error, metrics),
        }
    }

    /// What the kernel says to an enter; see the table at the head of this file.
    #[cold]
    fn settle_enter(&mut self, error: io::Error, metrics: &Metrics) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            Some(libc::EBUSY) => {
                metrics.busy.add(1);
                self.reap(metrics);
                Ok(())
            }
            Some(libc::EAGAIN | libc::ENOMEM) => {
                metrics.starved.add(1);
                if !self.ring.is_ready() {
                    std::thread::sleep(STARVED_PAUSE);
                }
                Ok(())
            }
            Some(libc::EBADR) => Err(io::Error::other(
                "the kernel ran out of memory and lost a completion (EBADR); an operation would wait for ever",
            )),
            _ => Err(error),
        }
    }

    #[inline(never)]
    fn reap(&mut self, metrics: &Metrics) {
        let Self { ring, table, slots, after, outgoing, .. } = self;
        outgoing.settle_each(ring.reap(), table, slots, after, metrics);
    }

    /// Whether an operation that comes now need not wait for another.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        // Nearly always there is room even with the driver's own operation counted in, and nothing is in the way.
        if self.outgoing.attention || self.slots.active() >= self.operations_max {
            return self.has_room_in_full();
        }
        true
    }

    #[inline(never)]
    fn has_room_in_full(&self) -> bool {
        !self.closed && self.waiters.is_empty() && self.operations() + self.granted.len() < self.operations_max
    }

    #[inline(never)]
    pub(super) fn admit(&mut self, place: Option<u64>, multishot: bool, waking: Rc<Waking>) -> Admission {
        if self.closed {
            return Admission::Closed(self.wakers.let_go(waking));
        }
        let granted = place.is_some_and(|place| self.granted.remove(&place));
        if !(granted || place.is_none() && self.has_room()) {
            if let Some(at) = place.and_then(|place| self.waiting_at(place)) {
                let waiter = &mut self.waiters[at];
                let old = std::mem::replace(&mut waiter.waking, waking);
                return Admission::Wait(waiter.place, self.wakers.let_go(old));
            }
            let place = self.next_waiter;
            self.next_waiter += 1;
            self.waiters.push_back(Waiter { place, waking });
            self.outgoing.attention = true;
            return Admission::Wait(place, None);
        }
        Admission::Granted(self.slots.reserve(multishot, Some(waking)))
    }

    /// Note that these are to be woken when nothing is borrowed any more.
    pub(super) fn wake(&mut self, wakings: impl IntoIterator<Item = Rc<Waking>>) {
        for waking in wakings {
            self.after.wake(waking);
            self.outgoing.attention = true;
        }
    }

    pub(super) fn waiting_at(&self, place: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&place, |waiter| waiter.place).ok()
    }

    pub(super) fn has_queued(&self) -> bool {
        self.outgoing.has_any() || self.ring.staged() > 0 || self.slots.is_feeding_due()
    }

    /// The program's operations that are queued or held by the kernel.
    pub(super) fn operations(&self) -> usize {
        let own = self.armed.as_ref().is_some_and(|slot| slot.is_active());
        self.slots.active() - usize::from(own)
    }

    /// Give slots that have become free to those who wait, in their order.
    pub(super) fn grant(&mut self) {
        while self.operations() + self.granted.len() < self.operations_max
            && let Some(waiter) = self.waiters.pop_front()
        {
            self.granted.insert(waiter.place);
            self.after.wake(waiter.waking);
            self.outgoing.attention = true;
        }
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        // The first turn arms the read of the eventfd.
        Self { attention: true, cancels: VecDeque::new(), missed: Vec::new(), backlog: Vec::new(), has_links: false }
    }
}

impl Outgoing {
    /// An operation has been described, or is to be tried again.
    #[inline]
    pub(super) fn queue(&mut self, key: Key, may_be_linked: bool) {
        self.backlog.push(key);
        if may_be_linked {
            self.has_links = true;
            self.attention = true;
        }
    }

    /// These operations are to end.
    pub(super) fn cancel(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.cancels.extend(keys);
        self.attention = true;
    }

    /// Operations that are to be brought to the kernel.
    pub(super) fn queued(&self) -> usize {
        self.backlog.len()
    }

    fn has_any(&self) -> bool {
        !(self.backlog.is_empty() && self.cancels.is_empty() && self.missed.is_empty())
    }

    /// What is done in nearly every turn, of the kernel's ring in one straight line: stage all that is queued, make one
    /// enter if that brings anything, settle all that is there then. Whether the kernel has more; `None`: nothing has
    /// been done, for there is more to stage than there is space for.
    #[inline(always)]
    fn exchange<R: Queues>(
        &mut self,
        ring: &mut R,
        wait: Wait,
        table: &mut Table,
        slots: &mut Slots,
        after: &mut After,
        metrics: &Metrics,
    ) -> Option<io::Result<bool>> {
        if self.backlog.len() > ring.space() {
            return None;
        }
        push_each(&self.backlog, ring, slots, metrics);
        self.backlog.clear();
        // As in `full_turn`.
        if ring.staged() > 0 || (wait != Wait::No && !ring.is_ready()) || ring.more_work() {
            metrics.enters.add(1);
            if let Err(error) = ring.enter(wait) {
                return Some(Err(error));
            }
        }
        self.settle_each(ring.reap(), table, slots, after, metrics);
        // Whoever is woken is likely to want something of the kernel, which its enter then brings together with what is left
        // there. The plain version enters until nothing is left: a disk then stands still until all of what it has
        // brought is settled, its tasks have run, and their next reads come in one go.
        Some(Ok(ring.more_work() && !after.has_to_wake()))
    }

    /// Settle completions, and count them.
    #[inline(always)]
    fn settle_each(
        &mut self,
        queue: impl Iterator<Item = Cqe>,
        table: &mut Table,
        slots: &mut Slots,
        after: &mut After,
        metrics: &Metrics,
    ) {
        let (mut settled, mut others) = (0, 0);
        for cqe in queue {
            settled += 1;
            match slots.complete(cqe) {
                Some(waking) => after.wake(waking),
                None => {
                    others += 1;
                    let Cqe { user_data, result, flags } = cqe;
                    self.settle(user_data, result, flags, &mut Books { table, slots, after, metrics });
                }
            }
        }
        slots.let_go(settled - others);
        metrics.completions.add(settled as u64);
    }

    /// Settle a completion of any kind. It comes in parts, so that those which [`Slots::complete`] settles are never put
    /// together in memory.
    #[inline(never)]
    fn settle(&mut self, user_data: u64, result: i32, flags: u32, books: &mut Books<'_>) {
        let Books { table, slots, after, metrics } = books;
        let cqe = Cqe { user_data, result, flags };
        match slots.note(cqe) {
            Some(Noted::Wake(waking)) => return after.wake(waking),
            Some(Noted::Nothing) => return,
            None => self.attention = true,
        }
        if table.is_released(user_data) {
            return;
        }
        match slots.settle(cqe, metrics) {
            Settled::Nothing => {}
            Settled::Wake(waking) => after.wake(waking),
            Settled::Requeue(key) => {
                metrics.retries.add(1);
                self.queue(key, true);
            }
            Settled::Cancel(key, waking) => {
                self.cancels.push_back(key);
                if let Some(waking) = waking {
                    after.wake(waking);
                }
            }
            Settled::CancelMissed(key) => self.missed.push(key),
            Settled::Dispose(slot, completion) => after.disposals.push_back((slot, completion)),
            Settled::Stale => {
                metrics.stale.add(1);
                after.rest.push_back(Rest::Report(user_data));
            }
        }
        metrics.stale.add(slots.take_disbelieved());
        after.rest.extend(slots.take_unclaimed().map(Rest::Lent));
    }
}

/// What a completion may change, beside what goes out.
struct Books<'a> {
    table: &'a mut Table,
    slots: &'a mut Slots,
    after: &'a mut After,
    metrics: &'a Metrics,
}

/// Push these; there must be space.
#[inline(always)]
fn push_each<R: Queues>(backlog: &[Key], ring: &mut R, slots: &mut Slots, metrics: &Metrics) {
    let mut submissions = 0;
    for &key in backlog {
        submissions += usize::from(slots.push(key, |lent| {
            metrics.by_opcode.add_one(lent.entry().opcode);
            ring.stage(lent);
        }));
    }
    slots.hold(submissions);
    metrics.submissions.add(submissions as u64);
}

fn cancel_entry(key: Key) -> Entry {
    Entry {
        opcode: abi::ASYNC_CANCEL,
        fd: -1,
        addr: key.user_data(),
        user_data: key.cancel_user_data(),
        ..Entry::default()
    }
}
