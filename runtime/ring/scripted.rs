//! A ring that a test plays: any order, late, short, failing, with a clock of its own.
//!
//! [`Script`] is the test's hand on it. It is as safe as the kernel's ring is: a read can only be completed with
//! bytes that the script really writes, an accept only with a descriptor that it really gives, and nothing that has
//! had its final completion can be completed again, except as the *stray* completion that it then is. A stray one is
//! delivered only while it names nothing in flight. A real kernel does not know the keys of entries it has not been
//! given; a script can guess them, and without that rule an operation would believe it.
#![allow(unsafe_code, reason = "writes into the memory of a read that it completes, as the kernel does")]

mod lent;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lent::{PlayedGroup, RingsRefused};

use super::{Cqe, Wait};
use crate::runtime::abi;
use crate::runtime::entry::Entry;
use crate::runtime::inflight::is_cancel;

/// The driver's side.
#[derive(Debug)]
pub(crate) struct ScriptedRing {
    shared: Rc<RefCell<Shared>>,
}

/// The test's side of a scripted ring.
#[derive(Clone, Debug)]
pub struct Script {
    shared: Rc<RefCell<Shared>>,
}

/// One entry that the played kernel has and has not answered for the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// What was asked.
    pub entry: Entry,
    /// In which place of the order of submission, from 0.
    pub order: u64,
}

/// The part of the kernel, as a test plays it.
type Play = Box<dyn FnMut(&Script)>;

/// A completion on its way to the driver.
#[derive(Clone, Copy, Debug)]
struct Answer {
    cqe: Cqe,
    /// The played kernel had no entry that this could answer.
    is_stray: bool,
}

struct Shared {
    capacity: usize,
    staged: VecDeque<Entry>,
    pending: Vec<Pending>,
    answers: VecDeque<Answer>,
    overflow: VecDeque<Answer>,
    completions: usize,
    order: u64,
    enters: u64,
    now: Rc<Cell<Instant>>,
    failures: VecDeque<i32>,
    take: Option<usize>,
    attempts: VecDeque<i32>,
    /// The rings of buffers that the played kernel was lent, by their numbers.
    groups: BTreeMap<u16, PlayedGroup>,
    /// Zero-copy sends that have had one of their two completions: whether that was the notification.
    halves: BTreeMap<u64, bool>,
    play: Option<Play>,
    /// The tags of the entries of the table that are set.
    tags: BTreeMap<usize, u64>,
    /// Tags of entries that were cleared, while they are held back.
    held_tags: Option<Vec<u64>>,
    /// What the next registrations of memory answer.
    refusal: Option<i32>,
    rings_refused: RingsRefused,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("staged", &self.staged).field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Script {
    /// What the played kernel has been given and still holds, in the order of submission.
    pub fn pending(&self) -> Vec<Pending> {
        self.shared.borrow().pending.clone()
    }

    /// How often the ring was entered.
    pub fn enters(&self) -> u64 {
        self.shared.borrow().enters
    }

    /// Complete an entry with a count or a negated errno, for the last time.
    ///
    /// A read or receive that succeeds is filled with `0xA5` bytes.
    ///
    /// # Panics
    /// If the result is larger than the entry asked for, or if the opcode would have to give a descriptor.
    pub fn complete(&self, user_data: u64, result: i32) {
        self.complete_with(user_data, result, 0);
    }

    /// Complete an entry with completion flags; with `IORING_CQE_F_MORE` the played kernel keeps the entry.
    ///
    /// A zero-copy send has two completions, in whichever order: a notification (`IORING_CQE_F_NOTIF`) that comes before
    /// the result, leaves the entry with the played kernel, and the result is the last one then.
    ///
    /// A `user_data` of nothing that the played kernel has makes a stray completion, which the driver has to recognise.
    ///
    /// # Panics
    /// As for [`complete`](Self::complete). The turn that would deliver a stray completion panics if meanwhile it names
    /// something in flight.
    pub fn complete_with(&self, user_data: u64, result: i32, flags: u32) {
        let mut shared = self.shared.borrow_mut();
        let at = shared.find(user_data);
        if let Some(at) = at {
            let entry = shared.pending[at].entry;
            assert!(
                result < 0 || !creates_descriptor(&entry),
                "this opcode gives a descriptor: use complete_with_descriptor"
            );
            assert_possible(&entry, result);
            fill(&entry, result, 0xA5);
            shared.consume(&entry, result, flags);
        }
        shared.answer(at, Cqe { user_data, result, flags });
    }

    /// Complete a read or receive with these bytes.
    ///
    /// # Panics
    /// If the entry is not one that the kernel fills, or has less room.
    pub fn complete_with_bytes(&self, user_data: u64, bytes: &[u8]) {
        let mut shared = self.shared.borrow_mut();
        let at = shared.find(user_data).expect("only a pending entry can be filled");
        let entry = shared.pending[at].entry;
        assert!(fills(&entry), "opcode {} is not filled by the kernel", entry.opcode);
        let result = i32::try_from(bytes.len()).expect("a read is shorter than 2 GiB");
        assert_possible(&entry, result);
        for (place, byte) in bytes.iter().enumerate() {
            write(&entry, place, *byte);
        }
        shared.answer(Some(at), Cqe { user_data, result, flags: 0 });
    }

    /// Complete an accept or open with a descriptor, which goes to whoever owns the completion.
    ///
    /// # Panics
    /// If the opcode gives no descriptor.
    pub fn complete_with_descriptor(&self, user_data: u64, fd: OwnedFd, flags: u32) {
        let mut shared = self.shared.borrow_mut();
        let at = shared.find(user_data).expect("only a pending entry can be given a descriptor");
        let entry = shared.pending[at].entry;
        assert!(creates_descriptor(&entry), "opcode {} gives no descriptor", entry.opcode);
        shared.answer(Some(at), Cqe { user_data, result: fd.into_raw_fd(), flags });
    }

    /// Let the next enter fail with this errno.
    pub fn fail_enter(&self, errno: i32) {
        self.shared.borrow_mut().failures.push_back(errno);
    }

    /// Let the next enter take only this many entries.
    pub fn take_only(&self, entries: usize) {
        self.shared.borrow_mut().take = Some(entries);
    }

    /// What the next attempts answer, in this order; with none left an attempt answers `-EAGAIN`.
    pub fn answer_attempt(&self, result: i32) {
        self.shared.borrow_mut().attempts.push_back(result);
    }

    /// Let registrations of memory fail with this errno from now on, or succeed again.
    pub fn refuse_memory(&self, errno: Option<i32>) {
        self.shared.borrow_mut().refusal = errno;
    }

    /// Hold back the completions that say that the played kernel has let go of registered memory, or deliver them.
    pub fn hold_memory(&self, holds: bool) {
        let mut shared = self.shared.borrow_mut();
        let held = std::mem::replace(&mut shared.held_tags, holds.then(Vec::new));
        held.into_iter().flatten().for_each(|tag| shared.let_go(tag));
    }

    /// How many entries of the table of registered memory were set one by one and name memory now.
    pub fn entries_set(&self) -> usize {
        self.shared.borrow().tags.len()
    }

    /// Move the clock.
    pub fn advance(&self, by: Duration) {
        let now = &self.shared.borrow().now;
        now.set(now.get() + by);
    }

    /// Play the kernel: called at the end of each enter, to complete what it likes.
    ///
    /// It runs where the kernel would, in the middle of a turn, and has the script to work with. The driver is busy then.
    ///
    /// # Panics
    /// What calls the driver from in there panics, a future that is polled or dropped included.
    pub fn play(&self, play: impl FnMut(&Script) + 'static) {
        let old = self.shared.borrow_mut().play.replace(Box::new(play));
        drop(old);
    }
}

impl ScriptedRing {
    pub(crate) fn new(entries: usize, completions: usize) -> (Self, Script) {
        let shared = Rc::new(RefCell::new(Shared {
            capacity: entries,
            staged: VecDeque::new(),
            pending: Vec::new(),
            answers: VecDeque::new(),
            overflow: VecDeque::new(),
            completions,
            order: 0,
            enters: 0,
            now: Rc::new(Cell::new(Instant::now())),
            failures: VecDeque::new(),
            take: None,
            attempts: VecDeque::new(),
            groups: BTreeMap::new(),
            halves: BTreeMap::new(),
            play: None,
            tags: BTreeMap::new(),
            held_tags: None,
            refusal: None,
            rings_refused: RingsRefused::default(),
        }));
        (Self { shared: Rc::clone(&shared) }, Script { shared })
    }

    pub(crate) fn space(&self) -> usize {
        let shared = self.shared.borrow();
        shared.capacity - shared.staged.len()
    }

    pub(crate) fn staged(&self) -> usize {
        self.shared.borrow().staged.len()
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        let mut shared = self.shared.borrow_mut();
        assert!(shared.staged.len() < shared.capacity, "an entry was pushed into a full queue");
        shared.staged.push_back(entry);
    }

    pub(crate) fn attempt(&mut self, entry: &Entry) -> i32 {
        let result = self.shared.borrow_mut().attempts.pop_front().unwrap_or(-libc::EAGAIN);
        assert!(result < 0 || !creates_descriptor(entry), "a scripted attempt gives no descriptor");
        assert_possible(entry, result);
        fill(entry, result, 0xA5);
        result
    }

    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<usize> {
        let mut shared = self.shared.borrow_mut();
        shared.enters += 1;
        if let Some(errno) = shared.failures.pop_front() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let offered = shared.staged.len();
        let count = shared.take.take().unwrap_or(usize::MAX).min(offered);
        for _ in 0..count {
            let entry = shared.staged.pop_front().expect("counted above");
            let key = entry.user_data;
            let is_new = is_cancel(key) || shared.pending.iter().all(|other| other.entry.user_data != key);
            assert!(is_new, "the kernel has an entry of user_data {key} already: whose would the next answer be?");
            let order = shared.order;
            shared.order += 1;
            shared.pending.push(Pending { entry, order });
        }
        while shared.answers.len() < shared.completions
            && let Some(answer) = shared.overflow.pop_front()
        {
            shared.answers.push_back(answer);
        }
        let play = shared.play.take();
        drop(shared);
        if let Some(mut play) = play {
            play(&Script { shared: Rc::clone(&self.shared) });
            let mut shared = self.shared.borrow_mut();
            // One that was put in its place meanwhile stays; this one is dropped when nothing is borrowed.
            let old = if shared.play.is_none() { shared.play.replace(play) } else { Some(play) };
            drop(shared);
            drop(old);
        }
        let shared = self.shared.borrow();
        // As `io_uring_enter(2)`: an enter that took less than it was offered does not wait.
        if let Wait::Until(limit) = wait
            && count == offered
            && shared.answers.is_empty()
        {
            let limit = limit.expect("the script sleeps for ever: it has nothing to deliver and no timer is set");
            shared.now.set(shared.now.get() + limit);
        }
        Ok(count)
    }

    pub(crate) fn reap(&mut self) -> Option<Cqe> {
        let mut shared = self.shared.borrow_mut();
        let Answer { cqe, is_stray } = shared.answers.pop_front()?;
        assert!(
            !is_stray || !shared.is_in_flight(cqe.user_data),
            "the script completed user_data {} before it was submitted, or once more after its end: believing that \
             would show bytes that nobody wrote",
            cqe.user_data
        );
        Some(cqe)
    }

    pub(crate) fn register(&mut self, _entries: usize) -> io::Result<()> {
        self.shared.borrow().refuse()
    }

    pub(crate) fn set_entry(&mut self, index: usize, tag: u64) -> io::Result<()> {
        let mut shared = self.shared.borrow_mut();
        shared.refuse()?;
        let old = shared.tags.insert(index, tag);
        assert!(old.is_none(), "the entry {index} of the table names memory already");
        Ok(())
    }

    pub(crate) fn clear_entry(&mut self, index: usize) {
        let mut shared = self.shared.borrow_mut();
        let tag = shared.tags.remove(&index).expect("an entry that is cleared names memory");
        shared.let_go(tag);
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.shared.borrow().answers.is_empty()
    }

    pub(crate) fn more_work(&self) -> bool {
        !self.shared.borrow().overflow.is_empty()
    }

    pub(crate) fn now(&self) -> Instant {
        self.shared.borrow().now.get()
    }

    pub(crate) fn clock(&self) -> impl Fn() -> Instant + use<> {
        let now = Rc::clone(&self.shared.borrow().now);
        move || now.get()
    }
}

impl Shared {
    fn refuse(&self) -> io::Result<()> {
        self.refusal.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// The memory of a cleared entry is let go of: the completion with its tag comes, unless it is held back.
    fn let_go(&mut self, tag: u64) {
        match &mut self.held_tags {
            Some(held) => held.push(tag),
            None if tag == 0 => {}
            None => self.answer(None, Cqe { user_data: tag, result: 0, flags: 0 }),
        }
    }

    /// Where the entry of this key is among those that the played kernel holds.
    fn find(&self, user_data: u64) -> Option<usize> {
        let at = self.pending.iter().position(|pending| pending.entry.user_data == user_data);
        let staged = || self.staged.iter().any(|entry| entry.user_data == user_data);
        assert!(at.is_some() || !staged(), "the played kernel has not been given this entry yet; enter the ring first");
        at
    }

    /// Answer the entry at this place, and let go of it unless it goes on.
    fn answer(&mut self, at: Option<usize>, cqe: Cqe) {
        if let Some(at) = at
            && !self.goes_on(at, cqe)
        {
            self.pending.remove(at);
        }
        let answer = Answer { cqe, is_stray: at.is_none() };
        if self.answers.len() < self.completions && self.overflow.is_empty() {
            self.answers.push_back(answer);
        } else {
            self.overflow.push_back(answer);
        }
    }

    /// Whether another completion of this entry is to come.
    fn goes_on(&mut self, at: usize, cqe: Cqe) -> bool {
        let more = cqe.flags & abi::MORE != 0;
        if !matches!(self.pending[at].entry.opcode, abi::SEND_ZC | abi::SENDMSG_ZC) {
            return more;
        }
        let is_notification = cqe.flags & abi::NOTIFICATION != 0;
        let goes_on = match self.halves.get(&cqe.user_data) {
            None => more || is_notification,
            // Of two notifications, which a kernel does not post, the first counts.
            Some(true) => is_notification,
            Some(false) => more,
        };
        if goes_on {
            self.halves.entry(cqe.user_data).or_insert(is_notification);
        } else {
            self.halves.remove(&cqe.user_data);
        }
        goes_on
    }

    /// Whether an operation waits for a completion of this key. Nobody waits for those of cancels.
    fn is_in_flight(&self, user_data: u64) -> bool {
        if is_cancel(user_data) {
            return false;
        }
        let held = self.staged.iter().chain(self.pending.iter().map(|pending| &pending.entry));
        let answers = self.answers.iter().chain(&self.overflow).filter(|answer| !answer.is_stray);
        held.map(|entry| entry.user_data).chain(answers.map(|answer| answer.cqe.user_data)).any(|key| key == user_data)
    }
}

fn creates_descriptor(entry: &Entry) -> bool {
    matches!(entry.opcode, abi::ACCEPT | abi::OPENAT)
}

fn fills(entry: &Entry) -> bool {
    entry.flags & abi::BUFFER_SELECT == 0
        && matches!(entry.opcode, abi::READ | abi::READ_FIXED | abi::RECV | abi::READV | abi::READV_FIXED)
}

/// The most that a transfer can bring, in bytes; `None` for what is not one.
fn room(entry: &Entry) -> Option<usize> {
    match entry.opcode {
        _ if entry.flags & abi::BUFFER_SELECT != 0 => None,
        abi::READ | abi::READ_FIXED | abi::RECV | abi::WRITE | abi::WRITE_FIXED => Some(entry.len as usize),
        abi::SEND | abi::SEND_ZC | abi::SPLICE | abi::TEE => Some(entry.len as usize),
        _ if has_vectors(entry) => Some((0..entry.len as usize).map(|index| vector(entry, index).iov_len).sum()),
        _ => None,
    }
}

/// A kernel that lies about counts is not played: it would have operations show bytes that nobody wrote.
fn assert_possible(entry: &Entry, result: i32) {
    if let (Some(room), Ok(count)) = (room(entry), usize::try_from(result)) {
        assert!(count <= room, "a transfer of {room} bytes cannot bring more, and this one would bring {count}");
    }
}

/// Make a successful result of a filling opcode true.
fn fill(entry: &Entry, result: i32, byte: u8) {
    if !fills(entry) {
        return;
    }
    for at in 0..usize::try_from(result).unwrap_or(0) {
        write(entry, at, byte);
    }
}

/// Write the byte at this place of the region, or of the regions, of an entry.
fn write(entry: &Entry, mut at: usize, byte: u8) {
    if !has_vectors(entry) {
        assert!(at < entry.len as usize, "a read of {} bytes cannot bring more", entry.len);
        let place = ptr::with_exposed_provenance_mut::<u8>(entry.addr as usize).wrapping_add(at);
        // SAFETY: I1. The entry is pending, or being attempted: its operation is held in its body, or borrowed, and
        // lends `len` writable bytes at `addr`; or it stands for a buffer of a lent ring that nobody was told of yet,
        // which its group keeps. `at` is below `len` (asserted). Guarded by `a_scripted_read_fills_the_buffer` and
        // `a_played_kernel_fills_the_buffers_that_it_was_lent`.
        unsafe { place.write(byte) };
        return;
    }
    for index in 0..entry.len as usize {
        let vector = vector(entry, index);
        if at < vector.iov_len {
            let place = vector.iov_base.cast::<u8>().wrapping_add(at);
            // SAFETY: I1. As above; `at` is below the length of this region. Guarded by
            // `a_scripted_readv_fills_the_buffers_in_order`.
            unsafe { place.write(byte) };
            return;
        }
        at -= vector.iov_len;
    }
    panic!("a vectored read cannot bring more than its regions hold");
}

fn has_vectors(entry: &Entry) -> bool {
    matches!(entry.opcode, abi::READV | abi::WRITEV | abi::READV_FIXED | abi::WRITEV_FIXED)
}

/// One of the vectors of a vectored entry that is pending, or being attempted.
fn vector(entry: &Entry, index: usize) -> libc::iovec {
    assert!(has_vectors(entry), "opcode {} has no vectors", entry.opcode);
    assert!(index < entry.len as usize, "an entry of {} vectors has none at {index}", entry.len);
    let place = ptr::with_exposed_provenance::<libc::iovec>(entry.addr as usize).wrapping_add(index);
    // SAFETY: I1. The frame, which the body holds or the attempt borrows, keeps `len` vectors at `addr` for as long as
    // the entry is pending; `index` is below `len` (asserted). Guarded by `a_scripted_readv_fills_the_buffers_in_order`.
    unsafe { place.read() }
}
