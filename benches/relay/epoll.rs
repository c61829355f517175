//! The twins: one thread, one hand-written epoll loop, and either splice(2) through pipes or read(2) and write(2).
//!
//! They are the bar that ours is measured against, so they spare what can be spared. Sockets are registered once,
//! edge-triggered, and epoll_ctl(2) is never called again. A direction takes its pipe or buffer from a pool when bytes
//! come and gives it back when it has run empty, so the one used last, which the caches still hold, is used next, and
//! an idle connection has none. A pipe is filled as far as it goes before it is emptied.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::process::{Meter, Moved, Pair};
use crate::{BUFFER_BYTES, PIPE_BYTES};

/// Rounds that one direction may go before others have their turn.
const HOPS_PER_TURN: usize = 16;

/// What carries bytes from one socket to the other.
pub(crate) trait Carrier: Sized {
    /// Makes an empty one.
    fn new(meter: &mut Meter) -> io::Result<Self>;

    /// Takes bytes from a socket, as many as fit.
    fn fill(&mut self, from: &TcpStream) -> io::Result<Filled>;

    /// Hands bytes to a socket; `None` means that the socket takes none now.
    fn drain(&mut self, to: &TcpStream) -> io::Result<Option<usize>>;

    /// Bytes that were taken and not handed on.
    fn pending(&self) -> usize;
}

/// What came of taking bytes from a socket.
pub(crate) enum Filled {
    /// Some came.
    Some,
    /// None will come any more.
    End,
    /// The socket had none.
    SocketEmpty,
    /// The carrier is full, or the socket had none: it cannot be told which.
    FullOrEmpty,
}

/// Relays all pairs to their end.
pub(crate) fn relay<C: Carrier>(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    let mut relay = Loop::<C>::new(pairs)?;
    meter.start();
    relay.run(meter)?;
    meter.stop()?;
    Ok(relay.moved)
}

struct Loop<C> {
    poll: OwnedFd,
    connections: Vec<Connection<C>>,
    /// Connections that can go on without waiting for an event.
    ready: Vec<usize>,
    carriers: Vec<C>,
    moved: Moved,
    open: usize,
}

struct Connection<C> {
    sides: [Side; 2],
    directions: [Direction<C>; 2],
    queued: bool,
}

struct Side {
    stream: TcpStream,
    readable: bool,
    writable: bool,
}

struct Direction<C> {
    carrier: Option<C>,
    source_ended: bool,
    shut: bool,
    moved: u64,
}

impl<C: Carrier> Loop<C> {
    fn new(pairs: Vec<Pair>) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let mut connections = Vec::with_capacity(pairs.len());
        for (index, Pair { client, upstream }) in pairs.into_iter().enumerate() {
            let sides = [Side::new(client)?, Side::new(upstream)?];
            for (number, side) in sides.iter().enumerate() {
                let key = (index * 2 + number) as u64;
                epoll::add(&poll, &side.stream, epoll::EventData::new_u64(key), interest)?;
            }
            connections.push(Connection { sides, directions: [Direction::new(), Direction::new()], queued: false });
        }
        let open = connections.len();
        let moved = Moved { forward: 0, backward: 0 };
        Ok(Loop { poll, connections, ready: Vec::new(), carriers: Vec::new(), moved, open })
    }

    fn run(&mut self, meter: &mut Meter) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let no_wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        while self.open > 0 {
            let timeout = if self.ready.is_empty() { None } else { Some(&no_wait) };
            events.clear();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.note(event);
            }
            for index in std::mem::take(&mut self.ready) {
                self.advance(index, meter)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &epoll::Event) {
        let (key, flags) = (event.data.u64() as usize, event.flags);
        let connection = &mut self.connections[key / 2];
        let side = &mut connection.sides[key % 2];
        // After an error or a hang-up neither call waits, and each says what happened.
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        side.readable |= broken || flags.contains(epoll::EventFlags::IN);
        side.writable |= broken || flags.contains(epoll::EventFlags::OUT);
        if !std::mem::replace(&mut connection.queued, true) {
            self.ready.push(key / 2);
        }
    }

    fn advance(&mut self, index: usize, meter: &mut Meter) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.queued = false;
        if connection.directions.iter().all(|direction| direction.shut) {
            return Ok(());
        }
        let [client, upstream] = &mut connection.sides;
        let [forward, backward] = &mut connection.directions;
        let goes_on = forward.advance(client, upstream, &mut self.carriers, meter)?
            | backward.advance(upstream, client, &mut self.carriers, meter)?;
        if forward.shut && backward.shut {
            self.moved.forward += forward.moved;
            self.moved.backward += backward.moved;
            self.open -= 1;
        } else if goes_on {
            connection.queued = true;
            self.ready.push(index);
        }
        Ok(())
    }
}

impl Side {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // The first edge of each kind is reported when the socket is registered.
        Ok(Side { stream, readable: false, writable: false })
    }
}

impl<C: Carrier> Direction<C> {
    fn new() -> Self {
        Direction { carrier: None, source_ended: false, shut: false, moved: 0 }
    }

    /// Moves bytes until a socket makes it wait; whether it stopped for the sake of the others instead.
    fn advance(&mut self, from: &mut Side, to: &mut Side, pool: &mut Vec<C>, meter: &mut Meter) -> io::Result<bool> {
        for _ in 0..HOPS_PER_TURN {
            if self.shut {
                return Ok(false);
            }
            let filled = self.fill(from, pool, meter)?;
            let drained = self.drain(to)?;
            if self.carrier.as_ref().is_some_and(|carrier| carrier.pending() == 0) {
                pool.extend(self.carrier.take());
            }
            if self.source_ended && self.carrier.is_none() {
                to.stream.shutdown(Shutdown::Write)?;
                self.shut = true;
            } else if !filled && !drained {
                return Ok(false);
            }
        }
        Ok(!self.shut)
    }

    fn fill(&mut self, from: &mut Side, pool: &mut Vec<C>, meter: &mut Meter) -> io::Result<bool> {
        if !from.readable || self.source_ended {
            return Ok(false);
        }
        if self.carrier.is_none() {
            self.carrier = Some(pool.pop().map_or_else(|| C::new(meter), Ok)?);
        }
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        match carrier.fill(&from.stream)? {
            Filled::Some => return Ok(true),
            Filled::End => self.source_ended = true,
            Filled::SocketEmpty => from.readable = false,
            Filled::FullOrEmpty => {}
        }
        Ok(false)
    }

    fn drain(&mut self, to: &mut Side) -> io::Result<bool> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        if !to.writable || carrier.pending() == 0 {
            return Ok(false);
        }
        match carrier.drain(&to.stream)? {
            Some(count) => {
                self.moved += count as u64;
                Ok(true)
            }
            None => {
                to.writable = false;
                Ok(false)
            }
        }
    }
}

/// A pipe that pages of a socket are spliced into and out of, uncopied.
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    capacity: usize,
    pending: usize,
}

impl Carrier for Pipe {
    fn new(meter: &mut Meter) -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Past the user's share of pipe pages the kernel refuses; what the pipe has then must do, and is reported.
        let capacity = match rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES) {
            Err(Errno::PERM) => rustix::pipe::fcntl_getpipe_size(&writer)?,
            other => other?,
        };
        meter.note_pipe(capacity);
        Ok(Pipe { reader, writer, capacity, pending: 0 })
    }

    fn fill(&mut self, from: &TcpStream) -> io::Result<Filled> {
        let room = self.capacity - self.pending;
        if room == 0 {
            return Ok(Filled::FullOrEmpty);
        }
        match splice(from, &self.writer, room)? {
            Some(0) => Ok(Filled::End),
            Some(count) => {
                self.pending += count;
                Ok(Filled::Some)
            }
            // Its slots can be used up before its bytes are, so only an empty pipe tells on the socket.
            None if self.pending == 0 => Ok(Filled::SocketEmpty),
            None => Ok(Filled::FullOrEmpty),
        }
    }

    fn drain(&mut self, to: &TcpStream) -> io::Result<Option<usize>> {
        let count = splice(&self.reader, to, self.pending)?;
        self.pending -= count.unwrap_or(0);
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.pending
    }
}

fn splice(from: impl AsFd, to: impl AsFd, length: usize) -> io::Result<Option<usize>> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    retry(|| rustix::pipe::splice(&from, None, &to, None, length, flags))
}

/// A buffer that bytes are read into and written from.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Carrier for Buffer {
    fn new(_: &mut Meter) -> io::Result<Self> {
        Ok(Buffer { bytes: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 })
    }

    fn fill(&mut self, from: &TcpStream) -> io::Result<Filled> {
        if self.end == self.bytes.len() {
            return Ok(Filled::FullOrEmpty);
        }
        match retry(|| rustix::io::read(from, &mut self.bytes[self.end..]))? {
            Some(0) => Ok(Filled::End),
            Some(count) => {
                self.end += count;
                Ok(Filled::Some)
            }
            None => Ok(Filled::SocketEmpty),
        }
    }

    fn drain(&mut self, to: &TcpStream) -> io::Result<Option<usize>> {
        let count = retry(|| rustix::io::write(to, &self.bytes[self.start..self.end]))?;
        self.start += count.unwrap_or(0);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.end - self.start
    }
}

/// Calls until it is not interrupted; `None` means that it would have waited.
fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
