//! Bandwidth through one pipe with 1, 2, 4 .. 256 pages in flight, writer and reader on a thread each.
//!
//! Linux 2.6.11 let a pipe hold 16 pages instead of one, and lmbench's pipe bandwidth rose by 30 to 90 %. This
//! draws that curve as far as the largest pipe goes. Every transfer is of 64 KiB, as lmbench's are, so that only
//! the pipe changes along the curve.
//!
//! `cargo bench --bench pipe_pages`, and `-- --smoke` for a run of a second or two.

#[path = "harness/curve.rs"]
mod curve;
mod harness;
#[path = "pipe_pages/ours.rs"]
mod ours;

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Bench, Measure, Variant};

/// The size of every write and of every read, in bytes.
const TRANSFER: usize = 64 * 1024;

/// Moves a number of bytes through a pipe that holds a number of pages, and says how long it took.
type Pass = fn(Pipe, u64) -> io::Result<Duration>;

/// The blocking pair is what the others are compared with.
const VARIANTS: [(&str, Pass); 4] =
    [("blocking", blocking), ("ringmain", ours::plain), ("fixed", ours::fixed), ("splice", ours::splice)];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pipe_pages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut bench = Bench::open("pipe_pages");
    let bytes: u64 = if bench.smoke() { 4 << 20 } else { 512 << 20 };
    let mut rows = Vec::new();
    for pages in (0..=8).map(|power| 1_usize << power) {
        let variants = VARIANTS.map(|(name, pass)| {
            Variant::new(name, move || {
                let elapsed = pass(Pipe::of_pages(pages)?, bytes)?;
                Ok(vec![Measure {
                    metric: "mb_per_s",
                    unit: "MB/s",
                    value: bytes as f64 / 1e6 / elapsed.as_secs_f64(),
                }])
            })
        });
        rows.extend(bench.case(&format!("pages-{pages}"), "blocking", Vec::from(variants))?);
    }
    let Some(record) = bench.finish()? else { return Ok(()) };
    let picture = record.with_extension("svg");
    curve::draw(
        &picture,
        "Bandwidth of one pipe, two threads, transfers of 64 KiB",
        "pages in flight",
        "MB/s",
        &rows,
        |row| pages_of(&row.case),
    )?;
    println!("curve: {}", picture.display());
    Ok(())
}

/// A pipe that holds exactly the pages asked for.
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    fn of_pages(pages: usize) -> io::Result<Pipe> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let asked = pages * rustix::param::page_size();
        let got = rustix::pipe::fcntl_setpipe_size(&writer, asked)?;
        if got != asked {
            let message = format!("asked for a pipe of {asked} bytes and got {got}; see pipe(7), pipe-max-size");
            return Err(io::Error::other(message));
        }
        Ok(Pipe { reader, writer })
    }
}

/// A thread that blocks in write(2) and one that blocks in read(2).
fn blocking(pipe: Pipe, bytes: u64) -> io::Result<Duration> {
    let Pipe { reader, writer } = pipe;
    timed(
        bytes,
        move || {
            let source = vec![0x5a; TRANSFER];
            let mut left = bytes;
            while left > 0 {
                let length = left.min(TRANSFER as u64) as usize;
                left -= rustix::io::write(&writer, &source[..length])? as u64;
            }
            Ok(())
        },
        move || {
            let mut target = vec![0; TRANSFER];
            let mut moved = 0;
            loop {
                match rustix::io::read(&reader, &mut target[..])? {
                    0 => return Ok(moved),
                    count => moved += count as u64,
                }
            }
        },
    )
}

/// Starts a writer and a reader together; the clock runs until the reader has seen the end, and checks its count.
fn timed(
    bytes: u64,
    write: impl FnOnce() -> io::Result<()> + Send,
    read: impl FnOnce() -> io::Result<u64> + Send,
) -> io::Result<Duration> {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            start.wait();
            write()
        });
        // Before the barrier, not after: the writer may run on for milliseconds before this thread is scheduled again.
        let began = Instant::now();
        start.wait();
        let moved = read();
        let elapsed = began.elapsed();
        let written = writing.join().map_err(|_| io::Error::other("the writing thread panicked"))?;
        // A failed reader makes the writer fail with a broken pipe, so the reader's error is the one to tell.
        let moved = moved?;
        written?;
        if moved == bytes {
            Ok(elapsed)
        } else {
            Err(io::Error::other(format!("{bytes} bytes were written but {moved} were read")))
        }
    })
}

/// The number of pages in the name of a case.
fn pages_of(case: &str) -> f64 {
    case.trim_start_matches("pages-").parse().expect("every case is named pages-N")
}
