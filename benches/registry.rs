//! What a lease costs, and what registering pages does.
//!
//! Nanoseconds to take and give back memory of several sizes, by one thread and by two at once: a lease of the registry,
//! with and without a future, beside the allocator and beside a pool of buffers behind a mutex. `cycle` gives back at
//! once; `held` gives back the oldest of 16. Nobody touches the bytes. CPU time stands beside it, of each thread.
//!
//! Then microseconds to build a runtime whose pages are registered, and one whose pages are not, beside registering
//! fresh memory through the io-uring crate, with huge pages and without.
//!
//! `cargo bench --bench registry`, and `-- --smoke` for a run of seconds.

#[path = "harness/aligned.rs"]
mod aligned;
#[path = "registry/bare.rs"]
mod bare;
mod harness;
#[path = "registry/takers.rs"]
mod takers;

use std::collections::VecDeque;
use std::fs;
use std::hint::black_box;
use std::io;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Bench, Measure, Variant};
use ringmain::{Config, Runtime};
use takers::{Allocator, LeaseFuture, MutexPool, Take, TryLease};

/// Buffers that a thread has at most.
const HELD: usize = 16;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("registry: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut bench = Bench::open("registry");
    let cycles = if bench.smoke() { 10_000 } else { 200_000 };
    for (pattern, held) in [("cycle", 1), ("held", HELD)] {
        for size in [4096, 64 << 10, 1 << 20] {
            for threads in [1, 2] {
                let case = format!("{pattern}-{}k-{threads}", size >> 10);
                let variants = vec![
                    Variant::new("try-lease", move || {
                        cycle(&TryLease::new(size, threads * held)?, held, threads, cycles)
                    }),
                    Variant::new("lease", move || {
                        cycle(&LeaseFuture::new(size, threads * held)?, held, threads, cycles)
                    }),
                    Variant::new("malloc", move || cycle(&Allocator::new(size), held, threads, cycles)),
                    Variant::new("mutex-pool", move || {
                        cycle(&MutexPool::new(size, threads * held), held, threads, cycles)
                    }),
                ];
                bench.case(&case, "malloc", variants)?;
            }
        }
    }
    let sizes: &[usize] = if bench.smoke() { &[2] } else { &[2, 16, 128] };
    for &mib in sizes {
        let variants = vec![
            Variant::new("runtime", move || build(mib, true)),
            Variant::new("unregistered", move || build(mib, false)),
            Variant::new("bare-huge", move || registered(|| bare::register(mib << 20, true))),
            Variant::new("bare-small", move || registered(|| bare::register(mib << 20, false))),
        ];
        bench.case(&format!("register-{mib}m"), "bare-huge", variants)?;
    }
    bench.finish()?;
    Ok(())
}

/// Takes and gives back, in as many threads as are wanted at once, each of which has `held` buffers at most.
fn cycle<T: Take>(taker: &T, held: usize, threads: usize, cycles: u32) -> io::Result<Vec<Measure>> {
    let start = Barrier::new(threads);
    let one_thread = || {
        let mut buffers: VecDeque<T::Buffer> = VecDeque::with_capacity(held);
        start.wait();
        let (began, cpu_before) = (Instant::now(), thread_cpu());
        for _ in 0..cycles {
            if buffers.len() == held {
                buffers.pop_front().into_iter().for_each(|buffer| taker.give_back(buffer));
            }
            buffers.push_back(black_box(taker.take()?));
        }
        let elapsed = [began.elapsed(), thread_cpu() - cpu_before];
        buffers.into_iter().for_each(|buffer| taker.give_back(buffer));
        Ok::<_, io::Error>(elapsed)
    };
    let [wall, cpu] = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one_thread)).collect();
        let mut sums = [Duration::ZERO; 2];
        for thread in running {
            let [wall, cpu] = thread.join().map_err(|_| io::Error::other("a thread panicked")).flatten()?;
            sums = [sums[0] + wall, sums[1] + cpu];
        }
        Ok::<_, io::Error>(sums.map(|sum| sum.as_nanos() as f64 / threads as f64 / f64::from(cycles)))
    })?;
    Ok(vec![
        Measure { metric: "ns_per_cycle", unit: "ns", value: wall },
        Measure { metric: "cpu_ns_per_cycle", unit: "ns", value: cpu },
    ])
}

/// CPU time of the calling thread, which other processes do not add to.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Builds a runtime with so many MiB of pages.
fn build(mib: usize, register: bool) -> io::Result<Vec<Measure>> {
    let config = Config::default().pages((mib << 8) as u32).register_pages(register);
    registered(|| {
        let began = Instant::now();
        let runtime = Runtime::builder().config(config).build().map_err(io::Error::other)?;
        let elapsed = began.elapsed();
        if runtime.driver().registry().is_registered() != register {
            return Err(io::Error::other("the kernel would not register the pages, or registered them unasked"));
        }
        Ok((elapsed, runtime))
    })
}

/// How long it took, and how much of this process's memory is in huge pages while the result lives.
fn registered<T>(register: impl FnOnce() -> io::Result<(Duration, T)>) -> io::Result<Vec<Measure>> {
    let before = huge_mib()?;
    let (elapsed, registered) = register()?;
    let huge = huge_mib()? - before;
    drop(registered);
    Ok(vec![
        Measure { metric: "us_to_register", unit: "us", value: elapsed.as_secs_f64() * 1e6 },
        Measure { metric: "huge_mib", unit: "MiB", value: huge },
    ])
}

fn huge_mib() -> io::Result<f64> {
    let smaps = fs::read_to_string("/proc/self/smaps_rollup")?;
    let kib = smaps.lines().find_map(|line| line.strip_prefix("AnonHugePages:")?.trim().strip_suffix(" kB"));
    let kib: Option<f64> = kib.and_then(|kib| kib.trim().parse().ok());
    Ok(kib.ok_or_else(|| io::Error::other("/proc/self/smaps_rollup does not tell AnonHugePages"))? / 1024.0)
}
