//! What the process has: descriptors, pipes, threads, memory, time.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raise the soft limit of descriptors to the hard one; whether so many can be had.
pub(crate) fn raise_descriptor_limit(wanted: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.is_none_or(|most| most >= wanted)
}

pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// What the process's descriptors are, by the names that the kernel has for them.
pub(crate) fn descriptors() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect()
}

/// How many of them are ends of pipes.
pub(crate) fn pipe_ends() -> usize {
    descriptors().iter().filter(|name| name.to_string_lossy().starts_with("pipe:")).count()
}

/// Memory that the process has written to and that is no file's, in KiB.
pub(crate) fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("the kernel counts anonymous memory");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
