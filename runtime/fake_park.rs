//! Drivers without a ring, for the tests of the executor and the timers.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::block_on::{Park, Runtime};
use super::ring::Wait;
use super::time::Timers;
use super::unpark::Unpark;

/// What a panic said.
pub(super) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast::<&str>().map(|text| text.to_string()).unwrap(),
    }
}

/// Sleeps in `poll` on the eventfd, where the ring would sleep in an enter with a read armed on it.
pub(super) struct EventPark {
    unpark: Arc<Unpark>,
    pub(super) turns: Cell<u64>,
    pub(super) is_shut_down: Cell<bool>,
    timers: Rc<Timers>,
}

/// Only there to end a test in which a wake was lost.
const HANG: Duration = Duration::from_secs(120);

impl EventPark {
    pub(super) fn new() -> Rc<EventPark> {
        Rc::new(EventPark {
            unpark: Arc::new(Unpark::new().unwrap()),
            turns: Cell::new(0),
            is_shut_down: Cell::new(false),
            timers: Rc::new(Timers::new(Instant::now)),
        })
    }

    pub(super) fn runtime() -> Runtime {
        Runtime::with_park(EventPark::new(), 64)
    }
}

impl Park for EventPark {
    fn turn(&self, wait: Wait) -> io::Result<()> {
        self.turns.set(self.turns.get() + 1);
        let limit = match wait {
            Wait::No => Duration::ZERO,
            Wait::Until(limit) => limit.unwrap_or(HANG).min(HANG),
        };
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&self.unpark, PollFlags::IN)], Some(&limit))?;
        if ready == 0 {
            assert_ne!(wait, Wait::Until(None), "nothing woke this runtime for {HANG:?}: a wake was lost");
            return Ok(());
        }
        rustix::io::read(&self.unpark, &mut [0; 8])?;
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    fn unpark(&self) -> &Arc<Unpark> {
        &self.unpark
    }

    fn shutdown(&self) {
        assert!(!self.is_shut_down.replace(true), "a driver is shut down once");
    }
}

/// A clock that a test plays: it stands still, except that a sleep is over at once and has taken its full time.
pub(super) struct ScriptedPark {
    unpark: Arc<Unpark>,
    now: Rc<Cell<Instant>>,
    timers: Rc<Timers>,
    /// What each turn was told, in order.
    pub(super) waits: RefCell<Vec<Wait>>,
}

impl ScriptedPark {
    pub(super) fn new() -> Rc<ScriptedPark> {
        let now = Rc::new(Cell::new(Instant::now()));
        let clock = now.clone();
        Rc::new(ScriptedPark {
            unpark: Arc::new(Unpark::new().unwrap()),
            now,
            timers: Rc::new(Timers::new(move || clock.get())),
            waits: RefCell::default(),
        })
    }

    pub(super) fn is_eventfd_written(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.unpark, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    pub(super) fn advance(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }
}

impl Park for ScriptedPark {
    fn turn(&self, wait: Wait) -> io::Result<()> {
        self.waits.borrow_mut().push(wait);
        match wait {
            Wait::No => {}
            Wait::Until(Some(time)) => self.advance(time),
            Wait::Until(None) => return Err(io::Error::other("the script would sleep forever")),
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        self.now.get()
    }

    fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    fn unpark(&self) -> &Arc<Unpark> {
        &self.unpark
    }

    fn shutdown(&self) {}
}
