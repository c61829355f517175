//! What can be chosen on the command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ringmain::ops::{Limits, RelayRoute};

use crate::address::Address;

/// How often a terminal gets a line of metrics.
const TICK: Duration = Duration::from_secs(1);

/// The routes by the names they have on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RouteName {
    /// each direction finds out: small messages are copied, bulk is spliced
    Auto,
    /// splice(2) on this thread, polls in the ring
    Inline,
    /// the ring's own splice, on worker threads of the kernel
    Ring,
    /// receive into registered pages and send from them
    Copy,
}

/// Move bytes between connections without touching them.
///
/// Without --listen and --to it demonstrates itself: real files of this machine go through each route and through a
/// hand-written epoll loop, are verified by SHA-256, and a table says what that cost.
///
/// With both it is a proxy. SIGINT or SIGTERM ends it: it takes no more connections, waits for the open ones as long
/// as --drain allows, prints totals, and exits with 0. A second one ends it at once.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy", version)]
pub(crate) struct Options {
    /// Take connections here: HOST:PORT (port 0 lets the system choose) or unix:PATH
    #[arg(long, value_name = "ADDR", requires = "to")]
    listen: Option<Address>,

    /// Relay each of them to here: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", requires = "listen")]
    to: Option<Address>,

    /// How bytes move
    #[arg(long, value_enum, default_value = "auto", requires = "listen")]
    pub(crate) route: RouteName,

    /// Threads, each with a ring and a listener of its own
    #[arg(long, value_name = "N", default_value = "1", requires = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,

    /// Bytes asked for each pipe that bytes are spliced through: a power of two, K and M allowed
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = bytes, requires = "listen")]
    pub(crate) pipe_size: u32,

    /// End a connection on which nothing has moved for this many seconds; 0 never ends one
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds, requires = "listen")]
    pub(crate) idle_timeout: Duration,

    /// End a connection after this many seconds, whatever it does; 0 never ends one
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds, requires = "listen")]
    pub(crate) total_timeout: Duration,

    /// Bytes per second that each direction of a connection may move, K, M and G allowed; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = rate, requires = "listen")]
    pub(crate) rate: u64,

    /// Print a line of metrics every so many seconds: connections, bytes, routes; 0 prints one only to a terminal
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds, requires = "listen")]
    pub(crate) metrics: Duration,

    /// Give up on the upstream after this many seconds; 0 when the system does, which takes minutes
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, requires = "listen")]
    pub(crate) connect_timeout: Duration,

    /// Connections open at once, over all threads; more of them wait to be taken
    #[arg(long, value_name = "N", default_value = "10000", requires = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: u32,

    /// Seconds that open connections have to end after the first SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds, requires = "listen")]
    pub(crate) drain: Duration,

    /// Say what becomes of each connection, on standard error
    #[arg(short, long, requires = "listen")]
    pub(crate) verbose: bool,

    /// Be a relay of the demonstration: end when standard input does too, and print the totals as one line of JSON
    #[arg(long, hide = true, requires = "listen")]
    pub(crate) json: bool,

    /// Be the hand-written epoll loop of the demonstration, until standard input ends
    #[arg(long, value_name = "UPSTREAM", hide = true, conflicts_with = "listen")]
    epoll_twin: Option<SocketAddr>,
}

/// What this process is.
#[derive(Debug)]
pub(crate) enum Mode {
    Demo,
    Twin(SocketAddr),
    Proxy(Endpoints),
}

/// From where to where.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) listen: Address,
    pub(crate) to: Address,
}

impl Options {
    pub(crate) fn mode(&self) -> Mode {
        match (&self.listen, &self.to, self.epoll_twin) {
            (Some(listen), Some(to), _) => Mode::Proxy(Endpoints { listen: listen.clone(), to: to.clone() }),
            (_, _, Some(upstream)) => Mode::Twin(upstream),
            _ => Mode::Demo,
        }
    }

    /// The idle limit, if there is one.
    pub(crate) fn idle_limit(&self) -> Option<Duration> {
        (!self.idle_timeout.is_zero()).then_some(self.idle_timeout)
    }

    /// How long a connect may take, if there is a limit.
    pub(crate) fn connect_limit(&self) -> Option<Duration> {
        (!self.connect_timeout.is_zero()).then_some(self.connect_timeout)
    }

    /// The total limit, if there is one.
    pub(crate) fn total_limit(&self) -> Option<Duration> {
        (!self.total_timeout.is_zero()).then_some(self.total_timeout)
    }

    /// What each direction may move.
    pub(crate) fn limits(&self) -> Limits {
        if self.rate == 0 { Limits::new() } else { Limits::new().rate(self.rate) }
    }

    /// How often a line of metrics is printed, if at all.
    pub(crate) fn metrics_period(&self, is_terminal: bool) -> Option<Duration> {
        match self.metrics.is_zero() {
            true => is_terminal.then_some(TICK),
            false => Some(self.metrics),
        }
    }
}

impl From<RouteName> for RelayRoute {
    fn from(name: RouteName) -> Self {
        match name {
            RouteName::Auto => Self::Auto,
            RouteName::Inline => Self::Inline,
            RouteName::Ring => Self::Ring,
            RouteName::Copy => Self::Copy,
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds; write 5 or 0.5"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "a time is 0 or more seconds".to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        [.., b'G' | b'g'] => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a rate; write 65536, 64K or 1M"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is more than anything can move in a second"))
}

fn bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| format!("`{text}` is not a size; write 65536, 64K or 1M"))?;
    let bytes = number.checked_mul(unit).ok_or_else(|| format!("{text} is more than a pipe can have"))?;
    if !bytes.is_power_of_two() || !(4096..=1 << 30).contains(&bytes) {
        return Err("a pipe has a power of two of bytes, from 4K to 1024M".to_owned());
    }
    Ok(bytes)
}
