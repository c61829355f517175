//! One connection: reach the upstream, relay until both sides have ended, say what became of it.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use ringmain::ops::{self, Relay, RelayRoute, Relayed};

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
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_limit: Option<Duration>,
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
        let connect = pin!(Peer::connect(&self.upstream, self.connect_timeout));
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
        let mut relay = ops::relay(&client, &upstream).route(self.route);
        if let Some(limit) = self.idle_limit {
            relay = relay.idle_timeout(limit);
        }
        let counted = Counted { relay, seen: (0, 0), totals: &self.totals };
        let (ended, was_cut) = match select(counted, self.cut.clone()).await {
            Either::Left((ended, _)) => (ended, false),
            Either::Right((_, counted)) => (counted.cancel().await, true),
        };
        self.totals.add_flow(&ended.a_to_b);
        self.totals.add_flow(&ended.b_to_a);
        let ending = ending(&ended, was_cut);
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
    [ended.a_to_b, ended.b_to_a].iter().map(|flow| flow.bytes_in - flow.bytes_out).sum()
}

/// A relay whose bytes are in the totals as soon as they have moved, not only when it ends.
#[derive(Debug)]
struct Counted<'a> {
    relay: Relay,
    seen: (u64, u64),
    totals: &'a Totals,
}

impl Counted<'_> {
    fn cancel(self) -> Self {
        Self { relay: self.relay.cancel(), ..self }
    }
}

impl Future for Counted<'_> {
    type Output = Relayed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Relayed> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.relay).poll(cx);
        let (to_upstream, to_client) = this.relay.flows();
        let now = (to_upstream.bytes_out, to_client.bytes_out);
        if now != this.seen {
            this.totals.moved(now.0 - this.seen.0, now.1 - this.seen.1);
            this.seen = now;
        }
        outcome
    }
}
