//! Requests and answers of one size, one request in flight on every connection.
//!
//! The deadline may find requests half sent. They are left so: both sides end in good order, every byte is accounted
//! for, and what was measured is counted in bytes, of which a half message has half.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use serde_json::{Value, json};

use super::{CHUNK, Load, Streams};
use crate::observe::{Observed, Window};

/// One side's view of one connection.
struct Dialogue {
    to_send: u64,
    to_receive: u64,
    since: Instant,
    /// The peer has sent its last byte, and no further edge will tell of it.
    ends: bool,
}

/// Asks, and measures how long each answer takes.
pub(super) fn source(load: Load, relay: SocketAddr, observed: Observed) -> io::Result<Value> {
    let mut chunk = vec![0x5a; CHUNK];
    let mut target = vec![0; CHUNK];
    chunk.truncate(load.payload as usize);
    let (mut sent, mut received) = (0, 0);
    let mut latencies = super::histogram()?;
    let streams = super::connect(load, relay)?;
    let mut window = Window::new(observed, load.warm_up, load.window);
    let mut dialogues: Vec<Dialogue> = streams.iter().map(|_| Dialogue::new(load.payload, load.payload)).collect();
    let mut streams = Streams::new(streams, EventFlags::IN | EventFlags::OUT | EventFlags::ET)?;
    let mut is_over = false;
    loop {
        let all_ended = streams.turn(|index, mut stream, _| {
            let dialogue = &mut dialogues[index];
            if !is_over && dialogue.to_send > 0 {
                // The answer cannot be there before the request is complete, and its coming is an edge.
                return dialogue.send(stream, &chunk, &mut sent).map(|()| false);
            }
            loop {
                let count = stream.read(&mut target)? as u64;
                received += count;
                if count == 0 {
                    return if is_over { Ok(true) } else { Err(too_soon()) };
                }
                dialogue.to_receive = dialogue.to_receive.checked_sub(count).ok_or_else(too_much)?;
                if dialogue.to_receive == 0 && !is_over {
                    if window.is_open() {
                        latencies.saturating_record(dialogue.since.elapsed().as_nanos() as u64);
                    }
                    *dialogue = Dialogue::new(load.payload, load.payload);
                    return dialogue.send(stream, &chunk, &mut sent).map(|()| false);
                }
            }
        })?;
        if received > 0 {
            window.tick(sent + received)?;
        }
        if all_ended {
            break;
        }
        if window.has_closed() && !is_over {
            is_over = true;
            streams.streams.iter().try_for_each(|stream| stream.shutdown(Shutdown::Write))?;
        }
    }
    let seen = window.finish(sent + received)?;
    let mut report = json!({
        "sent": sent, "received": received,
        "p50_ns": super::quantile(&latencies, 0.50), "p99_ns": super::quantile(&latencies, 0.99),
    });
    seen.report(&mut report);
    Ok(report)
}

/// Answers each request when all of it is there.
pub(super) fn sink(load: Load, listener: &TcpListener) -> io::Result<Value> {
    let mut chunk = vec![0xa5; CHUNK];
    let mut target = vec![0; CHUNK];
    chunk.truncate(load.payload as usize);
    let (mut sent, mut received) = (0, 0);
    let streams = super::accept(load, listener)?;
    let mut dialogues: Vec<Dialogue> = streams.iter().map(|_| Dialogue::new(0, load.payload)).collect();
    let kinds = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP;
    let mut streams = Streams::new(streams, kinds | EventFlags::ET)?;
    let mut advance = |index: usize, mut stream: &TcpStream, flags: EventFlags| {
        let dialogue: &mut Dialogue = &mut dialogues[index];
        dialogue.ends |= flags.contains(EventFlags::RDHUP);
        dialogue.send(stream, &chunk, &mut sent)?;
        loop {
            let count = stream.read(&mut target)? as u64;
            received += count;
            if count == 0 {
                stream.shutdown(Shutdown::Write)?;
                return Ok(true);
            }
            dialogue.to_receive = dialogue.to_receive.checked_sub(count).ok_or_else(too_much)?;
            if dialogue.to_receive == 0 {
                (dialogue.to_send, dialogue.to_receive) = (load.payload, load.payload);
                dialogue.send(stream, &chunk, &mut sent)?;
                if !dialogue.ends {
                    // The next request follows the answer, and its coming is an edge.
                    return Ok(false);
                }
            }
        }
    };
    while !streams.turn(&mut advance)? {}
    Ok(json!({ "sent": sent, "received": received }))
}

impl Dialogue {
    fn new(to_send: u64, to_receive: u64) -> Self {
        Dialogue { to_send, to_receive, since: Instant::now(), ends: false }
    }

    fn send(&mut self, mut stream: &TcpStream, chunk: &[u8], sent: &mut u64) -> io::Result<()> {
        while self.to_send > 0 {
            let length = self.to_send.min(chunk.len() as u64) as usize;
            let count = stream.write(&chunk[..length])? as u64;
            self.to_send -= count;
            *sent += count;
        }
        Ok(())
    }
}

fn too_soon() -> io::Error {
    io::Error::other("the relay ended a connection that nobody had ended")
}

fn too_much() -> io::Error {
    io::Error::other("more came than one message, though one at a time is in flight")
}
