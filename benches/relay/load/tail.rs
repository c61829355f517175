//! The last bytes before a pause, and the first after it: what a relay that waits for more to gather would hold up.
//!
//! One connection. A burst, its acknowledgement of one byte, a pause, a short message, its acknowledgement. The burst
//! is long enough to count as bulk flow, and of odd length, so that its tail is below any mark; the pauses are shorter
//! and longer than a mark is held.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{CHUNK, Load};
use crate::observe::{Observed, Window};

/// Bytes of a burst.
const BURST: u64 = (8 << 20) + 12_345;

/// Bytes of the short message.
const SHORT: u64 = 64;

/// The pauses, in turn.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_micros(100),
    Duration::from_micros(300),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
];

/// Sends bursts and short messages in turn, and measures how long each is on its way to its acknowledgement.
pub(super) fn source(load: Load, relay: SocketAddr, observed: Observed) -> io::Result<Value> {
    let stream = load.prepare(TcpStream::connect(relay)?)?;
    let chunk = vec![0x5a; CHUNK];
    let (mut bursts, mut shorts) = (super::histogram()?, super::histogram()?);
    let (mut sent, mut received) = (0, 0);
    let mut window = Window::new(observed, load.warm_up, load.window);
    for pause in PAUSES.iter().cycle() {
        let burst = exchange(&stream, &chunk, BURST)?;
        // To wait is the load itself: the peer pauses, and nothing is waited for.
        thread::sleep(*pause);
        let short = exchange(&stream, &chunk, SHORT)?;
        (sent, received) = (sent + BURST + SHORT, received + 2);
        if window.is_open() {
            bursts.saturating_record(burst.as_nanos() as u64);
            shorts.saturating_record(short.as_nanos() as u64);
        }
        window.tick(sent)?;
        if window.has_closed() {
            break;
        }
    }
    let seen = window.finish(sent)?;
    stream.shutdown(Shutdown::Write)?;
    if (&stream).read(&mut [0; 1])? != 0 {
        return Err(io::Error::other("the relay answered something that the sink had not sent"));
    }
    let mut report = json!({
        "sent": sent, "received": received,
        "p50_ns": super::quantile(&shorts, 0.50), "p99_ns": super::quantile(&shorts, 0.99),
        "burst_p50_ns": super::quantile(&bursts, 0.50), "burst_p99_ns": super::quantile(&bursts, 0.99),
    });
    seen.report(&mut report);
    Ok(report)
}

fn exchange(mut stream: &TcpStream, chunk: &[u8], bytes: u64) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let length = left.min(chunk.len() as u64) as usize;
        stream.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    stream.read_exact(&mut [0; 1])?;
    Ok(begun.elapsed())
}

/// Acknowledges each burst and each short message with one byte.
pub(super) fn sink(load: Load, listener: &TcpListener) -> io::Result<Value> {
    let mut stream = load.prepare(listener.accept()?.0)?;
    let mut chunk = vec![0; CHUNK];
    let (mut sent, mut received) = (0, 0);
    for length in [BURST, SHORT].into_iter().cycle() {
        let mut left = length;
        while left > 0 {
            let room = left.min(chunk.len() as u64) as usize;
            match stream.read(&mut chunk[..room]) {
                Ok(0) => {
                    stream.shutdown(Shutdown::Write)?;
                    return Ok(json!({ "sent": sent, "received": received }));
                }
                Ok(count) => (left, received) = (left - count as u64, received + count as u64),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.write_all(&[1])?;
        sent += 1;
    }
    Err(io::Error::other("a cycle has no end"))
}
