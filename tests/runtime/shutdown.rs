//! The end: of a thread with operations pending, and of a runtime whose tasks have panicked.

use std::io;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use ringmain::{Config, Fd, Runtime, ops};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::parked::parked_splice;
use crate::turns::{one_turn, pipe, poll_once, settled};

/// Less than the runtime's own patience: within it the kernel must have let go, or the operations were leaked.
const PATIENCE: Duration = Duration::from_secs(4);

fn timer_of_an_hour() -> Fd {
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    let hour = Timespec { tv_sec: 3600, tv_nsec: 0 };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let setting = Itimerspec { it_interval: never, it_value: hour };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting).unwrap();
    timer.into()
}

fn a_thread_ends_with_operations_pending(panics: bool) {
    let (socket, _idle) = UnixStream::pair().unwrap();
    let (_unread, into) = io::pipe().unwrap();
    let (idle, _writer) = io::pipe().unwrap();
    let started = Instant::now();
    let (pending, counted) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = Runtime::new().unwrap();
        let timer = timer_of_an_hour();
        let fd = Fd::new(idle.into());
        runtime.spawn(async move { ops::read(&timer, Vec::with_capacity(8)).await });
        runtime.spawn(async move { ops::read(&fd, Vec::with_capacity(8)).await });
        runtime.spawn(parked_splice(socket, into));
        runtime.block_on(async {
            while runtime.driver().operations_active() < 3 {
                one_turn().await;
            }
            one_turn().await;
        });
        pending.send(runtime.driver().operations_active()).unwrap();
        if panics {
            panic!("the thread ends by a panic, as it was told to");
        }
    });
    assert_eq!(thread.join().is_err(), panics);
    assert_eq!(counted.recv().unwrap(), 3, "all of it was pending when the thread ended");
    assert!(started.elapsed() < PATIENCE, "the kernel was given up on");
}

#[test]
fn s06_a_thread_with_operations_pending_ends() {
    a_thread_ends_with_operations_pending(false);
}

#[test]
fn s06_a_thread_with_operations_pending_ends_by_a_panic() {
    a_thread_ends_with_operations_pending(true);
}

#[test]
fn s08_a_panic_with_everything_in_hand_leaves_the_thread_usable() {
    for in_task in [false, true] {
        let runtime = Runtime::builder().config(Config::default().pages(16)).build().unwrap();
        let registry = runtime.driver().registry().clone();
        let work = {
            let registry = registry.clone();
            async move {
                let held = registry.try_lease(4096).unwrap();
                let pair = ops::pipe().unwrap();
                let (fd, _writer) = pipe();
                let mut fixed = ops::read_fixed(&fd, registry.try_lease(8192).unwrap());
                let mut plain = ops::read(&fd, Vec::with_capacity(64));
                let mut poll = ops::readable(&fd);
                assert!(poll_once(&mut fixed).await.is_pending());
                assert!(poll_once(&mut plain).await.is_pending());
                assert!(poll_once(&mut poll).await.is_pending());
                one_turn().await;
                assert_eq!(registry.snapshot().pages_in_flight, 2);
                let _still = (&held, &pair);
                panic!("with everything in hand");
            }
        };
        if in_task {
            let task = runtime.spawn(work);
            let outcome: Result<(), _> = runtime.block_on(task);
            assert!(outcome.unwrap_err().is_panic());
        } else {
            let outcome: Result<(), _> = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));
            assert!(outcome.is_err());
        }
        runtime.block_on(settled());
        assert_eq!((registry.snapshot().pages_free, runtime.driver().slots_used()), (16, 0));
        drop(runtime);
        let next = Runtime::new().unwrap();
        next.block_on(ops::nop()).unwrap();
    }
}

#[test]
fn s08_a_runtime_is_dropped_by_a_panic_with_operations_in_flight() {
    let (fd, _writer) = pipe();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let runtime = Runtime::new().unwrap();
        let mut read = ops::read(&fd, Vec::with_capacity(64));
        runtime.block_on(async {
            assert!(poll_once(&mut read).await.is_pending());
            one_turn().await;
        });
        panic!("while the runtime and a read of it live");
    }));
    assert!(outcome.is_err());
    Runtime::new().unwrap().block_on(ops::nop()).unwrap();
}

#[test]
fn a_future_that_outlives_its_runtime_resolves() {
    let runtime = Runtime::new().unwrap();
    let (fd, _writer) = pipe();
    let mut read = ops::read(&fd, Vec::with_capacity(64));
    runtime.block_on(async { assert!(poll_once(&mut read).await.is_pending()) });
    drop(runtime);
    let (result, buffer) = futures::FutureExt::now_or_never(read).expect("shutdown has reaped it");
    assert_eq!((crate::errno(result), buffer.capacity()), (rustix::io::Errno::CANCELED, 64));
}
