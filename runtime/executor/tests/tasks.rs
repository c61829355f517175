//! What a task and its handle promise.

use super::*;

#[test]
fn a_task_that_wakes_itself_runs_once_per_round() {
    let executor = Executor::new(Arc::new(Unpark::new().unwrap()));
    let runs = Rc::new(Cell::new(0));
    let handle = executor.spawn({
        let runs = runs.clone();
        poll_fn(move |cx| {
            runs.set(runs.get() + 1);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
    });
    assert!(executor.has_ready());
    for round in 1..=3 {
        assert_eq!(executor.run_some(64, || false), 1);
        assert_eq!(runs.get(), round);
    }
    assert!(!handle.is_finished());
}

#[test]
fn a_round_runs_at_most_as_many_tasks_as_it_may_and_in_order() {
    let executor = Executor::new(Arc::new(Unpark::new().unwrap()));
    let order = Rc::new(RefCell::new(Vec::new()));
    for task in 0..5 {
        let order = order.clone();
        executor.spawn(async move { order.borrow_mut().push(task) });
    }
    assert_eq!(executor.run_some(3, || false), 3);
    assert_eq!(*order.borrow(), [0, 1, 2]);
    assert_eq!(executor.run_some(3, || false), 2);
    assert!(!executor.has_ready());
    assert_eq!(*order.borrow(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_dropped_handle_detaches_its_task() {
    let done = Rc::new(Cell::new(false));
    EventPark::runtime().block_on({
        let done = done.clone();
        async move {
            drop(spawn(async move {
                pause().await;
                done.set(true);
            }));
            pause().await;
            pause().await;
            pause().await;
        }
    });
    assert!(done.get());
}

#[test]
fn a_runtime_sleeps_only_when_nothing_is_ready_and_wakes_itself_for_free() {
    let park = ScriptedPark::new();
    let runtime = Runtime::with_park(park.clone(), 64);
    runtime.block_on(async {
        let (sender, receiver) = oneshot::channel();
        let task = spawn(async move {
            sleep(Duration::from_millis(1)).await;
            sender.send(()).unwrap();
        });
        receiver.await.unwrap();
        task.await.unwrap();
    });
    // The timer wakes the task within the first turn, and the task the main future before the second.
    assert_eq!(*park.waits.borrow(), [Wait::Until(Some(Duration::from_millis(1))), Wait::No]);
    assert!(!park.is_eventfd_written());
    assert!(park.unpark().prepare_sleep(), "no wake on the runtime's own thread goes through the eventfd's state");
}

#[test]
fn a_panic_reaches_the_handle_and_the_others_go_on() {
    EventPark::runtime().block_on(async {
        let other = spawn(async {
            pause().await;
            1
        });
        let error = spawn(async { panic!("at {}", std::hint::black_box("noon")) }).await.unwrap_err();
        assert!(error.is_panic() && !error.is_cancelled());
        assert_eq!(error.to_string(), "the task panicked: at noon");
        assert_eq!(panic_text(error.into_panic()), "at noon");
        let error = spawn(async { panic_any(7) }).await.unwrap_err();
        assert_eq!(error.to_string(), "the task panicked: (a payload that is not text)");
        assert_eq!(other.await.unwrap(), 1);
    });
}

#[test]
fn a_panic_that_nobody_awaits_is_logged() {
    let log = logged(|| {
        EventPark::runtime().block_on(async {
            drop(spawn(async { panic!("unheard") }));
            let late = spawn(async { panic!("heard too late") });
            pause().await;
            pause().await;
            drop(late);
        });
    });
    assert!(log.contains("a detached task panicked panic=\"unheard\""), "{log}");
    assert!(log.contains("a detached task panicked panic=\"heard too late\""), "{log}");
}

#[test]
fn destructors_that_panic_are_contained() {
    let log = logged(|| {
        let runtime = EventPark::runtime();
        runtime.block_on(async {
            let bomb = || on_drop(|| panic!("boom"));
            drop(spawn(async move { bomb() }));
            drop(spawn(async move { panic_any(bomb_payload()) }));
            let aborted = spawn(async move {
                let _bomb = bomb();
                pending::<()>().await;
            });
            pause().await;
            pause().await;
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
            drop(spawn(async move {
                let _bomb = bomb();
                pending::<()>().await;
            }));
            pause().await;
        });
        let never_run = on_drop(|| panic!("boom"));
        drop(runtime.spawn(async move { drop(never_run) }));
    });
    assert_eq!(log.matches("the destructor of a task panicked").count(), 3, "{log}");
    assert_eq!(log.matches("the destructor of a detached task's output panicked").count(), 1, "{log}");
}

/// A payload whose destructor panics.
fn bomb_payload() -> impl Send {
    on_drop(|| panic!("boom"))
}

#[test]
fn a_panic_of_the_main_future_leaves_the_runtime_usable() {
    let runtime = EventPark::runtime();
    let drops = Arc::new(AtomicUsize::new(0));
    let tracked = Tracked::new(&drops);
    let task = runtime.spawn(async move {
        let _tracked = tracked;
        pause().await;
        5
    });
    let panic = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            pause().await;
            panic!("main");
        })
    }));
    assert_eq!(panic_text(panic.unwrap_err()), "main");
    assert_eq!(runtime.block_on(task).unwrap(), 5);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(EventPark::runtime().block_on(async { 6 }), 6);
}

#[test]
fn an_aborted_task_answers_cancelled_and_a_finished_one_keeps_its_output() {
    EventPark::runtime().block_on(async {
        let never_run = spawn(async { 1 });
        never_run.abort();
        assert!(never_run.await.unwrap_err().is_cancelled());

        let finished = spawn(async { 2 });
        pause().await;
        pause().await;
        assert!(finished.is_finished());
        finished.abort();
        // Its place in the list is taken by another task, which the second abort must not reach.
        let successor = spawn(async {
            pause().await;
            3
        });
        finished.abort();
        assert_eq!(finished.await.unwrap(), 2);
        assert_eq!(successor.await.unwrap(), 3);
    });
}

#[test]
fn a_task_may_abort_itself() {
    EventPark::runtime().block_on(async {
        let (sender, receiver) = oneshot::channel::<JoinHandle<()>>();
        let (ended, end) = oneshot::channel::<()>();
        let task = spawn(async move {
            let _ended = ended;
            receiver.await.unwrap().abort();
            pending::<()>().await;
        });
        sender.send(task).unwrap();
        assert!(end.await.is_err());
    });
}

#[test]
fn nested_block_on_and_spawn_outside_say_what_is_wrong() {
    let outer = EventPark::runtime();
    let inner = EventPark::runtime();
    let nested = catch_unwind(AssertUnwindSafe(|| outer.block_on(async { inner.block_on(async {}) }))).unwrap_err();
    assert!(panic_text(nested).starts_with("block_on was called inside of a runtime"));
    let outside = catch_unwind(|| spawn(async {})).unwrap_err();
    assert!(panic_text(outside).starts_with("spawn was called outside of a runtime"));
    let twice = catch_unwind(AssertUnwindSafe(|| {
        outer.block_on(async {
            let mut task = spawn(async {});
            (&mut task).await.unwrap();
            (&mut task).await.unwrap();
        });
    }));
    assert!(panic_text(twice.unwrap_err()).contains("polled after it was ready"));
}

#[test]
fn a_waker_may_spawn_and_drop_inside_of_wake() {
    thread_local! {
        static SPAWNED: RefCell<Vec<JoinHandle<u32>>> = const { RefCell::new(Vec::new()) };
        static VICTIM: RefCell<Option<JoinHandle<()>>> = const { RefCell::new(None) };
    }
    struct Meddler;
    impl Wake for Meddler {
        fn wake(self: Arc<Self>) {
            if let Some(victim) = VICTIM.take() {
                victim.abort();
            }
            SPAWNED.with_borrow_mut(|spawned| spawned.push(spawn(async { 3 })));
        }
    }
    EventPark::runtime().block_on(async {
        let victim = spawn(pending());
        VICTIM.set(Some(victim));
        // async-task wakes the handle's waker in the middle of the run that completes the task.
        let mut task = spawn(pause());
        let waker = Waker::from(Arc::new(Meddler));
        assert!(task.poll_unpin(&mut std::task::Context::from_waker(&waker)).is_pending());
        while SPAWNED.with_borrow(Vec::is_empty) {
            pause().await;
        }
        task.await.unwrap();
        for spawned in SPAWNED.take() {
            assert_eq!(spawned.await.unwrap(), 3);
        }
    });
}

#[test]
fn a_round_that_is_told_to_end_leaves_the_rest_ready() {
    let executor = Executor::new(Arc::new(Unpark::new().unwrap()));
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..20 {
        let order = Rc::clone(&order);
        drop(executor.spawn(async move { order.borrow_mut().push(number) }));
    }
    let asked = Cell::new(0);
    let tells = || {
        asked.set(asked.get() + 1);
        asked.get() == 2
    };
    assert_eq!(executor.run_some(64, tells), 8);
    assert!(executor.has_ready());
    assert_eq!(executor.run_some(64, || false), 12);
    assert_eq!(*order.borrow(), (0..20).collect::<Vec<_>>());
    executor.shutdown();
}
