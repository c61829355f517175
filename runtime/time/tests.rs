use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Wake;

use futures::FutureExt;

use super::*;
use crate::runtime::block_on::Park;
use crate::runtime::block_on::Runtime;
use crate::runtime::context::spawn;
use crate::runtime::fake_park::{EventPark, ScriptedPark, panic_text};
use crate::runtime::ring::Wait;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn scripted() -> (Rc<ScriptedPark>, Runtime) {
    let park = ScriptedPark::new();
    (park.clone(), Runtime::with_park(park, 64))
}

/// How many timers the current runtime has registered.
fn registered() -> usize {
    context::current("registered").timers.state.borrow().timers.len()
}

#[test]
fn the_turn_sleeps_exactly_until_the_earliest_deadline() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let late = spawn(sleep(HOUR));
        let early = spawn(sleep(5 * MS));
        early.await.unwrap();
        late.await.unwrap();
    });
    let sleeps: Vec<_> = park.waits.borrow().iter().filter(|wait| **wait != Wait::No).copied().collect();
    assert_eq!(sleeps, [Wait::Until(Some(5 * MS)), Wait::Until(Some(HOUR - 5 * MS))]);
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines_and_then_of_their_making() {
    let (_, runtime) = scripted();
    let order = Rc::new(RefCell::new(Vec::new()));
    runtime.block_on(async {
        let tasks: Vec<_> = [(3, 'c'), (1, 'a'), (2, 'b'), (3, 'd')]
            .into_iter()
            .map(|(ms, name)| {
                let order = order.clone();
                let sleep = sleep(ms * MS);
                spawn(async move {
                    sleep.await;
                    order.borrow_mut().push(name);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(*order.borrow(), ['a', 'b', 'c', 'd']);
}

#[test]
fn a_sleep_of_nothing_or_until_the_past_is_ready_at_once() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        sleep(Duration::ZERO).await;
        let past = park.now();
        park.advance(MS);
        sleep_until(past).await;
    });
    assert!(park.waits.borrow().is_empty());
}

#[test]
fn an_endless_duration_never_fires_and_sets_no_deadline() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let mut endless = sleep(Duration::MAX);
        assert_eq!(endless.deadline(), None);
        assert!((&mut endless).now_or_never().is_none());
        assert_eq!(registered(), 0);
        park.advance(1_000_000 * HOUR);
        assert!((&mut endless).now_or_never().is_none());
        assert_eq!(timeout(Duration::MAX, async { 1 }).await, Ok(1));
    });
}

#[test]
fn dropping_a_timer_removes_it() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let mut timer = sleep(HOUR);
        assert!((&mut timer).now_or_never().is_none());
        assert_eq!(registered(), 1);
        drop(timer);
        assert_eq!(registered(), 0);
        let mut interval = interval(HOUR);
        interval.tick().await;
        assert!(interval.tick().now_or_never().is_none());
        drop(interval);
        let timeout = timeout(HOUR, pending::<()>());
        assert!(timeout.now_or_never().is_none());
        assert_eq!(registered(), 0);
    });
    assert!(park.waits.borrow().is_empty());
}

#[test]
fn a_reset_moves_the_deadline_both_ways() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let begin = park.now();
        let mut timer = sleep(HOUR);
        assert!((&mut timer).now_or_never().is_none());
        timer.reset(begin + MS);
        (&mut timer).await;
        assert_eq!(park.now(), begin + MS);
        timer.reset(begin + HOUR);
        timer.await;
        assert_eq!(park.now(), begin + HOUR);
    });
}

#[test]
fn a_timer_that_moves_between_tasks_wakes_the_last_that_polled_it() {
    let (_, runtime) = scripted();
    runtime.block_on(async {
        let mut timer = sleep(MS);
        assert!((&mut timer).now_or_never().is_none());
        spawn(timer).await.unwrap();
    });
}

#[test]
fn a_future_that_is_ready_when_the_time_runs_out_wins() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        assert_eq!(timeout(Duration::ZERO, async { 7 }).await, Ok(7));
        let late = timeout(MS, async { 8 });
        park.advance(HOUR);
        assert_eq!(late.await, Ok(8));
    });
}

#[test]
fn a_timeout_gives_its_future_back_and_converts_into_an_io_error() {
    let (_, runtime) = scripted();
    runtime.block_on(async {
        let mut limited = timeout(MS, sleep(2 * MS));
        let elapsed = (&mut limited).await.unwrap_err();
        assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
        limited.into_inner().await;
        assert_eq!(registered(), 0);
    });
}

#[test]
fn a_completed_timeout_that_is_kept_has_no_timer() {
    let (_, runtime) = scripted();
    runtime.block_on(async {
        let mut limited = timeout(HOUR, sleep(MS));
        assert_eq!((&mut limited).await, Ok(()));
        assert_eq!(registered(), 0);
        drop(limited);
    });
}

#[test]
fn an_interval_skips_missed_ticks_and_keeps_its_phase() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let begin = park.now();
        let mut interval = interval(10 * MS);
        assert_eq!(interval.tick().await, begin);
        assert_eq!(interval.tick().await, begin + 10 * MS);
        park.advance(35 * MS);
        assert_eq!(interval.tick().await, begin + 20 * MS, "the late tick comes at once");
        assert_eq!(park.now(), begin + 45 * MS);
        assert_eq!(interval.tick().await, begin + 50 * MS, "30 and 40 were missed");
        assert_eq!(park.now(), begin + 50 * MS);
        assert!(interval.tick().now_or_never().is_none());
        assert_eq!(interval.tick().await, begin + 60 * MS, "a dropped tick is not lost");
    });
}

#[test]
fn intervals_of_nothing_and_of_forever_are_defined() {
    let (park, runtime) = scripted();
    runtime.block_on(async {
        let mut endless = interval(Duration::MAX);
        endless.tick().await;
        assert!(endless.tick().now_or_never().is_none());
        let other = spawn(async {});
        let mut busy = interval(Duration::ZERO);
        while !other.is_finished() {
            busy.tick().await;
        }
    });
    assert!(park.waits.borrow().iter().all(|wait| *wait == Wait::No));
}

#[test]
fn a_timer_polled_outside_of_its_runtime_says_so() {
    let (_, first) = scripted();
    let (_, second) = scripted();
    let mut timer = first.block_on(poll_fn(|_| Poll::Ready(sleep(HOUR))));
    let elsewhere = catch_unwind(AssertUnwindSafe(|| second.block_on(&mut timer))).unwrap_err();
    assert!(panic_text(elsewhere).contains("outside of the runtime it was made in"));
    drop(first);
    let too_late = catch_unwind(AssertUnwindSafe(|| second.block_on(&mut timer))).unwrap_err();
    assert!(panic_text(too_late).contains("after its runtime was dropped"));
    assert!(catch_unwind(|| sleep(MS)).is_err());
}

#[test]
fn a_real_sleep_lasts_its_time() {
    let begin = Instant::now();
    EventPark::runtime().block_on(async {
        let other = spawn(sleep(20 * MS));
        sleep(10 * MS).await;
        assert!(begin.elapsed() >= 10 * MS);
        other.await.unwrap();
        assert!(begin.elapsed() >= 20 * MS);
    });
}

/// `select!` of something endless with a short timer, over and over: dropping the loser costs nothing and leaves nothing.
#[test]
fn a_thousand_timeouts_leave_no_timer() {
    let (_, runtime) = scripted();
    runtime.block_on(async {
        for _ in 0..1000 {
            assert!(timeout(MS, sleep(HOUR)).await.is_err());
        }
        assert_eq!(registered(), 0);
    });
}

thread_local! {
    static VICTIM: RefCell<Option<Sleep>> = const { RefCell::new(None) };
    static DONE: RefCell<Vec<JoinHandle>> = const { RefCell::new(Vec::new()) };
}

type JoinHandle = crate::runtime::JoinHandle<()>;

/// A waker that does, inside of `fire`, all that a task could do.
struct Meddler;

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        drop(VICTIM.take());
        let mut another = sleep(MS);
        assert!((&mut another).now_or_never().is_none());
        DONE.with_borrow_mut(|done| done.push(spawn(another)));
    }
}

#[test]
fn a_waker_may_spawn_and_drop_and_register_timers() {
    let (_, runtime) = scripted();
    runtime.block_on(async {
        let waker = Waker::from(Arc::new(Meddler));
        let mut cx = Context::from_waker(&waker);
        let mut timers: Vec<_> = (0..10).map(|_| sleep(MS)).collect();
        for timer in &mut timers {
            assert!(timer.poll_unpin(&mut cx).is_pending());
        }
        let mut victim = sleep(MS);
        assert!((&mut victim).now_or_never().is_none());
        VICTIM.set(Some(victim));
        sleep(2 * MS).await;
        let spawned = DONE.take();
        assert_eq!(spawned.len(), 10);
        for task in spawned {
            task.await.unwrap();
        }
        assert_eq!(registered(), 0);
    });
}
