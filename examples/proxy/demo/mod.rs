//! The newcomer's run: real files of this machine through the proxy, each route in turn, and beside them through a
//! hand-written epoll loop.
//!
//! Each relay is a process of its own, this executable started again, so that the CPU time it reports is the relay's
//! alone. The client and the upstream are threads of this one. What has arrived is hashed after the clock has stopped,
//! and the digest goes back through the relay to the client, who knows what it must be.

mod corpus;
mod epoll;
mod relay;
mod table;
mod transfer;

use std::io;
use std::time::{Duration, Instant};

use crate::say;
use corpus::Corpus;
use relay::{Kind, Relay, Report};
use transfer::Upstream;

pub(crate) use epoll::play_twin;
pub(crate) use relay::tell;

/// Bytes that each relay carries, if they fit into its time.
const BYTES_WANTED: u64 = 256 << 20;

/// A relay that takes longer carries less: on a busy machine the whole must still end soon.
const TIME_FOR_EACH: Duration = Duration::from_millis(2500);

/// Bytes that one hop copies at most, in the copy route and in the epoll loop.
const COPY_BYTES: usize = 64 * 1024;

/// What was measured of one relay.
#[derive(Debug)]
pub(crate) struct Row {
    name: &'static str,
    bytes: u64,
    wall: Duration,
    report: Report,
}

/// Measures every relay, and prints the table.
///
/// # Errors
/// A sentence, if a relay fails or a byte is not what it was.
pub(crate) fn run() -> io::Result<()> {
    let corpus = Corpus::collect()?;
    say(&format!(
        "Pushing {} through a proxy over loopback, {} connections at once; each is verified by SHA-256.",
        corpus.describe(),
        corpus.streams.len(),
    ))?;
    let upstream = Upstream::listen()?;
    // A round that is thrown away warms the machine up, or the first relay would pay for it.
    let warming = Relay::start(Kind::EpollTwin, upstream.address())?;
    through("epoll read/write", &warming, &upstream, &corpus)?;
    drop(warming);
    let mut rows = Vec::new();
    for (name, kind) in relay::ALL {
        let row = measure(name, kind, &upstream, &corpus)?;
        say(&format!("  {name}: {} MB moved and verified", row.bytes / 1_000_000))?;
        rows.push(row);
    }
    say(&table::render(&rows))?;
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    say(&format!("All {} MB arrived as they were sent.", bytes / 1_000_000))
}

fn measure(name: &'static str, kind: Kind, upstream: &Upstream, corpus: &Corpus) -> io::Result<Row> {
    let relay = Relay::start(kind, upstream.address())?;
    let (mut bytes, mut wall) = (0, Duration::ZERO);
    let begun = Instant::now();
    while bytes < BYTES_WANTED && (bytes == 0 || begun.elapsed() < TIME_FOR_EACH) {
        wall += through(name, &relay, upstream, corpus)?;
        bytes += corpus.bytes();
    }
    let report = relay.finish()?;
    // The digests go the other way, and are counted too.
    if report.bytes < bytes {
        return Err(io::Error::other(format!("{bytes} bytes went through `{name}`, but it counted {}", report.bytes)));
    }
    Ok(Row { name, bytes, wall, report })
}

/// One round, whose error names the relay.
fn through(name: &str, relay: &Relay, upstream: &Upstream, corpus: &Corpus) -> io::Result<Duration> {
    transfer::round(relay.address(), upstream, corpus)
        .map_err(|error| io::Error::new(error.kind(), format!("the transfer through `{name}` failed: {error}")))
}
