//! Life and death of operations, under an allocator that unmaps what is freed: counts of slots, buffers, pages,
//! descriptors and worker threads return to where they were, and memory that was given back is never written.
//!
//! The counts are the whole process's, so one test runs at a time.

mod children;
mod counts;
mod memory;
#[path = "../parked/mod.rs"]
mod parked;
mod pinned;
#[path = "../rings/mod.rs"]
mod rings;
#[path = "../turns/mod.rs"]
mod turns;
mod unmapping;

use std::sync::{Mutex, MutexGuard, PoisonError};

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
