//! What relaying bulk traffic costs: CPU seconds of the relaying process per gigabyte, and megabytes per second.
//!
//! Three processes over loopback TCP: a source that sends, a relay, a sink that reads to the end and counts. The
//! relay alone is measured, by its own process clock, so all its threads are counted, the kernel's workers for it
//! (io-wq) too. The clock starts when every connection stands and the relay is ready, and stops when every
//! connection has ended, so set-up is not in it; a round that is thrown away warms the machine up. Relays with a
//! hand-written epoll loop are in `relay/epoll.rs`, those of tokio in `relay/tokio_copy.rs`, ours in `relay/ours.rs`.
//!
//! `cargo bench --bench relay`, and `-- --smoke` for a run of seconds. A gigabyte is 10^9 bytes.

#[path = "relay/epoll.rs"]
mod epoll;
mod harness;
#[path = "relay/load.rs"]
mod load;
#[path = "relay/ours.rs"]
mod ours;
#[path = "relay/process.rs"]
mod process;
#[path = "relay/tokio_copy.rs"]
mod tokio_copy;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use harness::{Bench, Measure, Variant};
use process::{Meter, Moved, Pair};

/// Relays what comes from one side of each pair to the other, both ways, until all have ended.
type Relay = fn(Vec<Pair>, &mut Meter) -> io::Result<Moved>;

/// The size asked for each pipe that bytes are spliced through, in bytes: the largest an unprivileged user may have.
const PIPE_BYTES: usize = 1 << 20;

/// The size of each buffer that bytes are copied through, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// The way of relaying that the others are compared with.
const BASELINE: &str = "epoll-splice";

const VARIANTS: [(&str, Relay); 8] = [
    ("auto", ours::auto),
    ("inline", ours::inline),
    ("ring", ours::ring),
    ("copy", ours::copy),
    ("epoll-splice", epoll::relay::<epoll::Pipe>),
    ("epoll-rw", epoll::relay::<epoll::Buffer>),
    ("tokio", tokio_copy::as_shipped),
    ("tokio-64k", tokio_copy::with_large_buffers),
];

fn main() -> ExitCode {
    let outcome = match process::role() {
        Some(role) => process::play(role, &VARIANTS),
        None => run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let mut bench = Bench::open("relay");
    let bytes: u64 = if bench.smoke() { 64 << 20 } else { 2 << 30 };
    for connections in [1, 64] {
        let variants = VARIANTS.map(|(name, _)| Variant::new(name, move || measure(name, connections, bytes)));
        bench.case(&format!("bulk-{connections}"), BASELINE, Vec::from(variants))?;
    }
    bench.finish()?;
    Ok(())
}

fn measure(variant: &str, connections: u64, bytes: u64) -> io::Result<Vec<Measure>> {
    let report = process::transfer(variant, connections, bytes / connections)?;
    if report.moved != (Moved { forward: bytes, backward: 0 }) {
        return Err(io::Error::other(format!("{bytes} bytes were sent, but the relay counted {:?}", report.moved)));
    }
    if report.pipe_bytes != 0 && report.pipe_bytes != PIPE_BYTES as u64 {
        eprintln!("{variant}: a pipe was {} bytes, not {PIPE_BYTES}; see pipe(7)", report.pipe_bytes);
    }
    let seconds = |time: Duration| time.as_secs_f64();
    Ok(vec![
        Measure { metric: "cpu_s_per_gb", unit: "s/GB", value: seconds(report.cpu) / (bytes as f64 / 1e9) },
        Measure { metric: "mb_per_s", unit: "MB/s", value: bytes as f64 / 1e6 / seconds(report.wall) },
        Measure { metric: "threads", unit: "threads", value: report.threads as f64 },
    ])
}
