//! Threads that block in pread(2) and pwrite(2).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Barrier};
use std::thread;

use tokio::task::{JoinSet, spawn_blocking};

use crate::aligned::Aligned;
use crate::files::PAGE;
use crate::work::{Job, Meter, Work};

/// What tokio::fs does for each operation, at its cheapest: one trip to the blocking pool and back.
///
/// Its `File` would seek and read, which are two, and copy the bytes through a buffer of its own that no O_DIRECT read
/// can fill.
pub(crate) fn tokio_fs(job: &Job, meter: &mut Meter) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(job.depth).build()?;
    let file = Arc::new(job.open()?);
    runtime.block_on(async {
        // All threads of the pool are started by as many tasks that wait for each other.
        let all_started = Arc::new(Barrier::new(job.depth));
        let mut starting = JoinSet::new();
        for _ in 0..job.depth {
            let all_started = all_started.clone();
            starting.spawn_blocking(move || all_started.wait().is_leader());
        }
        starting.join_all().await;

        meter.start();
        let mut lanes: JoinSet<io::Result<()>> = JoinSet::new();
        for _ in 0..job.depth {
            let (file, work, is_write) = (file.clone(), job.work.clone(), job.is_write());
            let mut buffer = Aligned::new(job.kind.block(), PAGE);
            lanes.spawn(async move {
                while let Some(at) = work.next() {
                    let file = file.clone();
                    let operate = move || operate(&file, is_write, &mut buffer, at).map(|count| (count, buffer));
                    let (count, back) = spawn_blocking(operate).await.map_err(io::Error::other)??;
                    buffer = back;
                    work.check(count, &buffer, at)?;
                }
                Ok(())
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.map_err(io::Error::other)??;
        }
        meter.stop();
        Ok(())
    })
}

/// As many threads as there are operations in flight, each of which takes its next place itself: no pool can be cheaper.
pub(crate) fn pread_pool(job: &Job, meter: &mut Meter) -> io::Result<()> {
    let file = job.open()?;
    let ready = Barrier::new(job.depth + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..job.depth)
            .map(|_| {
                scope.spawn(|| {
                    let mut buffer = Aligned::new(job.kind.block(), PAGE);
                    ready.wait();
                    operate_on_all(&file, job.is_write(), &mut buffer, &job.work)
                })
            })
            .collect();
        // Before the barrier, not after: the threads may run on before this one is scheduled again.
        meter.start();
        ready.wait();
        let mut outcome = Ok(());
        for thread in threads {
            outcome = outcome.and(thread.join().map_err(|_| io::Error::other("a thread panicked")).flatten());
        }
        meter.stop();
        outcome
    })
}

fn operate_on_all(file: &File, is_write: bool, buffer: &mut Aligned, work: &Work) -> io::Result<()> {
    while let Some(at) = work.next() {
        let count = operate(file, is_write, buffer, at)?;
        work.check(count, buffer, at)?;
    }
    Ok(())
}

fn operate(file: &File, is_write: bool, buffer: &mut Aligned, at: u64) -> io::Result<usize> {
    if is_write { file.write_at(buffer, at) } else { file.read_at(buffer, at) }
}
