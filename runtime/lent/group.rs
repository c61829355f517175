//! One group: the buffers that the kernel has, which of them a completion names, and who waits for one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::runtime::inflight::{Key, Slots};
use crate::runtime::registry::{FixedBuf, Lease, Registry};
use crate::runtime::ring::Ring;
use crate::runtime::ring::buf_ring::{BufRing, Offer};
use crate::runtime::unpark::Unpark;

/// The least that a stream may fall behind before it is paused, in items, however few buffers its group has: a pause and
/// its end cost two entries.
const ITEMS_MIN: usize = 16;

/// When the kernel has refused a ring, nothing tells that it would take it now: how long until it is asked again.
const LEND_AGAIN: Duration = Duration::from_secs(1);

/// What a completion says of lent memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The number of the buffer (of the first one, if there are several).
    pub(crate) id: u16,
    /// Bytes, or a negated errno.
    pub(crate) result: i32,
    /// The kernel keeps the rest of the buffer (`IORING_CQE_F_BUF_MORE`).
    pub(crate) keeps_rest: bool,
    /// One completion may fill several consecutive buffers.
    pub(crate) bundle: bool,
}

/// What is to be dropped when nothing is borrowed: both wake whoever is next in the queue for pages.
#[derive(Debug)]
pub(crate) enum Left {
    Buffer(#[expect(dead_code, reason = "kept to be dropped")] FixedBuf),
    Lease(#[expect(dead_code, reason = "kept to be dropped")] Lease),
    /// Why the kernel keeps a ring of buffers: who listens to the log is foreign code too.
    Kept(io::Error),
    /// Why a ring of buffers cannot be lent now.
    Refused(io::Error),
}

impl Left {
    /// When nothing is borrowed.
    pub(crate) fn leave(self) {
        match self {
            Self::Buffer(_) | Self::Lease(_) => {}
            Self::Kept(error) => {
                tracing::error!(%error, "the kernel keeps a ring of buffers, which is leaked with its pages");
            }
            Self::Refused(error) => tracing::warn!(%error, "no ring of buffers can be lent now; it is tried again"),
        }
    }
}

/// One queue of buffers of one size.
pub(crate) struct Group {
    id: u16,
    ring_id: u32,
    bytes: usize,
    incremental: bool,
    registry: Registry,
    returned: Arc<Returned>,
    state: RefCell<State>,
}

struct State {
    ring: Rc<BufRing>,
    /// One for each buffer that the kernel may have at once.
    places: Box<[Place]>,
    /// The place whose buffer went in as number `position`, by `position` modulo the size of the ring.
    order: Box<[u16]>,
    vacant: Vec<u16>,
    /// Buffers that went in so far.
    position: u64,
    /// Places whose buffers a failed receive named: the kernel has taken them or it has not, which the next one that it
    /// chooses from behind them proves, or that it has none for who asks after they went in.
    doubtful: Vec<u16>,
    /// Such buffers that have given up their places, and the numbers as which they went in.
    set_aside: Vec<(u64, FixedBuf)>,
    /// Those that were proved gone, until there is a place for them, or until they go back.
    spare: Vec<FixedBuf>,
    /// Slots that found no buffer, first come first served.
    starved: VecDeque<Key>,
    /// Which of them was queued again last, and how many buffers had gone in by then.
    fed: Option<(Key, u64)>,
    /// That one found none either: those that the kernel seems to have are with receives that are still filling them.
    exhausted: bool,
    /// The place in the queue for pages of a group that has no buffer for those.
    lease: Option<Lease>,
    /// The kernel has the ring: neither it nor the buffers may be freed.
    is_with_kernel: bool,
    /// When the kernel refused the ring last, while it has none.
    refused_at: Option<Instant>,
    /// It could not rest, and nothing has come into its buffers since: it would be refused again.
    is_restless: bool,
}

/// One buffer, at the kernel.
#[derive(Debug)]
struct Place {
    /// The number that it has there: the index of this place, and how often it was used. Any number may come back from
    /// a kernel that is wrong, or from a test that plays it.
    id: u16,
    position: u64,
    buffer: Option<FixedBuf>,
}

/// Says that a page has come back, from whatever thread it did.
#[derive(Debug)]
struct Returned {
    flag: AtomicBool,
    unpark: Arc<Unpark>,
}

impl Wake for Returned {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        self.unpark.wake();
    }
}

impl Group {
    /// A group without buffers, whose ring the kernel has not got yet.
    pub(super) fn new(
        id: u16,
        ring_id: u32,
        bytes: usize,
        count: u16,
        incremental: bool,
        registry: &Registry,
        unpark: &Arc<Unpark>,
    ) -> io::Result<Self> {
        let ring = BufRing::new(count.next_power_of_two())?;
        let state = State {
            places: (0..count).map(|index| Place { id: index, position: 0, buffer: None }).collect(),
            order: vec![0; usize::from(ring.places())].into_boxed_slice(),
            // From the back, so that the first buffers have the lowest numbers.
            vacant: (0..count).rev().collect(),
            position: 0,
            doubtful: Vec::new(),
            set_aside: Vec::new(),
            spare: Vec::new(),
            starved: VecDeque::new(),
            fed: None,
            exhausted: false,
            lease: None,
            is_with_kernel: false,
            refused_at: None,
            is_restless: false,
            ring: Rc::new(ring),
        };
        Ok(Self {
            id,
            ring_id,
            bytes,
            incremental,
            registry: registry.clone(),
            returned: Arc::new(Returned { flag: AtomicBool::new(false), unpark: Arc::clone(unpark) }),
            state: RefCell::new(state),
        })
    }

    /// Give the kernel the ring.
    pub(super) fn lend_to(self, ring: &mut Ring) -> io::Result<Rc<Self>> {
        self.lend_again(ring)?;
        Ok(Rc::new(self))
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn ring_id(&self) -> u32 {
        self.ring_id
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// Buffers that the kernel has.
    pub(crate) fn available(&self) -> usize {
        self.state.borrow().available()
    }

    /// How many items of one stream wait for their consumer before it is paused. They hold buffers, so the bound is not
    /// more than the kernel has at once: one stream that nobody reads cannot take all pages from the others.
    pub(crate) fn items_max(&self, most: usize) -> usize {
        self.state.borrow().places.len().clamp(ITEMS_MIN.min(most), most)
    }

    /// Fill what is vacant with what the registry has now.
    pub(super) fn refill(&self) {
        self.state.borrow_mut().refill(&self.registry, self.bytes);
    }

    /// Take what a completion names. Its buffers go to the end of `into`, their lengths set. False: it names a buffer
    /// that the kernel has not got, or more bytes than that has, and is not believed.
    pub(crate) fn take(&self, arrival: Arrival, into: &mut Vec<FixedBuf>) -> bool {
        let mut state = self.state.borrow_mut();
        let believed = state.take(arrival, into);
        state.refill(&self.registry, self.bytes);
        believed
    }

    /// Whether [`feed`](Self::feed) has pages to give back that there is no place for.
    pub(crate) fn has_spare(&self) -> bool {
        !self.state.borrow().spare.is_empty()
    }

    /// Keys of those that wait, and of some that have given up.
    #[cfg(test)]
    pub(super) fn starved(&self) -> usize {
        self.state.borrow().starved.len()
    }

    /// A slot has found no buffer.
    pub(crate) fn starve(&self, key: Key, slots: &Slots) {
        let mut state = self.state.borrow_mut();
        // Those that have given up are forgotten before they make it grow.
        if state.starved.len() == state.starved.capacity() {
            state.starved.retain(|key| slots.is_starved(*key));
        }
        state.starved.push_back(key);
        state.set_doubt_aside();
        if let Some((fed, position)) = state.fed
            && fed == key
        {
            state.exhausted |= position == state.position && slots.has_lent(self.id);
            // It asked when all of these had gone in, and all are gone.
            state.prove_gone(position);
        }
    }

    /// As [`Lender::feed`](super::Lender::feed). Whether any slot still waits.
    pub(super) fn feed(
        &self,
        ring: &mut Ring,
        slots: &Slots,
        queue: &mut dyn FnMut(Key),
        leave: &mut dyn FnMut(Left),
    ) -> bool {
        let mut state = self.state.borrow_mut();
        state.put_spare();
        state.spare.drain(..).map(Left::Buffer).for_each(&mut *leave);
        while state.starved.pop_front_if(|key| !slots.is_starved(*key)).is_some() {}
        if state.starved.is_empty() {
            state.lease.take().map(Left::Lease).into_iter().for_each(leave);
            return false;
        }
        if !state.is_with_kernel {
            // It is not asked in each turn, and that it refuses was said.
            let is_early = state.next_try().is_some_and(|at| ring.now() < at);
            if is_early || state.lend(ring, self.id, self.incremental).is_err() {
                return true;
            }
        }
        state.exhausted &= slots.has_lent(self.id);
        state.wait_for_pages(&self.registry, self.bytes, &self.returned);
        // As many as there are buffers: more would only find none once more.
        let mut turns = state.turns();
        while turns > 0
            && let Some(key) = state.starved.pop_front()
        {
            if slots.unstarve(key) {
                queue(key);
                state.fed = Some((key, state.position));
                turns -= 1;
            }
        }
        true
    }

    /// Whether slots wait for pages that the registry has not got in one piece.
    pub(super) fn is_hungry(&self) -> bool {
        let state = self.state.borrow();
        !state.starved.is_empty() && state.lease.is_some()
    }

    /// Whether it has buffers to give back, and nobody to receive into them.
    pub(super) fn is_idle(&self, slots: &Slots) -> bool {
        let state = self.state.borrow();
        let has_buffers = state.vacant.len() < state.places.len() || !state.set_aside.is_empty();
        has_buffers && !state.is_restless && state.starved.is_empty() && !slots.has_lent(self.id)
    }

    /// Give the buffers of an idle group back. Who receives next finds none, and waits for pages.
    pub(super) fn rest(&self, ring: &mut Ring, leave: &mut dyn FnMut(Left)) {
        let mut state = self.state.borrow_mut();
        state.is_restless = true;
        // The kernel's own end of the ring cannot be moved back: the next one begins with a ring of its own.
        let fresh = match BufRing::new(state.ring.places()) {
            Ok(fresh) => fresh,
            Err(error) => return leave(Left::Refused(error)),
        };
        match ring.unlend(self.id) {
            Ok(()) => {
                state.take_back(leave);
                state.ring = Rc::new(fresh);
                state.is_restless = false;
            }
            Err(error) => return leave(Left::Kept(error)),
        }
        drop(state);
        if let Err(error) = self.lend_again(ring) {
            leave(Left::Refused(error));
        }
    }

    /// Give the kernel the ring, unless it has it: another one may have been refused when that was taken back.
    pub(super) fn lend_again(&self, ring: &mut Ring) -> io::Result<()> {
        self.state.borrow_mut().lend(ring, self.id, self.incremental)
    }

    /// When slots wait for the kernel to take the ring: when it is asked again.
    pub(super) fn next_try(&self) -> Option<Instant> {
        let state = self.state.borrow();
        if state.starved.is_empty() { None } else { state.next_try() }
    }

    /// Whether [`feed`](Self::feed) has something to do now.
    pub(super) fn is_due(&self, slots: &Slots) -> bool {
        let state = self.state.borrow();
        let may_lease = match state.lease {
            Some(_) => self.returned.flag.load(Ordering::Acquire),
            None => !state.vacant.is_empty(),
        };
        let is_over = state.exhausted && !slots.has_lent(self.id);
        let may_feed = state.is_with_kernel && !state.starved.is_empty();
        !state.spare.is_empty() || may_feed && (state.turns() > 0 || may_lease || is_over)
    }

    /// As [`Lender::close`](super::Lender::close).
    pub(super) fn close(&self, ring: &mut Ring, leak: bool, leave: &mut dyn FnMut(Left)) {
        let mut state = self.state.borrow_mut();
        state.starved.clear();
        state.lease.take().map(Left::Lease).into_iter().for_each(&mut *leave);
        if leak || !state.is_with_kernel {
            // Where the kernel has it, `State::drop` leaks it.
            return;
        }
        match ring.unlend(self.id) {
            Ok(()) => state.take_back(leave),
            Err(error) => leave(Left::Kept(error)),
        }
    }
}

/// The kernel has let go of a buffer, or of the front of one.
fn unlent(mut buffer: FixedBuf) -> FixedBuf {
    buffer.unlend();
    buffer
}

/// A buffer into which so many bytes have come.
fn filled(mut buffer: FixedBuf, len: usize) -> FixedBuf {
    buffer.set_len(len);
    buffer
}

impl State {
    fn available(&self) -> usize {
        self.places.len() - self.vacant.len() - self.doubtful.len()
    }

    /// How many of those that wait for a buffer may find one.
    fn turns(&self) -> usize {
        match self.available() {
            _ if self.exhausted => 0,
            // Only by asking the kernel is it learned whether it has one of those in doubt.
            0 => usize::from(!(self.doubtful.is_empty() && self.set_aside.is_empty())),
            available => available,
        }
    }

    fn lend(&mut self, ring: &mut Ring, id: u16, incremental: bool) -> io::Result<()> {
        if self.is_with_kernel {
            return Ok(());
        }
        self.refused_at = Some(ring.now());
        ring.lend(id, &self.ring, incremental)?;
        self.refused_at = None;
        self.is_with_kernel = true;
        Ok(())
    }

    fn next_try(&self) -> Option<Instant> {
        self.refused_at?.checked_add(LEND_AGAIN)
    }

    /// The kernel has let go of the ring, and so of every buffer in it.
    fn take_back(&mut self, leave: &mut dyn FnMut(Left)) {
        self.is_with_kernel = false;
        let buffers = self.places.iter_mut().filter_map(|place| place.buffer.take());
        buffers.map(unlent).map(Left::Buffer).for_each(&mut *leave);
        self.doubtful.clear();
        self.vacant = (0..self.places.len() as u16).rev().collect();
        self.fed = None;
        self.exhausted = false;
        let aside = self.set_aside.drain(..).map(|(_, buffer)| unlent(buffer));
        aside.chain(self.spare.drain(..)).map(Left::Buffer).for_each(leave);
    }

    fn refill(&mut self, registry: &Registry, bytes: usize) {
        self.put_spare();
        // The kernel would not see them.
        if !self.is_with_kernel {
            return;
        }
        // Who waits for pages gets them first, and then this group has a place in the queue itself.
        while self.lease.is_none()
            && !self.vacant.is_empty()
            && let Some(buffer) = registry.try_lease_silent(bytes)
        {
            self.put(buffer);
        }
    }

    /// Give the kernel one more buffer. There is a vacant place.
    fn put(&mut self, mut buffer: FixedBuf) {
        let index = self.vacant.pop().expect("a buffer is leased for a vacant place");
        let count = self.places.len();
        let place = &mut self.places[usize::from(index)];
        let region = buffer.as_capacity_mut();
        let len = u32::try_from(region.len()).expect("a lent buffer is at most 1 GiB long");
        let address = region.as_mut_ptr().expose_provenance() as u64;
        // The next number that stands for this place; after the highest one, the first again.
        let next = usize::from(place.id) + count;
        place.id = u16::try_from(next).unwrap_or(index);
        place.position = self.position;
        buffer.lend();
        place.buffer = Some(buffer);
        self.position += 1;
        self.exhausted = false;
        self.order[(place.position % self.order.len() as u64) as usize] = index;
        self.ring.offer(Offer { address, len, id: place.id });
    }

    /// Which place this number stands for now, if its buffer is with the kernel.
    fn find(&self, id: u16) -> Option<u16> {
        let index = usize::from(id) % self.places.len();
        let place = &self.places[index];
        (place.id == id && place.buffer.is_some()).then_some(index as u16)
    }

    fn take(&mut self, arrival: Arrival, into: &mut Vec<FixedBuf>) -> bool {
        let Some(first) = self.find(arrival.id) else {
            return false;
        };
        self.exhausted = false;
        self.is_restless = false;
        let Ok(mut bytes) = usize::try_from(arrival.result) else {
            // A receive that failed names a buffer only if the kernel had chosen one. Whether that was put back into the
            // queue is not said.
            self.settle_doubt(first, self.places[usize::from(first)].position);
            self.doubtful.push(first);
            return true;
        };
        if !self.holds(first, arrival, bytes) {
            return false;
        }
        let named = self.places[usize::from(first)].position;
        let mut index = first;
        loop {
            let place = &mut self.places[usize::from(index)];
            let position = place.position;
            let buffer = place.buffer.as_mut().expect("every buffer of a bundle was looked at");
            let here = bytes.min(buffer.capacity());
            bytes -= here;
            if bytes == 0 && arrival.keeps_rest {
                // A receive of nothing has used nothing of it.
                if here > 0 {
                    into.push(filled(unlent(buffer.split_to(here)), here));
                }
                break;
            }
            into.extend(place.buffer.take().map(|buffer| filled(unlent(buffer), here)));
            self.vacant.push(index);
            // A bundle may reach one that a failed receive has named: there is no doubt about that any more.
            self.doubtful.retain(|doubtful| *doubtful != index);
            if bytes == 0 {
                break;
            }
            index = self.order_at(position + 1);
        }
        self.settle_doubt(first, named);
        true
    }

    /// Whether the kernel has room for so many bytes from this buffer on.
    fn holds(&self, first: u16, arrival: Arrival, bytes: usize) -> bool {
        let most = if arrival.bundle { self.places.len() } else { 1 };
        let mut index = first;
        let mut room = 0;
        for _ in 0..most {
            let place = &self.places[usize::from(index)];
            let Some(buffer) = &place.buffer else {
                return false;
            };
            room += buffer.capacity();
            // Of a buffer whose rest stays with the kernel something is left.
            if bytes < room || bytes == room && !arrival.keeps_rest {
                return true;
            }
            let next = place.position + 1;
            index = self.order_at(next);
            if self.places[usize::from(index)].position != next {
                return false;
            }
        }
        false
    }

    /// The place whose buffer went in as number `position`, if none has gone in where that was.
    fn order_at(&self, position: u64) -> u16 {
        self.order[(position % self.order.len() as u64) as usize]
    }

    /// A receive has named the buffer that went in as number `position`, and is in this place. Of those that failed ones
    /// named before, what went in before it is not with the kernel any more, because that takes them in order.
    fn settle_doubt(&mut self, named: u16, position: u64) {
        if self.doubtful.is_empty() && self.set_aside.is_empty() {
            return;
        }
        for index in std::mem::take(&mut self.doubtful) {
            let place = &mut self.places[usize::from(index)];
            if index == named {
                continue;
            }
            if place.position > position {
                self.doubtful.push(index);
                continue;
            }
            // Its page need not go back to the registry: it is as good as another one.
            let buffer = place.buffer.take().expect("a doubtful buffer was not taken");
            self.vacant.push(index);
            self.put(unlent(buffer));
        }
        self.prove_gone(position);
    }

    /// What was set aside and went in before number `position` is not with the kernel any more: it is as good as another
    /// one from the registry, and comes before that.
    fn prove_gone(&mut self, position: u64) {
        let gone = self.set_aside.extract_if(.., |(before, _)| *before < position);
        self.spare.extend(gone.map(|(_, buffer)| unlent(buffer)));
        self.put_spare();
    }

    fn put_spare(&mut self) {
        while !self.vacant.is_empty()
            && let Some(buffer) = self.spare.pop()
        {
            self.put(buffer);
        }
    }

    /// The kernel says that it has no buffer, so those in doubt must not keep their places. They stay lent until they are
    /// proved gone: the kernel can have said so before it had them.
    fn set_doubt_aside(&mut self) {
        for index in self.doubtful.drain(..) {
            let place = &mut self.places[usize::from(index)];
            let buffer = place.buffer.take().expect("a doubtful buffer was not taken");
            self.set_aside.push((place.position, buffer));
            self.vacant.push(index);
        }
    }

    /// Somebody waits for a buffer: lease what there is, or stand in the queue for pages.
    fn wait_for_pages(&mut self, registry: &Registry, bytes: usize, returned: &Arc<Returned>) {
        if self.lease.is_some() && !returned.flag.swap(false, Ordering::AcqRel) {
            return;
        }
        if self.lease.is_none() {
            self.refill(registry, bytes);
            if self.turns() > 0 || self.vacant.is_empty() {
                return;
            }
        }
        let mut lease = self.lease.take().unwrap_or_else(|| registry.lease_silent(bytes));
        let waker = Waker::from(Arc::clone(returned));
        match Pin::new(&mut lease).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => self.lease = Some(lease),
            Poll::Ready(Ok(buffer)) => {
                self.put(buffer);
                self.refill(registry, bytes);
            }
            // Checked when the group was made.
            Poll::Ready(Err(error)) => panic!("a size of lent buffers that was checked cannot be leased: {error}"),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.is_with_kernel {
            // I5: shutdown has not taken it back, because the kernel did not let go in time or because it was broken
            // off. Freed, it would be written to by the kernel in somebody else's hands.
            std::mem::forget(Rc::clone(&self.ring));
            for place in &mut self.places {
                std::mem::forget(place.buffer.take());
            }
            std::mem::forget(std::mem::take(&mut self.set_aside));
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("id", &self.id).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
