//! One direction of a relay: from a source, through a pipe or a buffer, to a sink.
//!
//! The pump knows how many bytes are inside its pipe, and that decides the one hard question, whose `EAGAIN` it was.
//! It fills only when nothing is inside, so a source that would block is empty; it drains while something is inside,
//! so a sink that would block is full. Neither is ever asked about the other's readiness. A pipe that is full by
//! slots while its bytes look few is no special case: it is drained before it is filled again.
//!
//! End of file is a fill of 0 with nothing inside; only then is the sink's write side shut down, so a shutdown never
//! overtakes a byte.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::{Flow, RelayRoute};
use crate::ops::pipe::{PipePool, PooledPipe};
use crate::ops::poll::PollOnce;
use crate::ops::route::{Kind, Permit, PermitPlace, RingPermits, is_blocking_socket};
use crate::ops::splice::Splice;
use crate::ops::{BufResult, Read, Recv, Send, Write};
use crate::runtime::{Driver, FdHold, FixedBuf, IoBuf, IoBufMut, Submission};

/// Steps in one poll before other tasks get their turn: a pair that is always ready must not starve them.
const STEPS_MAX: u32 = 16;

/// Bytes that one hop copies at most.
const COPY_BYTES: usize = 64 * 1024;

/// The most that is asked of a splice in bytes when the pipe's own room is the limit.
const SPLICE_BYTES: usize = 1 << 30;

/// How often a direct splice is tried again at once when both ends say that they are ready.
const DISAGREEMENTS_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct Pump {
    from: FdHold,
    to: FdHold,
    route: RelayRoute,
    plan: Option<Plan>,
    step: Step,
    carrier: Carrier,
    flow: Flow,
    disagreements: u32,
    sink_failed: bool,
}

/// What the two ends allow, found out once.
#[derive(Clone, Copy, Debug)]
struct Plan {
    from: Kind,
    to: Kind,
    splices: bool,
    ring: bool,
    /// One end is a pipe itself, so that no other is needed between them.
    direct: bool,
}

/// Where the bytes are that have left the source and not reached the sink.
#[derive(Debug)]
enum Carrier {
    Nothing,
    Pipe { pipe: PooledPipe, inside: usize, filled: bool },
    Buffer { buffer: Buffer, from: usize, filled: bool },
}

/// A page of the registry, or of the heap when the registry has none to give.
#[derive(Debug)]
enum Buffer {
    Leased(FixedBuf),
    Heap(Vec<u8>),
}

#[derive(Debug)]
enum Step {
    /// Nothing is inside: take from the source.
    Fill,
    /// Something is inside: give it to the sink.
    Drain,
    AwaitSource(Submission<PollOnce>),
    AwaitSink(Submission<PollOnce>),
    /// A ring splice waits for its permit.
    Permit(Hop, PermitPlace),
    /// A ring splice is with the kernel.
    Ring(Hop, Submission<Splice>, Permit),
    Finished,
}

/// Which half of the way a ring splice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    In,
    Out,
}

impl Pump {
    pub(super) fn new(from: FdHold, to: FdHold) -> Self {
        // A poll first: most streams have nothing yet when a relay begins, and a pipe should not be taken for them.
        let step = Step::AwaitSource(Submission::new(PollOnce::new(from.clone(), PollFlags::IN)));
        Self {
            from,
            to,
            route: RelayRoute::Auto,
            plan: None,
            step,
            carrier: Carrier::Nothing,
            flow: Flow::default(),
            disagreements: 0,
            sink_failed: false,
        }
    }

    pub(super) fn set_route(&mut self, route: RelayRoute) {
        self.route = route;
    }

    pub(super) fn flow(&self) -> Flow {
        self.flow
    }

    /// Whether what ended this with an error was its sink, so that its source may well have peers that go on.
    pub(super) fn sink_failed(&self) -> bool {
        self.sink_failed
    }

    /// Move until the source has ended, or an end is not ready.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<io::Result<()>> {
        for _ in 0..STEPS_MAX {
            match &mut self.step {
                Step::Finished => return Poll::Ready(Ok(())),
                Step::AwaitSource(poll) => {
                    ready!(Pin::new(poll).poll(cx))?;
                    self.step = Step::Fill;
                }
                Step::AwaitSink(poll) => {
                    ready!(Pin::new(poll).poll(cx))?;
                    self.step = Step::Drain;
                }
                Step::Fill => self.fill(driver)?,
                Step::Drain => self.drain(driver)?,
                Step::Permit(hop, place) => {
                    let hop = *hop;
                    let permit = ready!(Pin::new(place).poll(cx));
                    self.step = Step::Ring(hop, Submission::new(self.splice(hop)), permit);
                }
                Step::Ring(hop, splice, _permit) => {
                    let hop = *hop;
                    let outcome = ready!(Pin::new(splice).poll(cx));
                    self.step = Step::Fill;
                    self.settle(hop, outcome)?;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Stop: take back what is with the kernel, and give the sink what it takes of the rest without waiting.
    pub(super) fn poll_stop(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<()> {
        if let Step::Ring(hop, splice, _permit) = &mut self.step {
            let hop = *hop;
            splice.request_cancel();
            let outcome = ready!(Pin::new(splice).poll(cx));
            self.step = Step::Drain;
            // An error of a splice that was told to stop is the stop itself.
            let _stopped = self.settle(hop, outcome);
        }
        if !matches!(self.step, Step::Finished) {
            while self.inside() > 0 && matches!(self.drain_once(driver), Ok(true)) {}
            self.step = Step::Finished;
        }
        self.let_go();
        Poll::Ready(())
    }

    fn plan(&mut self) -> io::Result<Plan> {
        if let Some(plan) = self.plan {
            return Ok(plan);
        }
        let (from, to) = (Kind::of(self.from.as_fd())?, Kind::of(self.to.as_fd())?);
        for (kind, name) in [(from, "source"), (to, "sink")] {
            if kind == Kind::Disk {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "the {name} of this relay is a file on a disk, which cannot be waited for; splice it instead"
                    ),
                ));
            }
        }
        let blocking = is_blocking_socket(self.from.as_fd(), from)? || is_blocking_socket(self.to.as_fd(), to)?;
        if blocking && matches!(self.route, RelayRoute::Inline | RelayRoute::Ring) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a stream of this relay is a blocking socket, on which a splice would hold the pipe's lock while it \
                 waits; make it non-blocking, or let the relay copy",
            ));
        }
        let plan = Plan {
            from,
            to,
            splices: self.route != RelayRoute::Copy && !blocking,
            ring: self.route == RelayRoute::Ring,
            direct: from == Kind::Pipe || to == Kind::Pipe,
        };
        self.plan = Some(plan);
        Ok(plan)
    }

    /// Nothing is inside: one step from the source.
    fn fill(&mut self, driver: &Driver) -> io::Result<()> {
        let plan = self.plan()?;
        if plan.splices && plan.direct {
            return self.splice_direct(driver, plan);
        }
        if plan.splices
            && matches!(self.carrier, Carrier::Nothing)
            && let Some(pipe) = PipePool::of(driver).take()
        {
            self.carrier = Carrier::Pipe { pipe, inside: 0, filled: false };
        }
        if matches!(self.carrier, Carrier::Pipe { .. }) {
            if plan.ring {
                self.step = Step::Permit(Hop::In, RingPermits::of(driver).place());
                return Ok(());
            }
            let outcome = attempt(driver, self.splice(Hop::In));
            return self.settle(Hop::In, outcome);
        }
        let outcome = self.copy_in(driver, plan);
        self.settle(Hop::In, outcome)
    }

    /// Something is inside: one step to the sink.
    fn drain(&mut self, driver: &Driver) -> io::Result<()> {
        if self.plan()?.ring && matches!(self.carrier, Carrier::Pipe { .. }) {
            self.step = Step::Permit(Hop::Out, RingPermits::of(driver).place());
            return Ok(());
        }
        self.drain_once(driver).map(drop)
    }

    /// One step to the sink on this thread; false if the sink would have to be waited for.
    fn drain_once(&mut self, driver: &Driver) -> io::Result<bool> {
        let outcome = match &self.carrier {
            Carrier::Pipe { .. } => attempt(driver, self.splice(Hop::Out)),
            _ => self.copy_out(driver),
        };
        let would_block = matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.settle(Hop::Out, outcome)?;
        Ok(!would_block)
    }

    /// One step has come to this; what is the next?
    fn settle(&mut self, hop: Hop, outcome: io::Result<usize>) -> io::Result<()> {
        match (hop, outcome) {
            (_, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.step = match hop {
                    Hop::In => {
                        self.let_go();
                        self.await_source()
                    }
                    Hop::Out => self.await_sink(),
                };
            }
            (Hop::In, Ok(0)) => self.finish()?,
            (Hop::In, Ok(count)) => {
                self.took(count);
                self.step = Step::Drain;
            }
            (Hop::In, Err(error)) if self.cannot_splice(&error) => {
                // The source has no splice (procfs, some devices). Nothing has moved yet, so copying loses nothing.
                self.let_go();
                self.plan = self.plan.map(|plan| Plan { splices: false, ..plan });
                self.step = Step::Fill;
            }
            (Hop::Out, Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            (Hop::Out, Ok(count)) => {
                self.flow.bytes_out += count as u64;
                if self.gave(count) > 0 {
                    self.step = Step::Drain;
                } else if self.was_filled() {
                    self.step = Step::Fill;
                } else {
                    // The source gave less than there was room for: it is most likely empty now, and waiting for it
                    // lets the next hop be a fuller one.
                    self.let_go();
                    self.step = self.await_source();
                }
            }
            (_, Err(error)) => {
                self.sink_failed = hop == Hop::Out;
                self.step = Step::Finished;
                self.let_go();
                return Err(error);
            }
        }
        Ok(())
    }

    /// From the source to the sink in one splice: one of them is a pipe.
    fn splice_direct(&mut self, driver: &Driver, plan: Plan) -> io::Result<()> {
        let splice = Splice::between(self.from.clone(), self.to.clone(), SPLICE_BYTES);
        match driver.attempt(splice) {
            Ok(Ok(0)) => self.finish(),
            Ok(Ok(count)) => {
                self.disagreements = 0;
                self.took(count);
                self.flow.bytes_out += count as u64;
                Ok(())
            }
            Ok(Err(error)) if self.cannot_splice(&error) => {
                self.plan = Some(Plan { splices: false, direct: false, ..plan });
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_would_block) => {
                // Two ends and one errno: the source is looked at first, then the sink.
                self.step = match driver.attempt(PollOnce::new(self.from.clone(), PollFlags::IN)) {
                    Err(poll) => Step::AwaitSource(Submission::new(poll)),
                    Ok(ready) => {
                        ready?;
                        match driver.attempt(PollOnce::new(self.to.clone(), PollFlags::OUT)) {
                            // After the sink the source is tried: `fill` is where a direct splice is made.
                            Err(poll) => Step::AwaitSource(Submission::new(poll)),
                            Ok(ready) => {
                                ready?;
                                self.disagreements += 1;
                                if self.disagreements > DISAGREEMENTS_MAX {
                                    // Both say ready, and splice says no: a copy asks each of them by itself.
                                    self.plan = Some(Plan { splices: false, direct: false, ..plan });
                                }
                                Step::Fill
                            }
                        }
                    }
                };
                Ok(())
            }
        }
    }

    fn copy_in(&mut self, driver: &Driver, plan: Plan) -> io::Result<usize> {
        let buffer = match std::mem::replace(&mut self.carrier, Carrier::Nothing) {
            Carrier::Buffer { buffer, .. } => buffer,
            _ => Buffer::new(driver),
        };
        let (outcome, buffer) = match buffer {
            Buffer::Leased(page) => {
                let (outcome, page) = take_from(driver, &self.from, plan.from, page);
                (outcome, Buffer::Leased(page))
            }
            Buffer::Heap(bytes) => {
                let (outcome, bytes) = take_from(driver, &self.from, plan.from, bytes);
                (outcome, Buffer::Heap(bytes))
            }
        };
        self.carrier = Carrier::Buffer { buffer, from: 0, filled: matches!(outcome, Ok(COPY_BYTES)) };
        outcome
    }

    fn copy_out(&mut self, driver: &Driver) -> io::Result<usize> {
        let plan = self.plan()?;
        let Carrier::Buffer { buffer, from, filled } = std::mem::replace(&mut self.carrier, Carrier::Nothing) else {
            return Ok(0);
        };
        let (outcome, buffer) = match buffer {
            Buffer::Leased(page) => {
                let (outcome, page) = give_to(driver, &self.to, plan.to, page, from);
                (outcome, Buffer::Leased(page))
            }
            Buffer::Heap(bytes) => {
                let (outcome, bytes) = give_to(driver, &self.to, plan.to, bytes, from);
                (outcome, Buffer::Heap(bytes))
            }
        };
        self.carrier = Carrier::Buffer { buffer, from, filled };
        outcome
    }

    /// The source has ended, and everything before the end has left: tell the sink.
    fn finish(&mut self) -> io::Result<()> {
        self.let_go();
        self.step = Step::Finished;
        match rustix::net::shutdown(&self.to, Shutdown::Write) {
            // A pipe ends when its last handle goes; a connection that has gone needs no end.
            Ok(()) | Err(Errno::NOTSOCK | Errno::NOTCONN) => {}
            Err(error) => return Err(error.into()),
        }
        self.flow.is_finished = true;
        Ok(())
    }

    /// The splice for one half of the way.
    fn splice(&self, hop: Hop) -> Splice {
        let Carrier::Pipe { pipe, inside, .. } = &self.carrier else {
            panic!("a splice through a pipe needs the pipe");
        };
        match hop {
            Hop::In => Splice::between(self.from.clone(), pipe.writer().as_ref().hold(), SPLICE_BYTES),
            Hop::Out => Splice::between(pipe.reader().as_ref().hold(), self.to.clone(), *inside),
        }
    }

    fn took(&mut self, count: usize) {
        self.flow.bytes_in += count as u64;
        self.flow.hops += 1;
        match &mut self.carrier {
            Carrier::Pipe { pipe, inside, filled } => {
                *inside += count;
                *filled = count >= pipe.size();
                self.flow.hops_spliced += 1;
            }
            Carrier::Nothing => self.flow.hops_spliced += 1,
            Carrier::Buffer { .. } => {}
        }
    }

    /// Bytes that are still inside after `count` have left.
    fn gave(&mut self, count: usize) -> usize {
        match &mut self.carrier {
            Carrier::Pipe { inside, .. } => *inside -= count,
            Carrier::Buffer { from, .. } => *from += count,
            Carrier::Nothing => {}
        }
        self.inside()
    }

    fn inside(&self) -> usize {
        match &self.carrier {
            Carrier::Nothing => 0,
            Carrier::Pipe { inside, .. } => *inside,
            Carrier::Buffer { buffer, from, .. } => buffer.len() - from,
        }
    }

    fn was_filled(&self) -> bool {
        matches!(self.carrier, Carrier::Pipe { filled: true, .. } | Carrier::Buffer { filled: true, .. })
    }

    /// Give the pipe or the page back.
    fn let_go(&mut self) {
        if let Carrier::Pipe { pipe, inside, .. } = std::mem::replace(&mut self.carrier, Carrier::Nothing) {
            pipe.give_back(inside);
        }
    }

    /// Whether this is the kernel saying that an end has no splice, before anything has moved through it.
    fn cannot_splice(&self, error: &io::Error) -> bool {
        self.route == RelayRoute::Auto
            && self.flow.hops == 0
            && self.plan.is_some_and(|plan| plan.splices)
            && error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
    }

    fn await_source(&self) -> Step {
        Step::AwaitSource(Submission::new(PollOnce::new(self.from.clone(), PollFlags::IN)))
    }

    fn await_sink(&self) -> Step {
        Step::AwaitSink(Submission::new(PollOnce::new(self.to.clone(), PollFlags::OUT)))
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // A ring splice that is still with the kernel keeps both pipe ends through its holds. Its pipe is not given
        // back: what it will hold is not known.
        if !matches!(self.step, Step::Ring(..)) {
            self.let_go();
        }
    }
}

impl Buffer {
    fn new(driver: &Driver) -> Self {
        match driver.registry().try_lease(COPY_BYTES) {
            Some(page) => Self::Leased(page),
            None => Self::Heap(Vec::with_capacity(COPY_BYTES)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leased(page) => page.len(),
            Self::Heap(bytes) => bytes.len(),
        }
    }
}

fn attempt(driver: &Driver, splice: Splice) -> io::Result<usize> {
    driver.attempt(splice).unwrap_or_else(|_would_block| Err(io::Error::from(io::ErrorKind::WouldBlock)))
}

/// Take what the source has into this buffer, if it has something.
fn take_from<B: IoBufMut>(driver: &Driver, from: &FdHold, kind: Kind, buffer: B) -> BufResult<B> {
    // A socket is received from, because that never waits, whatever its flags; a pipe's own flags see to it.
    if kind == Kind::Socket {
        return driver.attempt(Recv::new(from.clone(), buffer)).unwrap_or_else(|recv| would_block(recv.into_buffer()));
    }
    driver.attempt(Read::new(from.clone(), buffer, None)).unwrap_or_else(|read| would_block(read.into_buffer()))
}

/// Give the sink what is in this buffer from `at` on, as much as it takes now.
fn give_to<B: IoBuf>(driver: &Driver, to: &FdHold, kind: Kind, buffer: B, at: usize) -> BufResult<B> {
    let rest = buffer.slice(at..);
    let (outcome, rest) = if kind == Kind::Socket {
        driver.attempt(Send::new(to.clone(), rest)).unwrap_or_else(|send| would_block(send.into_buffer()))
    } else {
        driver.attempt(Write::new(to.clone(), rest, None)).unwrap_or_else(|write| would_block(write.into_buffer()))
    };
    (outcome, rest.into_inner())
}

fn would_block<B>(buffer: B) -> BufResult<B> {
    (Err(io::Error::from(io::ErrorKind::WouldBlock)), buffer)
}
