//! The next step from the source: how much, which way, through what.

use std::io;

use rustix::event::PollFlags;
use rustix::net::AddressFamily;

use super::{Hop, Pump, Step};
use crate::ops::Read;
use crate::ops::pipe::PipePool;
use crate::ops::poll::PollOnce;
use crate::ops::relay::carrier::{COPY_BYTES, Carrier};
use crate::ops::relay::copying::{RingCopy, give_now, take_now};
use crate::ops::relay::flow::{RelayRoute, RouteReason};
use crate::ops::relay::limits::Allowance;
use crate::ops::relay::plan::Plan;
use crate::ops::relay::watch::Emptied;
use crate::ops::route::{Kind, RingPermits};
use crate::ops::splice::Splice;
use crate::runtime::{Driver, sleep_until};

/// The most that is asked of a splice in bytes when the pipe's own room is the limit.
const SPLICE_BYTES: usize = 1 << 30;

/// How often a direct splice is tried again at once when both ends say that they are ready.
const DISAGREEMENTS_MAX: u32 = 8;

impl Pump {
    /// Nothing is inside: one step from the source.
    pub(super) fn fill(&mut self, driver: &Driver) -> io::Result<()> {
        let plan = self.plan()?;
        self.emptied = Emptied::No;
        let reason = match plan.splices {
            Ok(()) if plan.is_direct => return self.fill_direct(driver, plan),
            Ok(()) if self.route != RelayRoute::Auto => RouteReason::Forced,
            Ok(()) if plan.ring_in || plan.ring_out => RouteReason::Disk,
            Ok(()) if self.work.choice.is_bulk() => RouteReason::Bulk,
            Ok(()) => return self.fill_by_copy(driver, plan, RouteReason::SmallMessages),
            Err(reason) => return self.fill_by_copy(driver, plan, reason),
        };
        if !self.take_pipe(driver) {
            return self.fill_by_copy(driver, plan, RouteReason::NoPipe);
        }
        let (ring_in, reason) = match reason {
            RouteReason::Disk if plan.ring_in && self.is_cached(driver) => (false, RouteReason::Cached),
            reason => (plan.ring_in, reason),
        };
        let route = if ring_in || plan.ring_out { RelayRoute::Ring } else { RelayRoute::Inline };
        self.work.flow.goes(route, reason);
        if ring_in {
            self.step = Step::Permit(Hop::In, RingPermits::of(driver).place());
            return Ok(());
        }
        let Some(most) = self.allowance(driver, SPLICE_BYTES) else { return Ok(()) };
        let outcome = self.splice_now(driver, Hop::In, most);
        match outcome {
            Ok(count) if count > 0 && !plan.ring_out => self.splice_on(driver, count),
            outcome => self.settle(driver, Hop::In, outcome),
        }
    }

    /// Bytes have come into the pipe. Most sinks take all of them at once, and then it is over.
    ///
    /// The plain version is two more steps, which come to the same.
    fn splice_on(&mut self, driver: &Driver, count: usize) -> io::Result<()> {
        self.took(driver, count);
        let given = self.splice_now(driver, Hop::Out, count);
        if !matches!(given, Ok(taken) if taken == count) {
            return self.settle(driver, Hop::Out, given);
        }
        self.gave(count);
        self.work.carrier.gave(count);
        self.after_hop(driver)
    }

    /// Have a pipe of the size that is worth having, or as large as can be; false if there is none.
    fn take_pipe(&mut self, driver: &Driver) -> bool {
        let wanted = self.work.choice.pipe();
        match &mut self.work.carrier {
            Carrier::Pipe { pipe, .. } => {
                let most = wanted.min(pipe.size_max());
                if most > pipe.size() {
                    pipe.grow(most);
                    self.work.choice.got_pipe(pipe.size());
                }
            }
            carrier => {
                let pool = self.pool.get_or_insert_with(|| PipePool::of(driver));
                let Some(pipe) = pool.take(wanted) else { return false };
                self.work.choice.got_pipe(pipe.size());
                *carrier = Carrier::Pipe { pipe, inside: 0, filled: false };
            }
        }
        true
    }

    /// Whether the part of a file that the next hop takes is in the page cache, most likely: its last byte is, or its
    /// first one if it ends before.
    ///
    /// One byte read without waiting costs less than a microsecond, and a worker thread 14. A wrong guess waits for the
    /// disk on this thread, once.
    fn is_cached(&self, driver: &Driver) -> bool {
        let Carrier::Pipe { pipe, .. } = &self.work.carrier else { return false };
        let Some(first) = self.from.offset.or_else(|| rustix::fs::tell(&self.from.hold).ok()) else { return false };
        for (at, is_first) in [(first.saturating_add(pipe.size() as u64 - 1), false), (first, true)] {
            let read = Read::new(self.from.hold.clone(), Vec::with_capacity(1), Some(at));
            match driver.attempt(read) {
                // Nothing behind the end of the file has to be waited for.
                Ok((Ok(count), _)) if count > 0 || is_first => return true,
                Ok((Ok(_), _)) => {}
                _ => return false,
            }
        }
        false
    }

    fn fill_by_copy(&mut self, driver: &Driver, plan: Plan, reason: RouteReason) -> io::Result<()> {
        let Some(most) = self.allowance(driver, COPY_BYTES) else { return Ok(()) };
        self.work.flow.goes(RelayRoute::Copy, reason);
        let buffer = self.take_buffer(driver);
        if plan.waits_in {
            self.step = Step::Copying(Hop::In, Box::new(RingCopy::read(&self.from, buffer, most)));
            return Ok(());
        }
        let (outcome, buffer) = take_now(driver, &self.from, plan.from, buffer, most);
        self.emptied = match outcome {
            Ok(count) if count < most => Emptied::ByRule,
            _ => Emptied::No,
        };
        match outcome {
            Ok(count) if count > 0 && count < COPY_BYTES && !plan.waits_out => {
                self.hand_on(driver, plan, count, buffer)
            }
            outcome => self.copied(driver, Hop::In, outcome, buffer),
        }
    }

    /// Whether a splice that took nothing may have left something.
    ///
    /// At urgent data TCP ends a splice without going past it (`__tcp_read_sock`): with `EAGAIN` if the stream goes on
    /// behind it, although a poll says that there is something, and with 0 if it has ended behind it.
    pub(super) fn may_hide_bytes(&self) -> bool {
        !matches!(self.work.carrier, Carrier::Buffer { .. })
            && self.plan.is_some_and(|plan| plan.from == Kind::Socket)
            && rustix::net::sockopt::socket_domain(&self.from.hold).is_ok_and(|domain| domain != AddressFamily::UNIX)
    }

    /// One step without a splice: a receive goes past urgent data, and is to be believed about the end.
    pub(super) fn receive_instead(&mut self, driver: &Driver) -> io::Result<()> {
        if !self.is_taking || self.is_stopping {
            // Whoever goes on with it finds out.
            self.let_go();
            self.step = Step::Fill;
            return Ok(());
        }
        let plan = self.plan()?;
        let Some(most) = self.allowance(driver, COPY_BYTES) else { return Ok(()) };
        self.let_go();
        let buffer = self.scratch(driver).take();
        let (outcome, buffer) = take_now(driver, &self.from, plan.from, buffer, most);
        if matches!(outcome, Ok(count) if count > 0) {
            self.work.flow.goes(RelayRoute::Copy, RouteReason::NoSplice);
        }
        self.copied(driver, Hop::In, outcome, buffer)
    }

    /// The buffer for the next hop. Most find none there from the one before, and need not take the carrier apart.
    #[inline]
    fn take_buffer(&mut self, driver: &Driver) -> Vec<u8> {
        if matches!(self.work.carrier, Carrier::Nothing) {
            return self.scratch(driver).take();
        }
        match std::mem::replace(&mut self.work.carrier, Carrier::Nothing) {
            Carrier::Buffer { bytes, .. } if bytes.capacity() >= COPY_BYTES => bytes,
            mut other => {
                other.let_go(None);
                self.scratch(driver).take()
            }
        }
    }

    /// A message has come. Most sinks take it at once, and then it is over.
    ///
    /// The plain version is two more steps, which come to the same and to some 160 instructions more.
    fn hand_on(&mut self, driver: &Driver, plan: Plan, count: usize, buffer: Vec<u8>) -> io::Result<()> {
        self.count_in(driver, count, COPY_BYTES);
        let (given, buffer) = give_now(driver, &self.to, plan.to, buffer, 0);
        if !matches!(given, Ok(taken) if taken == count) {
            self.work.carrier = Carrier::Buffer { bytes: buffer, from: 0, filled: false };
            return self.settle(driver, Hop::Out, given);
        }
        self.gave(count);
        self.scratch(driver).give_back(buffer);
        self.after_hop(driver)
    }

    /// From the source to the sink in one splice: one of them is a pipe.
    fn fill_direct(&mut self, driver: &Driver, plan: Plan) -> io::Result<()> {
        // Nothing is inside, but a buffer may still be there.
        self.let_go();
        let (route, reason) = match self.route {
            RelayRoute::Ring => (RelayRoute::Ring, RouteReason::Forced),
            RelayRoute::Inline => (RelayRoute::Inline, RouteReason::Forced),
            _ if plan.ring_in || plan.ring_out => (RelayRoute::Ring, RouteReason::Disk),
            _ => (RelayRoute::Inline, RouteReason::PipeEnd),
        };
        self.work.flow.goes(route, reason);
        if route == RelayRoute::Ring {
            self.step = Step::Permit(Hop::Through, RingPermits::of(driver).place());
            return Ok(());
        }
        let Some(most) = self.allowance(driver, SPLICE_BYTES) else { return Ok(()) };
        let outcome = self.splice_now(driver, Hop::Through, most);
        self.settle(driver, Hop::Through, outcome)
    }

    /// Two ends and one errno: the source is looked at first, then the sink.
    pub(super) fn blame(&mut self, driver: &Driver) -> io::Result<()> {
        for (hold, events) in [(&self.from.hold, PollFlags::IN), (&self.to.hold, PollFlags::OUT)] {
            match driver.attempt(PollOnce::new(hold.clone(), events)) {
                // After the sink the source is tried: `fill` is where a direct splice is made.
                Err(_would_block) => {
                    self.step = Step::AwaitSource(self.signals.wait(hold, events));
                    return Ok(());
                }
                Ok(ready) => drop(ready?),
            }
        }
        self.disagreements += 1;
        if self.disagreements > DISAGREEMENTS_MAX {
            // Both say ready, and splice says no: a copy asks each of them by itself.
            self.copy_from_now_on(driver)?;
        }
        self.step = Step::Fill;
        Ok(())
    }

    /// How many bytes the next step may take; `None` if it must not take any now.
    fn allowance(&mut self, driver: &Driver, most: usize) -> Option<usize> {
        match self.work.limiter.allow(most, || driver.now()) {
            Allowance::Bytes(count) => Some(count),
            Allowance::From(when) => {
                self.let_go();
                self.step = Step::Pace(sleep_until(when));
                None
            }
            Allowance::Nothing => {
                self.work.flow.has_reached_limit = true;
                self.step = Step::Finished;
                None
            }
        }
    }

    /// The ring splice for one part of the way, or the step that there is to be instead.
    pub(super) fn ring_splice(&mut self, driver: &Driver, hop: Hop) -> Result<Splice, Step> {
        if hop == Hop::Out {
            return Ok(self.splice(hop, self.work.carrier.inside()));
        }
        match self.allowance(driver, SPLICE_BYTES) {
            Some(most) => Ok(self.splice(hop, most)),
            None => Err(std::mem::replace(&mut self.step, Step::Finished)),
        }
    }
}
