//! What a direction has done and how it does it, for whoever asks, also while it does it.

use std::sync::{Arc, Mutex, PoisonError};

/// How a relay moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayRoute {
    /// Each direction finds out: copy while messages are small, splice inline when bytes come in bulk, splice in the
    /// ring on the side of a file that a disk can block. It copies where a splice is impossible, and for as long as no
    /// pipe is to be had.
    #[default]
    Auto,
    /// `splice(2)` without waiting, with polls in the ring.
    Inline,
    /// The ring's own splice, on kernel worker threads.
    Ring,
    /// Receive into a buffer, and send from it. All relays of a driver share one, except those whose sink is full.
    Copy,
}

/// Why a direction takes the route that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteReason {
    /// Nothing has moved yet.
    #[default]
    Idle,
    /// The caller said so.
    Forced,
    /// Few bytes come at a time: receiving and sending them costs less than two splices.
    SmallMessages,
    /// Many bytes come at a time: handing on their pages costs less than copying them.
    Bulk,
    /// One end is a pipe itself, so that one splice does it all.
    PipeEnd,
    /// A disk can block one end.
    Disk,
    /// The source is a file, and what comes next of it is in the page cache.
    Cached,
    /// An end would block the thread: a socket or a device that is not in non-blocking mode.
    Blocking,
    /// An end has no splice: a file in append mode, procfs, some devices.
    NoSplice,
    /// Bytes come in bulk, and all pipes are in use.
    NoPipe,
}

/// What one direction of a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes taken from the source.
    pub bytes_in: u64,
    /// Bytes given to the sink.
    pub bytes_out: u64,
    /// Steps that moved bytes out of the source.
    pub hops: u64,
    /// Of those, the ones that spliced; the others copied.
    pub hops_spliced: u64,
    /// Whether the source has ended and the sink has been told.
    pub is_finished: bool,
    /// Whether it has ended because it has moved as many bytes as it may. The sink has not been told of an end.
    pub has_reached_limit: bool,
    /// The route of the last step: [`RelayRoute::Auto`] before the first.
    pub route: RelayRoute,
    /// Why it is that one.
    pub reason: RouteReason,
    /// How often the route has changed.
    pub switches: u64,
}

impl Flow {
    /// `inside()`: bytes that were taken from the source and not given to the sink.
    ///
    /// While it runs they lie in a pipe or a page. When it has ended they are those that were handed back, if there is
    /// a [`Stopped`](super::Stopped), and lost once that is dropped.
    pub fn inside(&self) -> u64 {
        self.bytes_in - self.bytes_out
    }

    pub(super) fn total(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }

    /// The next step goes this way.
    pub(super) fn goes(&mut self, route: RelayRoute, reason: RouteReason) {
        if self.route != route && self.route != RelayRoute::Auto {
            self.switches += 1;
        }
        (self.route, self.reason) = (route, reason);
    }
}

/// The counts of one direction, to be looked at from anywhere while it runs.
///
/// It can be cloned and sent to other threads. It shows how things stood when the relay last had to wait, and stays at the
/// last of them when the relay has ended.
#[derive(Clone, Debug, Default)]
pub struct LiveFlow(Arc<Mutex<Flow>>);

impl LiveFlow {
    /// `flow()`: the counts, all of one moment.
    pub fn flow(&self) -> Flow {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, flow: &Flow) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *flow;
    }
}
