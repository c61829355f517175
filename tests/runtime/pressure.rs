//! More than fits: short submits, full queues, completions without a reader.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::task::{Context, Waker};

use futures::future::join_all;
use ringmain::{Config, Fd, Mode, OFlags, PollFlags, Runtime, Submission, Wait, ops};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::turns::{one_turn, pipe, poll_once, settled};
use crate::{errno, rings};

// `include/uapi/linux/io_uring.h`.
const NOP: u8 = 0;

#[test]
fn e08_what_a_submit_leaves_goes_with_the_next() {
    let (runtime, script) = Runtime::builder().config(Config::default().pages(4)).build_scripted().unwrap();
    let driver = runtime.driver().clone();
    let _entered = driver.enter();
    let noop = &mut Context::from_waker(Waker::noop());
    let mut nops: Vec<_> = (0..10).map(|_| Box::pin(ops::nop())).collect();
    for nop in &mut nops {
        assert!(nop.as_mut().poll(noop).is_pending());
    }
    for (take, taken) in [(9, 9), (0, 9), (1, 10)] {
        script.take_only(take);
        // A wait without limit: it must not be slept through while an entry is left behind.
        driver.turn(if taken < 10 { Wait::Until(None) } else { Wait::No }).unwrap();
        assert_eq!(script.pending().len(), taken);
        assert_eq!(driver.has_queued(), taken < 10);
    }
    for pending in script.pending() {
        script.complete(pending.entry.user_data, 0);
    }
    driver.turn(Wait::No).unwrap();
    assert!(nops.into_iter().all(|nop| matches!(futures::FutureExt::now_or_never(nop), Some(Ok(())))));
    assert_eq!(driver.slots_used(), 0);
}

/// Twenty tasks that want something of a kernel that answers at once: it gets the first of that before the last of them
/// have run. One that has enough to do gets all in one turn.
#[test]
fn a_kernel_without_work_does_not_wait_for_the_last_task() {
    for (has_work, batches) in [(false, vec![4; 5]), (true, vec![20])] {
        let (runtime, script) = Runtime::builder().config(Config::default().pages(4)).build_scripted().unwrap();
        let got = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&got);
        script.play(move |script| {
            let nops: Vec<_> = script.pending().into_iter().filter(|pending| pending.entry.opcode == NOP).collect();
            // One alone is a turn of the test.
            if nops.len() > 1 {
                seen.borrow_mut().push(nops.len());
            }
            for nop in nops {
                script.complete(nop.entry.user_data, 0);
            }
        });
        let held: Vec<_> = (0..if has_work { 40 } else { 0 }).map(|_| pipe()).collect();
        runtime.block_on(async {
            let mut polls: Vec<_> = held.iter().map(|(reader, _)| ops::readable(reader)).collect();
            for poll in &mut polls {
                assert!(poll_once(poll).await.is_pending());
            }
            one_turn().await;
            let tasks: Vec<_> = (0..20).map(|_| ringmain::spawn(ops::nop())).collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
        });
        assert_eq!(*got.borrow(), batches, "with work: {has_work}");
    }
}

/// A name too long is found when the kernel prepares the entry, which ends a submission on kernels without
/// `IORING_SETUP_SUBMIT_ALL`.
#[test]
fn e08_an_entry_that_the_kernel_refuses_holds_up_no_other() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let before = join_all((0..7).map(|_| ops::nop()));
            let refused = ops::open("x".repeat(5000), OFlags::RDONLY, Mode::empty());
            let after = join_all((0..7).map(|_| ops::nop()));
            let (before, refused, after) = futures::future::join3(before, refused, after).await;
            assert_eq!(errno(refused), Errno::NAMETOOLONG);
            assert!(before.into_iter().chain(after).all(|result| result.is_ok()));
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn e09_results_that_nobody_takes_hold_no_place() {
    rings::each_with(
        |config| config.operations(4).ring_splices(1),
        |runtime| {
            runtime.block_on(async {
                let mut done: Vec<_> = (0..4).map(|_| ops::nop()).collect();
                for nop in &mut done {
                    assert!(poll_once(nop).await.is_pending());
                }
                assert_eq!(runtime.driver().operations_active(), 4);
                one_turn().await;
                settled().await;
                assert_eq!(runtime.driver().slots_used(), 4, "done, and not taken");
                one_turn().await;
                assert!(join_all(done).await.into_iter().all(|result| result.is_ok()));
            });
            assert_eq!(runtime.driver().slots_used(), 0);
        },
    );
}

/// The runtime's own read of its eventfd must not take the only place.
#[test]
fn one_operation_at_a_time_is_enough() {
    rings::each_with(
        |config| config.operations(1).ring_splices(1),
        |runtime| {
            let results = runtime.block_on(join_all((0..50).map(|_| ops::nop())));
            assert!(results.into_iter().all(|result| result.is_ok()));
        },
    );
}

/// A crowd that waits for one event, in a completion queue of sixteen.
fn overflow(runtime: &Runtime, crowd: usize) {
    let (fd, mut writer) = pipe();
    runtime.block_on(async {
        let mut polls: Vec<_> = (0..crowd).map(|_| ops::poll(&fd, PollFlags::IN)).collect();
        for poll in &mut polls {
            assert!(poll_once(poll).await.is_pending());
        }
        while runtime.driver().has_queued() {
            one_turn().await;
        }
        writer.write_all(b"now").unwrap();
        for events in join_all(polls).await {
            assert!(events.expect("a full queue is nobody's error").contains(PollFlags::IN));
        }
    });
    assert_eq!((runtime.driver().operations_active(), runtime.driver().slots_used()), (0, 0));
}

#[test]
fn e11_more_completions_than_the_queue_holds_all_arrive() {
    rings::each(|runtime| {
        let few = runtime.driver().setup().completions() < 100;
        overflow(&runtime, 2000);
        let metrics = runtime.driver().metrics();
        let seen = metrics.overflows.get() + metrics.busy.get();
        println!("overflows and refusals counted: {seen}");
        assert!(!few || seen > 0, "2000 completions went through a queue of 16 and nothing was counted");
        assert_eq!(metrics.stale.get(), 0);
    });
}

#[test]
fn e11_two_thousand_operations_at_once_all_complete() {
    rings::each(|runtime| {
        let results = runtime.block_on(join_all((0..2000).map(|_| ops::nop())));
        assert!(results.into_iter().all(|result| result.is_ok()));
    });
}

/// Reads that never complete: the kernel gets as many as the bound allows, the rest wait in the program.
fn idle_reads(runtime: &Runtime, reads: usize) {
    let eventfd = Fd::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let driver = runtime.driver().clone();
    let bound = 64;
    runtime.block_on(async {
        let mut pending: Vec<_> = Vec::new();
        for _ in 0..reads {
            let mut read = ops::read(&eventfd, Vec::with_capacity(8));
            assert!(poll_once(&mut read).await.is_pending());
            pending.push(read);
        }
        driver.turn(Wait::No).unwrap();
        assert_eq!((driver.operations_active(), driver.slots_used()), (bound, bound));
        assert_eq!(pending.iter().filter(|read| read.is_in_flight()).count(), bound);
        // One that is cancelled makes room for the next in the queue.
        let (result, _) = pending.remove(0).cancel().await;
        assert_eq!(errno(result), Errno::CANCELED);
        assert!(poll_once(&mut pending[bound - 1]).await.is_pending());
        assert!(pending[bound - 1].is_in_flight());
        drop(pending);
        settled().await;
    });
    assert_eq!(driver.slots_used(), 0);
}

#[test]
fn e13_operations_that_never_complete_are_bounded() {
    rings::each_with(|config| config.operations(64).ring_splices(1), |runtime| idle_reads(&runtime, 3000));
}

#[test]
#[ignore = "takes a minute"]
fn e13_a_million_operations_that_never_complete_are_bounded() {
    let config = Config::default().operations(64).ring_splices(1);
    idle_reads(&Runtime::builder().config(config).build().unwrap(), 1_000_000);
}

/// What a leaked future leaves: its own slot, for ever, and nobody else's.
#[test]
fn a_leaked_future_costs_its_slot_and_nothing_else() {
    rings::each_with(
        |config| config.operations(2).ring_splices(1),
        |runtime| {
            let (fd, mut writer) = pipe();
            runtime.block_on(async {
                let mut read: Submission<_> = ops::read(&fd, Vec::with_capacity(8));
                assert!(poll_once(&mut read).await.is_pending());
                one_turn().await;
                std::mem::forget(read);
                writer.write_all(b"for nobody").unwrap();
                settled().await;
                assert_eq!(runtime.driver().slots_used(), 1);
                assert!(join_all((0..10).map(|_| ops::nop())).await.into_iter().all(|result| result.is_ok()));
            });
            let driver = Rc::downgrade(runtime.driver());
            drop(runtime);
            let driver = driver.upgrade().expect("the leaked future has a handle on it");
            assert_eq!((driver.operations_active(), driver.slots_used()), (0, 1));
        },
    );
}
