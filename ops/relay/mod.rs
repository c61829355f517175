//! `relay`: copy between two streams, both ways, until both have ended.
//!
//! A relay is two [`Pump`]s, one for each direction, and a clock that says how long nothing has moved. An idle relay
//! holds two polls in the ring and nothing else: no pipe, no page, no thread. Pipes come from a bounded pool when
//! bytes come in bulk and go back when the last of them has left.

mod carrier;
mod choice;
mod clock;
mod copying;
mod flow;
mod limits;
mod plan;
mod pump;
mod stopped;
mod watch;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

pub use flow::{Flow, LiveFlow, RelayRoute, RouteReason};
pub use limits::Limits;
pub use stopped::{Forwarded, Relayed, Residue, Stopped, StoppedForward};

use super::End;
use crate::runtime::{Driver, Fd};
use clock::Clock;
use pump::Pump;

/// `relay(a, b)`: copy from each of two streams to the other until both have ended.
///
/// When one source ends, the sink's write side is shut down once every byte before the end has left, and the other
/// direction goes on; [`half_close`](Relay::half_close) can end both instead. The streams stay the caller's.
///
/// A source that fails ends both directions at once. A sink that fails ends the one towards it: what its peer had
/// answered before it went is still delivered, and the relay ends with that error when the answer has.
///
/// Each direction finds its own route, and changes it when its bytes change: see [`RelayRoute`] and [`Flow`].
///
/// # Cancel safety
/// Dropping it stops it at once. Bytes inside a pipe are lost: they were taken from one stream and not given to the
/// other. [`cancel`](Relay::cancel) loses nothing: it gives the sink what the sink takes without waiting, and hands back
/// the rest, to be resumed. [`drain`](Relay::drain) waits until all of it is delivered.
///
/// At any moment bytes that count as given were given, and [`Flow::inside`] are the others.
///
/// # Errors
/// In [`Relayed::result`], beside both counts:
/// * nothing moved for the idle limit, or the total one is over -> `TimedOut`
/// * a peer has gone -> `EPIPE`, `ECONNRESET`
/// * a file on a disk -> `InvalidInput`; [`forward`] takes those
/// * a socket that is no stream, or one that listens -> `InvalidInput`
/// * a blocking socket with a forced splice route -> `InvalidInput`; `Auto` copies there
/// * a TLS socket of the kernel's (`TCP_ULP`) whose next record is no data -> `EINVAL`; receive that record, and resume
///
/// # Kernel
/// With the ring route `IORING_OP_SPLICE`, since 5.7. The kernel's own TLS as a sink may answer a splice that must not
/// wait with less than it took: choose [`RelayRoute::Copy`] for such a pair.
///
/// # Examples
/// ```
/// use ringmain::{Runtime, ops::{self, net::UnixStream}};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let (client, a) = UnixStream::pair()?;
///     let (b, server) = UnixStream::pair()?;
///     let (mut client, mut server) = (client.into_std().unwrap(), server.into_std().unwrap());
///     std::io::Write::write_all(&mut client, b"question")?;
///     client.shutdown(std::net::Shutdown::Write)?;
///     std::io::Write::write_all(&mut server, b"answer!")?;
///     server.shutdown(std::net::Shutdown::Write)?;
///     let ended = ops::relay(&a, &b).await;
///     ended.result?;
///     assert_eq!((ended.a_to_b.bytes_out, ended.b_to_a.bytes_out), (8, 7));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With limits, and somebody who watches:
/// ```
/// use ringmain::{Runtime, ops::{self, Limits, net::UnixStream}};
/// use std::time::Duration;
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let (_client, a) = UnixStream::pair()?;
///     let (b, _server) = UnixStream::pair()?;
///     let mut relay = ops::relay(&a, &b)
///         .limit_a_to_b(Limits::new().rate(1 << 20))
///         .limit_b_to_a(Limits::new().bytes(1 << 30))
///         .idle_timeout(Duration::from_millis(5))
///         .total_timeout(Duration::from_secs(60));
///     let (up, down) = relay.live();
///     let ended = relay.await;
///     assert_eq!(ended.result.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
///     assert_eq!((up.flow().bytes_out, down.flow().bytes_out), (0, 0));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn relay(a: &impl AsRef<Fd>, b: &impl AsRef<Fd>) -> Relay {
    Relay {
        a_to_b: Pump::new(End::from(a), End::from(b)).without_files(),
        b_to_a: Pump::new(End::from(b), End::from(a)).without_files(),
        clock: Clock::default(),
        half_close: HalfClose::default(),
        ending: None,
        failed: None,
    }
}

/// `forward(from, to)`: copy one way until the source has ended.
///
/// As [`relay`], in one direction: at the end the sink's write side is shut down, if it is a socket. A file can be
/// either end, at its own position or, as [`End::at`], at an offset; a disk then blocks a worker thread of the kernel, and
/// not this one, unless what comes next of the source is in the page cache. What is spliced from a file *is* the file's page cache until it has been read at the far end: see
/// [`splice`](super::splice()), and choose [`RelayRoute::Copy`] where somebody may write to the file meanwhile.
///
/// A sink that is opened for appending, or has no splice (a terminal, some devices), is written to from pages.
///
/// # Cancel safety
/// As for [`relay`]. A cancel, or a limit of time, waits for the step that a disk blocks: what it moves is counted.
///
/// # Errors
/// As for [`relay`]; an offset for an end that has none, or one pipe for both -> `InvalidInput`.
///
/// # Examples
/// ```
/// use ringmain::{Runtime, ops::{self, net::UnixStream}};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let (reader, writer) = ops::pipe()?;
///     let (sink, peer) = UnixStream::pair()?;
///     ops::write(&writer, b"one way".to_vec()).await.0?;
///     drop(writer);
///     let ended = ops::forward(&reader, &sink).await;
///     ended.result?;
///     let (count, _) = ops::recv(&peer, Vec::with_capacity(16)).await;
///     assert_eq!((ended.flow.bytes_out, count?), (7, 7));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A range of a file to a socket:
/// ```
/// use ringmain::{Runtime, ops::{self, End, Limits, net::UnixStream}};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let file = ops::fs::File::from(std::fs::File::open("Cargo.toml")?);
///     let (sink, peer) = UnixStream::pair()?;
///     let ended = ops::forward(End::at(&file, 1), &sink).limit(Limits::new().bytes(7)).await;
///     ended.result?;
///     let (result, text) = peer.recv_exact(vec![0; 7]).await;
///     assert_eq!((result?, &text[..]), (7, &b"package"[..]));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn forward(from: impl Into<End>, to: impl Into<End>) -> Forward {
    Forward { pump: Pump::new(from.into(), to.into()), clock: Clock::default(), ending: None }
}

/// What the end of one direction means for the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HalfClose {
    /// The sink is told, and the other direction goes on until it ends by itself.
    #[default]
    Forward,
    /// The sink is told; the other direction takes no more, delivers what it has inside, and the relay ends.
    EndBoth,
}

/// A copy between two streams, both ways: the future of [`relay`].
#[derive(Debug)]
#[must_use = "nothing moves before it is awaited"]
pub struct Relay {
    a_to_b: Pump,
    b_to_a: Pump,
    clock: Clock,
    half_close: HalfClose,
    ending: Option<Ending>,
    /// A sink has failed, and the other direction may still have something to deliver.
    failed: Option<io::Error>,
}

/// A copy from one stream to another: the future of [`forward`].
#[derive(Debug)]
#[must_use = "nothing moves before it is awaited"]
pub struct Forward {
    pump: Pump,
    clock: Clock,
    ending: Option<Ending>,
}

/// Why a relay is about to end before its streams do.
#[derive(Debug)]
enum Ending {
    /// Deliver what is inside, and end well.
    Drain,
    /// Take back what is with the kernel, and end with this.
    Stop(Option<io::Error>),
}

impl Relay {
    /// Choose how bytes move.
    pub fn route(mut self, route: RelayRoute) -> Self {
        self.a_to_b.set_route(route);
        self.b_to_a.set_route(route);
        self
    }

    /// Limit what goes from the first stream to the second. At the limit in bytes that direction ends; its sink is not
    /// told of an end, as the source has not ended.
    pub fn limit_a_to_b(mut self, limits: Limits) -> Self {
        self.a_to_b.set_limits(limits);
        self
    }

    /// Limit what goes from the second stream to the first. See [`limit_a_to_b`](Self::limit_a_to_b).
    pub fn limit_b_to_a(mut self, limits: Limits) -> Self {
        self.b_to_a.set_limits(limits);
        self
    }

    /// Choose what the end of one direction, or its limit in bytes, means for the other.
    pub fn half_close(mut self, policy: HalfClose) -> Self {
        self.half_close = policy;
        self
    }

    /// End the relay when nothing has moved in either direction for this long. What a rate holds back is not idle.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.clock.limit_idle(limit);
        self
    }

    /// End the relay this long after its first poll, whatever it does.
    pub fn total_timeout(mut self, limit: Duration) -> Self {
        self.clock.limit_total(limit);
        self
    }

    /// What has moved so far: from the first stream to the second, and back.
    pub fn flows(&self) -> (Flow, Flow) {
        (self.a_to_b.flow(), self.b_to_a.flow())
    }

    /// The same counts for others, who watch while this is awaited: from the first stream to the second, and back.
    pub fn live(&mut self) -> (LiveFlow, LiveFlow) {
        (self.a_to_b.live(), self.b_to_a.live())
    }

    /// Stop; await what this returns for the counts, and for what is left.
    ///
    /// The sinks are given what they take without waiting. The rest is in [`Relayed::stopped`].
    #[must_use = "await it to learn what was moved"]
    pub fn cancel(mut self) -> Self {
        self.ending = Some(Ending::Stop(Some(cancelled())));
        self
    }

    /// Take no more from either source; await what this returns until all that was taken is delivered.
    ///
    /// The limits of time still hold. The sinks are not told of an end.
    #[must_use = "await it to deliver what is inside"]
    pub fn drain(mut self) -> Self {
        if self.ending.is_none() {
            self.ending = Some(Ending::Drain);
            self.stop_taking();
        }
        self
    }

    fn stop_taking(&mut self) {
        self.a_to_b.stop_taking();
        self.b_to_a.stop_taking();
    }

    /// Poll both directions: ready when both have come to rest, or something ends the relay.
    fn advance(&mut self, cx: &mut Context<'_>, driver: &Driver) -> Poll<io::Result<()>> {
        let mut pending = false;
        // Also if it has just been let go: the time until now was not idle.
        let was_paced = self.a_to_b.is_paced() || self.b_to_a.is_paced();
        for pump in [&mut self.a_to_b, &mut self.b_to_a] {
            if pump.is_waiting(cx) {
                pending = true;
                continue;
            }
            match pump.poll(cx, driver) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) if pump.sink_failed() => self.failed = self.failed.take().or(Some(error)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.failed.take().unwrap_or(error))),
                Poll::Pending => pending = true,
            }
        }
        if !pending {
            return Poll::Ready(self.failed.take().map_or(Ok(()), Err));
        }
        if self.half_close == HalfClose::EndBoth && (self.a_to_b.has_ended() || self.b_to_a.has_ended()) {
            let is_first = self.a_to_b.is_taking() || self.b_to_a.is_taking();
            self.stop_taking();
            if is_first {
                return self.advance(cx, driver);
            }
        }
        if self.a_to_b.is_suspect(cx, driver) | self.b_to_a.is_suspect(cx, driver) {
            return self.advance(cx, driver);
        }
        if !self.clock.has_limits() {
            return Poll::Pending;
        }
        let moved = self.a_to_b.moved() + self.b_to_a.moved();
        let is_held = was_paced || self.a_to_b.is_paced() || self.b_to_a.is_paced();
        self.clock.poll(cx, driver, moved, is_held).map(|late| Err(self.failed.take().unwrap_or(late)))
    }

    fn ended(&mut self, result: io::Result<()>) -> Relayed {
        let stopped = Stopped {
            a_to_b: self.a_to_b.take_rest(),
            b_to_a: self.b_to_a.take_rest(),
            clock: self.clock.restarted(),
            half_close: self.half_close,
        };
        let (a_to_b, b_to_a) = (stopped.a_to_b.flow(), stopped.b_to_a.flow());
        let has_ended = self.a_to_b.has_ended() && self.b_to_a.has_ended();
        Relayed { result, a_to_b, b_to_a, stopped: (!has_ended).then_some(stopped) }
    }
}

impl Future for Relay {
    type Output = Relayed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let this = self.get_mut();
        let driver = Driver::current();
        if !matches!(this.ending, Some(Ending::Stop(_))) {
            match this.advance(cx, &driver) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => return Poll::Ready(this.ended(Ok(()))),
                // The other direction may have something with the kernel, which has to come back first.
                Poll::Ready(Err(error)) => this.ending = Some(Ending::Stop(Some(error))),
            }
        }
        let stopped = [this.a_to_b.poll_stop(cx, &driver), this.b_to_a.poll_stop(cx, &driver)];
        if stopped.iter().any(Poll::is_pending) {
            return Poll::Pending;
        }
        let result = why(&mut this.ending);
        Poll::Ready(this.ended(result))
    }
}

impl Forward {
    /// Choose how bytes move.
    pub fn route(mut self, route: RelayRoute) -> Self {
        self.pump.set_route(route);
        self
    }

    /// Reserve room for so many bytes in the sink, if that is a file on a disk: it lies in one piece then, and a disk that
    /// is too small is found out before anything has moved. The file's length does not change (`FALLOC_FL_KEEP_SIZE`).
    ///
    /// It is a system call on this thread, before the first byte moves. A file system that cannot reserve is none the
    /// worse; one that is full ends it with `ENOSPC`.
    pub fn preallocate(mut self, bytes: u64) -> Self {
        self.pump.preallocate(bytes);
        self
    }

    /// Limit what moves. At the limit in bytes it ends well; the sink is not told of an end.
    pub fn limit(mut self, limits: Limits) -> Self {
        self.pump.set_limits(limits);
        self
    }

    /// End when nothing has moved for this long. What a rate holds back is not idle.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.clock.limit_idle(limit);
        self
    }

    /// End this long after its first poll, whatever it does.
    pub fn total_timeout(mut self, limit: Duration) -> Self {
        self.clock.limit_total(limit);
        self
    }

    /// What has moved so far.
    pub fn flow(&self) -> Flow {
        self.pump.flow()
    }

    /// The same counts for others, who watch while this is awaited.
    pub fn live(&mut self) -> LiveFlow {
        self.pump.live()
    }

    /// Stop; await what this returns for the counts, and for what is left. See [`Relay::cancel`].
    #[must_use = "await it to learn what was moved"]
    pub fn cancel(mut self) -> Self {
        self.ending = Some(Ending::Stop(Some(cancelled())));
        self
    }

    /// Take no more; await what this returns until all that was taken is delivered. See [`Relay::drain`].
    #[must_use = "await it to deliver what is inside"]
    pub fn drain(mut self) -> Self {
        if self.ending.is_none() {
            self.ending = Some(Ending::Drain);
            self.pump.stop_taking();
        }
        self
    }

    fn ended(&mut self, result: io::Result<()>) -> Forwarded {
        let stopped = StoppedForward { rest: self.pump.take_rest(), clock: self.clock.restarted() };
        let flow = stopped.rest.flow();
        Forwarded { result, flow, stopped: (!self.pump.has_ended()).then_some(stopped) }
    }
}

impl Future for Forward {
    type Output = Forwarded;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Forwarded> {
        let this = &mut *self;
        let driver = Driver::current();
        if !matches!(this.ending, Some(Ending::Stop(_))) {
            let was_paced = this.pump.is_paced();
            match this.pump.poll(cx, &driver) {
                Poll::Ready(Ok(())) => return Poll::Ready(this.ended(Ok(()))),
                Poll::Ready(Err(error)) => this.ending = Some(Ending::Stop(Some(error))),
                Poll::Pending if this.pump.is_suspect(cx, &driver) => return self.poll(cx),
                Poll::Pending => {
                    let (moved, is_held) = (this.pump.moved(), was_paced || this.pump.is_paced());
                    match this.clock.poll(cx, &driver, moved, is_held) {
                        Poll::Ready(error) => this.ending = Some(Ending::Stop(Some(error))),
                        Poll::Pending => return Poll::Pending,
                    }
                }
            }
        }
        match this.pump.poll_stop(cx, &driver) {
            Poll::Ready(()) => {
                let result = why(&mut this.ending);
                Poll::Ready(this.ended(result))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// What a relay that was stopped ends with.
fn why(ending: &mut Option<Ending>) -> io::Result<()> {
    match ending {
        Some(Ending::Stop(error)) => Err(error.take().unwrap_or_else(cancelled)),
        _ => Ok(()),
    }
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())
}
