//! What all threads have done together, and complaints that do not flood.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringmain::Metrics;
use ringmain::ops::{Flow, RelayRoute};
use serde_json::{Value, json};

/// The same complaint is not made more often than this.
const SAME_COMPLAINT: Duration = Duration::from_secs(10);

/// Counters that every thread adds to. None orders anything, so all are relaxed.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    accepted: AtomicU64,
    ended: AtomicU64,
    unreached: AtomicU64,
    idle: AtomicU64,
    late: AtomicU64,
    broken: AtomicU64,
    cut: AtomicU64,
    upstream_bytes: AtomicU64,
    client_bytes: AtomicU64,
    hops: AtomicU64,
    hops_spliced: AtomicU64,
    switches: AtomicU64,
    /// Directions whose last step went by this route, of the connections that are open.
    copying: AtomicU64,
    splicing: AtomicU64,
    splicing_in_ring: AtomicU64,
    enters: AtomicU64,
    attempts: AtomicU64,
    complaints: Mutex<Complaints>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides had said all they had to say.
    Whole,
    /// The upstream was not reached.
    Unreached,
    /// Nothing moved for too long.
    Idle,
    /// It took too long in all.
    Late,
    /// A side broke off.
    Broken,
    /// The program ended first.
    Cut,
}

#[derive(Debug, Default)]
struct Complaints {
    last: Option<(String, Instant)>,
    withheld: u64,
}

impl Totals {
    pub(crate) fn begin(&self) {
        add(&self.accepted, 1);
    }

    pub(crate) fn end(&self, ending: Ending) {
        match ending {
            Ending::Whole => {}
            Ending::Unreached => add(&self.unreached, 1),
            Ending::Idle => add(&self.idle, 1),
            Ending::Late => add(&self.late, 1),
            Ending::Broken => add(&self.broken, 1),
            Ending::Cut => add(&self.cut, 1),
        }
        add(&self.ended, 1);
    }

    /// What has moved since it was last asked: to the upstream, and to the client.
    pub(crate) fn moved(&self, upstream: u64, client: u64) {
        add(&self.upstream_bytes, upstream);
        add(&self.client_bytes, client);
    }

    pub(crate) fn add_flow(&self, flow: &Flow) {
        add(&self.hops, flow.hops);
        add(&self.hops_spliced, flow.hops_spliced);
        add(&self.switches, flow.switches);
    }

    /// A direction goes by another route than before; `Auto` is none yet, or none any more.
    pub(crate) fn rerouted(&self, from: RelayRoute, to: RelayRoute) {
        if let Some(gauge) = self.gauge(from) {
            gauge.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(gauge) = self.gauge(to) {
            add(gauge, 1);
        }
    }

    fn gauge(&self, route: RelayRoute) -> Option<&AtomicU64> {
        match route {
            RelayRoute::Auto => None,
            RelayRoute::Copy => Some(&self.copying),
            RelayRoute::Inline => Some(&self.splicing),
            RelayRoute::Ring => Some(&self.splicing_in_ring),
        }
    }

    /// By which routes the open connections move their bytes.
    pub(crate) fn routes(&self) -> String {
        format!(
            "directions: {} copy, {} splice inline, {} splice in the ring",
            get(&self.copying),
            get(&self.splicing),
            get(&self.splicing_in_ring)
        )
    }

    pub(crate) fn add_metrics(&self, metrics: &Metrics) {
        add(&self.enters, metrics.enters.get());
        add(&self.attempts, metrics.attempts.get());
    }

    pub(crate) fn open(&self) -> u64 {
        // The later counter is read first, so that it is never the greater one.
        let ended = get(&self.ended);
        get(&self.accepted).saturating_sub(ended)
    }

    pub(crate) fn bytes(&self) -> u64 {
        get(&self.upstream_bytes) + get(&self.client_bytes)
    }

    /// Says a sentence on standard error, unless it has just said the same.
    pub(crate) fn complain(&self, sentence: &str) {
        let Some(line) = self.complaints.lock().ok().and_then(|mut known| known.admit(sentence, Instant::now())) else {
            return;
        };
        crate::complain(&line);
    }

    /// The totals as a person reads them.
    pub(crate) fn summary(&self) -> String {
        let mut line = format!("{} connections", get(&self.accepted));
        for (count, what) in [
            (&self.unreached, "did not reach the upstream"),
            (&self.idle, "ended by the idle timeout"),
            (&self.late, "ended by the total timeout"),
            (&self.broken, "broken off by a peer"),
            (&self.cut, "cut off at the end"),
        ] {
            if get(count) > 0 {
                line += &format!(", {} {what}", get(count));
            }
        }
        format!(
            "{line}\n{} bytes to the upstream, {} bytes back, in {} hops ({} spliced, {} changes of route), {} ring enters, \
             {} inline calls",
            get(&self.upstream_bytes),
            get(&self.client_bytes),
            get(&self.hops),
            get(&self.hops_spliced),
            get(&self.switches),
            get(&self.enters),
            get(&self.attempts),
        )
    }

    /// The totals as a program reads them.
    pub(crate) fn json(&self) -> Value {
        json!({
            "connections": get(&self.accepted), "bytes": self.bytes(), "hops": get(&self.hops),
            "hops_spliced": get(&self.hops_spliced), "switches": get(&self.switches), "enters": get(&self.enters), "attempts": get(&self.attempts),
        })
    }
}

impl Complaints {
    /// The line to print, or none if this is what was printed last, and just now.
    fn admit(&mut self, sentence: &str, now: Instant) -> Option<String> {
        if let Some((last, at)) = &self.last
            && last == sentence
            && now.duration_since(*at) < SAME_COMPLAINT
        {
            self.withheld += 1;
            return None;
        }
        let withheld = std::mem::take(&mut self.withheld);
        self.last = Some((sentence.to_owned(), now));
        Some(match withheld {
            0 => sentence.to_owned(),
            _ => format!("{sentence} (since the last complaint, {withheld} more like that one)"),
        })
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
