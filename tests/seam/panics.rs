//! Panics of foreign code: wherever they come from, the slot is vacant afterwards, the ring has seen nothing that it
//! should not, and everybody else goes on.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Waker;

use futures::StreamExt;
use ringmain::{
    Completion, Driver, Encoded, EncodedMultishot, Fd, FdHold, Multishot, MultishotOperation, MultishotSqe, Operation,
    PollFlags, Sqe, Submission, Wait, ops,
};

use super::foreign::{Hooked, HookedWaker, once, run_once};
use super::*;

fn explode() {
    panic!("boom");
}

#[test]
fn a_panic_in_encode_leaves_the_slot_vacant_and_the_ring_untouched() {
    let (driver, script, _entered) = scripted();
    let dropped = Rc::new(Cell::new(0));
    let count = Rc::clone(&dropped);
    let mut submission =
        Submission::new(Hooked::default().on_encode(explode).on_drop(move || count.set(count.get() + 1)));
    assert_eq!(panic_of(|| drop(poll(&mut submission))), "boom");
    assert_eq!(dropped.get(), 1, "the operation is dropped, once");
    assert_eq!((driver.slots_used(), driver.operations_active(), driver.has_queued()), (0, 0, false));
    driver.turn(Wait::No).unwrap();
    assert!(script.pending().is_empty());
    drop(submission);
    assert_eq!(dropped.get(), 1);
}

#[test]
fn a_panic_in_encode_after_the_entry_was_made_pushes_nothing() {
    struct Late(FdHold, ringmain::Fill<Vec<u8>>);
    impl Operation for Late {
        type Output = ();
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            let _encoded = sqe.read(self.0.as_fd(), &mut self.1, None)?;
            panic!("boom")
        }
        fn decode(self, _: Completion) {}
    }
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let late = || Late(reader.hold(), ringmain::Fill::new(Vec::with_capacity(64)));
    assert_eq!(panic_of(|| assert!(poll(&mut Submission::new(late())).is_ready())), "boom");
    assert_eq!(panic_of(|| assert!(driver.attempt(late()).is_ok())), "boom");
    driver.turn(Wait::No).unwrap();
    assert_eq!((driver.slots_used(), script.pending().len()), (0, 0));
}

#[test]
fn a_panic_in_decode_loses_only_the_output() {
    let (driver, _entered) = kernel();
    let mut submission = Submission::new(Hooked::default().on_decode(explode));
    assert_eq!(panic_of(|| drop(finish(&driver, &mut submission))), "boom");
    assert_eq!(driver.slots_used(), 0);
    assert_eq!(finish(&driver, &mut ops::nop()).ok(), Some(()));
    assert!(panic_of(|| drop(poll(&mut submission))).contains("was polled again"));
}

#[test]
fn a_panic_in_the_drop_of_an_orphan_reaches_the_turn_and_nobody_else() {
    let (driver, script, _entered) = scripted();
    let mut orphan = Submission::new(Hooked::default().on_drop(explode));
    let mut other = ops::nop();
    assert!(poll(&mut orphan).is_pending());
    assert!(poll(&mut other).is_pending());
    driver.turn(Wait::No).unwrap();
    drop(orphan);
    for pending in script.pending() {
        script.complete(pending.entry.user_data, 0);
    }
    assert_eq!(panic_of(|| driver.turn(Wait::No).unwrap()), "boom");
    assert!(poll(&mut other).is_ready());
    assert_eq!(driver.slots_used(), 0);
}

#[test]
fn a_panic_of_a_waker_reaches_the_turn_and_every_other_waker_is_woken() {
    let (driver, script, _entered) = scripted();
    let mut first = ops::nop();
    let mut second = ops::nop();
    assert!(poll_with(&mut first, &HookedWaker { wake: explode, ..HookedWaker::default() }.waker()).is_pending());
    let flag = std::sync::Arc::new(Flag::default());
    assert!(poll_with(&mut second, &Waker::from(std::sync::Arc::clone(&flag))).is_pending());
    driver.turn(Wait::No).unwrap();
    for pending in script.pending() {
        script.complete(pending.entry.user_data, 0);
    }
    assert_eq!(panic_of(|| driver.turn(Wait::No).unwrap()), "boom");
    assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
    assert!(poll(&mut first).is_ready() && poll(&mut second).is_ready());
}

#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);

impl std::task::Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A waker whose `nth` clone from now panics.
fn clone_panics_at(nth: u32) -> Waker {
    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }
    LEFT.set(nth);
    let clone = || {
        LEFT.set(LEFT.get().saturating_sub(1));
        assert!(LEFT.get() != 0, "boom");
        // Those after it are fine again.
    };
    HookedWaker { clone, ..HookedWaker::default() }.waker()
}

#[test]
fn a_panic_in_the_clone_of_a_waker_leaves_no_slot_behind() {
    for nth in 1..4 {
        let (driver, script) = Driver::scripted(&config().operations(1).ring_splices(1)).unwrap();
        let _entered = driver.enter();
        let mut submission = Submission::new(Hooked::default());
        let waker = clone_panics_at(nth);
        let first = catch_unwind(AssertUnwindSafe(|| poll_with(&mut submission, &waker)));
        drop(submission);
        if first.is_err() {
            assert_eq!((driver.slots_used(), driver.has_queued()), (0, false), "clone {nth} panicked");
        }
        settle_scripted(&driver, &script);
        // The one place is free again.
        let mut next = ops::nop();
        assert!(poll(&mut next).is_pending());
        driver.turn(Wait::No).unwrap();
        script.complete(pending(&script, NOP), 0);
        driver.turn(Wait::No).unwrap();
        assert!(poll(&mut next).is_ready(), "clone {nth} panicked");
    }
}

/// Complete whatever the played kernel has, until no slot is used.
fn settle_scripted(driver: &Driver, script: &Script) {
    for _ in 0..8 {
        driver.turn(Wait::No).unwrap();
        for pending in script.pending() {
            script.complete(pending.entry.user_data, -ECANCELED);
        }
    }
    driver.turn(Wait::No).unwrap();
    assert_eq!(driver.slots_used(), 0, "every slot has come back");
}

#[test]
fn a_panic_in_the_clone_of_a_later_waker_still_lets_the_operation_go() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let waker = clone_panics_at(1);
    assert_eq!(panic_of(|| drop(poll_with(&mut read, &waker))), "boom");
    assert!(read.is_in_flight(), "the panic was the waker's, and the read goes on");
    drop(read);
    settle_scripted(&driver, &script);
}

#[test]
fn a_panic_in_the_drop_of_an_earlier_waker_still_lets_the_operation_go() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    {
        // Only the clone that the slot has explodes, and this one is let go of in peace.
        let waker = HookedWaker { drop: run_once, ..HookedWaker::default() }.waker();
        assert!(poll_with(&mut read, &waker).is_pending());
    }
    driver.turn(Wait::No).unwrap();
    once(explode);
    assert_eq!(panic_of(|| drop(poll(&mut read))), "boom");
    assert!(read.is_in_flight());
    drop(read);
    settle_scripted(&driver, &script);
}

#[test]
fn a_panic_of_a_waker_in_the_queue_for_a_slot_leaves_no_place_behind() {
    for hooks in [
        HookedWaker { clone: run_once, ..HookedWaker::default() },
        HookedWaker { drop: run_once, ..HookedWaker::default() },
    ] {
        let (driver, script) = Driver::scripted(&config().operations(1).ring_splices(1)).unwrap();
        let _entered = driver.enter();
        let mut first = ops::nop();
        assert!(poll(&mut first).is_pending());
        let mut waits = Submission::new(Hooked::default());
        let waker = hooks.waker();
        assert!(poll_with(&mut waits, &waker).is_pending());
        once(explode);
        // Polled again in the queue: this clones one waker and drops another.
        let _panicked_or_not = catch_unwind(AssertUnwindSafe(|| poll_with(&mut waits, &waker)));
        let _panicked_or_not = catch_unwind(AssertUnwindSafe(|| poll(&mut waits)));
        let _panicked_or_not = catch_unwind(AssertUnwindSafe(|| drop(waits)));
        run_once_is_used_up();
        drop(first);
        settle_scripted(&driver, &script);
        let mut next = ops::nop();
        assert!(poll(&mut next).is_pending());
        driver.turn(Wait::No).unwrap();
        script.complete(pending(&script, NOP), 0);
        driver.turn(Wait::No).unwrap();
        assert!(poll(&mut next).is_ready(), "the one place is free again");
    }
}

fn run_once_is_used_up() {
    assert!(catch_unwind(run_once).is_ok(), "the hook has run, else this test means nothing");
}

/// A stream that panics where it is told to.
struct Fragile {
    on: FdHold,
    encode: Rc<Cell<bool>>,
    item: Rc<Cell<bool>>,
}

impl MultishotOperation for Fragile {
    type Item = io::Result<u32>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        assert!(!self.encode.get(), "boom");
        sqe.poll(self.on.as_fd(), PollFlags::IN)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        assert!(!self.item.get(), "boom");
        completion.result()
    }
}

#[test]
fn a_panic_in_a_multishot_leaves_no_slot_behind() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let (encode, item) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(true)));
    let new = || Multishot::new(Fragile { on: reader.hold(), encode: Rc::clone(&encode), item: Rc::clone(&item) });
    let mut stream = new();
    assert_eq!(panic_of(|| drop(poll(&mut stream.next()))), "boom");
    assert_eq!((driver.slots_used(), driver.has_queued()), (0, false));
    assert!(matches!(poll(&mut stream.next()), Poll::Ready(None)));

    encode.set(false);
    let mut stream = new();
    assert!(poll(&mut stream.next()).is_pending());
    driver.turn(Wait::No).unwrap();
    let armed = pending(&script, POLL);
    script.complete_with(armed, 1, MORE);
    script.complete_with(armed, 1, MORE);
    driver.turn(Wait::No).unwrap();
    assert_eq!(panic_of(|| drop(poll(&mut stream.next()))), "boom");
    item.set(false);
    assert!(matches!(poll(&mut stream.next()), Poll::Ready(Some(Ok(1)))), "the stream goes on behind the lost item");
    let waker = clone_panics_at(1);
    assert_eq!(panic_of(|| drop(poll_with(&mut stream.next(), &waker))), "boom");
    drop(stream);
    settle_scripted(&driver, &script);
}

#[test]
fn a_panic_when_a_paused_stream_is_armed_again_leaves_no_slot_behind() {
    for broken in ["encode", "waker"] {
        let (driver, script) = Driver::scripted(&config().completions(4096)).unwrap();
        let _entered = driver.enter();
        let (reader, _writer) = pipe();
        let reader = Fd::new(reader);
        let (encode, item) = (Rc::new(Cell::new(false)), Rc::default());
        let mut stream = Multishot::new(Fragile { on: reader.hold(), encode: Rc::clone(&encode), item });
        assert!(poll(&mut stream.next()).is_pending());
        driver.turn(Wait::No).unwrap();
        let armed = pending(&script, POLL);
        for _ in 0..1024 {
            script.complete_with(armed, 1, MORE);
        }
        driver.turn(Wait::No).unwrap();
        driver.turn(Wait::No).unwrap();
        script.complete(armed, -ECANCELED);
        driver.turn(Wait::No).unwrap();
        for _ in 0..1024 {
            assert!(matches!(poll(&mut stream.next()), Poll::Ready(Some(Ok(1)))));
        }
        encode.set(broken == "encode");
        let waker = if broken == "waker" { clone_panics_at(1) } else { Waker::noop().clone() };
        assert_eq!(panic_of(|| drop(poll_with(&mut stream.next(), &waker))), "boom", "{broken}");
        drop(stream);
        settle_scripted(&driver, &script);
    }
}

#[test]
fn a_panic_in_the_drop_of_a_waker_loses_no_page_that_was_granted() {
    let registry = ringmain::Registry::new(1).unwrap();
    for waits in [true, false] {
        let held = waits.then(|| registry.try_lease(1).unwrap());
        let mut lease = registry.lease_many(&[1]);
        assert!(!waits || poll(&mut lease).is_pending());
        drop(held);
        let waker = HookedWaker { drop: explode, ..HookedWaker::default() }.waker();
        assert_eq!(panic_of(|| drop(poll_with(&mut lease, &waker))), "boom");
        std::mem::forget(waker);
        drop(lease);
        assert_eq!((registry.snapshot().pages_free, registry.snapshot().waiting), (1, 0));
    }
}
