//! Wakes from other threads.

use super::*;

#[test]
fn abort_drops_the_future_on_its_own_thread() {
    let drops = Arc::new(AtomicUsize::new(0));
    let runtime = EventPark::runtime();
    let tracked = Tracked::new(&drops);
    let task = runtime.spawn(async move {
        let _tracked = tracked;
        pending::<()>().await;
    });
    runtime.block_on(pause());
    let aborted = thread::spawn(move || {
        task.abort();
        task.abort();
        task
    })
    .join()
    .unwrap();
    assert!(!aborted.is_finished());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    runtime.block_on(pause());
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(aborted.now_or_never().unwrap().unwrap_err().is_cancelled());
}

#[test]
fn a_handle_is_awaited_on_another_thread() {
    let runtime = EventPark::runtime();
    let (sender, receiver) = oneshot::channel();
    let task = runtime.spawn(receiver);
    let waiter = thread::spawn(move || EventPark::runtime().block_on(task).unwrap().unwrap());
    runtime.block_on(pause());
    sender.send(9).unwrap();
    runtime.block_on(pause());
    runtime.block_on(pause());
    assert_eq!(waiter.join().unwrap(), 9);
}

#[test]
fn late_wakes_neither_run_nor_drop_a_task_elsewhere() {
    for _ in 0..100 {
        let runtime = EventPark::runtime();
        let drops = Arc::new(AtomicUsize::new(0));
        let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
        for _ in 0..8 {
            let (tracked, wakers) = (Tracked::new(&drops), wakers.clone());
            runtime.spawn(async move {
                poll_fn(|cx| {
                    assert_eq!(thread::current().id(), tracked.thread, "polled on a foreign thread");
                    wakers.lock().unwrap().push(cx.waker().clone());
                    Poll::<()>::Pending
                })
                .await;
            });
        }
        runtime.block_on(pause());
        let wakers: Vec<Waker> = std::mem::take(&mut *wakers.lock().unwrap());
        assert_eq!(wakers.len(), 8);
        let stop = Arc::new(AtomicBool::new(false));
        let (started, start) = mpsc::channel();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (wakers, stop, started) = (wakers.clone(), stop.clone(), started.clone());
                thread::spawn(move || {
                    started.send(()).unwrap();
                    while !stop.load(Ordering::Acquire) {
                        wakers.iter().for_each(Waker::wake_by_ref);
                    }
                })
            })
            .collect();
        start.recv().unwrap();
        drop(runtime);
        assert_eq!(drops.load(Ordering::SeqCst), 8);
        stop.store(true, Ordering::Release);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(wakers);
        assert_eq!(drops.load(Ordering::SeqCst), 8);
    }
}

/// 8 threads wake tasks of one runtime; every 16th wake is waited for until the task has seen it.
fn eight_threads_wake(wakes: u64) {
    #[derive(Default)]
    struct Bell {
        rung: AtomicU64,
        heard: AtomicU64,
        waker: AtomicWaker,
    }
    let each = wakes / 8;
    let bells: Vec<Arc<Bell>> = (0..8).map(|_| Arc::default()).collect();
    let runtime = EventPark::runtime();
    let tasks: Vec<_> = bells
        .iter()
        .map(|bell| {
            let bell = bell.clone();
            runtime.spawn(poll_fn(move |cx| {
                bell.waker.register(cx.waker());
                let rung = bell.rung.load(Ordering::Acquire);
                bell.heard.store(rung, Ordering::Release);
                if rung == each { Poll::Ready(()) } else { Poll::Pending }
            }))
        })
        .collect();
    let ringers: Vec<_> = bells
        .into_iter()
        .map(|bell| {
            thread::spawn(move || {
                for ring in 1..=each {
                    bell.rung.store(ring, Ordering::Release);
                    bell.waker.wake();
                    while ring % 16 == 0 && bell.heard.load(Ordering::Acquire) < ring {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
}

#[test]
fn every_wake_from_eight_threads_is_delivered() {
    eight_threads_wake(100_000);
}

#[test]
#[ignore = "the long form, several seconds"]
fn every_wake_from_eight_threads_is_delivered_a_million_times() {
    eight_threads_wake(1_000_000);
}

/// Two runtimes pass a number to and fro; neither has a timer that could hide a lost wake.
fn ping_pong(rounds: u64) {
    let (to_peer, mut from_us) = futures::channel::mpsc::unbounded();
    let (to_us, mut from_peer) = futures::channel::mpsc::unbounded();
    let peer = thread::spawn(move || {
        EventPark::runtime().block_on(async {
            for round in 0..rounds {
                assert_eq!(from_us.recv().await, Ok(round));
                to_us.unbounded_send(round).unwrap();
            }
        });
    });
    let mut longest = Duration::ZERO;
    EventPark::runtime().block_on(async {
        for round in 0..rounds {
            let begin = Instant::now();
            to_peer.unbounded_send(round).unwrap();
            assert_eq!(from_peer.recv().await, Ok(round));
            longest = longest.max(begin.elapsed());
        }
    });
    peer.join().unwrap();
    assert!(longest < Duration::from_secs(20), "one round took {longest:?}: a wake was lost for a while");
}

#[test]
fn ping_pong_between_two_runtimes_never_stalls() {
    ping_pong(10_000);
}

#[test]
#[ignore = "the long form, several seconds"]
fn ping_pong_between_two_runtimes_never_stalls_a_hundred_thousand_times() {
    ping_pong(100_000);
}
