//! `relay`: copy between two streams, both ways, until both have ended.
//!
//! A relay is two [`Pump`]s, one for each direction, and a clock that says how long nothing has moved. An idle relay
//! holds two polls in the ring and nothing else: no pipe, no page, no thread. Pipes come from a bounded pool when
//! bytes arrive and go back when the last of them has left.

mod pump;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::runtime::{Driver, Fd, Sleep, sleep_until};
use pump::Pump;

/// How a relay moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayRoute {
    /// Splice inline where both ends can be spliced without waiting; copy where not, and for as long as no pipe is to
    /// be had.
    #[default]
    Auto,
    /// `splice(2)` without waiting, with polls in the ring.
    Inline,
    /// The ring's own splice, on kernel worker threads. A stream that is a pipe itself needs no pipe between, and is
    /// spliced inline.
    Ring,
    /// Receive into pages of the registry, and send from them.
    Copy,
}

/// What one direction of a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes taken from the source.
    pub bytes_in: u64,
    /// Bytes given to the sink. What was taken and not given is lost when the relay ends.
    pub bytes_out: u64,
    /// Steps that moved bytes out of the source.
    pub hops: u64,
    /// Of those, the ones that spliced; the others copied.
    pub hops_spliced: u64,
    /// Whether the source has ended and the sink has been told.
    pub is_finished: bool,
}

/// How a relay ended.
#[derive(Debug)]
pub struct Relayed {
    /// `Ok` when both directions have ended. Otherwise the first error of either: `TimedOut` for the idle limit,
    /// `ECANCELED` after a cancel, else the kernel's.
    pub result: io::Result<()>,
    /// From the first stream to the second.
    pub a_to_b: Flow,
    /// From the second stream to the first.
    pub b_to_a: Flow,
}

/// How a [`forward`] ended.
#[derive(Debug)]
pub struct Forwarded {
    /// `Ok` when the source has ended. Otherwise as for [`Relayed`].
    pub result: io::Result<()>,
    /// What was moved.
    pub flow: Flow,
}

/// `relay(a, b)`: copy from each of two streams to the other until both have ended.
///
/// When one source ends, the sink's write side is shut down once every byte before the end has left, and the other
/// direction goes on. The streams stay the caller's.
///
/// A source that fails ends both directions at once. A sink that fails ends the one towards it: what its peer had
/// answered before it went is still delivered, and the relay ends with that error when the answer has.
///
/// # Cancel safety
/// Dropping it stops it at once. Bytes inside a pipe are lost: they were taken from one stream and not given to the
/// other. [`cancel`](Relay::cancel) says how many, as the difference of the counts, after it has given the sink what
/// the sink would take without waiting.
///
/// # Errors
/// In [`Relayed::result`], beside both counts:
/// * nothing moved for the idle limit -> `TimedOut`
/// * a peer has gone -> `EPIPE`, `ECONNRESET`
/// * a stream that is a file on a disk -> `InvalidInput`; [`splice`](super::splice()) takes those
/// * a blocking socket with a forced splice route -> `InvalidInput`; `Auto` copies there
///
/// # Kernel
/// With the ring route `IORING_OP_SPLICE`, since 5.7.
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
pub fn relay(a: &impl AsRef<Fd>, b: &impl AsRef<Fd>) -> Relay {
    let (a, b) = (a.as_ref().hold(), b.as_ref().hold());
    Relay {
        a_to_b: Pump::new(a.clone(), b.clone()),
        b_to_a: Pump::new(b, a),
        idle: IdleLimit::default(),
        cancelled: false,
        failed: None,
    }
}

/// `forward(from, to)`: copy one way until the source has ended.
///
/// As [`relay`], in one direction: at the end the sink's write side is shut down, if it is a socket.
///
/// # Cancel safety
/// As for [`relay`].
///
/// # Errors
/// As for [`relay`].
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
pub fn forward(from: &impl AsRef<Fd>, to: &impl AsRef<Fd>) -> Forward {
    Forward { pump: Pump::new(from.as_ref().hold(), to.as_ref().hold()), idle: IdleLimit::default(), cancelled: false }
}

/// A copy between two streams, both ways: the future of [`relay`].
#[derive(Debug)]
#[must_use = "nothing moves before it is awaited"]
pub struct Relay {
    a_to_b: Pump,
    b_to_a: Pump,
    idle: IdleLimit,
    cancelled: bool,
    /// A sink has failed, and the other direction may still have something to deliver.
    failed: Option<io::Error>,
}

/// A copy from one stream to another: the future of [`forward`].
#[derive(Debug)]
#[must_use = "nothing moves before it is awaited"]
pub struct Forward {
    pump: Pump,
    idle: IdleLimit,
    cancelled: bool,
}

impl Relay {
    /// Choose how bytes move.
    pub fn route(mut self, route: RelayRoute) -> Self {
        self.a_to_b.set_route(route);
        self.b_to_a.set_route(route);
        self
    }

    /// End the relay when nothing has moved in either direction for this long.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle.limit = Some(limit);
        self
    }

    /// What has moved so far: from the first stream to the second, and back.
    pub fn flows(&self) -> (Flow, Flow) {
        (self.a_to_b.flow(), self.b_to_a.flow())
    }

    /// Stop; await what this returns for the counts.
    #[must_use = "await it to learn what was moved"]
    pub fn cancel(mut self) -> Self {
        self.cancelled = true;
        self
    }

    fn ended(&mut self, result: io::Result<()>) -> Poll<Relayed> {
        Poll::Ready(Relayed { result, a_to_b: self.a_to_b.flow(), b_to_a: self.b_to_a.flow() })
    }
}

impl Future for Relay {
    type Output = Relayed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let this = self.get_mut();
        let driver = Driver::current();
        if this.cancelled {
            let stopped = [this.a_to_b.poll_stop(cx, &driver), this.b_to_a.poll_stop(cx, &driver)];
            return if stopped.iter().all(Poll::is_ready) { this.ended(Err(cancelled())) } else { Poll::Pending };
        }
        let mut pending = false;
        let (a_to_b, b_to_a) = (this.a_to_b.poll(cx, &driver), this.b_to_a.poll(cx, &driver));
        let sinks_failed = (this.a_to_b.sink_failed(), this.b_to_a.sink_failed());
        for (outcome, sink_failed) in [(a_to_b, sinks_failed.0), (b_to_a, sinks_failed.1)] {
            match outcome {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let is_end = !sink_failed;
                    let first = this.failed.take().unwrap_or(error);
                    if is_end {
                        return this.ended(Err(first));
                    }
                    this.failed = Some(first);
                }
                Poll::Pending => pending = true,
            }
        }
        if !pending {
            let result = this.failed.take().map_or(Ok(()), Err);
            return this.ended(result);
        }
        let moved = this.a_to_b.flow().total() + this.b_to_a.flow().total();
        match this.idle.poll(cx, &driver, moved) {
            Poll::Ready(error) => this.ended(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Forward {
    /// Choose how bytes move.
    pub fn route(mut self, route: RelayRoute) -> Self {
        self.pump.set_route(route);
        self
    }

    /// End when nothing has moved for this long.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle.limit = Some(limit);
        self
    }

    /// What has moved so far.
    pub fn flow(&self) -> Flow {
        self.pump.flow()
    }

    /// Stop; await what this returns for the counts.
    #[must_use = "await it to learn what was moved"]
    pub fn cancel(mut self) -> Self {
        self.cancelled = true;
        self
    }

    fn ended(&mut self, result: io::Result<()>) -> Poll<Forwarded> {
        Poll::Ready(Forwarded { result, flow: self.pump.flow() })
    }
}

impl Future for Forward {
    type Output = Forwarded;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Forwarded> {
        let this = self.get_mut();
        let driver = Driver::current();
        if this.cancelled {
            return match this.pump.poll_stop(cx, &driver) {
                Poll::Ready(()) => this.ended(Err(cancelled())),
                Poll::Pending => Poll::Pending,
            };
        }
        match this.pump.poll(cx, &driver) {
            Poll::Ready(result) => return this.ended(result),
            Poll::Pending => {}
        }
        match this.idle.poll(cx, &driver, this.pump.flow().total()) {
            Poll::Ready(error) => this.ended(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Flow {
    fn total(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }
}

/// How long nothing may move.
///
/// The plain version sets the timer anew for each hop. This one lets it run out, and sees then whether something has
/// moved meanwhile: one timer operation for each limit, not for each hop.
#[derive(Default)]
struct IdleLimit {
    limit: Option<Duration>,
    seen: u64,
    since: Option<Instant>,
    timer: Option<Sleep>,
}

impl IdleLimit {
    /// Ready when `moved` has not changed for the limit.
    fn poll(&mut self, cx: &mut Context<'_>, driver: &Driver, moved: u64) -> Poll<io::Error> {
        let Some(limit) = self.limit else { return Poll::Pending };
        if self.since.is_none() || self.seen != moved {
            self.seen = moved;
            self.since = Some(driver.now());
        }
        let since = self.since.unwrap_or_else(|| driver.now());
        loop {
            let Some(deadline) = since.checked_add(limit) else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| sleep_until(deadline));
            if Pin::new(timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            if driver.now() >= deadline {
                return Poll::Ready(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing moved in either direction for {limit:?}"),
                ));
            }
        }
    }
}

impl fmt::Debug for IdleLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleLimit").field("limit", &self.limit).finish_non_exhaustive()
    }
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())
}
