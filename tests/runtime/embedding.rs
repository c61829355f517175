//! Other threads, other wakers, other loops.

use std::cell::RefCell;
use std::io::Write;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use ringmain::{Driver, Fd, Runtime, Submission, Wait, ops};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::rings;
use crate::turns::{one_turn, pipe, poll_once, settled};

/// The compile-time half: an operation cannot be carried to another thread, so none is ever submitted by a thread
/// that may end before it. (The two implementations overlap, and `some` is ambiguous, for a type that is `Send`.)
#[test]
fn e01_an_operation_cannot_leave_its_thread() {
    trait NotSend<Which> {
        fn some() {}
    }
    struct AnyType;
    struct SendType;
    impl<T: ?Sized> NotSend<AnyType> for T {}
    impl<T: ?Sized + Send> NotSend<SendType> for T {}
    <Submission<ops::Nop> as NotSend<_>>::some();
    <Fd as NotSend<_>>::some();
    <Driver as NotSend<_>>::some();
    <Runtime as NotSend<_>>::some();
}

/// A thread that asks for an operation and is gone before the data comes.
#[test]
fn e01_an_operation_outlives_the_thread_that_asked_for_it() {
    rings::each(|runtime| {
        let (ask, mut asked) = unbounded();
        let (fd, mut writer) = pipe();
        let read = runtime.spawn(async move {
            asked.next().await.expect("somebody asks");
            ops::read(&fd, Vec::with_capacity(8)).await
        });
        std::thread::spawn(move || ask.unbounded_send(()).unwrap()).join().unwrap();
        runtime.block_on(async {
            while runtime.driver().operations_active() == 0 {
                one_turn().await;
            }
            one_turn().await;
            writer.write_all(b"late").unwrap();
            let (count, bytes) = read.await.unwrap();
            assert_eq!((count.unwrap(), &bytes[..]), (4, &b"late"[..]));
        });
    });
}

fn eight_threads_wake(runtime: &Runtime, wakes: usize) {
    let (send, receive) = unbounded();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let send = send.clone();
            std::thread::spawn(move || (0..wakes).for_each(|number| send.unbounded_send(number).unwrap()))
        })
        .collect();
    drop(send);
    // The ring sleeps whenever the queue is empty, so a lost wake would leave it asleep.
    assert_eq!(runtime.block_on(receive.count()), 8 * wakes);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn e02_every_wake_from_eight_threads_reaches_the_ring() {
    rings::each(|runtime| eight_threads_wake(&runtime, 2000));
}

#[test]
#[ignore = "takes a minute"]
fn e02_a_million_wakes_from_eight_threads_reach_the_ring() {
    eight_threads_wake(&Runtime::new().unwrap(), 125_000);
}

async fn echo(mut from: UnboundedReceiver<u32>, to: UnboundedSender<u32>) {
    while let Some(number) = from.next().await {
        if to.unbounded_send(number + 1).is_err() {
            return;
        }
    }
}

/// Two runtimes, each asleep in its ring until the other wakes it. No timer is there to hide a lost wake.
fn ping_pong(runtime: &Runtime, rounds: u32) {
    let (ping, pinged) = unbounded();
    let (pong, mut ponged) = unbounded();
    let other = std::thread::spawn(move || Runtime::new().unwrap().block_on(echo(pinged, pong)));
    runtime.block_on(async move {
        for round in 0..rounds {
            ping.unbounded_send(round).unwrap();
            assert_eq!(ponged.next().await, Some(round + 1));
        }
    });
    other.join().unwrap();
}

#[test]
fn e03_ping_pong_between_two_rings_never_stalls() {
    rings::each(|runtime| ping_pong(&runtime, 500));
}

#[test]
#[ignore = "takes a minute"]
fn e03_ping_pong_between_two_rings_never_stalls_a_hundred_thousand_times() {
    ping_pong(&Runtime::new().unwrap(), 100_000);
}

thread_local! {
    static STASH: RefCell<Stash> = RefCell::default();
}

/// What a waker finds to do: an operation of somebody else's to drop, and room for one of its own.
#[derive(Default)]
struct Stash {
    to_drop: Option<Submission<ops::Read<Vec<u8>>>>,
    started: Vec<Submission<ops::Nop>>,
    ran: Rc<std::cell::Cell<u32>>,
}

struct Meddler;

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        let (to_drop, ran) = STASH.with_borrow_mut(|stash| (stash.to_drop.take(), Rc::clone(&stash.ran)));
        drop(to_drop);
        let mut nop = ops::nop();
        assert!(Pin::new(&mut nop).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        STASH.with_borrow_mut(|stash| stash.started.push(nop));
        ringmain::spawn(async move {
            one_turn().await;
            ran.set(ran.get() + 1);
        });
    }
}

#[test]
fn e15_a_waker_may_spawn_drop_and_submit() {
    rings::each(|runtime| {
        let (fd, _writer) = pipe();
        runtime.block_on(async {
            let mut bystander = ops::read(&fd, Vec::with_capacity(8));
            assert!(poll_once(&mut bystander).await.is_pending());
            one_turn().await;
            STASH.with_borrow_mut(|stash| stash.to_drop = Some(bystander));
            let mut meddled: Vec<_> = (0..3).map(|_| ops::nop()).collect();
            for nop in &mut meddled {
                // One for each: what one turn brings wakes a waker once.
                let waker = Waker::from(Arc::new(Meddler));
                assert!(Pin::new(nop).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            one_turn().await;
            let (started, ran) =
                STASH.with_borrow_mut(|stash| (std::mem::take(&mut stash.started), Rc::clone(&stash.ran)));
            assert_eq!(started.len(), 3, "each wake came inside of the completions' turn");
            for nop in started.into_iter().chain(meddled) {
                nop.await.unwrap();
            }
            while ran.get() < 3 {
                one_turn().await;
            }
            settled().await;
            STASH.take();
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

/// A loop of its own, which sleeps on the eventfd alone and turns the driver when that is readable.
fn guest<F: Future + Unpin>(driver: &Rc<Driver>, mut future: F) -> F::Output {
    let _entered = driver.enter();
    let eventfd = driver.event_fd().unwrap();
    rustix::io::ioctl_fionbio(&*eventfd, true).unwrap();
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        let patience = Timespec::try_from(Duration::from_secs(60)).unwrap();
        let ready = rustix::event::poll(&mut [PollFd::new(&eventfd, PollFlags::IN)], Some(&patience)).unwrap();
        assert!(ready > 0, "nobody told the guest that there is something to do");
        // Emptied before the turn: what is signalled during it is for the next sleep.
        rustix::io::read(&*eventfd, &mut [0; 8]).unwrap();
        driver.turn(Wait::No).unwrap();
    }
}

#[test]
fn a_guest_that_sleeps_on_the_eventfd_misses_nothing() {
    rings::each(|runtime| {
        let driver = runtime.driver().clone();
        guest(&driver, ops::nop()).unwrap();
        // A file that does not wait: the read is answered EAGAIN, becomes a poll, and then a read again, and no
        // completion announces the second push.
        let (fd, mut writer) = pipe();
        rustix::fs::fcntl_setfl(fd.as_fd(), OFlags::NONBLOCK).unwrap();
        let feeder = std::thread::spawn({
            let twin = fd.try_clone_to_owned().unwrap();
            move || {
                // Writes when somebody polls the pipe, which the test cannot see: so at any moment.
                for _ in 0..100 {
                    std::thread::yield_now();
                }
                writer.write_all(b"fed").unwrap();
                drop(twin);
                writer
            }
        });
        let (count, bytes) = guest(&driver, ops::read(&fd, Vec::with_capacity(8)));
        assert_eq!((count.unwrap(), &bytes[..]), (3, &b"fed"[..]));
        drop(feeder.join().unwrap());
    });
}
