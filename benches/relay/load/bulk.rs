//! Bulk traffic, one way: sources that never pause, and a sink that counts and says when it is enough.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::event::epoll::EventFlags;
use serde_json::{Value, json};

use super::{CHUNK, Load, Streams};
use crate::observe::{Observed, Window};

/// Sends on every connection until the sink ends its side of it.
pub(super) fn source(load: Load, relay: SocketAddr) -> io::Result<Value> {
    let chunk = vec![0x5a; CHUNK];
    let mut sent = 0;
    let mut streams = Streams::new(super::connect(load, relay)?, EventFlags::OUT | EventFlags::RDHUP)?;
    let mut advance = |_, mut stream: &TcpStream, flags: EventFlags| {
        if flags.contains(EventFlags::RDHUP) {
            if stream.read(&mut [0; 1])? != 0 {
                return Err(io::Error::other("the sink sends nothing, yet the relay answered something"));
            }
            stream.shutdown(Shutdown::Write)?;
            return Ok(true);
        }
        sent += stream.write(&chunk)? as u64;
        Ok(false)
    };
    while !streams.turn(&mut advance)? {}
    Ok(json!({ "sent": sent, "received": 0 }))
}

/// Measures what comes while the window is open, then ends its side of every connection and reads the rest.
pub(super) fn sink(
    load: Load,
    listener: &TcpListener,
    observed: impl FnOnce() -> io::Result<Observed>,
) -> io::Result<Value> {
    let mut chunk = vec![0; CHUNK];
    let mut received = 0;
    let mut streams = Streams::new(super::accept(load, listener)?, EventFlags::IN)?;
    let mut window = Window::new(observed()?, load.warm_up, load.window);
    let mut is_over = false;
    loop {
        let all_ended = streams.turn(|_, mut stream, _| {
            let count = stream.read(&mut chunk)?;
            received += count as u64;
            Ok(count == 0)
        })?;
        if received > 0 {
            window.tick(received)?;
        }
        if all_ended {
            break;
        }
        if window.has_closed() && !is_over {
            is_over = true;
            streams.streams.iter().try_for_each(|stream| stream.shutdown(Shutdown::Write))?;
        }
    }
    let seen = window.finish(received)?;
    let mut report = json!({
        "sent": 0, "received": received,
    });
    seen.report(&mut report);
    Ok(report)
}
