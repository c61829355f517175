//! Connections that have spoken once and say nothing more: what they hold, and what they cost.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Load;
use crate::observe::{Observed, Window};

/// Connections that speak again at the end, one after the other.
const SPEAKERS: usize = 100;

/// Lets every connection speak once, so that what a relay makes at the first byte is there; then all are silent, and
/// are looked at; then one speaks, and after it some more.
pub(super) fn source(load: Load, relay: SocketAddr, observed: Observed) -> io::Result<Value> {
    let streams = super::connect(load, relay)?;
    let mut message = vec![0x5a; load.payload as usize];
    for stream in &streams {
        exchange(stream, &mut message)?;
    }
    // To wait is the load itself: connections that are silent for a time.
    thread::sleep(load.warm_up);
    let mut window = Window::new(observed, Duration::ZERO, load.window);
    window.tick(0)?;
    let (anonymous, threads, pipes) = (observed.anonymous_bytes()?, observed.threads()?, observed.pipes()?);
    thread::sleep(load.window);
    window.tick(0)?;
    let seen = window.finish(0)?;

    let first = exchange(&streams[streams.len() / 2], &mut message)?;
    let mut latencies = super::histogram()?;
    let step = streams.len().div_ceil(SPEAKERS);
    let speakers: Vec<&TcpStream> = streams.iter().step_by(step).collect();
    for stream in &speakers {
        latencies.saturating_record(exchange(stream, &mut message)?.as_nanos() as u64);
    }
    let bytes = (streams.len() + 1 + speakers.len()) as u64 * load.payload;
    for stream in &streams {
        stream.shutdown(Shutdown::Write)?;
    }
    for mut stream in &streams {
        if stream.read(&mut message)? != 0 {
            return Err(io::Error::other("the relay answered something that the sink had not sent"));
        }
    }
    let mut report = json!({
        "sent": bytes, "received": bytes,
        "anonymous_bytes": anonymous, "idle_threads": threads, "pipes": pipes,
        "first_ns": first.as_nanos() as u64, "p99_ns": super::quantile(&latencies, 0.99),
    });
    seen.report(&mut report);
    Ok(report)
}

fn exchange(mut stream: &TcpStream, message: &mut [u8]) -> io::Result<Duration> {
    let begun = Instant::now();
    stream.write_all(message)?;
    stream.read_exact(message)?;
    Ok(begun.elapsed())
}
