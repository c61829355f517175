//! How a relay ended, and what is left of it: to be resumed, or to be taken apart.

use std::io;

use super::clock::Clock;
use super::flow::{Flow, LiveFlow, RelayRoute};
use super::pump::{Pump, Work};
use super::{Forward, HalfClose, Relay};
use crate::ops::{End, PipeReader};
use crate::runtime::Fd;

/// How a relay ended.
#[derive(Debug)]
pub struct Relayed {
    /// `Ok` when both directions have ended, and when a [drain](super::Relay::drain) has delivered everything. Otherwise
    /// the first error of either: `TimedOut` for the limits of time, `ECANCELED` after a cancel, else the kernel's.
    pub result: io::Result<()>,
    /// From the first stream to the second.
    pub a_to_b: Flow,
    /// From the second stream to the first.
    pub b_to_a: Flow,
    /// What is left of it, if one of its directions has not come to its end.
    pub stopped: Option<Stopped>,
}

/// How a [`forward`](super::forward) ended.
#[derive(Debug)]
pub struct Forwarded {
    /// `Ok` when the source has ended, or the limit is reached. Otherwise as for [`Relayed`].
    pub result: io::Result<()>,
    /// What was moved.
    pub flow: Flow,
    /// What is left of it, if it has not come to its end.
    pub stopped: Option<StoppedForward>,
}

/// A relay that was stopped before its end: its settings, its counts, and the bytes inside.
///
/// It holds neither stream; both are free for anything. Dropping it loses the bytes inside. A pipe that they are in
/// counts among the driver's ([`Config::pipes`](crate::Config::pipes)) until then.
///
/// # Examples
/// Look at what a client says first, and relay the rest:
/// ```
/// use ringmain::{Runtime, ops::{self, net::UnixStream}};
/// use std::io::{Read, Write};
///
/// let runtime = Runtime::new()?;
/// runtime.block_on(async {
///     let (client, a) = UnixStream::pair()?;
///     let (b, server) = UnixStream::pair()?;
///     let (mut client, mut server) = (client.into_std().unwrap(), server.into_std().unwrap());
///     let stopped = ops::relay(&a, &b).cancel().await.stopped.expect("it had not ended");
///
///     client.write_all(b"first, ")?;
///     let (count, first) = ops::recv(&a, Vec::with_capacity(16)).await;
///     assert_eq!(count?, 7);
///     ops::send_all(&b, first).await.0?;
///     client.write_all(b"and the rest")?;
///     drop(client);
///     server.shutdown(std::net::Shutdown::Write)?;
///     let ended = stopped.resume(&a, &b).await;
///     ended.result?;
///     server.set_nonblocking(false)?;
///     let mut text = String::new();
///     server.read_to_string(&mut text)?;
///     assert_eq!(text, "first, and the rest");
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stopped {
    pub(super) a_to_b: Rest,
    pub(super) b_to_a: Rest,
    pub(super) clock: Clock,
    pub(super) half_close: HalfClose,
}

/// A [`forward`](super::forward) that was stopped before its end. See [`Stopped`].
#[derive(Debug)]
pub struct StoppedForward {
    pub(super) rest: Rest,
    pub(super) clock: Clock,
}

/// Bytes that were taken from a source and not given to its sink.
#[derive(Debug)]
pub enum Residue {
    /// So many bytes in a pipe, whose writer has gone: read or splice them out, to the end.
    Pipe(PipeReader, usize),
    /// In a buffer.
    Bytes(Vec<u8>),
}

/// What one direction goes on with.
#[derive(Debug)]
pub(super) struct Rest {
    work: Work,
    route: RelayRoute,
    /// Bytes that are still to be reserved in the sink.
    preallocate: u64,
    live: Option<LiveFlow>,
}

impl Rest {
    pub(super) fn new(work: Work, route: RelayRoute, preallocate: u64, live: Option<LiveFlow>) -> Self {
        Self { work, route, preallocate, live }
    }

    pub(super) fn flow(&self) -> Flow {
        self.work.flow
    }

    fn resume(self, from: End, to: End) -> Pump {
        let mut pump = Pump::resume(from, to, self.work);
        pump.set_route(self.route);
        pump.preallocate(self.preallocate);
        if let Some(live) = self.live {
            pump.set_live(live);
        }
        pump
    }

    fn into_residue(self) -> Option<Residue> {
        self.work.into_carrier().into_residue()
    }
}

impl Stopped {
    /// `resume(a, b)`: go on where it was stopped: what is inside is delivered first, then the sources are read again.
    ///
    /// Settings, counts and live counters are those of before; the limits of time begin anew. The streams are usually
    /// the same ones. With others, the bytes inside go to those.
    pub fn resume(self, a: &impl AsRef<Fd>, b: &impl AsRef<Fd>) -> Relay {
        Relay {
            a_to_b: self.a_to_b.resume(End::from(a), End::from(b)).without_files(),
            b_to_a: self.b_to_a.resume(End::from(b), End::from(a)).without_files(),
            clock: self.clock,
            half_close: self.half_close,
            ending: None,
            failed: None,
        }
    }

    /// `into_residues()`: the bytes inside, those on the way to the second stream first.
    pub fn into_residues(self) -> (Option<Residue>, Option<Residue>) {
        (self.a_to_b.into_residue(), self.b_to_a.into_residue())
    }
}

impl StoppedForward {
    /// `resume(from, to)`: go on where it was stopped, as [`Stopped::resume`].
    ///
    /// An end with an offset goes on at the offset that is given here: add what has moved to the one of before.
    pub fn resume(self, from: impl Into<End>, to: impl Into<End>) -> Forward {
        Forward { pump: self.rest.resume(from.into(), to.into()), clock: self.clock, ending: None }
    }

    /// `into_residue()`: the bytes inside.
    pub fn into_residue(self) -> Option<Residue> {
        self.rest.into_residue()
    }
}

impl Residue {
    /// How many bytes there are, at least one.
    #[allow(clippy::len_without_is_empty, reason = "where there are no bytes there is no residue")]
    pub fn len(&self) -> usize {
        match self {
            Self::Pipe(_, bytes) => *bytes,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}
