//! Which runtime the calling thread is in: what the free functions, and wakers on the runtime's own thread, ask.
//!
//! The problem: thread-locals die in an order nobody controls, and a runtime may itself be kept in one, or be dropped
//! after them. So nothing here assumes that the thread-local still exists. Without it wakes take the way of other
//! threads, which always works, and only the free functions panic, with a sentence.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::block_on::Park;
use super::executor::{Executor, JoinHandle};
use super::time::Timers;
use super::unpark::Unpark;

/// What one runtime shares with the code that runs in it.
pub(crate) struct Context {
    pub(crate) executor: Executor,
    pub(crate) timers: Rc<Timers>,
    /// The park's own, at hand for every pass of the loop.
    pub(crate) unpark: Arc<Unpark>,
    pub(crate) park: Rc<dyn Park>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Context>>> = const { RefCell::new(None) };
    /// The address of its `unpark`, 0 for none: to compare it needs no borrow, and no look whether the thread is ending.
    static CURRENT_UNPARK: Cell<usize> = const { Cell::new(0) };
}

/// Puts a future onto the runtime that the caller runs in, as a task of its own.
///
/// The task runs on this thread only, so the future need not be `Send`. It starts in the next round, whether or not the
/// [`JoinHandle`] is kept. While the runtime is being dropped the future is dropped on the spot and the handle answers
/// *cancelled*.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// # fn example(runtime: &ringmain::Runtime) {
/// use std::rc::Rc;
///
/// runtime.block_on(async {
///     let shared = Rc::new(40);
///     let task = ringmain::spawn({
///         let shared = shared.clone();
///         async move { *shared + 2 }
///     });
///     assert_eq!(task.await.unwrap(), 42);
/// });
/// # }
/// ```
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    current("spawn").executor.spawn(future)
}

/// The context the caller runs in, for the free function named `caller`.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub(crate) fn current(caller: &str) -> Rc<Context> {
    match with_current(Rc::clone) {
        Some(context) => context,
        None => panic!("{caller} was called outside of a runtime: call it inside of Runtime::block_on or of a task"),
    }
}

/// Shows the current context to `look`, if there is one. No foreign code may run inside.
pub(crate) fn with_current<R>(look: impl FnOnce(&Rc<Context>) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(look)).ok().flatten()
}

/// Whether the caller runs in the runtime that this belongs to.
#[inline]
pub(crate) fn is_within(unpark: &Arc<Unpark>) -> bool {
    CURRENT_UNPARK.get() == Arc::as_ptr(unpark).addr()
}

/// Makes `context` the current one until the guard is dropped, also by a panic.
pub(crate) fn enter(context: Rc<Context>) -> Entered {
    let unpark = Arc::as_ptr(&context.unpark).addr();
    let outer = CURRENT.try_with(|current| current.replace(Some(context))).ok();
    if outer.is_some() {
        CURRENT_UNPARK.set(unpark);
    }
    Entered { outer }
}

/// The time in which a context is the current one.
pub(crate) struct Entered {
    /// What was current before; `None` if the thread-local is gone and nothing was changed.
    outer: Option<Option<Rc<Context>>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(outer) = self.outer.take() {
            CURRENT_UNPARK.set(outer.as_ref().map_or(0, |outer| Arc::as_ptr(&outer.unpark).addr()));
            // If the thread-local died meanwhile there is nothing to put back into.
            let inner = CURRENT.try_with(|current| current.replace(outer));
            drop(inner);
        }
    }
}
