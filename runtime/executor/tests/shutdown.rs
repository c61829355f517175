//! The end of a runtime, whenever and wherever it comes.

use super::*;

#[test]
fn a_runtime_may_be_dropped_inside_of_another() {
    let drops = Arc::new(AtomicUsize::new(0));
    let outer = EventPark::runtime();
    let inner = EventPark::runtime();
    let tracked = Tracked::new(&drops);
    inner.spawn(async move {
        let _tracked = tracked;
        pending::<()>().await;
    });
    let answer = outer.block_on(async move {
        drop(inner);
        spawn(async { 4 }).await
    });
    assert_eq!(answer.unwrap(), 4);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn dropping_the_runtime_drops_tasks_in_order_and_then_shuts_the_driver_down() {
    let park = EventPark::new();
    let runtime = Runtime::with_park(park.clone(), 64);
    let order = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = (0..3)
        .map(|task| {
            let (order, park) = (order.clone(), park.clone());
            let last_word = on_drop(move || {
                assert!(!park.is_shut_down.get());
                order.borrow_mut().push(task);
            });
            runtime.spawn(async move {
                let _last_word = last_word;
                pending::<()>().await;
            })
        })
        .collect();
    runtime.block_on(pause());
    drop(runtime);
    assert!(park.is_shut_down.get());
    assert_eq!(*order.borrow(), [0, 1, 2]);
    for task in tasks {
        assert!(task.is_finished());
        task.abort();
        assert!(task.now_or_never().unwrap().unwrap_err().is_cancelled());
    }
}

#[test]
fn destructors_may_spawn_wake_and_abort_during_shutdown() {
    let runtime = EventPark::runtime();
    let drops = Arc::new(AtomicUsize::new(0));
    let wakers = Rc::new(RefCell::new(Vec::<Waker>::new()));
    let handles = Rc::new(RefCell::new(Vec::<JoinHandle<()>>::new()));
    for _ in 0..4 {
        let (wakers, handles, drops) = (wakers.clone(), handles.clone(), drops.clone());
        let tracked = Tracked::new(&drops);
        let meddle = {
            let (wakers, handles) = (wakers.clone(), handles.clone());
            on_drop(move || {
                wakers.borrow().iter().for_each(Waker::wake_by_ref);
                handles.borrow().iter().for_each(JoinHandle::abort);
                let tracked = Tracked::new(&drops);
                let before = drops.load(Ordering::SeqCst);
                let refused = spawn(async move { drop(tracked) });
                assert_eq!(drops.load(Ordering::SeqCst), before + 1, "dropped on the spot");
                assert!(refused.is_finished());
                assert!(refused.now_or_never().unwrap().unwrap_err().is_cancelled());
            })
        };
        let handle = runtime.spawn(async move {
            let _dropped = (meddle, tracked);
            poll_fn(|cx| {
                wakers.borrow_mut().push(cx.waker().clone());
                Poll::<()>::Pending
            })
            .await;
        });
        handles.borrow_mut().push(handle);
    }
    runtime.block_on(pause());
    let log = logged(|| drop(runtime));
    assert_eq!(log, "", "a destructor's assertion failed");
    assert_eq!(drops.load(Ordering::SeqCst), 8);
}

/// A wake that another thread has begun holds the task between its cell and the queue: shutdown must wait for it.
#[test]
fn shutdown_waits_for_a_wake_that_another_thread_has_begun() {
    let executor = Executor::new(Arc::new(Unpark::new().unwrap()));
    let drops = Arc::new(AtomicUsize::new(0));
    let tracked = Tracked::new(&drops);
    let task = executor.spawn(async move {
        let _tracked = tracked;
        pending::<()>().await;
    });
    let begun = executor.local.pop().unwrap();
    let (shared, seen) = (executor.shared.clone(), drops.clone());
    let waker = thread::spawn(move || {
        while !shared.is_closing() {
            thread::yield_now();
        }
        assert_eq!(seen.load(Ordering::SeqCst), 0);
        begun.schedule();
    });
    executor.shutdown();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    waker.join().unwrap();
    assert!(task.now_or_never().unwrap().unwrap_err().is_cancelled());
}

/// Cannot happen through a runtime, which is why the last resort is tried on its own.
#[test]
fn a_task_woken_after_the_close_is_leaked_abroad_and_dropped_at_home() {
    let drops = Arc::new(AtomicUsize::new(0));
    let shared = Arc::new(Shared::new(Arc::new(Unpark::new().unwrap())));
    shared.close();
    let (abroad, at_home) = (Tracked::new(&drops), Tracked::new(&drops));
    let (ready, _leaked) = task::new(async move { drop(abroad) }, &shared);
    thread::spawn(move || ready.schedule()).join().unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    let (ready, _dropped) = task::new(async move { drop(at_home) }, &shared);
    ready.schedule();
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    static HANDLE: RefCell<Option<JoinHandle<()>>> = const { RefCell::new(None) };
    static TIMER: RefCell<Option<crate::runtime::Sleep>> = const { RefCell::new(None) };
}

#[test]
fn thread_locals_may_die_in_any_order() {
    let touch: [fn(); 3] = [|| RUNTIME.with(|_| ()), || HANDLE.with(|_| ()), || TIMER.with(|_| ())];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let drops = Arc::new(AtomicUsize::new(0));
        let seen = drops.clone();
        thread::spawn(move || {
            // The thread-local of the first use is destroyed last.
            order.into_iter().for_each(|index| touch[index]());
            let runtime = EventPark::runtime();
            let tracked = Tracked::new(&drops);
            let handle = runtime.spawn(async move {
                let _tracked = tracked;
                sleep(Duration::from_secs(3600)).await;
            });
            let mut timer = runtime.block_on(poll_fn(|_| Poll::Ready(sleep(Duration::from_secs(3600)))));
            runtime.block_on(async { assert!((&mut timer).now_or_never().is_none()) });
            RUNTIME.set(Some(runtime));
            HANDLE.set(Some(handle));
            TIMER.set(Some(timer));
        })
        .join()
        .unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }
}

/// `exit` runs the destructors of the calling thread's thread-locals, here below a task of the runtime they hold.
#[test]
fn exit_inside_of_a_task_neither_panics_nor_hangs() {
    if std::env::var_os("RINGMAIN_TEST_EXITS").is_some() {
        RUNTIME.set(Some(EventPark::runtime()));
        RUNTIME.with_borrow(|runtime| {
            let runtime = runtime.as_ref().unwrap();
            runtime.spawn(pending::<()>());
            runtime.spawn(async { std::process::exit(7) });
            runtime.block_on(pending::<()>());
        });
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "runtime::executor::tests::shutdown::exit_inside_of_a_task_neither_panics_nor_hangs"])
        .env("RINGMAIN_TEST_EXITS", "1")
        .output()
        .unwrap();
    assert_eq!(child.status.code(), Some(7), "{child:?}");
}
