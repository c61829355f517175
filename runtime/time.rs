//! Timers: one ordered map, and one deadline for the enter.
//!
//! The problem: a TIMEOUT entry per timer costs two trips through the ring (set and remove) for timers that nearly never
//! fire. So the runtime keeps them itself and passes the ring only the earliest deadline, as the limit of its sleep.
//! The clock is the ring's, so that a scripted one can drive them.
//!
//! Each registered timer belongs to one future, which takes it out when dropped: the map is bounded by those (I7).
//! Wakers are foreign code: none is cloned, woken or dropped while the map is borrowed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use super::context;
use super::driver::Driver;

#[cfg(all(test, not(loom)))]
mod tests;

/// Waits for a duration, counted from the call.
///
/// It completes in the first turn that ends after the deadline, never before it. A zero duration is ready at once; one
/// that goes beyond what [`Instant`] can hold waits forever.
///
/// # Cancel safety
/// Dropping it removes the timer; nothing is lost.
///
/// # Panics
/// Outside of a runtime; when polled in another runtime than that it was made in, or after that was dropped.
///
/// # Examples
/// ```
/// # fn example(runtime: &ringmain::Runtime) {
/// use std::time::{Duration, Instant};
///
/// let begin = Instant::now();
/// runtime.block_on(async { ringmain::sleep(Duration::from_millis(2)).await });
/// assert!(begin.elapsed() >= Duration::from_millis(2));
/// # }
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    let timers = current_timers("sleep");
    let deadline = timers.now().checked_add(duration);
    Sleep::new(timers, deadline)
}

/// Waits for a point in time. One that has passed is ready at once; for the rest see [`sleep()`].
///
/// # Panics
/// As [`sleep()`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep::new(current_timers("sleep_until"), Some(deadline))
}

/// Gives a future a limited time, counted from the call.
///
/// The future is polled first, so that one which is ready when the time runs out still wins, and a zero duration gives it
/// exactly one poll.
///
/// # Cancel safety
/// When the time has run out the future is still there, in the [`Timeout`]: it is dropped with it, and its own cancel
/// safety applies, or it is taken back by [`Timeout::into_inner`].
///
/// # Errors
/// [`Elapsed`], which converts into an [`io::Error`] of kind [`io::ErrorKind::TimedOut`].
///
/// # Panics
/// As [`sleep()`].
///
/// # Examples
/// ```
/// # fn example(runtime: &ringmain::Runtime) {
/// use std::time::Duration;
///
/// runtime.block_on(async {
///     let never = ringmain::timeout(Duration::from_millis(1), std::future::pending::<()>());
///     assert!(never.await.is_err());
/// });
/// # }
/// ```
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    let timers = current_timers("timeout");
    let deadline = timers.now().checked_add(duration);
    Timeout { future, sleep: Sleep::new(timers, deadline) }
}

/// Ticks at once, and then once per period.
///
/// Ticks that nobody was there to take are skipped: the late one comes at once, the next at the next whole multiple of
/// the period since the first, so the phase stays. A zero period ticks once per round of the tasks.
///
/// # Panics
/// As [`sleep()`].
///
/// # Examples
/// ```
/// # fn example(runtime: &ringmain::Runtime) {
/// use std::time::Duration;
///
/// runtime.block_on(async {
///     let mut interval = ringmain::interval(Duration::from_millis(1));
///     let first = interval.tick().await;
///     let second = interval.tick().await;
///     assert!(second - first >= Duration::from_millis(1));
/// });
/// # }
/// ```
pub fn interval(period: Duration) -> Interval {
    let timers = current_timers("interval");
    let first = timers.now();
    Interval { period, sleep: Sleep::new(timers, Some(first)) }
}

/// The timers of the runtime that the caller runs in, or of the driver that it is a guest of.
fn try_current_timers() -> Option<Rc<Timers>> {
    context::with_current(|context| context.timers.clone())
        .or_else(|| Driver::try_current().map(|driver| driver.timers().clone()))
}

#[track_caller]
fn current_timers(caller: &str) -> Rc<Timers> {
    try_current_timers().unwrap_or_else(|| {
        panic!("{caller} was called outside of a runtime: call it inside of Runtime::block_on or of a task")
    })
}

/// The future of [`sleep()`] and [`sleep_until()`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    timers: Rc<Timers>,
    /// `None`: beyond the end of time.
    deadline: Option<Instant>,
    /// The entry in the map, if it was polled and has not fired.
    key: Option<TimerKey>,
}

impl Sleep {
    fn new(timers: Rc<Timers>, deadline: Option<Instant>) -> Sleep {
        Sleep { timers, deadline, key: None }
    }

    /// When it ends. `None`: never, because the duration went beyond what [`Instant`] can hold.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Moves the deadline. The task is not woken by the old one any more, and by the new one once it has polled again.
    pub fn reset(&mut self, deadline: Instant) {
        self.rearm(Some(deadline));
    }

    /// Whether its task has been woken by it, so that it is to be polled. What asks often and polls seldom spares itself
    /// the looks at the clock.
    #[inline]
    pub(crate) fn has_fired(&self) -> bool {
        self.deadline.is_some() && self.deadline <= self.timers.fired.get()
    }

    fn rearm(&mut self, deadline: Option<Instant>) {
        self.disarm();
        self.deadline = deadline;
    }

    fn disarm(&mut self) {
        if let Some(key) = self.key.take() {
            self.timers.remove(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else {
            return Poll::Pending;
        };
        if self.timers.now() >= deadline {
            self.disarm();
            return Poll::Ready(());
        }
        let key = self.timers.register(self.key, deadline, cx.waker());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`timeout()`].
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    /// Gives the future back, as far as it has come.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            // It may be kept, and its timer would wake for nothing.
            this.sleep.disarm();
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed(())))
    }
}

/// The time of a [`timeout()`] ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time ran out before the future completed")
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}

/// A clock that ticks; see [`interval()`].
#[derive(Debug)]
pub struct Interval {
    period: Duration,
    /// Its deadline is the next tick.
    sleep: Sleep,
}

impl Interval {
    /// Waits for the next tick. Returns when that was due, which is earlier than now if the caller is late.
    ///
    /// # Cancel safety
    /// Dropping the future loses no tick.
    pub fn tick(&mut self) -> Tick<'_> {
        Tick { interval: self, yielded: false }
    }

    /// The time from one tick to the next.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// When to tick after the tick that was due at `due` is taken at `now`: the first whole period after both.
    fn following(&self, due: Instant, now: Instant) -> Option<Instant> {
        let late = now.saturating_duration_since(due);
        if late < self.period {
            return due.checked_add(self.period);
        }
        if self.period.is_zero() {
            return Some(now);
        }
        let into_period = Duration::from_nanos_u128(late.as_nanos() % self.period.as_nanos());
        now.checked_add(self.period - into_period)
    }
}

/// The future of [`Interval::tick`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Tick<'a> {
    interval: &'a mut Interval,
    yielded: bool,
}

impl Future for Tick<'_> {
    type Output = Instant;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Instant> {
        if self.interval.period.is_zero() && !self.yielded {
            // Always due: without a pause a loop of ticks would keep every other task from running.
            self.yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let interval = &mut *self.interval;
        ready!(Pin::new(&mut interval.sleep).poll(cx));
        let now = interval.sleep.timers.now();
        let due = interval.sleep.deadline.unwrap_or(now);
        let next = interval.following(due, now);
        interval.sleep.rearm(next);
        Poll::Ready(due)
    }
}

/// The registered timers of one runtime.
pub(crate) struct Timers {
    clock: Box<dyn Fn() -> Instant>,
    state: RefCell<State>,
    /// Whether there is no timer: what every pass of the loop asks twice.
    is_empty: Cell<bool>,
    /// Up to when timers have fired.
    fired: Cell<Option<Instant>>,
    closed: Cell<bool>,
}

/// Two timers may have one deadline; the serial number tells them apart, and keeps them in the order they came.
type TimerKey = (Instant, u64);

#[derive(Default)]
struct State {
    timers: BTreeMap<TimerKey, Waker>,
    next_serial: u64,
}

impl Timers {
    /// Timers that go by this clock.
    pub(crate) fn new(clock: impl Fn() -> Instant + 'static) -> Timers {
        Timers {
            clock: Box::new(clock),
            state: RefCell::default(),
            is_empty: Cell::new(true),
            fired: Cell::new(None),
            closed: Cell::new(false),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Whether no timer is set.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.is_empty.get()
    }

    /// When the earliest timer wants to be fired.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.is_empty.get() {
            return None;
        }
        self.state.borrow().timers.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Wakes every timer that is due at `now`, earliest first. Each is out of the map before it is woken, so if one waker
    /// panics the others are still there for the next turn.
    pub(crate) fn fire(&self, now: Instant) {
        self.fired.set(Some(now));
        while let Some(waker) = self.pop_due(now) {
            waker.wake();
        }
    }

    fn pop_due(&self, now: Instant) -> Option<Waker> {
        let mut state = self.state.borrow_mut();
        let first = state.timers.first_entry()?;
        let due = (first.key().0 <= now).then(|| first.remove());
        self.is_empty.set(state.timers.is_empty());
        due
    }

    /// Sets the waker of the timer at `key`, or puts a new one in if there is none or it has fired.
    fn register(self: &Rc<Self>, key: Option<TimerKey>, deadline: Instant, waker: &Waker) -> TimerKey {
        assert!(!self.closed.get(), "a timer was polled after its runtime was dropped, so it can never fire");
        assert!(
            try_current_timers().is_some_and(|timers| Rc::ptr_eq(&timers, self)),
            "a timer was polled outside of the runtime it was made in, which alone can fire it: make it where it is awaited"
        );
        if let Some(key) = key
            && self.state.borrow().timers.get(&key).is_some_and(|present| present.will_wake(waker))
        {
            return key;
        }
        let waker = waker.clone();
        let (key, replaced) = self.state.borrow_mut().insert(key, deadline, waker);
        self.is_empty.set(false);
        drop(replaced);
        key
    }

    fn remove(&self, key: TimerKey) {
        let mut state = self.state.borrow_mut();
        let removed = state.timers.remove(&key);
        self.is_empty.set(state.timers.is_empty());
        drop(state);
        drop(removed);
    }

    /// Forgets every timer. The runtime is gone: nobody will fire them.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let forgotten = std::mem::take(&mut self.state.borrow_mut().timers);
        self.is_empty.set(true);
        drop(forgotten);
    }
}

impl State {
    fn insert(&mut self, key: Option<TimerKey>, deadline: Instant, waker: Waker) -> (TimerKey, Option<Waker>) {
        let key = key.unwrap_or_else(|| {
            self.next_serial += 1;
            (deadline, self.next_serial)
        });
        (key, self.timers.insert(key, waker))
    }
}
