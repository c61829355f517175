//! Runtimes: the wrong one, a nested one, one that is gone, one that goes while its own code runs.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use futures::StreamExt;
use ringmain::{Driver, Fd, Multishot, Runtime, Submission, Wait, ops};

use super::foreign::Hooked;
use super::*;

#[test]
fn an_operation_awaited_on_another_ring_says_so_and_is_not_lost() {
    let (mine, script) = Driver::scripted(&config()).unwrap();
    let (other, _other_script) = Driver::scripted(&config()).unwrap();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    {
        let _entered = mine.enter();
        assert!(poll(&mut read).is_pending());
        mine.turn(Wait::No).unwrap();
    }
    {
        let _entered = other.enter();
        assert!(panic_of(|| drop(poll(&mut read))).contains("started in another ringmain runtime"));
        assert_eq!(other.slots_used(), 0);
    }
    let _entered = mine.enter();
    assert!(read.is_in_flight(), "it is still where it was started");
    script.complete_with_bytes(pending(&script, READ), b"mine");
    assert_eq!(finish(&mine, &mut read).1, b"mine");
}

#[test]
fn an_operation_that_waits_for_a_slot_elsewhere_says_so_too() {
    let (mine, script) = Driver::scripted(&config().operations(1).ring_splices(1)).unwrap();
    let (other, _other_script) = Driver::scripted(&config()).unwrap();
    let entered = mine.enter();
    let (mut first, mut second) = (ops::nop(), ops::nop());
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    drop(entered);
    {
        let _entered = other.enter();
        assert!(panic_of(|| drop(poll(&mut second))).contains("started in another ringmain runtime"));
    }
    let _entered = mine.enter();
    mine.turn(Wait::No).unwrap();
    script.complete(pending(&script, NOP), 0);
    assert!(finish(&mine, &mut first).is_ok());
    assert!(poll(&mut second).is_pending());
    mine.turn(Wait::No).unwrap();
    script.complete(pending(&script, NOP), 0);
    assert!(finish(&mine, &mut second).is_ok());
}

#[test]
fn a_handle_may_be_used_on_any_ring_of_its_thread() {
    let (first, entered) = kernel();
    let (reader, writer) = pipe();
    let (reader, writer) = (Fd::new(reader), Fd::new(writer));
    finish(&first, &mut ops::write(&writer, b"one".to_vec())).0.unwrap();
    drop(entered);
    let (second, _entered) = kernel();
    let (result, bytes) = finish(&second, &mut ops::read(&reader, Vec::with_capacity(8)));
    assert_eq!((result.unwrap(), &bytes[..]), (3, &b"one"[..]));
    // Its last handle ends what is pending on every ring.
    let mut waits = ops::read(&reader, Vec::with_capacity(8));
    assert!(poll(&mut waits).is_pending());
    second.turn(Wait::No).unwrap();
    drop(reader);
    assert_eq!(finish(&second, &mut waits).0.unwrap_err().raw_os_error(), Some(ECANCELED));
}

#[test]
fn a_nested_block_on_panics_and_the_outer_one_goes_on() {
    let outer = Runtime::new().unwrap();
    let inner = Runtime::new().unwrap();
    outer.block_on(async {
        assert!(panic_of(|| inner.block_on(async {})).contains("inside of a runtime"));
        ops::nop().await.unwrap();
    });
    // And from inside of encode.
    let mut inner = Some(inner);
    let nested = Hooked::default().on_encode(move || {
        let inner = inner.take().expect("encoded once");
        assert!(panic_of(|| inner.block_on(async {})).contains("inside of a runtime"));
    });
    assert_eq!(outer.block_on(Submission::new(nested)).unwrap(), 0);
}

#[test]
fn a_runtime_may_be_built_and_dropped_inside_of_encode() {
    let (driver, _entered) = kernel();
    let nested = Hooked::default().on_encode(|| {
        let (inner, _inner_entered) = kernel();
        assert!(finish(&inner, &mut ops::nop()).is_ok());
    });
    assert_eq!(finish(&driver, &mut Submission::new(nested)).unwrap(), 0);
    assert_eq!(Driver::current().setup().entries(), driver.setup().entries());
    assert!(finish(&driver, &mut ops::nop()).is_ok());
}

#[test]
fn a_future_that_outlives_its_runtime_resolves() {
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut in_flight = take(&reader, 8);
    let mut never_polled = take(&reader, 8);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        assert!(poll(&mut in_flight).is_pending());
        ops::nop().await.unwrap();
    });
    drop(runtime);
    let Poll::Ready((result, buffer)) = poll(&mut in_flight) else { panic!("its runtime has finished it") };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(ECANCELED));
    assert_eq!((buffer.len(), buffer.capacity()), (0, 8));
    assert!(panic_of(|| drop(poll(&mut never_polled))).contains("no ringmain runtime is running"));
}

#[test]
fn a_stream_and_a_waiting_place_outlive_their_runtime() {
    let driver = Driver::new(&config().operations(1).ring_splices(1)).unwrap();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let entered = driver.enter();
    struct Ready(ringmain::FdHold);
    impl ringmain::MultishotOperation for Ready {
        type Item = std::io::Result<u32>;
        fn encode<'op>(
            &'op self,
            sqe: ringmain::MultishotSqe<'op>,
        ) -> std::io::Result<ringmain::EncodedMultishot<'op>> {
            sqe.poll(self.0.as_fd(), ringmain::PollFlags::IN)
        }
        fn item(&self, mut completion: Completion) -> Self::Item {
            completion.result()
        }
    }
    let mut stream = Multishot::new(Ready(reader.hold()));
    let mut waits = ops::nop();
    assert!(poll(&mut stream.next()).is_pending());
    assert!(poll(&mut waits).is_pending());
    driver.turn(Wait::No).unwrap();
    driver.shutdown();
    drop(entered);
    drop(driver);
    assert_eq!(poll_ready(&mut waits).unwrap_err().raw_os_error(), Some(ECANCELED));
    let last = poll_ready(&mut stream.next()).expect("it says how it ended");
    assert_eq!(last.unwrap_err().raw_os_error(), Some(ECANCELED));
    assert!(poll_ready(&mut stream.next()).is_none());
}

fn poll_ready<F: Future + Unpin>(future: &mut F) -> F::Output {
    match poll(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it has to be ready by now"),
    }
}

#[test]
fn a_shutdown_inside_of_encode_ends_the_operation_unseen() {
    foreign::each_ring(|driver| {
        let closing = Rc::clone(driver);
        let mut submission = Submission::new(Hooked::default().on_encode(move || closing.shutdown()));
        let submissions = driver.metrics().submissions.get();
        assert_eq!(finish(driver, &mut submission).unwrap_err().raw_os_error(), Some(ECANCELED));
        assert_eq!(driver.metrics().submissions.get(), submissions, "the kernel never saw it");
    });
    // Dropped instead of awaited, with a turn in between: nothing may be left with the kernel.
    foreign::each_ring(|driver| {
        let closing = Rc::clone(driver);
        let mut submission = Submission::new(Hooked::default().on_encode(move || closing.shutdown()));
        drop(poll(&mut submission));
        driver.turn(Wait::No).unwrap();
        drop(submission);
        assert_eq!(driver.operations_active(), 0);
    });
}

#[test]
fn a_shutdown_inside_of_decode_and_drop_is_one_shutdown() {
    foreign::each_ring(|driver| {
        let hook = || {
            let closing = Rc::clone(driver);
            move || closing.shutdown()
        };
        let mut other = ops::nop();
        assert!(poll(&mut other).is_pending());
        let mut submission = Submission::new(Hooked::default().on_decode(hook()).on_drop(hook()));
        assert_eq!(finish(driver, &mut submission).unwrap(), 0);
        assert!(poll(&mut other).is_ready());
    });
}

#[test]
fn a_runtime_in_a_thread_local_ends_with_its_thread() {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<Submission<Take<Vec<u8>>>>> = const { RefCell::new(None) };
    }
    for order in 0..3 {
        let (reader, writer) = pipe();
        let thread = std::thread::spawn(move || {
            if order == 1 {
                LATE.with_borrow_mut(|_| ());
            }
            RUNTIME.set(Some(Runtime::new().unwrap()));
            let reader = Fd::new(reader);
            let mut read = take(&reader, 8);
            RUNTIME.with_borrow(|runtime| {
                runtime.as_ref().expect("it was just set").block_on(async {
                    assert!(poll(&mut read).is_pending());
                    ops::nop().await.unwrap();
                });
            });
            if order == 2 {
                // Kept current for good.
                std::mem::forget(Driver::current_of(&RUNTIME).enter());
            }
            LATE.set(Some(read));
        });
        thread.join().expect("the thread ends in peace");
        // The read, its buffer and its descriptor have gone with the thread.
        let error = rustix::io::write(&writer, b"x").expect_err("nobody reads any more");
        assert_eq!(error, rustix::io::Errno::PIPE, "order {order}");
    }

    trait CurrentOf {
        fn current_of(runtime: &'static std::thread::LocalKey<RefCell<Option<Runtime>>>) -> Rc<Driver>;
    }
    impl CurrentOf for Driver {
        fn current_of(runtime: &'static std::thread::LocalKey<RefCell<Option<Runtime>>>) -> Rc<Driver> {
            runtime.with_borrow(|runtime| Rc::clone(runtime.as_ref().expect("there is one").driver()))
        }
    }
}

#[test]
fn guards_that_are_dropped_out_of_order_or_leaked_harm_nobody() {
    let (first, _script) = Driver::scripted(&config()).unwrap();
    let (second, _script) = Driver::scripted(&config()).unwrap();
    let outer = first.enter();
    let inner = second.enter();
    drop(outer);
    drop(inner);
    std::mem::forget(second.enter());
    let runtime = Runtime::new().unwrap();
    runtime.block_on(ops::nop()).unwrap();
    runtime.block_on(async { ops::nop().await.unwrap() });
}

#[test]
fn a_leaked_future_keeps_its_memory_and_blocks_nobody() {
    let driver = Driver::new(&config().operations(1).ring_splices(1)).unwrap();
    let _entered = driver.enter();
    let (reader, writer) = pipe();
    let reader = Fd::new(reader);
    let mut leaked = take(&reader, 8);
    assert!(poll(&mut leaked).is_pending());
    std::mem::forget(leaked);
    driver.turn(Wait::No).unwrap();
    rustix::io::write(&writer, b"late").unwrap();
    assert!(finish(&driver, &mut ops::nop()).is_ok(), "it has its place back when the kernel has answered");
}

#[test]
fn a_panic_in_a_future_leaves_the_runtime_usable_and_its_operations_cancelled() {
    let runtime = Runtime::new().unwrap();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let mut read = take(&reader, 8);
            assert!(poll(&mut read).is_pending());
            ops::nop().await.unwrap();
            panic!("boom");
        })
    }));
    assert!(outcome.is_err());
    runtime.block_on(async { ops::nop().await.unwrap() });
    settle(runtime.driver());
}
