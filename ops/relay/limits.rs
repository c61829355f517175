//! How much a direction may move, and how fast.

use std::time::{Duration, Instant};

/// A quarter of what may come in one burst is waited for before the next step, so that a limited direction wakes some
/// forty times in a second and not for each byte.
const STEPS_PER_BURST: u64 = 4;

/// What may come at once after a pause, as a part of a second.
const BURSTS_PER_SECOND: u64 = 10;

/// What one direction of a relay may move.
///
/// # Examples
/// ```
/// use ringmain::ops::Limits;
///
/// let limits = Limits::new().bytes(10 << 20).rate(1 << 20);
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    bytes: Option<u64>,
    rate: Option<u64>,
}

impl Limits {
    /// `new()`: no limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// `bytes(count)`: end the direction when it has taken exactly so many bytes and given them to the sink.
    ///
    /// Not a byte more is taken from the source.
    #[must_use]
    pub fn bytes(mut self, count: u64) -> Self {
        self.bytes = Some(count);
        self
    }

    /// `rate(bytes_per_second)`: move no more than so many bytes in a second.
    ///
    /// After a pause a tenth of a second's bytes may come at once, at least one byte. Zero counts as one. The source
    /// is not read meanwhile, so that its peer is slowed down; nothing is buffered.
    #[must_use]
    pub fn rate(mut self, bytes_per_second: u64) -> Self {
        self.rate = Some(bytes_per_second.max(1));
        self
    }
}

/// What the next step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowance {
    /// Up to so many bytes, at least one.
    Bytes(usize),
    /// Nothing before then.
    From(Instant),
    /// Nothing any more.
    Nothing,
}

/// The limits of one direction, and what is left of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Limiter {
    left: Option<u64>,
    /// Boxed: most relays have none.
    bucket: Option<Box<Bucket>>,
}

/// Tokens, one for a byte, that come in at a rate up to a burst.
#[derive(Clone, Debug)]
struct Bucket {
    rate: u64,
    burst: u64,
    tokens: u64,
    /// Up to when tokens have been counted in; `None` before the first step.
    counted: Option<Instant>,
}

impl Limiter {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            left: limits.bytes,
            bucket: limits.rate.map(|rate| {
                let burst = (rate / BURSTS_PER_SECOND).max(1);
                Box::new(Bucket { rate, burst, tokens: burst, counted: None })
            }),
        }
    }

    /// What a step that would like `most` bytes may take now. The time is asked only where it matters.
    pub(super) fn allow(&mut self, most: usize, now: impl FnOnce() -> Instant) -> Allowance {
        let left = self.left.map_or(most, |left| usize::try_from(left).unwrap_or(usize::MAX).min(most));
        if left == 0 {
            return Allowance::Nothing;
        }
        let Some(bucket) = &mut self.bucket else { return Allowance::Bytes(left) };
        match bucket.available(now()) {
            Ok(tokens) => Allowance::Bytes(usize::try_from(tokens).unwrap_or(usize::MAX).min(left)),
            Err(when) => Allowance::From(when),
        }
    }

    /// So many bytes have been taken.
    pub(super) fn took(&mut self, count: u64) {
        if let Some(left) = &mut self.left {
            *left -= count;
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.tokens -= count;
        }
    }

    /// Whether all that may be taken has been.
    pub(super) fn is_used_up(&self) -> bool {
        self.left == Some(0)
    }
}

impl Bucket {
    /// The tokens there are, if they are worth a step; otherwise when they will be.
    fn available(&mut self, now: Instant) -> Result<u64, Instant> {
        let counted = *self.counted.get_or_insert(now);
        let earned = u128::from(self.rate) * now.saturating_duration_since(counted).as_nanos() / 1_000_000_000;
        let room = u128::from(self.burst - self.tokens);
        if earned >= room {
            self.tokens = self.burst;
            self.counted = Some(now);
        } else {
            // What has been earned is less than a burst, and the time it took less than a second.
            self.tokens += earned as u64;
            self.counted = Some(counted + self.time_for(earned as u64));
        }
        let wanted = (self.burst / STEPS_PER_BURST).max(1);
        if self.tokens >= wanted {
            return Ok(self.tokens);
        }
        let counted = self.counted.unwrap_or(now);
        Err(counted + self.time_for(wanted - self.tokens))
    }

    /// How long so many tokens take, at most a second of them. Rounded up, so that no rate is ever exceeded.
    fn time_for(&self, tokens: u64) -> Duration {
        Duration::from_nanos_u128((u128::from(tokens) * 1_000_000_000).div_ceil(u128::from(self.rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(limiter: &mut Limiter, now: Instant) -> u64 {
        match limiter.allow(usize::MAX, || now) {
            Allowance::Bytes(count) => {
                limiter.took(count as u64);
                count as u64
            }
            _ => 0,
        }
    }

    #[test]
    fn a_rate_is_kept_over_any_stretch_of_time() {
        let begin = Instant::now();
        for rate in [1, 3, 7, 1000, 1 << 20, 10 << 30, u64::MAX / 2] {
            let mut limiter = Limiter::new(Limits::new().rate(rate));
            let (mut now, mut moved) = (begin, 0u128);
            let mut steps = 0;
            while now < begin + Duration::from_secs(10) {
                match limiter.allow(usize::MAX, || now) {
                    Allowance::Bytes(count) => {
                        limiter.took(count as u64);
                        moved += count as u128;
                        steps += 1;
                    }
                    Allowance::From(when) => {
                        assert!(when > now, "a wait of no time is a busy one");
                        now = when;
                    }
                    Allowance::Nothing => panic!("a rate is no end"),
                }
            }
            let most = u128::from(rate) * 10 + u128::from((rate / BURSTS_PER_SECOND).max(1)) + 1;
            assert!(moved <= most && (moved + 2) * 100 >= most * 97, "{moved} of {most} at {rate} bytes/s");
            assert!(steps <= 500, "{steps} steps in ten seconds at {rate} bytes/s");
        }
    }

    #[test]
    fn a_pause_earns_one_burst_and_no_more() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(Limits::new().rate(1000));
        assert_eq!(allowed(&mut limiter, begin), 100);
        assert_eq!(allowed(&mut limiter, begin), 0);
        assert_eq!(allowed(&mut limiter, begin + Duration::from_secs(3600)), 100);
    }

    #[test]
    fn a_limit_in_bytes_is_exact() {
        let mut limiter = Limiter::new(Limits::new().bytes(10));
        assert_eq!(limiter.allow(7, Instant::now), Allowance::Bytes(7));
        limiter.took(7);
        assert_eq!(limiter.allow(7, Instant::now), Allowance::Bytes(3));
        limiter.took(3);
        assert_eq!(limiter.allow(7, Instant::now), Allowance::Nothing);
        assert!(limiter.is_used_up());
        assert_eq!(Limiter::new(Limits::new().bytes(0)).allow(1, Instant::now), Allowance::Nothing);
    }
}
