//! One connection: reach the upstream, relay until both sides have ended, say what became of it.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use ringmain::ops::{self, Limits, Relay, RelayRoute, Relayed};

use crate::address::Address;
use crate::peer::Peer;
use crate::totals::{Ending, Totals};

/// Ready when what is still open must end.
pub(crate) type Cut = Shared<oneshot::Receiver<()>>;

/// What all connections of a thread have in common.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) upstream: Address,
    pub(crate) route: RelayRoute,
    pub(crate) connect_limit: Option<Duration>,
    pub(crate) idle_limit: Option<Duration>,
    pub(crate) total_limit: Option<Duration>,
    /// Of each direction.
    pub(crate) limits: Limits,
    pub(crate) cut: Cut,
    pub(crate) totals: Arc<Totals>,
}

impl Service {
    /// Serves one client to its end. `reserved` is a descriptor that is closed to make room for the upstream's.
    pub(crate) async fn serve(&self, client: Peer, reserved: OwnedFd) {
        self.totals.begin();
        let ending = match self.reach_upstream(reserved).await {
            Ok(upstream) => self.relay(client, upstream).await,
            Err(ending) => {
                client.reset();
                ending
            }
        };
        self.totals.end(ending);
    }

    async fn reach_upstream(&self, reserved: OwnedFd) -> Result<Peer, Ending> {
        // Nothing else of this thread runs between this and the first poll of the connect, which makes its socket.
        drop(reserved);
        let connect = pin!(Peer::connect(&self.upstream, self.connect_limit));
        match select(connect, self.cut.clone()).await {
            Either::Left((Ok(upstream), _)) => Ok(upstream),
            Either::Left((Err(error), _)) => {
                self.totals.complain(&format!("the upstream {} cannot be reached: {error}", self.upstream));
                Err(Ending::Unreached)
            }
            Either::Right(_) => Err(Ending::Cut),
        }
    }

    async fn relay(&self, client: Peer, upstream: Peer) -> Ending {
        let begun = Instant::now();
        let mut relay = ops::relay(&client, &upstream).route(self.route);
        relay = relay.limit_a_to_b(self.limits).limit_b_to_a(self.limits);
        if let Some(limit) = self.idle_limit {
            relay = relay.idle_timeout(limit);
        }
        if let Some(limit) = self.total_limit {
            relay = relay.total_timeout(limit);
        }
        let counted = Counted { relay: Some(relay), seen: Default::default(), totals: &self.totals };
        let (ended, was_cut) = match select(counted, self.cut.clone()).await {
            Either::Left((ended, _)) => (ended, false),
            Either::Right((_, counted)) => (counted.cancel().await, true),
        };
        self.totals.add_flow(&ended.a_to_b);
        self.totals.add_flow(&ended.b_to_a);
        let ending = match ending(&ended, was_cut) {
            Ending::Idle if self.total_limit.is_some_and(|limit| begun.elapsed() >= limit) => Ending::Late,
            ending => ending,
        };
        tracing::info!(
            upstream_bytes = ended.a_to_b.bytes_out,
            client_bytes = ended.b_to_a.bytes_out,
            lost_bytes = lost(&ended),
            error = ended.result.as_ref().err().map(tracing::field::display),
            "a connection ended: {ending:?}"
        );
        if ending != Ending::Whole {
            // Both sides learn that this was not the end of the stream.
            client.reset();
            upstream.reset();
        }
        ending
    }
}

fn ending(ended: &Relayed, was_cut: bool) -> Ending {
    match &ended.result {
        Ok(()) => Ending::Whole,
        Err(_) if was_cut => Ending::Cut,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ending::Idle,
        Err(_) => Ending::Broken,
    }
}

/// Bytes that were taken from one side and could not be given to the other.
fn lost(ended: &Relayed) -> u64 {
    ended.a_to_b.inside() + ended.b_to_a.inside()
}

/// A relay whose bytes and routes are in the totals as soon as they are, not only when it ends.
#[derive(Debug)]
struct Counted<'a> {
    /// There as long as this is.
    relay: Option<Relay>,
    /// Bytes given and route taken, to the upstream and back.
    seen: [(u64, RelayRoute); 2],
    totals: &'a Totals,
}

impl Counted<'_> {
    fn cancel(mut self) -> Self {
        self.relay = self.relay.take().map(Relay::cancel);
        self
    }

    fn count(&mut self, now: [(u64, RelayRoute); 2]) {
        if now == self.seen {
            return;
        }
        self.totals.moved(now[0].0 - self.seen[0].0, now[1].0 - self.seen[1].0);
        for (old, new) in self.seen.iter().zip(&now) {
            self.totals.rerouted(old.1, new.1);
        }
        self.seen = now;
    }
}

impl Future for Counted<'_> {
    type Output = Relayed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let this = self.get_mut();
        let relay = this.relay.as_mut().expect("the relay is there as long as this is");
        let outcome = Pin::new(&mut *relay).poll(cx);
        let (to_upstream, to_client) = relay.flows();
        this.count([to_upstream, to_client].map(|flow| (flow.bytes_out, flow.route)));
        outcome
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        for (_, route) in self.seen {
            self.totals.rerouted(route, RelayRoute::Auto);
        }
    }
}
