//! Life and death of operations, under an allocator that unmaps what is freed: counts of slots, buffers, pages,
//! descriptors and worker threads return to where they were, and memory that was given back is never written.
//!
//! The counts are the whole process's, so one test runs at a time.

mod counts;
mod memory;
#[path = "../parked/mod.rs"]
mod parked;
#[path = "../rings/mod.rs"]
mod rings;
mod unmapping;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use ringmain::{Driver, Fd, ops};

#[global_allocator]
static ALLOCATOR: unmapping::Unmapping = unmapping::Unmapping;

static ALONE: Mutex<()> = Mutex::new(());

/// The right to count.
fn alone() -> MutexGuard<'static, ()> {
    // A test that failed says so itself; the next one counts afresh.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a process has.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    descriptors: usize,
    mapped: usize,
}

impl Census {
    fn take() -> Self {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("there is a /proc").count();
        Self { descriptors, mapped: unmapping::mapped() }
    }
}

/// Turns the calling thread over until the kernel's worker threads have ended, which they do after their ring.
fn workers_end() {
    let workers = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("there is a /proc");
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            // A thread may end between being listed and being read.
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).filter(|name| name.starts_with("iou-")).count()
    };
    let started = std::time::Instant::now();
    while workers() > 0 {
        assert!(started.elapsed().as_secs() < 60, "{} worker threads stay", workers());
        std::thread::yield_now();
    }
}

/// Poll a future once, as the task that calls this.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// One turn of the ring: what was queued before it is with the kernel after it.
async fn one_turn() {
    ops::nop().await.expect("nothing can go wrong with nothing");
}

/// Turn until the kernel has let go of everything.
async fn settled() {
    while Driver::current().operations_active() > 0 {
        one_turn().await;
    }
}

/// A pipe whose reading end is the runtime's. It blocks, as a pipe that somebody else made does.
fn pipe() -> (Fd, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    (Fd::new(reader.into()), writer)
}

/// Two connected stream sockets, the first one the runtime's.
fn sockets() -> (Fd, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("there are descriptors");
    (Fd::new(OwnedFd::from(ours)), theirs)
}
