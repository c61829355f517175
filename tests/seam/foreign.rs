//! Foreign code with hooks: an operation and a waker that call back from wherever the runtime runs them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::Waker;

use cooked_waker::{IntoWaker, Wake, WakeRef};
use ringmain::{Completion, Driver, Encoded, Fd, Operation, Sqe, Submission, Wait, ops};

use super::{config, pipe, poll};

type Hook = Box<dyn FnMut()>;

/// Does nothing, and runs a hook at each of the places where the runtime runs an operation's code.
#[derive(Default)]
pub(super) struct Hooked {
    encode: Option<Hook>,
    decode: Option<Hook>,
    drop: Option<Hook>,
}

impl Hooked {
    pub(super) fn on_encode(mut self, hook: impl FnMut() + 'static) -> Self {
        self.encode = Some(Box::new(hook));
        self
    }

    pub(super) fn on_decode(mut self, hook: impl FnMut() + 'static) -> Self {
        self.decode = Some(Box::new(hook));
        self
    }

    pub(super) fn on_drop(mut self, hook: impl FnMut() + 'static) -> Self {
        self.drop = Some(Box::new(hook));
        self
    }
}

impl Operation for Hooked {
    type Output = io::Result<u32>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        run(&mut self.encode);
        sqe.nop()
    }

    fn decode(mut self, mut completion: Completion) -> Self::Output {
        run(&mut self.decode);
        completion.result()
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        run(&mut self.drop);
    }
}

fn run(hook: &mut Option<Hook>) {
    if let Some(hook) = hook {
        hook();
    }
}

/// A waker whose clone, wake and drop are foreign code. Wakers cross threads, so the hooks are plain functions.
pub(super) struct HookedWaker {
    pub(super) clone: fn(),
    pub(super) wake: fn(),
    pub(super) drop: fn(),
}

impl Default for HookedWaker {
    fn default() -> Self {
        Self { clone: || {}, wake: || {}, drop: || {} }
    }
}

impl HookedWaker {
    pub(super) fn waker(self) -> Waker {
        Box::new(self).into_waker()
    }
}

impl Clone for HookedWaker {
    fn clone(&self) -> Self {
        (self.clone)();
        Self { ..*self }
    }
}

impl WakeRef for HookedWaker {
    fn wake_by_ref(&self) {
        (self.wake)();
    }
}

impl Wake for HookedWaker {}

impl Drop for HookedWaker {
    fn drop(&mut self) {
        (self.drop)();
    }
}

thread_local! {
    static ENTERED: Cell<u32> = const { Cell::new(0) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static ONCE: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// A hook of a test's own has run.
pub(super) fn count_reentry() {
    ENTERED.set(ENTERED.get() + 1);
}

/// How often a hook that calls the driver has run on this thread.
pub(super) fn reentered() -> u32 {
    ENTERED.get()
}

/// What [`run_once`] runs, the next time.
pub(super) fn once(hook: impl FnMut() + 'static) {
    ONCE.set(Some(Box::new(hook)));
}

/// A hook for wakers that does something once.
pub(super) fn run_once() {
    if let Some(mut hook) = ONCE.take() {
        hook();
    }
}

/// Ask everything of the current driver that foreign code can ask, as if nothing were going on.
pub(super) fn reenter() {
    if INSIDE.replace(true) {
        return;
    }
    let driver = Driver::current();
    let counts = (driver.operations_active(), driver.slots_used(), driver.has_queued());
    assert!(counts.0 <= counts.1, "an operation that is active has a slot: {counts:?}");
    driver.fire_timers();
    assert!(driver.next_deadline().is_none_or(|deadline| deadline > driver.now()));
    drop(driver.enter());
    drop(driver.registry().try_lease(1));
    match driver.attempt(Hooked::default()) {
        Ok(done) => assert_eq!(done.unwrap(), 0),
        Err(_played_kernels_would_wait) => {}
    }
    // Start, cancel, drop; and one whose descriptor is closed under it.
    let mut cancelled = ops::nop();
    assert!(poll(&mut cancelled).is_pending());
    cancelled.request_cancel();
    let mut dropped = Submission::new(Hooked::default());
    assert!(poll(&mut dropped).is_pending());
    drop(dropped);
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut hung_up = ops::read(&reader, Vec::with_capacity(1));
    assert!(poll(&mut hung_up).is_pending());
    driver.turn(Wait::No).unwrap();
    drop(reader);
    driver.turn(Wait::No).unwrap();
    INSIDE.set(false);
    count_reentry();
}

/// Run on a ring that completes whatever it is given, and on the kernel's.
pub(super) fn each_ring(attack: impl Fn(&Rc<Driver>)) {
    let (driver, script) = Driver::scripted(&config()).unwrap();
    script.play(|kernel| {
        for pending in kernel.pending() {
            let result = if pending.entry.opcode == super::NOP { 0 } else { -super::ECANCELED };
            kernel.complete(pending.entry.user_data, result);
        }
    });
    {
        let _entered = driver.enter();
        attack(&driver);
    }
    driver.shutdown();
    assert_eq!(driver.operations_active(), 0);
    let driver = Driver::new(&config()).unwrap();
    {
        let _entered = driver.enter();
        attack(&driver);
    }
    driver.shutdown();
    assert_eq!(driver.operations_active(), 0);
}
