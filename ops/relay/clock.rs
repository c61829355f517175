//! How long a relay may take, and how long nothing may move.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::runtime::{Driver, Sleep, sleep_until};

/// The two limits of time.
///
/// The plain version sets the idle timer anew for each hop. This one lets it run out, and sees then whether something
/// has moved meanwhile: one timer operation for each limit, not for each hop.
#[derive(Default)]
pub(super) struct Clock {
    idle: Option<Duration>,
    total: Option<Duration>,
    seen: u64,
    since: Option<Instant>,
    idle_timer: Option<Sleep>,
    total_timer: Option<Sleep>,
}

impl Clock {
    pub(super) fn limit_idle(&mut self, limit: Duration) {
        self.idle = Some(limit);
    }

    pub(super) fn limit_total(&mut self, limit: Duration) {
        self.total = Some(limit);
    }

    /// Whether [`poll`](Self::poll) would ever be ready.
    #[inline]
    pub(super) fn has_limits(&self) -> bool {
        self.idle.is_some() || self.total.is_some()
    }

    /// The same limits, from the beginning.
    pub(super) fn restarted(&self) -> Self {
        Self { idle: self.idle, total: self.total, ..Self::default() }
    }

    /// Ready when one of the limits is over. `moved` counts what has moved; `is_held` says that it is us who keep it
    /// from moving, which is not idleness.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, driver: &Driver, moved: u64, is_held: bool) -> Poll<io::Error> {
        if let Some(limit) = self.total {
            let timer = self.total_timer.get_or_insert_with(|| after(driver.now(), limit));
            if Pin::new(timer).poll(cx).is_ready() {
                return Poll::Ready(timed_out(format!("not done after {limit:?}")));
            }
        }
        let Some(limit) = self.idle else { return Poll::Pending };
        if self.since.is_none() || self.seen != moved || is_held {
            self.seen = moved;
            self.since = Some(driver.now());
        }
        let since = self.since.unwrap_or_else(|| driver.now());
        loop {
            let timer = self.idle_timer.get_or_insert_with(|| after(since, limit));
            if Pin::new(timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.idle_timer = None;
            if since.checked_add(limit).is_some_and(|deadline| driver.now() >= deadline) {
                return Poll::Ready(timed_out(format!("nothing moved in either direction for {limit:?}")));
            }
        }
    }
}

/// A timer for this long after `since`. What the clock cannot express is so far off that a century does as well.
fn after(since: Instant, limit: Duration) -> Sleep {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    sleep_until(since.checked_add(limit).unwrap_or_else(|| since + CENTURY))
}

fn timed_out(sentence: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, sentence)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("idle", &self.idle).field("total", &self.total).finish_non_exhaustive()
    }
}
