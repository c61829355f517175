//! The twins: one thread, one hand-written epoll loop, and either splice(2) through pipes or recv(2) and send(2).
//!
//! They are the bar that ours is measured against, so they spare what can be spared. Sockets are registered once,
//! edge-triggered, and epoll_ctl(2) is never called again. A direction takes its pipe or buffer from a pool when bytes
//! come and gives it back when it has run empty, so the one used last, which the caches still hold, is used next, and
//! an idle connection has none. A pipe is filled as far as it goes before it is emptied, and a source that gave less
//! than there was room for is not asked again where that is proof that it is empty. Each twin exists with and without
//! the low-water trick.

mod carrier;
mod low_water;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub(crate) use carrier::{Buffer, Carrier, Pipe};

use crate::process::{Meter, Moved, Pair};
use carrier::Filled;
use low_water::{Deadlines, Flow, Held};

/// Rounds that one direction may go before others have their turn.
const HOPS_PER_TURN: usize = 16;

/// Relays all pairs to their end.
pub(crate) fn relay<C: Carrier>(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    Loop::<C>::new(pairs, false)?.run(meter)
}

/// Relays all pairs to their end, and raises the low-water mark of a socket that bytes flow from in bulk.
pub(crate) fn relay_low_water<C: Carrier>(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    Loop::<C>::new(pairs, true)?.run(meter)
}

struct Loop<C> {
    poll: OwnedFd,
    connections: Vec<Connection<C>>,
    /// Connections that can go on without waiting for an event.
    ready: Vec<usize>,
    /// What `ready` was in this turn, kept for its memory.
    turn: Vec<usize>,
    carriers: Vec<C>,
    has_low_water: bool,
    deadlines: Deadlines,
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
    /// The peer has sent its last byte. Its end must be read, and no further edge will tell of it.
    ends: bool,
}

struct Direction<C> {
    carrier: Option<C>,
    source_ended: bool,
    shut: bool,
    moved: u64,
    flow: Flow,
}

impl<C: Carrier> Loop<C> {
    fn new(pairs: Vec<Pair>, has_low_water: bool) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let kinds = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        let mut connections = Vec::with_capacity(pairs.len());
        for (index, Pair { client, upstream }) in pairs.into_iter().enumerate() {
            let sides = [Side::new(client)?, Side::new(upstream)?];
            for (number, side) in sides.iter().enumerate() {
                let key = (index * 2 + number) as u64;
                epoll::add(&poll, &side.stream, epoll::EventData::new_u64(key), kinds | epoll::EventFlags::ET)?;
            }
            connections.push(Connection { sides, directions: [Direction::new(), Direction::new()], queued: false });
        }
        let open = connections.len();
        Ok(Loop {
            poll,
            connections,
            ready: Vec::new(),
            turn: Vec::new(),
            carriers: Vec::new(),
            has_low_water,
            deadlines: Deadlines::default(),
            moved: Moved { forward: 0, backward: 0 },
            open,
        })
    }

    fn run(mut self, meter: &mut Meter) -> io::Result<Moved> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        while self.open > 0 {
            let connections = &self.connections;
            let timeout = if self.ready.is_empty() {
                self.deadlines.next(|held| &connections[held.connection].directions[held.direction].flow)
            } else {
                Some(Duration::ZERO)
            };
            let timeout = timeout.map(|timeout| Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) });
            events.clear();
            meter.note_calls(1);
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.note(event);
            }
            while let Some(held) = self.deadlines.pop_due() {
                self.expire(held, meter)?;
            }
            std::mem::swap(&mut self.ready, &mut self.turn);
            let turn = std::mem::take(&mut self.turn);
            for index in &turn {
                self.advance(*index, meter)?;
            }
            self.turn = turn;
            self.turn.clear();
        }
        Ok(self.moved)
    }

    fn note(&mut self, event: &epoll::Event) {
        let (key, flags) = (event.data.u64() as usize, event.flags);
        let side = &mut self.connections[key / 2].sides[key % 2];
        // After an error or a hang-up neither call waits, and each says what happened.
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        side.ends |= broken || flags.contains(epoll::EventFlags::RDHUP);
        side.readable |= side.ends || flags.contains(epoll::EventFlags::IN);
        side.writable |= broken || flags.contains(epoll::EventFlags::OUT);
        self.queue(key / 2);
    }

    /// A source under a raised mark has had nothing for so long that the flow has paused: what is below the mark is
    /// all there will be.
    fn expire(&mut self, held: Held, meter: &mut Meter) -> io::Result<()> {
        let Connection { sides, directions, .. } = &mut self.connections[held.connection];
        let source = &mut sides[held.direction];
        if directions[held.direction].flow.expire(&held, &source.stream)? {
            meter.note_calls(1);
            source.readable = true;
            self.queue(held.connection);
        }
        Ok(())
    }

    fn queue(&mut self, index: usize) {
        if !std::mem::replace(&mut self.connections[index].queued, true) {
            self.ready.push(index);
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
        } else {
            if self.has_low_water {
                for (number, direction) in connection.directions.iter_mut().enumerate() {
                    let source = &connection.sides[number];
                    if !source.readable && !direction.source_ended {
                        let (raised, held) = direction.flow.ran_dry(&source.stream, index, number)?;
                        meter.note_calls(u64::from(raised));
                        held.into_iter().for_each(|held| self.deadlines.push(held));
                    }
                }
            }
            if goes_on {
                self.queue(index);
            }
        }
        Ok(())
    }
}

impl Side {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // The first edge of each kind is reported when the socket is registered.
        Ok(Side { stream, readable: false, writable: false, ends: false })
    }
}

impl<C: Carrier> Direction<C> {
    fn new() -> Self {
        Direction { carrier: None, source_ended: false, shut: false, moved: 0, flow: Flow::default() }
    }

    /// Moves bytes until a socket makes it wait; whether it stopped for the sake of the others instead.
    fn advance(&mut self, from: &mut Side, to: &mut Side, pool: &mut Vec<C>, meter: &mut Meter) -> io::Result<bool> {
        for _ in 0..HOPS_PER_TURN {
            if self.shut {
                return Ok(false);
            }
            let filled = self.fill(from, pool, meter)?;
            let drained = self.drain(to, meter)?;
            if self.carrier.as_ref().is_some_and(|carrier| carrier.pending() == 0) {
                pool.extend(self.carrier.take());
            }
            if self.source_ended && self.carrier.is_none() {
                meter.note_calls(1);
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
        match carrier.fill(&from.stream, meter)? {
            Filled::Some(count) => {
                self.flow.took(count);
                return Ok(true);
            }
            Filled::All(count) => {
                self.flow.took(count);
                from.readable = from.ends;
                return Ok(true);
            }
            Filled::End => self.source_ended = true,
            Filled::SocketEmpty => from.readable = false,
            Filled::FullOrEmpty => {}
        }
        Ok(false)
    }

    fn drain(&mut self, to: &mut Side, meter: &mut Meter) -> io::Result<bool> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        if !to.writable || carrier.pending() == 0 {
            return Ok(false);
        }
        match carrier.drain(&to.stream, meter)? {
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
