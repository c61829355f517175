//! How many connections a thread has open, and whoever waits for one of them to end.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The count of one thread's open connections. One task at a time waits at it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Cell<u32>,
    ended: Cell<u64>,
    waiting: RefCell<Option<Waker>>,
}

/// One open connection; dropping it says that it has ended.
#[derive(Debug)]
pub(crate) struct Pass(Rc<Gate>);

impl Gate {
    pub(crate) fn enter(self: &Rc<Self>) -> Pass {
        self.open.set(self.open.get() + 1);
        Pass(self.clone())
    }

    /// Waits until fewer than this many are open.
    pub(crate) async fn below(&self, limit: u32) {
        self.until(|| self.open.get() < limit).await;
    }

    /// Waits until a connection ends.
    pub(crate) async fn one_ends(&self) {
        let before = self.ended.get();
        self.until(|| self.ended.get() != before).await;
    }

    async fn until(&self, mut holds: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if holds() {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        self.0.ended.set(self.0.ended.get() + 1);
        if let Some(waker) = self.0.waiting.take() {
            waker.wake();
        }
    }
}
