//! Bulk traffic, one way: sources that never pause, and a sink that counts.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use serde_json::{Value, json};

use super::{CHUNK, Load, Streams};
use crate::observe::{Observed, Window};

/// Sends on every connection until the sink's window has closed, then waits until the other side has closed them all.
pub(super) fn source(load: Load, relay: SocketAddr) -> io::Result<Value> {
    let chunk = vec![0x5a; CHUNK];
    let mut sent = 0;
    let mut streams = Streams::new(super::connect(load, relay)?, EventFlags::OUT)?;
    // The sink's window opens a little later than this begins; the warm-up once more is more than that little.
    let deadline = Instant::now() + load.warm_up + load.window + load.warm_up;
    let mut advance = |_, mut stream: &TcpStream, _| {
        if Instant::now() >= deadline {
            stream.shutdown(Shutdown::Write)?;
            return Ok(true);
        }
        sent += stream.write(&chunk)? as u64;
        Ok(false)
    };
    while !streams.turn(&mut advance)? {}
    let mut answer = [0; 1];
    for mut stream in &streams.streams {
        stream.set_nonblocking(false)?;
        if stream.read(&mut answer)? != 0 {
            return Err(io::Error::other("the sink sends nothing, yet the relay answered something"));
        }
    }
    Ok(json!({ "sent": sent, "received": 0 }))
}

/// Reads every connection to its end, closes it, and measures what comes while the window is open.
pub(super) fn sink(
    load: Load,
    listener: &TcpListener,
    observed: impl FnOnce() -> io::Result<Observed>,
) -> io::Result<Value> {
    let mut chunk = vec![0; CHUNK];
    let mut received = 0;
    let mut streams = Streams::new(super::accept(load, listener)?, EventFlags::IN)?;
    let mut window = Window::new(observed()?, load.warm_up, load.window);
    loop {
        let all_ended = streams.turn(|_, mut stream, _| {
            let count = stream.read(&mut chunk)?;
            received += count as u64;
            if count == 0 {
                stream.shutdown(Shutdown::Write)?;
            }
            Ok(count == 0)
        })?;
        window.tick(received)?;
        if all_ended {
            break;
        }
    }
    let seen = window.finish(received)?;
    let mut report = json!({
        "sent": 0, "received": received,
    });
    seen.report(&mut report);
    Ok(report)
}
