//! The cells of the matrix: which load, which rows, and what is taken from a transfer.

use std::io;
use std::time::Duration;

use crate::PIPE_BYTES;
use crate::harness::Measure;
use crate::load::{Kind, Load};
use crate::process::{self, Report};

/// The ways of ours that nothing chooses.
pub(crate) const FORCED: [&str; 3] = ["inline", "ring", "copy"];

/// The hand-written loops.
pub(crate) const TWINS: [&str; 4] = ["epoll-splice", "epoll-splice-lowat", "epoll-rw", "epoll-rw-lowat"];

/// Bytes of a request, and of its answer.
const PAYLOADS: [u64; 6] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];

/// Connections with requests on them.
const CONNECTIONS: [u64; 4] = [1, 16, 100, 1000];

/// Connections in bulk flow.
const BULK_CONNECTIONS: [u64; 5] = [1, 16, 64, 100, 1000];

/// Connections that are silent: two descriptors each in the relay, whose limit is 20,000 on the smallest machine that
/// this should run on.
pub(crate) const IDLE_CONNECTIONS: u64 = 9000;

/// From this payload on a low-water mark can make a difference, in bytes.
const LOW_WATER_PAYLOAD: u64 = 64 << 10;

/// One load, through every way of relaying that is worth it.
pub(crate) struct Cell {
    pub(crate) case: String,
    pub(crate) load: Load,
}

/// All cells, those asked for by name, or the few of a smoke test.
pub(crate) fn chosen(smoke: bool, asked: &[String]) -> io::Result<Vec<Cell>> {
    let mut cells = all(smoke);
    if let Some(unknown) = asked.iter().find(|case| cells.iter().all(|cell| cell.case != **case)) {
        let known: Vec<&str> = cells.iter().map(|cell| cell.case.as_str()).collect();
        return Err(io::Error::other(format!("there is no case {unknown}; there are {}", known.join(", "))));
    }
    if !asked.is_empty() {
        cells.retain(|cell| asked.contains(&cell.case));
    } else if smoke {
        cells.retain(|cell| ["rr-64-16", "rr-65536-1", "bulk-1", "bulk-16", "tail"].contains(&cell.case.as_str()));
        cells.push(Cell::idle(400, true));
    }
    Ok(cells)
}

fn all(smoke: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for connections in CONNECTIONS {
        cells.extend(PAYLOADS.map(|payload| Cell::ping_pong(payload, connections, smoke)));
    }
    cells.extend(BULK_CONNECTIONS.map(|connections| Cell::bulk(connections, smoke)));
    cells.push(Cell::tail(smoke));
    cells.push(Cell::idle(IDLE_CONNECTIONS, smoke));
    cells
}

impl Cell {
    fn ping_pong(payload: u64, connections: u64, smoke: bool) -> Cell {
        // A turn of all connections takes longer the more there is in it, and several must go before and in a window.
        let (warm_up, window) = match payload * connections {
            _ if smoke => (50, 50),
            0..0x20_0000 => (100, 300),
            0x20_0000..0x800_0000 => (150, 400),
            _ => (500, 1200),
        };
        Cell::new(format!("rr-{payload}-{connections}"), Kind::PingPong, payload, connections, warm_up, window)
    }

    fn bulk(connections: u64, smoke: bool) -> Cell {
        let (warm_up, window) = if smoke { (50, 100) } else { (100, 450) };
        Cell::new(format!("bulk-{connections}"), Kind::Bulk, 0, connections, warm_up, window)
    }

    fn tail(smoke: bool) -> Cell {
        let (warm_up, window) = if smoke { (100, 200) } else { (100, 1500) };
        Cell::new("tail".to_owned(), Kind::Tail, 0, 1, warm_up, window)
    }

    fn idle(connections: u64, smoke: bool) -> Cell {
        let (warm_up, window) = if smoke { (50, 200) } else { (200, 1500) };
        Cell::new(format!("idle-{connections}"), Kind::Idle, 64, connections, warm_up, window)
    }

    fn new(case: String, kind: Kind, payload: u64, connections: u64, warm_up: u64, window: u64) -> Cell {
        let (warm_up, window) = (Duration::from_millis(warm_up), Duration::from_millis(window));
        Cell { case, load: Load { kind, payload, connections, warm_up, window } }
    }

    /// Whether this row is in this cell; the head of the benchmark says why not.
    pub(crate) fn runs(&self, variant: &str) -> bool {
        let Load { kind, payload, connections, .. } = self.load;
        match kind {
            Kind::PingPong if variant == "ring" => connections <= 16,
            Kind::PingPong if variant.ends_with("-lowat") => payload >= LOW_WATER_PAYLOAD,
            Kind::PingPong => true,
            Kind::Bulk => variant != "ring" || connections <= 64,
            Kind::Tail => !["ring", "tokio-64k"].contains(&variant),
            Kind::Idle => ["auto", "epoll-splice", "epoll-rw", "tokio"].contains(&variant),
        }
    }

    /// What the cell says of itself.
    pub(crate) fn title(&self) -> String {
        let Load { kind, payload, connections, .. } = self.load;
        let connections = format!("{connections} connection{}", if connections == 1 { "" } else { "s" });
        match kind {
            Kind::PingPong => format!("{payload} bytes each way, {connections}, one request in flight on each"),
            Kind::Bulk => format!("{connections}, as fast as they go, one way"),
            Kind::Tail => "bursts of 8 MiB, pauses of 0 to 4 ms, then 64 bytes".to_owned(),
            Kind::Idle => format!("{connections} that are silent, then speak one by one"),
        }
    }

    /// What a relay is compared by.
    pub(crate) fn cost(&self) -> &'static str {
        match self.load.kind {
            Kind::PingPong => "cpu_us_per_request",
            Kind::Bulk => "cpu_s_per_gb",
            Kind::Tail => "p99_us",
            Kind::Idle => "kib_per_connection",
        }
    }

    /// Where the cell is in a picture over payloads, in bytes.
    pub(crate) fn picture_position(&self) -> Option<f64> {
        match self.load.kind {
            Kind::PingPong => Some(self.load.payload as f64),
            Kind::Bulk => Some((4 << 20) as f64),
            Kind::Tail | Kind::Idle => None,
        }
    }

    /// One transfer.
    pub(crate) fn measure(&self, variant: &str) -> io::Result<Vec<Measure>> {
        let report = process::transfer(variant, self.load)?;
        if report.pipe_bytes != 0 && report.pipe_bytes != PIPE_BYTES as u64 {
            eprintln!("{variant}: a pipe was {} bytes, not {PIPE_BYTES}; see pipe(7)", report.pipe_bytes);
        }
        let measure = |(metric, unit, value)| Measure { metric, unit, value };
        Ok(match self.load.kind {
            Kind::PingPong => self.of_ping_pong(&report).into_iter().map(measure).collect(),
            Kind::Bulk => of_bulk(&report).into_iter().map(measure).collect(),
            Kind::Tail => of_tail(&report).into_iter().map(measure).collect(),
            Kind::Idle => self.of_idle(&report).into_iter().map(measure).collect(),
        })
    }

    fn of_ping_pong(&self, report: &Report) -> [(&'static str, &'static str, f64); 9] {
        let bytes_of_one = (self.load.payload * 2) as f64;
        let (bytes, cpu_ns) = (report.seen("seen_bytes"), report.seen("seen_cpu_ns"));
        let requests = bytes / bytes_of_one;
        let requests_of_life = moved(report) / bytes_of_one;
        [
            ("cpu_us_per_request", "us", cpu_ns / 1e3 / requests),
            ("cpu_s_per_gb", "s/GB", cpu_ns / bytes),
            ("requests_per_s", "1/s", requests * 1e9 / report.seen("seen_wall_ns")),
            ("mb_per_s", "MB/s", bytes * 1e3 / report.seen("seen_wall_ns")),
            ("p50_us", "us", report.seen("p50_ns") / 1e3),
            ("p99_us", "us", report.seen("p99_ns") / 1e3),
            ("enters_per_request", "enters", counted(report.enters) / requests_of_life),
            ("calls_per_request", "calls", counted(report.calls) / requests_of_life),
            ("threads", "threads", report.threads as f64),
        ]
    }

    fn of_idle(&self, report: &Report) -> [(&'static str, &'static str, f64); 6] {
        let grown = report.seen("anonymous_bytes") - report.seen("anonymous_bytes_before");
        [
            ("kib_per_connection", "KiB", grown / 1024.0 / self.load.connections as f64),
            ("threads", "threads", report.seen("idle_threads")),
            ("pipes", "pipes", report.seen("pipes")),
            ("cpu_percent", "%", report.seen("seen_cpu_ns") / report.seen("seen_wall_ns") * 100.0),
            ("first_us", "us", report.seen("first_ns") / 1e3),
            ("p99_us", "us", report.seen("p99_ns") / 1e3),
        ]
    }
}

fn of_bulk(report: &Report) -> [(&'static str, &'static str, f64); 5] {
    let (bytes, megabytes_of_life) = (report.seen("seen_bytes"), moved(report) / 1e6);
    [
        ("cpu_s_per_gb", "s/GB", report.seen("seen_cpu_ns") / bytes),
        ("mb_per_s", "MB/s", bytes * 1e3 / report.seen("seen_wall_ns")),
        ("enters_per_mb", "enters", counted(report.enters) / megabytes_of_life),
        ("calls_per_mb", "calls", counted(report.calls) / megabytes_of_life),
        ("threads", "threads", report.threads as f64),
    ]
}

fn of_tail(report: &Report) -> [(&'static str, &'static str, f64); 6] {
    [
        ("p50_us", "us", report.seen("p50_ns") / 1e3),
        ("p99_us", "us", report.seen("p99_ns") / 1e3),
        ("burst_p50_us", "us", report.seen("burst_p50_ns") / 1e3),
        ("burst_p99_us", "us", report.seen("burst_p99_ns") / 1e3),
        ("cpu_s_per_gb", "s/GB", report.seen("seen_cpu_ns") / report.seen("seen_bytes")),
        ("threads", "threads", report.threads as f64),
    ]
}

fn moved(report: &Report) -> f64 {
    (report.moved.forward + report.moved.backward) as f64
}

/// What a relay does not count is not a number, and not 0.
fn counted(count: u64) -> f64 {
    if count == 0 { f64::NAN } else { count as f64 }
}
