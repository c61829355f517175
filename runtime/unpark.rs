//! Waking a ring that sleeps in the kernel, from any thread.
//!
//! The problem: a wake may come while the ring's thread runs tasks, while it decides to sleep, or while it sleeps. None
//! may be lost, and only the last should cost a system call. So the thread announces its sleep in one atomic word, and a
//! waker writes to the eventfd only if it replaced that announcement. The ring keeps a read armed on the eventfd, so the
//! write ends the sleep like any other completion.
//!
//! | state    | the ring's thread                    | `wake` does                                         |
//! |----------|--------------------------------------|-----------------------------------------------------|
//! | awake    | runs; looks at its queues before it sleeps | marks *notified*, no system call              |
//! | asleep   | is about to enter, sleeps, or has just slept | marks *notified* and writes to the eventfd  |
//! | notified | will not sleep before it has looked  | nothing                                             |
//!
//! The rule for wakers: make the work visible first, then `wake`. The rule for the owner: look for work after every
//! `awake` and `stay_awake`, and after every refused `prepare_sleep`. Every transition is a read-modify-write, so the
//! owner acquires what each of the wakers before it released.
//!
//! The plain version takes an announcement back after each sleep: two of those transitions for each turn, most of which
//! nobody wakes from elsewhere. Here an announcement that nobody has answered stands while the owner runs what the sleep
//! has brought, and for the next sleep, which then costs one load. It is taken back when the owner finds that it has more
//! to do than that. The price: a wake from elsewhere in between writes to the eventfd for nothing, at most once for each
//! announcement.
//!
//! This is the one part of the machine that crosses threads (I6).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::completion::Completion;
use super::operation::Operation;
use super::sqe::{Encoded, Sqe};
use sync::{AtomicU8, Ordering};

/// The atomics of the protocol: the standard ones, or loom's when loom explores their interleavings.
mod sync {
    #[cfg(all(loom, test))]
    pub(super) use loom::sync::atomic::{AtomicU8, Ordering};
    #[cfg(not(all(loom, test)))]
    pub(super) use std::sync::atomic::{AtomicU8, Ordering};
}

/// Ends the sleep of one ring, from any thread.
#[derive(Debug)]
pub(crate) struct Unpark {
    state: State,
    /// Blocking on purpose: the kernel answers a ring read of a non-blocking file with EAGAIN instead of waiting
    /// (`O_NONBLOCK` sets `REQ_F_NOWAIT`). A write cannot block: the counter never comes near its limit, for at most
    /// one write follows each announced sleep.
    event: OwnedFd,
}

impl Unpark {
    /// A ring's thread starts awake.
    pub(crate) fn new() -> io::Result<Unpark> {
        Ok(Unpark { state: State::new(), event: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Makes the ring's thread look at its queues: now if it is awake, by ending its sleep if it is not. What it shall
    /// find must be visible before the call.
    ///
    /// # Panics
    /// If the kernel refuses the write, which a working eventfd never does: carrying on would lose the wake.
    pub(crate) fn wake(&self) {
        if self.state.notify() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.event, &1u64.to_ne_bytes()));
            if let Err(error) = written {
                panic!("the eventfd that wakes a sleeping ring refused a write: {error}; check the seccomp filter");
            }
        }
    }

    /// Announces that the owner will sleep, unless it still stands announced. `false`: somebody woke it meanwhile, so look
    /// for work and do not sleep.
    #[inline]
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.state.prepare_sleep()
    }

    /// Whether the owner's sleep stands announced, so that it may sleep without announcing it: as
    /// [`prepare_sleep`](Self::prepare_sleep) does then.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.is_asleep()
    }

    /// The enter is over: sees what wakers have marked. A waker that saw the announcement may still write: the sleep after
    /// this one then ends early, which is harmless.
    #[inline]
    pub(crate) fn awake(&self) {
        self.state.awake();
    }

    /// Takes an announcement back that still stands: the owner will not sleep for now, so a wake need not write.
    #[inline]
    pub(crate) fn stay_awake(&self) {
        self.state.stay_awake();
    }
}

/// What the ring keeps a read armed on: 8 bytes, the count of writes since the last read.
impl AsFd for Unpark {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The read that ends a sleep: armed on the eventfd for as long as the ring lives.
#[derive(Debug)]
pub(crate) struct ReadWakes {
    unpark: Arc<Unpark>,
    count: [u8; 8],
}

impl ReadWakes {
    pub(crate) fn new(unpark: &Arc<Unpark>) -> Self {
        Self { unpark: Arc::clone(unpark), count: [0; 8] }
    }
}

impl Operation for ReadWakes {
    type Output = ();

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.unpark.as_fd(), &mut self.count[..], None)
    }

    fn decode(self, _: Completion) {}
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

/// The protocol without the eventfd, so that loom can explore it.
#[derive(Debug)]
struct State(AtomicU8);

impl State {
    fn new() -> State {
        State(AtomicU8::new(AWAKE))
    }

    /// `true`: the owner sleeps, and this caller alone must end the sleep.
    fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }

    #[inline]
    fn prepare_sleep(&self) -> bool {
        // Whoever answers an announcement that stands writes to the eventfd, and so ends the sleep that comes.
        if self.is_asleep() || self.0.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        self.0.swap(AWAKE, Ordering::AcqRel);
        false
    }

    #[inline]
    fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASLEEP
    }

    #[inline]
    fn awake(&self) {
        if self.0.load(Ordering::Acquire) == NOTIFIED {
            self.0.swap(AWAKE, Ordering::AcqRel);
        }
    }

    #[inline]
    fn stay_awake(&self) {
        if self.0.load(Ordering::Acquire) == ASLEEP {
            self.0.swap(AWAKE, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Reads the eventfd, which blocks until it was written to.
    fn writes(unpark: &Unpark) -> u64 {
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(unpark, &mut count), Ok(8));
        u64::from_ne_bytes(count)
    }

    fn is_written(unpark: &Unpark) -> bool {
        let mut fds = [rustix::event::PollFd::new(unpark, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn a_wake_of_an_awake_ring_writes_nothing_and_forbids_one_sleep() {
        let unpark = Unpark::new().unwrap();
        unpark.wake();
        unpark.wake();
        assert!(!is_written(&unpark));
        assert!(!unpark.prepare_sleep());
        assert!(unpark.prepare_sleep());
    }

    #[test]
    fn many_wakes_of_a_sleeping_ring_write_once() {
        let unpark = Arc::new(Unpark::new().unwrap());
        assert!(unpark.prepare_sleep());
        let wakers: Vec<_> = (0..4)
            .map(|_| {
                let unpark = unpark.clone();
                thread::spawn(move || unpark.wake())
            })
            .collect();
        assert_eq!(writes(&unpark), 1);
        for waker in wakers {
            waker.join().unwrap();
        }
        assert!(!is_written(&unpark));
        unpark.awake();
        assert!(unpark.prepare_sleep());
    }

    #[test]
    fn an_announcement_stands_until_it_is_answered() {
        let unpark = Unpark::new().unwrap();
        assert!(unpark.prepare_sleep());
        unpark.awake();
        assert!(unpark.prepare_sleep());
        unpark.wake();
        assert_eq!(writes(&unpark), 1);
        unpark.awake();
        unpark.wake();
        assert!(!is_written(&unpark), "an answered announcement asks for no second write");
        assert!(!unpark.prepare_sleep());
    }

    #[test]
    fn an_announcement_that_was_taken_back_asks_for_no_write() {
        let unpark = Unpark::new().unwrap();
        assert!(unpark.prepare_sleep());
        unpark.awake();
        unpark.stay_awake();
        unpark.wake();
        assert!(!is_written(&unpark));
        assert!(!unpark.prepare_sleep());
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --lib loom_`
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::State;

    /// The remote queue (a count is enough: entries are never reordered here), the state, and a counter with a condition
    /// variable in the place of the eventfd and the read armed on it.
    struct Model {
        queue: Mutex<usize>,
        woken: AtomicBool,
        state: State,
        event: Mutex<u64>,
        written: Condvar,
    }

    impl Model {
        fn new() -> Arc<Model> {
            Arc::new(Model {
                queue: Mutex::new(0),
                woken: AtomicBool::new(false),
                state: State::new(),
                event: Mutex::new(0),
                written: Condvar::new(),
            })
        }

        fn wake(&self) {
            if self.state.notify() {
                *self.event.lock().unwrap() += 1;
                self.written.notify_one();
            }
        }

        fn push_and_wake(&self) {
            *self.queue.lock().unwrap() += 1;
            self.wake();
        }

        fn flag_and_wake(&self) {
            self.woken.swap(true, Ordering::AcqRel);
            self.wake();
        }

        /// The blocking enter: it has no time limit, so loom reports a lost wake as a deadlock.
        fn sleep(&self) {
            let mut count = self.event.lock().unwrap();
            while *count == 0 {
                count = self.written.wait(count).unwrap();
            }
            *count = 0;
        }

        /// The owner's loop: until `expected` entries and, if `flag`, the flag were seen. As the runtime's, it takes its
        /// announcement back when it has found something to do.
        fn run(&self, expected: usize, flag: bool) {
            let (mut taken, mut flag_seen) = (0, !flag);
            loop {
                let entries = std::mem::take(&mut *self.queue.lock().unwrap());
                taken += entries;
                let flagged = self.woken.load(Ordering::Acquire) && self.woken.swap(false, Ordering::AcqRel);
                flag_seen |= flagged;
                if taken == expected && flag_seen {
                    return;
                }
                if entries > 0 || flagged {
                    self.state.stay_awake();
                    continue;
                }
                if self.state.prepare_sleep() {
                    self.sleep();
                    self.state.awake();
                }
            }
        }
    }

    /// Explores the interleavings of up to three preemptions: beyond that three threads take minutes, and loom's authors
    /// found that nearly every bug shows by then.
    fn explore(run: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(run);
    }

    #[test]
    fn loom_a_push_before_a_wake_is_never_lost() {
        explore(|| {
            let model = Model::new();
            let waker = thread::spawn({
                let model = model.clone();
                move || {
                    model.push_and_wake();
                    model.push_and_wake();
                }
            });
            model.run(2, false);
            waker.join().unwrap();
        });
    }

    #[test]
    fn loom_two_wakers_both_reach_the_owner() {
        explore(|| {
            let model = Model::new();
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let model = model.clone();
                    thread::spawn(move || model.push_and_wake())
                })
                .collect();
            model.run(2, false);
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// A sleep that something else ends, a completion, leaves its announcement standing for the next one.
    #[test]
    fn loom_an_announcement_that_stands_loses_no_wake() {
        explore(|| {
            let model = Model::new();
            assert!(model.state.prepare_sleep());
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let model = model.clone();
                    thread::spawn(move || model.push_and_wake())
                })
                .collect();
            model.state.awake();
            model.run(2, false);
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }

    /// The main future's flag has no lock of its own: it rides on the ordering of the state alone.
    #[test]
    fn loom_a_flag_and_a_push_from_two_threads_are_both_seen() {
        explore(|| {
            let model = Model::new();
            let pusher = thread::spawn({
                let model = model.clone();
                move || model.push_and_wake()
            });
            let flagger = thread::spawn({
                let model = model.clone();
                move || model.flag_and_wake()
            });
            model.run(1, true);
            pusher.join().unwrap();
            flagger.join().unwrap();
        });
    }
}
