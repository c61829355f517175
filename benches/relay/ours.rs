//! The relays of this crate: one task for each pair, on one ring, each route forced once and once left to itself.

use std::io;

use ringmain::ops::net::TcpStream;
use ringmain::ops::{self, Flow, RelayRoute};
use ringmain::{Config, Driver, Runtime};

use crate::PIPE_BYTES;
use crate::process::{Meter, Moved, Pair};

/// The route is the relay's own choice.
pub(crate) fn auto(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    relay(pairs, meter, RelayRoute::Auto)
}

/// Splices without waiting, and polls in the ring.
pub(crate) fn inline(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    relay(pairs, meter, RelayRoute::Inline)
}

/// Splices in the ring.
pub(crate) fn ring(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    relay(pairs, meter, RelayRoute::Ring)
}

/// Pages of the registry.
pub(crate) fn copy(pairs: Vec<Pair>, meter: &mut Meter) -> io::Result<Moved> {
    relay(pairs, meter, RelayRoute::Copy)
}

fn relay(pairs: Vec<Pair>, meter: &mut Meter, route: RelayRoute) -> io::Result<Moved> {
    let bytes = u32::try_from(PIPE_BYTES).map_err(io::Error::other)?;
    // As many pipes as an epoll loop beside it makes: a direction that found none would copy, whatever the route.
    let pipes = u32::try_from(pairs.len()).map_err(io::Error::other)?.max(64);
    let config = Config::default().pipe_size(bytes).pipes(pipes);
    let runtime = Runtime::builder().config(config).build().map_err(io::Error::other)?;
    if route != RelayRoute::Copy {
        // The relay's own pipes are made as bytes come; this one is made the same way, to see its size.
        meter.note_pipe(ops::pipe_sized(PIPE_BYTES)?.0.size()?);
    }
    runtime.block_on(async {
        let relay = |Pair { client, upstream }: Pair| {
            let (client, upstream): (TcpStream, TcpStream) = (client.into(), upstream.into());
            ringmain::spawn(async move { ops::relay(&client, &upstream).route(route).await })
        };
        let relays: Vec<_> = pairs.into_iter().map(relay).collect();
        let mut moved = Moved { forward: 0, backward: 0 };
        for relay in relays {
            let relayed = relay.await.map_err(io::Error::other)?;
            relayed.result?;
            moved.forward += bytes_out(relayed.a_to_b)?;
            moved.backward += bytes_out(relayed.b_to_a)?;
        }
        let driver = Driver::current();
        let (enters, attempts) = (driver.metrics().enters.get(), driver.metrics().attempts.get());
        meter.note_calls(enters + attempts);
        meter.note_enters(enters);
        Ok(moved)
    })
}

fn bytes_out(flow: Flow) -> io::Result<u64> {
    if flow.bytes_in != flow.bytes_out {
        return Err(io::Error::other(format!("{} bytes were taken, but {} given", flow.bytes_in, flow.bytes_out)));
    }
    Ok(flow.bytes_out)
}
