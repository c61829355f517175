//! What a read or a write of a file costs: operations per second, and CPU time of the whole process for each.
//!
//! 4 KiB reads at random places, and 128 KiB reads and writes in order, with 1, 8, 32 and 128 of them in flight; past the
//! page cache (O_DIRECT) and through it, on the filesystem of cargo's target folder, and in memory (tmpfs). `fixed` and
//! `plain` are tasks of ours, one for each operation in flight, with registered pages and with owned buffers; `bare` is a
//! loop over the io-uring crate with registered memory and the same set-up flags; `tokio-fs` and `pread-pool` are threads
//! that block. CPU time is that of all threads, those of the pools and the kernel's workers for us (io-wq) included;
//! setting up rings, pages and threads is not in it.
//!
//! `cargo bench --bench fixed`, and `-- --smoke` for a run of seconds.

#[path = "harness/aligned.rs"]
mod aligned;
#[path = "fixed/bare.rs"]
mod bare;
#[path = "harness/curve.rs"]
mod curve;
#[path = "fixed/files.rs"]
mod files;
mod harness;
#[path = "fixed/ours.rs"]
mod ours;
#[path = "fixed/threads.rs"]
mod threads;
#[path = "fixed/work.rs"]
mod work;

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use files::{Files, Place};
use harness::{Bench, Measure, Row, Variant};
use work::{Job, Kind, Meter};

/// Keeps as many operations in flight as the job wants, until it has no more.
type Run = fn(&Job, &mut Meter) -> io::Result<()>;

/// The loop that the others are compared with.
const BASELINE: &str = "bare";

const VARIANTS: [(&str, Run); 5] = [
    ("fixed", ours::fixed),
    ("plain", ours::plain),
    ("bare", bare::run),
    ("tokio-fs", threads::tokio_fs),
    ("pread-pool", threads::pread_pool),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fixed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut bench = Bench::open("fixed");
    let (depths, span, bytes): (&[u32], Duration, u64) = if bench.smoke() {
        (&[32], Duration::from_millis(50), 16 << 20)
    } else {
        (&[1, 8, 32, 128], Duration::from_millis(400), 512 << 20)
    };
    let files = Files::make(bytes)?;
    let mut rows = Vec::new();
    for kind in [Kind::RandomRead, Kind::SequentialRead, Kind::SequentialWrite] {
        for place in [Place::Direct, Place::Buffered, Place::Memory] {
            let Some(path) = files.path(kind, place) else { continue };
            // By whoever comes first, so that the filters leave out what this takes as well.
            let is_prepared = &Cell::new(false);
            for &depth in depths {
                let case = format!("{}-{}-{depth}", kind.name(), place.name());
                let variants = VARIANTS.map(|(name, run)| {
                    Variant::new(name, move || {
                        if !is_prepared.replace(true) {
                            files::prepare(path, place)?;
                        }
                        measure(run, &Job::new(path, kind, place == Place::Direct, depth, bytes, span))
                    })
                });
                rows.extend(bench.case(&case, BASELINE, Vec::from(variants))?);
            }
        }
    }
    let Some(record) = bench.finish()? else { return Ok(()) };
    draw(&record, &rows, "iops", "reads per second")?;
    draw(&record, &rows, "cpu_us_per_read", "CPU us for each read, all threads")
}

fn measure(run: Run, job: &Job) -> io::Result<Vec<Measure>> {
    let mut meter = Meter::default();
    run(job, &mut meter)?;
    let (wall, cpu) = meter.read()?;
    let operations = job.work.given_out() as f64;
    let cpu_metric = if job.kind == Kind::SequentialWrite { "cpu_us_per_write" } else { "cpu_us_per_read" };
    Ok(vec![
        Measure { metric: "iops", unit: "operations/s", value: operations / wall.as_secs_f64() },
        Measure { metric: cpu_metric, unit: "us", value: cpu.as_secs_f64() * 1e6 / operations },
    ])
}

/// Draws one metric of the random direct reads over their depth, where more than one depth was measured.
fn draw(record: &Path, rows: &[Row], metric: &str, label: &str) -> io::Result<()> {
    let prefix = format!("{}-{}-", Kind::RandomRead.name(), Place::Direct.name());
    let is_drawn = |row: &&Row| row.metric == metric && row.case.starts_with(&prefix);
    let drawn: Vec<Row> = rows.iter().filter(is_drawn).cloned().collect();
    if drawn.is_empty() {
        return Ok(());
    }
    let picture = record.with_file_name(format!("fixed-{metric}.svg"));
    curve::draw(&picture, "4 KiB reads at random places, O_DIRECT", "reads in flight", label, &drawn, |row| {
        row.case.trim_start_matches(&prefix).parse().expect("every case ends in its depth")
    })?;
    println!("curve: {}", picture.display());
    Ok(())
}
