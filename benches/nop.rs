//! What one operation costs over the bare ring: NOPs by one task, in batches of 1, 8 and 32.
//!
//! A NOP does nothing in the kernel, so what is measured is the way there and back. The bare loop pushes a batch
//! through the io-uring crate, enters once, waits for all of it and drains; it has the set-up flags and the
//! registered ring descriptor that a runtime would use, so that neither side wins by its flags. The runtime's batches
//! of one are an operation awaited, as a program writes it; larger ones are polled by hand. Allocations are counted by
//! the global allocator, in the measured part only.
//!
//! `cargo bench --bench nop`, and `-- --smoke` for a run of a second.

#[path = "nop/allocations.rs"]
mod allocations;
#[path = "nop/bare.rs"]
mod bare;
mod harness;
#[path = "nop/ours.rs"]
mod ours;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::{Bench, Measure, Variant};

/// Submits a number of batches of so many NOPs each, around the clock it is given.
type Loop = fn(u32, u32, &mut Clock) -> io::Result<()>;

/// The loop that the others are compared with.
const BASELINE: &str = "bare";

const VARIANTS: [(&str, Loop); 2] = [("bare", bare::nops), ("ringmain", ours::nops)];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut bench = Bench::open("nop");
    let operations: u32 = if bench.smoke() { 64 * 1024 } else { 2 * 1024 * 1024 };
    for batch in [1, 8, 32] {
        let batches = operations / batch;
        let variants = VARIANTS.map(|(name, submit)| Variant::new(name, move || measure(submit, batch, batches)));
        bench.case(&format!("batch-{batch}"), BASELINE, Vec::from(variants))?;
    }
    bench.finish()?;
    Ok(())
}

fn measure(submit: Loop, batch: u32, batches: u32) -> io::Result<Vec<Measure>> {
    let mut clock = Clock::default();
    submit(batch, batches, &mut clock)?;
    let operations = f64::from(batch) * f64::from(batches);
    let (elapsed, allocations) = clock.read()?;
    Ok(vec![
        Measure { metric: "ns_per_op", unit: "ns", value: elapsed.as_nanos() as f64 / operations },
        Measure { metric: "allocations_per_op", unit: "allocations", value: allocations as f64 / operations },
    ])
}

/// Time and allocations between a start and a stop.
#[derive(Default)]
struct Clock {
    started: Option<(Instant, u64)>,
    measured: Option<(Duration, u64)>,
}

impl Clock {
    /// To be called when the ring is set up and warm.
    fn start(&mut self) {
        self.started = Some((Instant::now(), allocations::count()));
    }

    /// To be called after the last completion.
    fn stop(&mut self) {
        self.measured = self.started.map(|(began, before)| (began.elapsed(), allocations::count() - before));
    }

    fn read(&self) -> io::Result<(Duration, u64)> {
        self.measured.ok_or_else(|| io::Error::other("a variant ended without starting and stopping its clock"))
    }
}
