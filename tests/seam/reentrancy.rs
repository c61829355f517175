//! Foreign code never runs while the driver is borrowed: each kind of it calls back into the driver.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use futures::StreamExt;
use ringmain::{
    Completion, Driver, Encoded, EncodedMultishot, Fd, Fill, Multishot, MultishotOperation, MultishotSqe, Operation,
    PollFlags, Runtime, Sqe, Submission, Wait, ops,
};
use std::os::fd::AsFd;

use super::foreign::{Hooked, HookedWaker, each_ring, once, reenter, reentered, run_once};
use super::*;

/// Whether the attack ran foreign code at all: a hook that never runs proves nothing.
fn reenters(attack: impl FnOnce()) {
    let before = reentered();
    attack();
    assert!(reentered() > before, "the hook has to run for this test to mean anything");
}

#[test]
fn encode_may_call_the_driver() {
    each_ring(|driver| {
        reenters(|| {
            let mut submission = Submission::new(Hooked::default().on_encode(reenter));
            assert_eq!(finish(driver, &mut submission).unwrap(), 0);
        });
    });
}

#[test]
fn encode_of_an_attempt_may_call_the_driver_and_attempt_again() {
    each_ring(|driver| {
        reenters(|| {
            let attempted = driver.attempt(Hooked::default().on_encode(reenter));
            assert!(attempted.map_or(true, |done| done.is_ok()));
        });
    });
}

#[test]
fn decode_may_call_the_driver() {
    each_ring(|driver| {
        reenters(|| {
            let mut submission = Submission::new(Hooked::default().on_decode(reenter));
            assert_eq!(finish(driver, &mut submission).unwrap(), 0);
        });
    });
}

#[test]
fn the_drop_of_an_operation_may_call_the_driver_at_every_moment() {
    let hooked = || Submission::new(Hooked::default().on_drop(reenter));
    each_ring(|driver| {
        // Fresh, queued, with the kernel, done.
        reenters(|| drop(hooked()));
        reenters(|| {
            let mut queued = hooked();
            assert!(poll(&mut queued).is_pending());
            drop(queued);
        });
        reenters(|| {
            let mut orphaned = hooked();
            assert!(poll(&mut orphaned).is_pending());
            driver.turn(Wait::No).unwrap();
            drop(orphaned);
            settle(driver);
        });
        reenters(|| {
            let mut done = hooked();
            assert!(poll(&mut done).is_pending());
            driver.turn(Wait::Until(Some(HANG))).unwrap();
            drop(done);
        });
    });
}

#[test]
fn the_drop_of_an_operation_may_call_the_driver_while_it_shuts_down() {
    each_ring(|driver| {
        reenters(|| {
            let (reader, _writer) = pipe();
            let reader = Fd::new(reader);
            struct Held(#[expect(dead_code, reason = "what matters is its drop")] Hooked, FdHold);
            use ringmain::FdHold;
            impl Operation for Held {
                type Output = ();
                fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
                    sqe.poll(self.1.as_fd(), PollFlags::IN)
                }
                fn decode(self, _: Completion) {}
            }
            let hooked = Hooked::default().on_drop(reenter_closed);
            let mut waiting = Submission::new(Held(hooked, reader.hold()));
            assert!(poll(&mut waiting).is_pending());
            driver.turn(Wait::No).unwrap();
            drop(waiting);
            driver.shutdown();
        });
    });

    /// After shutdown has begun nothing can be started, and asking must be harmless.
    fn reenter_closed() {
        let driver = Driver::current();
        driver.shutdown();
        driver.turn(Wait::No).unwrap();
        if driver.operations_active() == 0 {
            assert_eq!(finish(&driver, &mut ops::nop()).unwrap_err().raw_os_error(), Some(ECANCELED));
        }
        foreign::count_reentry();
    }
}

#[test]
fn clone_wake_and_drop_of_a_waker_may_call_the_driver() {
    each_ring(|driver| {
        for hooks in [
            HookedWaker { clone: reenter, ..HookedWaker::default() },
            HookedWaker { wake: reenter, ..HookedWaker::default() },
            HookedWaker { drop: reenter, ..HookedWaker::default() },
        ] {
            let waker = hooks.waker();
            let mut submission = Submission::new(Hooked::default());
            reenters(|| {
                while poll_with(&mut submission, &waker).is_pending() {
                    // The second poll finds another waker, and the third this one again.
                    if poll(&mut submission).is_ready() {
                        break;
                    }
                    if poll_with(&mut submission, &waker).is_ready() {
                        break;
                    }
                    driver.turn(Wait::Until(Some(HANG))).unwrap();
                }
                drop(waker);
            });
        }
    });
}

#[test]
fn a_waker_that_waits_for_a_slot_may_call_the_driver() {
    let (driver, script) = Driver::scripted(&config().operations(1).ring_splices(1)).unwrap();
    let _entered = driver.enter();
    let mut first = ops::nop();
    assert!(poll(&mut first).is_pending());
    let mut second = Submission::new(Hooked::default());
    let all = HookedWaker { clone: look, wake: look, drop: look }.waker();
    assert!(poll_with(&mut second, &all).is_pending());
    assert!(poll_with(&mut second, &all).is_pending(), "its place in the queue takes another waker");
    driver.turn(Wait::No).unwrap();
    script.complete(pending(&script, NOP), 0);
    reenters(|| driver.turn(Wait::No).unwrap());
    assert!(poll(&mut first).is_ready());
    assert!(poll_with(&mut second, &all).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(pending(&script, NOP), 0);
    driver.turn(Wait::No).unwrap();
    assert!(poll(&mut second).is_ready());
    reenters(|| drop(all));

    fn look() {
        let driver = Driver::current();
        driver.turn(Wait::No).unwrap();
        assert!(driver.operations_active() <= driver.slots_used());
        foreign::count_reentry();
    }
}

#[test]
fn the_last_handle_may_go_inside_of_encode() {
    each_ring(|driver| {
        let (reader, _writer) = pipe();
        let reader = Fd::new(reader);
        let mut waiting = take(&reader, 8);
        assert!(poll(&mut waiting).is_pending());
        driver.turn(Wait::No).unwrap();
        let mut handle = Some(reader);
        let mut submission = Submission::new(Hooked::default().on_encode(move || drop(handle.take())));
        assert_eq!(finish(driver, &mut submission).unwrap(), 0);
        let (result, _bytes) = finish(driver, &mut waiting);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(ECANCELED));
    });
}

/// Two reads in one, by an iterator that calls back.
struct Vectored(ringmain::FdHold, [Fill<Vec<u8>>; 2]);

impl Operation for Vectored {
    type Output = (io::Result<usize>, Vec<Vec<u8>>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.readv(self.0.as_fd(), self.1.iter_mut().inspect(|_| reenter()), None)
    }

    fn decode(self, completion: Completion) -> Self::Output {
        Fill::finish_all(self.1.into_iter().inspect(|_| reenter()), completion)
    }
}

#[test]
fn an_iterator_of_vectors_may_call_the_driver() {
    each_ring(|driver| {
        reenters(|| {
            let (reader, writer) = pipe();
            rustix::io::write(&writer, b"abcdef").unwrap();
            let reader = Fd::new(reader);
            let fills = [4, 4].map(|capacity| Fill::new(Vec::with_capacity(capacity)));
            let mut submission = Submission::new(Vectored(reader.hold(), fills));
            let (result, parts) = finish(driver, &mut submission);
            // The played kernel cancels what is not a NOP.
            if result.is_ok() {
                assert_eq!(parts, [b"abcd".to_vec(), b"ef".to_vec()]);
            }
        });
    });
}

/// Connections without end, with hooks.
struct Connections {
    listener: ringmain::FdHold,
    refuse: Rc<Cell<bool>>,
    item: fn(),
}

impl MultishotOperation for Connections {
    type Item = io::Result<u32>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        if self.refuse.get() {
            return Err(io::Error::other("not again"));
        }
        sqe.poll(self.listener.as_fd(), PollFlags::IN)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        (self.item)();
        completion.result()
    }
}

#[test]
fn an_item_may_call_the_driver() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let operation = Connections { listener: reader.hold(), refuse: Rc::default(), item: turn };
    let mut stream = Multishot::new(operation);
    assert!(poll(&mut stream.next()).is_pending());
    driver.turn(Wait::No).unwrap();
    let armed = pending(&script, POLL);
    script.complete_with(armed, 1, MORE);
    script.complete_with(armed, 1, 0);
    driver.turn(Wait::No).unwrap();
    reenters(|| {
        assert!(matches!(poll(&mut stream.next()), Poll::Ready(Some(Ok(1)))));
        assert!(matches!(poll(&mut stream.next()), Poll::Ready(Some(Ok(1)))));
    });
    assert!(matches!(poll(&mut stream.next()), Poll::Ready(None)));
    assert_eq!(driver.slots_used(), 0);

    fn turn() {
        Driver::current().turn(Wait::No).unwrap();
        foreign::count_reentry();
    }
}

#[test]
fn a_waker_that_came_between_may_call_the_driver_when_its_stream_ends() {
    // The narrowest way in: the stream is full and paused, its end is reaped by the very clone of the waker that is to
    // wait for it, and describing it again is refused.
    let (driver, script) = Driver::scripted(&config().completions(4096)).unwrap();
    let _entered = driver.enter();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let refuse = Rc::new(Cell::new(false));
    let mut stream = Multishot::new(Connections { listener: reader.hold(), refuse: Rc::clone(&refuse), item: || {} });
    assert!(poll(&mut stream.next()).is_pending());
    driver.turn(Wait::No).unwrap();
    let armed = pending(&script, POLL);
    let full = 1024;
    for _ in 0..full {
        script.complete_with(armed, 1, MORE);
    }
    driver.turn(Wait::No).unwrap();
    driver.turn(Wait::No).unwrap();
    assert_eq!(script.pending().len(), 2, "it was paused by a cancel");
    for _ in 0..full {
        assert!(matches!(poll(&mut stream.next()), Poll::Ready(Some(Ok(1)))));
    }
    once(move || {
        script.complete(armed, -ECANCELED);
        Driver::current().turn(Wait::No).unwrap();
    });
    refuse.set(true);
    let waker = HookedWaker { clone: run_once, drop: reenter, ..HookedWaker::default() }.waker();
    reenters(|| match poll_with(&mut stream.next(), &waker) {
        Poll::Ready(Some(Err(error))) => assert_eq!(error.to_string(), "not again"),
        other => panic!("the refusal is the last item: {other:?}"),
    });
    assert!(matches!(poll(&mut stream.next()), Poll::Ready(None)));
}

/// Listens to the log, and asks everybody about everything.
struct Listener;

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        if let Some(driver) = Driver::try_current() {
            assert!(driver.operations_active() <= driver.slots_used());
            driver.turn(Wait::No).unwrap();
            driver.shutdown();
            assert!(driver.registry().snapshot().pages_total > 0 && !driver.registry().is_registered());
            foreign::count_reentry();
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn who_listens_to_the_log_may_call_the_driver() {
    tracing::subscriber::with_default(Listener, || {
        // A completion that names nothing, and an operation that the kernel keeps at shutdown.
        let config = config().shutdown_timeout(std::time::Duration::from_millis(1));
        let (driver, script) = Driver::scripted(&config).unwrap();
        let _entered = driver.enter();
        let (reader, _writer) = pipe();
        let reader = Fd::new(reader);
        let mut kept = take(&reader, 8);
        assert!(poll(&mut kept).is_pending());
        driver.turn(Wait::No).unwrap();
        script.complete(1 << 40, 0);
        reenters(|| driver.turn(Wait::No).unwrap());
        assert_eq!(driver.metrics().stale.get(), 1);
    });
}

#[test]
fn a_play_that_owns_handles_and_futures_goes_with_its_ring() {
    let (driver, script, entered) = scripted();
    let (reader, _writer) = pipe();
    let (reader, done) = (Fd::new(reader), Hooked::default().on_drop(foreign::count_reentry));
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    let never_started = Submission::new(done);
    script.play(move |kernel| {
        let _kept = (&reader, &never_started);
        for pending in kernel.pending() {
            kernel.complete(pending.entry.user_data, -ECANCELED);
        }
    });
    drop(script);
    reenters(|| driver.shutdown());
    drop((entered, driver));
    let Poll::Ready((result, _bytes)) = poll(&mut read) else { panic!("its runtime has finished it") };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(ECANCELED));
}

#[test]
fn a_waker_whose_drop_wakes_ends_the_sleep_that_is_about_to_begin() {
    let runtime = Runtime::builder().config(config()).build().unwrap();
    let woken = Rc::new(Cell::new(false));
    runtime.block_on(async {
        let mut sleep = ringmain::sleep(HANG);
        let mut nop = ops::nop();
        let mut has_begun = false;
        poll_fn(|cx| {
            if !has_begun {
                has_begun = true;
                // Nothing but the runtime keeps this waker, once the operation is done: it goes before the next sleep.
                let waker = HookedWaker { drop: run_once, ..HookedWaker::default() }.waker();
                assert!(poll_with(&mut nop, &waker).is_pending());
                drop(waker);
                let (main, woken) = (cx.waker().clone(), Rc::clone(&woken));
                once(move || {
                    woken.set(true);
                    main.wake_by_ref();
                });
            }
            assert!(Pin::new(&mut sleep).poll(cx).is_pending(), "it slept; woken before: {}", woken.get());
            if woken.get() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        nop.await.unwrap();
    });
}
