//! What relaying costs, as a matrix: payloads from 64 bytes to bulk, 1 to 1000 connections, one row for each way.
//!
//! Three processes over loopback TCP: a source, the relay, a sink. In `rr-PAYLOAD-CONNECTIONS` every connection has
//! one request in flight, which the sink answers with as many bytes when all of it is there; in `bulk-CONNECTIONS`
//! bytes go one way as fast as they can. CPU is that of the relay alone with all its threads, the kernel's workers for
//! it (io-wq) too, and is taken by the process that counts what was moved, at the same moments: when all is warm, and
//! before anything ends (`relay/observe.rs`). Latency is measured in the source, from the first byte of a request to
//! the last of its answer. System calls are those that move bytes or wait for them, over the whole life of a relay;
//! ours counts its enters and its inline attempts, tokio's are not counted.
//!
//! `tail` is one connection with bursts, pauses and short messages: what a relay that waits for more to gather would
//! hold up. `idle-9000` is connections that are silent.
//!
//! Hand-written epoll loops are in `relay/epoll/`, the relays of tokio in `relay/tokio_copy.rs`, ours in
//! `relay/ours.rs`. All have pipes of 1 MiB, or buffers of 64 KiB where a row says nothing else. A round that is thrown
//! away warms the machine up. A window is a fraction of a second, so that many rounds can be interleaved; each transfer
//! runs for some time before it opens, so that set-up is not in it.
//!
//! Not every row is in every cell:
//! * `ring` stops at 16 connections with requests and at 64 in bulk: the kernel runs every splice of the ring on a
//!   worker thread, for about 14 us, and we let it have 8 of them at once, so beyond that a cell shows the queue
//!   before them.
//! * the rows with a low-water mark (`-lowat`) begin at 64 KiB: what does not flow in bulk never has its mark raised,
//!   and would be the row without the mark again.
//! * `tail` and `idle-9000` leave out the rows that differ in nothing that these two look at.
//!
//! `cargo bench --bench relay` measures all, in about 20 minutes; `-- --rounds 2` in half of that;
//! `-- --cases rr-64-100,bulk-1` only those; `-- --smoke` runs a few, small, in seconds. A gigabyte is 10^9 bytes.

mod cells;
mod epoll;
#[path = "../harness/mod.rs"]
mod harness;
mod load;
mod observe;
mod ours;
mod process;
mod table;
mod targets;
mod tokio_copy;

#[path = "../harness/curve.rs"]
mod curve;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Resource, getrlimit, setrlimit};

use cells::Cell;
use harness::{Bench, Row, Variant};
use process::{Meter, Moved, Pair};

/// Relays what comes from one side of each pair to the other, both ways, until all have ended.
type Relay = fn(Vec<Pair>, &mut Meter) -> io::Result<Moved>;

/// The size asked for each pipe that bytes are spliced through, in bytes: the largest an unprivileged user may have.
const PIPE_BYTES: usize = 1 << 20;

/// The size of each buffer that bytes are copied through, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

const VARIANTS: [(&str, Relay); 10] = [
    ("auto", ours::auto),
    ("inline", ours::inline),
    ("ring", ours::ring),
    ("copy", ours::copy),
    ("epoll-splice", epoll::relay::<epoll::Pipe>),
    ("epoll-splice-lowat", epoll::relay_low_water::<epoll::Pipe>),
    ("epoll-rw", epoll::relay::<epoll::Buffer>),
    ("epoll-rw-lowat", epoll::relay_low_water::<epoll::Buffer>),
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
    allow_descriptors()?;
    let cells = cells::chosen(bench.smoke(), bench.cases_asked())?;
    let mut rows = Vec::new();
    for cell in &cells {
        let names = VARIANTS.iter().map(|(name, _)| *name).filter(|name| cell.runs(name));
        let variants = names.map(|name| Variant::new(name, move || cell.measure(name))).collect();
        let measured = bench.measure(&cell.case, variants)?;
        table::print(cell, &measured);
        rows.extend(measured);
    }
    targets::print(&cells, &rows, bench.smoke());
    if let Some(record) = bench.finish()? {
        draw(&record, &cells, &rows)?;
    }
    Ok(())
}

/// A thousand connections are four thousand descriptors, where many systems begin with a limit of 1024 for a process
/// that does not ask; the processes started here inherit what is asked for.
fn allow_descriptors() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Draws CPU over payload for each number of connections that there are several payloads of.
fn draw(record: &Path, cells: &[Cell], rows: &[Row]) -> io::Result<()> {
    let mut connections: Vec<u64> = cells.iter().map(|cell| cell.load.connections).collect();
    connections.sort_unstable();
    connections.dedup();
    for connections in connections {
        let position = |case: &str| {
            let cell = cells.iter().find(|cell| cell.case == case && cell.load.connections == connections);
            cell.and_then(Cell::picture_position)
        };
        let points = |row: &&Row| row.metric == "cpu_s_per_gb" && position(&row.case).is_some();
        let mut points: Vec<Row> = rows.iter().filter(points).cloned().collect();
        // In the order of the rows, so that a row has one colour in all pictures that have all rows.
        points.sort_by_key(|row| VARIANTS.iter().position(|(name, _)| *name == row.variant));
        if points.iter().all(|row| row.case == points[0].case) {
            continue;
        }
        let path = record.with_file_name(format!("relay-cpu-{connections}.svg"));
        curve::draw_logarithmic(
            &path,
            &format!("CPU of a relay, one request in flight on each connection of {connections}"),
            "bytes of a request and of its answer (bulk, one way: at 4 MiB)",
            "CPU, ns for each byte",
            &points,
            |row| position(&row.case).unwrap_or(f64::NAN),
        )?;
        println!("curve: {}", path.display());
    }
    Ok(())
}
