//! Which way the next hop goes, by what the last ones brought.
//!
//! `cargo bench --bench relay`, 100 connections over loopback TCP: up to 1 KiB, receiving and sending costs less than two
//! splices; at 4 KiB they are equal; from 16 KiB on splicing costs less, at 64 KiB half as much. So there is room for two
//! thresholds far enough apart that a direction does not change its mind with every message.

use std::time::{Duration, Instant};

/// Bytes in a hop, on the average, from which on a direction is in bulk flow.
const BULK_BYTES: u32 = 12 * 1024;

/// Bytes in a hop, on the average, below which it is not any more.
const SMALL_BYTES: u32 = 5 * 1024;

/// The part of its weight that the average gives to each new hop, as a shift.
const WEIGHT_SHIFT: u32 = 2;

/// The smallest pipe: the kernel's default, and what a direction in bulk flow begins with.
pub(super) const PIPE_MIN: usize = 64 * 1024;

/// A source that has been silent for longer has paused.
const PAUSE: Duration = Duration::from_micros(300);

/// Bytes without a pause after which a direction is held to let more come together.
const HOLD_AFTER: u64 = 4 << 20;

/// Bytes from which on it is looked for a pause.
///
/// The plain version asks the time at each hop. Large requests and their answers have a pause after each of them and are
/// never held, and asking costs some 100 ns of each of them; so for half of the way bytes are only counted.
const LOOK_AFTER: u64 = HOLD_AFTER / 2;

/// How long it is held. On an idle machine the timer adds some 50 us to that.
const HOLD: Duration = Duration::from_micros(100);

/// When a direction that is held from now on goes on.
pub(super) fn hold_until(now: Instant) -> Instant {
    now + HOLD
}

/// What a direction has learned of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Moving average of the bytes in a hop.
    average: u32,
    is_bulk: bool,
    /// The size of pipe that it would have.
    pipe: usize,
    /// The size beyond which there was none to be had, since the last pause.
    pipe_max: usize,
    /// Bytes since the source was last seen to pause.
    run: u64,
    /// When the last hop was, if pauses are being looked for.
    last: Option<Instant>,
}

impl Choice {
    pub(super) fn new() -> Self {
        Self { average: 0, is_bulk: false, pipe: PIPE_MIN, pipe_max: usize::MAX, run: 0, last: None }
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.is_bulk
    }

    /// The size of pipe that is worth having, in bytes.
    pub(super) fn pipe(&self) -> usize {
        self.pipe
    }

    /// A hop has brought `count` bytes where there was room for `room`.
    pub(super) fn learn(&mut self, count: usize, room: usize, now: impl FnOnce() -> Instant) {
        let count_small = u32::try_from(count).unwrap_or(u32::MAX);
        if self.average == 0 {
            self.average = count_small;
        } else {
            self.average = self.average - (self.average >> WEIGHT_SHIFT) + (count_small >> WEIGHT_SHIFT);
        }
        if self.is_bulk {
            self.is_bulk = self.average >= SMALL_BYTES;
        } else if count >= room || self.average >= BULK_BYTES {
            self.is_bulk = true;
            self.average = self.average.max(BULK_BYTES);
        }
        if !self.is_bulk {
            // Neither a pipe nor a pause means anything to small messages, and asking the time costs some.
            (self.pipe, self.run, self.last) = (PIPE_MIN, 0, None);
            return;
        }
        // A pipe may be full by slots at a quarter of its bytes and less: segments of 1,460 bytes take a slot each.
        if count >= self.pipe / 4 {
            self.pipe = self.pipe.saturating_mul(4).min(self.pipe_max);
        } else if (self.average as usize) < self.pipe / 16 {
            self.pipe = (self.pipe / 4).max(PIPE_MIN);
        }
        if self.run >= LOOK_AFTER {
            let now = now();
            let paused = self.last.is_some_and(|last| now.saturating_duration_since(last) > PAUSE);
            (self.run, self.last) = if paused { (0, None) } else { (self.run, Some(now)) };
        }
        self.run += count as u64;
    }

    /// A pipe of that size was asked for, and this is what there was. It is not asked for more before the next pause.
    pub(super) fn got_pipe(&mut self, size: usize) {
        if size < self.pipe {
            self.pipe_max = size.max(PIPE_MIN);
            self.pipe = self.pipe_max;
        }
    }

    /// The source has nothing more now.
    pub(super) fn pause(&mut self) {
        (self.run, self.last) = (0, None);
        self.pipe_max = usize::MAX;
    }

    /// Whether to let more bytes come together before the next hop.
    pub(super) fn holds(&self) -> bool {
        self.is_bulk && self.run >= HOLD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(hops: &[usize]) -> Choice {
        let mut choice = Choice::new();
        for &count in hops {
            choice.learn(count, 64 * 1024, Instant::now);
        }
        choice
    }

    #[test]
    fn small_messages_are_copied_and_bulk_is_spliced() {
        assert!(!after(&[64; 100]).is_bulk());
        assert!(!after(&[4096; 100]).is_bulk());
        assert!(after(&[64 * 1024]).is_bulk(), "a buffer that is full says that there is more");
        assert!(after(&[64 * 1024; 2]).is_bulk());
    }

    #[test]
    fn one_message_does_not_change_the_route() {
        let mut choice = after(&[100_000; 20]);
        choice.learn(64, 1 << 20, Instant::now);
        assert!(choice.is_bulk());
        let hops = (0..).take_while(|_| {
            choice.learn(64, 1 << 20, Instant::now);
            choice.is_bulk()
        });
        assert!((3..20).contains(&hops.count()), "a run of small messages does");
    }

    #[test]
    fn messages_between_the_thresholds_change_nothing() {
        let mut choice = after(&[64 * 1024; 10]);
        for _ in 0..1000 {
            choice.learn(8 * 1024, 1 << 20, Instant::now);
            assert!(choice.is_bulk());
        }
        let mut choice = after(&[64; 10]);
        for _ in 0..1000 {
            choice.learn(8 * 1024, 64 * 1024, Instant::now);
            assert!(!choice.is_bulk());
        }
    }

    #[test]
    fn a_pipe_grows_with_what_comes_and_shrinks_again() {
        let mut choice = after(&[64 * 1024, 256 * 1024, 1 << 20]);
        assert!(choice.pipe() >= 1 << 20);
        choice.got_pipe(1 << 20);
        assert_eq!(choice.pipe(), 1 << 20);
        for _ in 0..50 {
            choice.learn(20_000, 1 << 20, Instant::now);
        }
        assert_eq!(choice.pipe(), 256 * 1024);
        for _ in 0..50 {
            choice.learn(64, 1 << 20, Instant::now);
        }
        assert_eq!(choice.pipe(), PIPE_MIN);
    }

    #[test]
    fn only_an_unbroken_run_is_held() {
        let mut choice = Choice::new();
        let begin = Instant::now();
        for hop in 0..40 {
            choice.learn(256 * 1024, 1 << 20, || begin + hop * Duration::from_micros(100));
        }
        assert!(choice.holds());
        choice.pause();
        assert!(!choice.holds());
        for hop in 0..40 {
            choice.learn(256 * 1024, 1 << 20, || begin + hop * Duration::from_millis(10));
        }
        assert!(!choice.holds(), "a message every 10 ms");
    }

    #[test]
    fn large_requests_are_not_held_and_hardly_ask_the_time() {
        let mut choice = Choice::new();
        let begin = Instant::now();
        let mut asked = 0;
        for hop in 0..4000u32 {
            // Four hops close together are a request; the next one comes 3 ms later.
            let when = begin + hop / 4 * Duration::from_millis(3) + hop % 4 * Duration::from_micros(20);
            choice.learn(16 * 1024, 64 * 1024, || {
                asked += 1;
                when
            });
            assert!(!choice.holds());
        }
        assert!((1..200).contains(&asked), "asked {asked} times");
    }
}
