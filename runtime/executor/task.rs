//! One task: its future, contained, and the handle that waits for it.
//!
//! The problem: a future, its output and the payload of its panic are foreign values whose destructors may panic too,
//! and async-task aborts the process where that happens. So each of them is dropped inside a catch of its own: a panic
//! reaches the handle, or the log, and never another task.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use async_task::{Builder, FallibleTask};
use pin_project_lite::pin_project;

use super::queue::{Ready, Shared, TaskId};

/// Waits for a task, and can abort it.
///
/// The handle is a future; it yields what the task's future returned, moved out of the task. It can be awaited on any
/// thread if the output is `Send`. Dropping the handle *detaches* the task, which runs on. A task that panicked with
/// nobody left to be told is logged as an error.
///
/// # Cancel safety
/// Dropping a handle that was polled loses the output, not the task. Poll it by reference to keep it.
///
/// # Errors
/// [`JoinError`] if the task panicked, was aborted, or was dropped with its runtime.
///
/// # Panics
/// When it is polled again after it was ready.
///
/// # Examples
/// ```
/// # fn example(runtime: &ringmain::Runtime) {
/// runtime.block_on(async {
///     let task = ringmain::spawn(async { 6 * 7 });
///     assert_eq!(task.await.unwrap(), 42);
/// });
/// # }
/// ```
pub struct JoinHandle<T> {
    state: State<T>,
    shared: Arc<Shared>,
}

enum State<T> {
    Running(FallibleTask<Outcome<T>, TaskId>, TaskId),
    /// The runtime was shutting down when the task was spawned.
    Refused,
    Taken,
}

/// Makes the cell of a task, ready for its first run.
pub(super) fn new<F: Future + 'static>(future: F, shared: &Arc<Shared>) -> (Ready, JoinHandle<F::Output>) {
    let id = shared.admit();
    let job = Job { future: Some(future), membership: Membership { id, shared: shared.clone() } };
    let schedule = {
        let shared = shared.clone();
        move |ready: Ready| shared.schedule(ready)
    };
    let (ready, task) = Builder::new().metadata(id).spawn_local(move |_| job, schedule);
    shared.set_waker(id, ready.waker());
    (ready, JoinHandle { state: State::Running(task.fallible(), id), shared: shared.clone() })
}

impl<T> JoinHandle<T> {
    pub(super) fn refused(shared: Arc<Shared>) -> JoinHandle<T> {
        JoinHandle { state: State::Refused, shared }
    }

    /// Asks for the task to be dropped. Its thread drops the future before the task would run next, and the handle then
    /// answers *cancelled*; a task that completes first keeps its output. Aborting a finished task does nothing.
    pub fn abort(&self) {
        if let State::Running(_, id) = self.state {
            self.shared.abort(id);
        }
    }

    /// Whether the task has completed, panicked or been dropped, so that awaiting the handle does not wait.
    pub fn is_finished(&self) -> bool {
        match &self.state {
            State::Running(task, _) => task.is_finished(),
            State::Refused | State::Taken => true,
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.state {
            State::Running(task, _) => ready!(Pin::new(task).poll(cx)),
            State::Refused => None,
            State::Taken => panic!("a JoinHandle was polled after it was ready: await it once"),
        };
        self.state = State::Taken;
        Poll::Ready(match outcome.and_then(Outcome::take) {
            Some(Ok(output)) => Ok(output),
            Some(Err(payload)) => Err(JoinError(Reason::Panicked(Mutex::new(payload)))),
            None => Err(JoinError(Reason::Cancelled)),
        })
    }
}

impl<T> Unpin for JoinHandle<T> {}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let State::Running(task, _) = mem::replace(&mut self.state, State::Taken) {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}

/// Why a task has no output: it was cancelled, or it panicked.
pub struct JoinError(Reason);

enum Reason {
    Cancelled,
    /// In a mutex only to be `Sync`, so that the error fits into `Box<dyn Error + Send + Sync>`.
    Panicked(Mutex<Box<dyn Any + Send>>),
}

impl JoinError {
    /// Whether the task was aborted, or dropped with its runtime.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Reason::Panicked(_))
    }

    /// What the task panicked with, for [`std::panic::resume_unwind`].
    ///
    /// # Panics
    /// If the task did not panic; ask [`JoinError::is_panic`] first.
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        match self.0 {
            Reason::Panicked(payload) => payload.into_inner().unwrap_or_else(PoisonError::into_inner),
            Reason::Cancelled => {
                panic!("the task did not panic, it was cancelled: ask is_panic first")
            }
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Cancelled => f.write_str("the task was cancelled: it was aborted, or its runtime was dropped"),
            Reason::Panicked(payload) => {
                let payload = payload.lock().unwrap_or_else(PoisonError::into_inner);
                write!(f, "the task panicked: {}", message(payload.as_ref()))
            }
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl Error for JoinError {}

pin_project! {
    /// What async-task keeps in the cell. It never panics, neither when polled nor when dropped.
    struct Job<F> where F: Future {
        // `None` once the future was dropped.
        #[pin]
        future: Option<F>,
        // After the future, because shutdown takes its going for the future's end.
        membership: Membership,
    }

    impl<F: Future> PinnedDrop for Job<F> {
        fn drop(this: Pin<&mut Self>) {
            this.drop_future();
        }
    }
}

impl<F: Future> Job<F> {
    fn drop_future(self: Pin<&mut Self>) {
        let mut future = self.project().future;
        contain("the destructor of a task", || future.set(None));
    }
}

impl<F: Future> Future for Job<F> {
    type Output = Outcome<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| match self.as_mut().project().future.as_pin_mut() {
            Some(future) => future.poll(cx),
            None => panic!("a task was run after its end"),
        }));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(payload),
        };
        let outcome = Outcome(Some(result));
        self.drop_future();
        Poll::Ready(outcome)
    }
}

/// A task's place in the executor's list, given up when its future is gone.
struct Membership {
    id: TaskId,
    shared: Arc<Shared>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.retire(self.id);
    }
}

/// How a task ended. Logs a panic that nobody took.
struct Outcome<T>(Option<Result<T, Box<dyn Any + Send>>>);

impl<T> Outcome<T> {
    fn take(mut self) -> Option<Result<T, Box<dyn Any + Send>>> {
        self.0.take()
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Err(payload)) => log_panic("a detached task", payload),
            output => contain("the destructor of a detached task's output", || drop(output)),
        }
    }
}

/// Runs a foreign destructor where an unwinding panic must not pass: it is logged instead.
pub(super) fn contain(what: &'static str, drop_it: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(drop_it)) {
        log_panic(what, payload);
    }
}

fn log_panic(what: &'static str, payload: Box<dyn Any + Send>) {
    tracing::error!(panic = message(payload.as_ref()), "{what} panicked");
    // A payload may have a destructor that panics, with a payload of its own, without end: that one is leaked.
    if let Err(endless) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(endless);
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(a payload that is not text)"
    }
}
