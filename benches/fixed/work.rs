//! What is to be done in one run: where each operation goes, and until when there are more; and the clocks.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::files;

/// What is done, at which places, in what sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RandomRead,
    SequentialRead,
    SequentialWrite,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::RandomRead => "randread",
            Kind::SequentialRead => "seqread",
            Kind::SequentialWrite => "seqwrite",
        }
    }

    /// Bytes of each operation.
    pub(crate) fn block(self) -> usize {
        if self == Kind::RandomRead { 4096 } else { 128 << 10 }
    }
}

/// One run of one variant.
#[derive(Debug)]
pub(crate) struct Job {
    path: PathBuf,
    pub(crate) kind: Kind,
    direct: bool,
    pub(crate) depth: usize,
    pub(crate) work: Arc<Work>,
}

/// Hands out places, to one thread or many, until its time is over.
#[derive(Debug)]
pub(crate) struct Work {
    kind: Kind,
    blocks: u64,
    span: Duration,
    given_out: AtomicU64,
    is_over: AtomicBool,
    began: std::sync::OnceLock<Instant>,
}

/// Wall and CPU clock between a start and a stop.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    started: Option<(Duration, Instant)>,
    measured: Option<(Duration, Duration)>,
}

impl Job {
    /// `depth` operations in flight at once on a file of `bytes`, for `span`.
    pub(crate) fn new(
        path: &std::path::Path,
        kind: Kind,
        direct: bool,
        depth: u32,
        bytes: u64,
        span: Duration,
    ) -> Self {
        let work = Work {
            kind,
            blocks: bytes / kind.block() as u64,
            span,
            given_out: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            began: std::sync::OnceLock::new(),
        };
        Job { path: path.to_owned(), kind, direct, depth: depth as usize, work: Arc::new(work) }
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        files::open(&self.path, self.is_write(), self.direct)
    }

    pub(crate) fn is_write(&self) -> bool {
        self.kind == Kind::SequentialWrite
    }
}

impl Work {
    /// The offset of the next operation, in bytes. The clock runs from the first one on.
    pub(crate) fn next(&self) -> Option<u64> {
        if self.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.given_out.fetch_add(1, Ordering::Relaxed);
        // Looking at the clock costs as much as some operations do.
        if number.is_multiple_of(16) && self.began.get_or_init(Instant::now).elapsed() >= self.span {
            self.is_over.store(true, Ordering::Relaxed);
        }
        let block = if self.kind == Kind::RandomRead { scattered(number) } else { number } % self.blocks;
        Some(block * self.kind.block() as u64)
    }

    /// Operations so far. All of them have ended when the run has.
    pub(crate) fn given_out(&self) -> u64 {
        self.given_out.load(Ordering::Relaxed)
    }

    /// Whether an operation moved all of its bytes, and a read the ones that stand at its place in the file.
    pub(crate) fn check(&self, count: usize, bytes: &[u8], at: u64) -> io::Result<()> {
        let block = self.kind.block();
        if count != block {
            return Err(io::Error::other(format!("{count} bytes were moved at {at} instead of {block}")));
        }
        if self.kind != Kind::SequentialWrite && bytes[..8] != at.to_le_bytes() {
            return Err(io::Error::other(format!("the bytes read at {at} are not those of that place")));
        }
        Ok(())
    }
}

impl Meter {
    /// To be called when everything is ready, before the first operation.
    pub(crate) fn start(&mut self) {
        self.started = Some((process_cpu(), Instant::now()));
    }

    /// To be called after the last operation has ended.
    pub(crate) fn stop(&mut self) {
        self.measured = self.started.map(|(cpu, wall)| (wall.elapsed(), process_cpu() - cpu));
    }

    /// Wall and CPU time.
    pub(crate) fn read(&self) -> io::Result<(Duration, Duration)> {
        self.measured.ok_or_else(|| io::Error::other("a variant ended without starting and stopping its clock"))
    }
}

/// CPU time of all threads of this process, io-wq workers among them: they are its threads.
fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The same numbers in every run, far from each other (SplitMix64).
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
