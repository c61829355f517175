mod shutdown;
mod tasks;
mod threads;

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::task::AtomicWaker;

use super::*;
use crate::runtime::block_on::{Park, Runtime};
use crate::runtime::context::spawn;
use crate::runtime::fake_park::{EventPark, ScriptedPark, panic_text};
use crate::runtime::ring::Wait;
use crate::runtime::time::sleep;

/// Lets every other ready task run once.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if paused {
            return Poll::Ready(());
        }
        paused = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Counts its end, and insists that it comes on the thread that made it. Not `Send`, as a task's future may be.
struct Tracked {
    drops: Arc<AtomicUsize>,
    thread: ThreadId,
    _not_send: Rc<()>,
}

impl Tracked {
    fn new(drops: &Arc<AtomicUsize>) -> Tracked {
        Tracked { drops: drops.clone(), thread: thread::current().id(), _not_send: Rc::new(()) }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.thread, "dropped on a foreign thread");
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs a closure when dropped.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

fn on_drop<F: FnOnce()>(run: F) -> OnDrop<F> {
    OnDrop(Some(run))
}

/// What `run` logs on this thread.
fn logged(run: impl FnOnce()) -> String {
    let (sender, receiver) = mpsc::channel();
    let subscriber = tracing_subscriber::fmt().with_writer(move || Log(sender.clone())).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, run);
    String::from_utf8(receiver.try_iter().flatten().collect()).unwrap()
}

struct Log(mpsc::Sender<Vec<u8>>);

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(line.to_vec()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
