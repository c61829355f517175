//! The relay as an engine: what controls it, what it is told to stop with, every kind of end, and a model.
//!
//! Peers are plain threads with plain sockets, or the test itself with non-blocking ones. What others' users reported
//! of relays is in `tests/data`.

#[path = "../data/peers.rs"]
#[allow(dead_code, reason = "each test target takes from it what it needs")]
mod peers;
#[path = "../rings/mod.rs"]
mod rings;

mod control;
mod ends;
mod model;
mod resumed;
mod signals;
mod watch;

use ringmain::ops::RelayRoute;

/// Every way in which a relay can be told to move bytes.
const ROUTES: [RelayRoute; 4] = [RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Ring, RelayRoute::Copy];
