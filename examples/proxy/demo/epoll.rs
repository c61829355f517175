//! The twin: what the proxy does, by hand, with epoll, read and write. One thread, one buffer for each direction.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde_json::json;

use super::COPY_BYTES;
use crate::serve::cpu_time;

/// Hops that one direction may go before others have their turn.
const HOPS_PER_TURN: usize = 16;

/// Keys of what is no connection.
const LISTENER: u64 = 0;
const STDIN: u64 = 1;
const FIRST: u64 = 2;

/// Relays every connection to `upstream` until standard input ends, and reports.
pub(crate) fn play_twin(upstream: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&poll, io::stdin(), EventData::new_u64(STDIN), EventFlags::IN)?;
    let mut twin =
        Twin { poll, listener, upstream, connections: HashMap::new(), next: FIRST, counts: Counts::default() };
    super::tell(&format!("listening on {}", twin.listener.local_addr()?))?;
    let begun = cpu_time();
    if let Err(error) = twin.run() {
        // A demonstration that is killed resets its connections before it lets go of this input, or after.
        return if stdin_ends_soon()? { Ok(()) } else { Err(error) };
    }
    let Counts { bytes, hops, calls } = twin.counts;
    let cpu = cpu_time().saturating_sub(begun);
    let report = json!({
        "bytes": bytes, "hops": hops, "hops_spliced": 0, "calls": calls, "cpu_ns": cpu.as_nanos() as u64,
        "pipe_bytes": 0,
    });
    super::tell(&report.to_string())
}

/// Whether standard input ends within a second.
fn stdin_ends_soon() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut input = [PollFd::new(&stdin, PollFlags::IN)];
    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut input, Some(&second))? > 0)
}

struct Twin {
    poll: OwnedFd,
    listener: TcpListener,
    upstream: SocketAddr,
    connections: HashMap<u64, Connection>,
    next: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    bytes: u64,
    hops: u64,
    calls: u64,
}

struct Connection {
    client: TcpStream,
    upstream: TcpStream,
    forward: Direction,
    backward: Direction,
}

/// Bytes `start..end` of the buffer have been read and not been written.
struct Direction {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    source_ended: bool,
    shut: bool,
}

impl Twin {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        // Connections that stopped for the sake of others, and have no event to come.
        let mut unfinished: Vec<u64> = Vec::new();
        let no_wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            events.clear();
            self.counts.calls += 1;
            let timeout = if unfinished.is_empty() { None } else { Some(&no_wait) };
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut due = std::mem::take(&mut unfinished);
            for event in &events {
                match event.data.u64() {
                    STDIN => return Ok(()),
                    LISTENER => self.accept()?,
                    key => due.push(key),
                }
            }
            due.sort_unstable();
            due.dedup();
            for key in due {
                let Some(connection) = self.connections.get_mut(&key) else { continue };
                if connection.advance(&mut self.counts)? {
                    unfinished.push(key);
                } else if connection.forward.shut && connection.backward.shut {
                    self.connections.remove(&key);
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let (client, _) = self.listener.accept()?;
        let upstream = TcpStream::connect(self.upstream)?;
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        for stream in [&client, &upstream] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            epoll::add(&self.poll, stream, EventData::new_u64(self.next), interest)?;
        }
        let (forward, backward) = (Direction::new(), Direction::new());
        self.connections.insert(self.next, Connection { client, upstream, forward, backward });
        self.next += 1;
        Ok(())
    }
}

impl Connection {
    /// Moves what can be moved; whether it stopped for the sake of others instead.
    fn advance(&mut self, counts: &mut Counts) -> io::Result<bool> {
        let forward = self.forward.advance(&self.client, &self.upstream, counts)?;
        Ok(self.backward.advance(&self.upstream, &self.client, counts)? || forward)
    }
}

impl Direction {
    fn new() -> Self {
        Self { buffer: vec![0; COPY_BYTES].into(), start: 0, end: 0, source_ended: false, shut: false }
    }

    fn advance(&mut self, from: &TcpStream, to: &TcpStream, counts: &mut Counts) -> io::Result<bool> {
        for _ in 0..HOPS_PER_TURN {
            if self.shut {
                return Ok(false);
            }
            if self.start == self.end && !self.source_ended {
                match retry(counts, || rustix::io::read(from, &mut self.buffer[..]))? {
                    None => return Ok(false),
                    Some(0) => self.source_ended = true,
                    Some(count) => {
                        (self.start, self.end) = (0, count);
                        counts.hops += 1;
                    }
                }
            }
            while self.start < self.end {
                match retry(counts, || rustix::io::write(to, &self.buffer[self.start..self.end]))? {
                    None => return Ok(false),
                    Some(count) => {
                        self.start += count;
                        counts.bytes += count as u64;
                    }
                }
            }
            if self.source_ended {
                counts.calls += 1;
                to.shutdown(Shutdown::Write)?;
                self.shut = true;
            }
        }
        Ok(true)
    }
}

/// Calls until it is not interrupted, and counts; `None` means that it would have waited.
fn retry(counts: &mut Counts, mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        counts.calls += 1;
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
