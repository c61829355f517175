//! The load: what stands before and behind the relay, a process each, with one thread, and as cheap as can be.

mod bulk;
mod idle;
mod ping_pong;
mod tail;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use serde_json::Value;
use socket2::SockRef;

use crate::observe::Observed;

/// The size of every large write and read, in bytes.
const CHUNK: usize = 256 * 1024;

/// From this number of connections on they share the kernel's memory sparingly.
const MANY: u64 = 1000;

/// From this payload on, in bytes, there is something to spare.
const LARGE: u64 = 64 << 10;

/// Bytes asked for each of their buffers; the kernel gives twice as many.
const BUFFER_OF_MANY: usize = 64 << 10;

/// The longest that a process waits before it looks at the clock again.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// What goes through a relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    /// Bytes of a request, and of its answer; of no meaning in bulk.
    pub(crate) payload: u64,
    pub(crate) connections: u64,
    /// How long it runs before it is measured.
    pub(crate) warm_up: Duration,
    /// How long it is measured.
    pub(crate) window: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As much as goes, one way.
    Bulk,
    /// One request in flight on every connection, answered when all of it is there.
    PingPong,
    /// One connection: a burst, a pause, a short message.
    Tail,
    /// Connections that say nothing.
    Idle,
}

impl Load {
    /// As arguments of a process.
    pub(crate) fn to_arguments(self) -> Vec<String> {
        let Load { kind, payload, connections, warm_up, window } = self;
        let numbers = [payload, connections, warm_up.as_micros() as u64, window.as_micros() as u64];
        std::iter::once(kind.name().to_owned()).chain(numbers.map(|number| number.to_string())).collect()
    }

    pub(crate) fn from_arguments(arguments: &[&str]) -> io::Result<Load> {
        let refused = || io::Error::other(format!("{arguments:?} is not a load"));
        let [kind, numbers @ ..] = arguments else { return Err(refused()) };
        let kind = Kind::ALL.into_iter().find(|known| known.name() == *kind).ok_or_else(refused)?;
        let numbers: Vec<u64> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
        let [payload, connections, warm_up, window] = numbers[..] else { return Err(refused()) };
        let (warm_up, window) = (Duration::from_micros(warm_up), Duration::from_micros(window));
        Ok(Load { kind, payload, connections, warm_up, window })
    }

    /// A message is sent when it is written, not when the one before it has been acknowledged.
    ///
    /// Where many connections have much to say, their own ends keep little of it. With buffers as large as the kernel
    /// lets them grow, all would stand in the kernel's memory for TCP, and a cell would show what happens at its limit
    /// (`net.ipv4.tcp_mem`), not what a relay costs. The relay's ends are as they come.
    fn prepare(self, stream: TcpStream) -> io::Result<TcpStream> {
        stream.set_nodelay(true)?;
        if self.connections >= MANY && (self.kind == Kind::Bulk || self.payload >= LARGE) {
            let socket = SockRef::from(&stream);
            socket.set_send_buffer_size(BUFFER_OF_MANY)?;
            socket.set_recv_buffer_size(BUFFER_OF_MANY)?;
        }
        Ok(stream)
    }

    /// Makes the load; returns what its process reports: at least `sent` and `received`, in bytes.
    pub(crate) fn source(self, relay: SocketAddr, observed: Observed) -> io::Result<Value> {
        match self.kind {
            Kind::Bulk => bulk::source(self, relay),
            Kind::PingPong => ping_pong::source(self, relay, observed),
            Kind::Tail => tail::source(self, relay, observed),
            Kind::Idle => idle::source(self, relay, observed),
        }
    }

    /// Takes the load, and answers it; returns what its process reports: at least `sent` and `received`, in bytes.
    ///
    /// `observed` says which process is the relay, once it has connected.
    pub(crate) fn sink(
        self,
        listener: &TcpListener,
        observed: impl FnOnce() -> io::Result<Observed>,
    ) -> io::Result<Value> {
        match self.kind {
            Kind::Bulk => bulk::sink(self, listener, observed),
            Kind::PingPong | Kind::Idle => ping_pong::sink(self, listener),
            Kind::Tail => tail::sink(self, listener),
        }
    }
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Bulk, Kind::PingPong, Kind::Tail, Kind::Idle];

    fn name(self) -> &'static str {
        match self {
            Kind::Bulk => "bulk",
            Kind::PingPong => "ping-pong",
            Kind::Tail => "tail",
            Kind::Idle => "idle",
        }
    }
}

fn connect(load: Load, relay: SocketAddr) -> io::Result<Vec<TcpStream>> {
    (0..load.connections).map(|_| load.prepare(TcpStream::connect(relay)?)).collect()
}

fn accept(load: Load, listener: &TcpListener) -> io::Result<Vec<TcpStream>> {
    (0..load.connections).map(|_| load.prepare(listener.accept()?.0)).collect()
}

/// For latencies in nanoseconds: of three digits, more than the clocks are worth, and up to a minute.
fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)
}

/// A quantile in nanoseconds, if anything was recorded.
fn quantile(latencies: &Histogram<u64>, share: f64) -> Option<u64> {
    if latencies.is_empty() { None } else { Some(latencies.value_at_quantile(share)) }
}

/// Streams that are waited for together.
struct Streams {
    poll: OwnedFd,
    streams: Vec<TcpStream>,
    open: usize,
    events: Vec<epoll::Event>,
}

impl Streams {
    fn new(streams: Vec<TcpStream>, interest: epoll::EventFlags) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            epoll::add(&poll, stream, epoll::EventData::new_u64(index as u64), interest)?;
        }
        let open = streams.len();
        let events = Vec::with_capacity(open.clamp(1, 1024));
        Ok(Streams { poll, streams, open, events })
    }

    /// Waits, but not for long, and calls `advance` once for each stream that is ready, so that none starves; whether
    /// it has been true for all by now.
    fn turn(
        &mut self,
        mut advance: impl FnMut(usize, &TcpStream, epoll::EventFlags) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.events.clear();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut self.events), Some(&GLANCE)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let index = event.data.u64() as usize;
            match advance(index, &self.streams[index], event.flags) {
                Ok(false) => {}
                Ok(true) => {
                    epoll::delete(&self.poll, &self.streams[index])?;
                    self.open -= 1;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.open == 0)
    }
}
