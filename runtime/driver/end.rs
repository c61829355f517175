//! How what is in flight ends before its time: with the last handle of its descriptor, or with the runtime.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Weak;
use std::time::Duration;

use super::after::Rest;
use super::turn::Core;
use super::{DRIVERS, Driver, table};
use crate::runtime::ring::{Ring, Wait};

/// How long shutdown waits for completions before it sends its cancels once more: an operation that a worker thread
/// had not begun when the first one came is found by a later one.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

impl Driver {
    /// Ask every driver of this thread to cancel what is pending on a descriptor whose last handle has gone.
    pub(crate) fn hang_up(fd: BorrowedFd<'_>) {
        // After the thread's locals are gone no driver is left either.
        let drivers = DRIVERS.try_with(|drivers| drivers.borrow().iter().filter_map(Weak::upgrade).collect::<Vec<_>>());
        for driver in drivers.unwrap_or_default() {
            let mut core = driver.core.borrow_mut();
            let (keys, wakings) = core.slots.cancel_descriptor(fd.as_raw_fd());
            core.outgoing.cancel(keys);
            core.wake(wakings);
            driver.let_go(core);
            driver.arm_flush();
        }
    }

    /// Cancel everything, reap every completion, refuse what comes after.
    ///
    /// Waits for the kernel as long as [`Config::shutdown_timeout`](crate::Config::shutdown_timeout) says. What it does not let go of by then (a
    /// worker stuck in an uninterruptible sleep, say) is leaked together with the registry's pages: freeing it would
    /// hand memory to others that the kernel may still write. A future that outlives this resolves with what its
    /// operation came to, or with `ECANCELED`.
    pub fn shutdown(&self) {
        {
            let mut core = self.core.borrow_mut();
            if core.closed {
                return;
            }
            core.closed = true;
            core.outgoing.attention = true;
            let waiters = std::mem::take(&mut core.waiters);
            core.wake(waiters.into_iter().map(|waiter| waiter.waking));
            core.granted.clear();
            let started = core.ring.now();
            let mut again = false;
            loop {
                let (keys, wakings) = core.slots.cancel_all(again);
                core.outgoing.cancel(keys);
                core.wake(wakings);
                again = true;
                if core.slots.held() == 0 {
                    break;
                }
                let elapsed = core.ring.now().duration_since(started);
                let Some(left) = self.config.shutdown_timeout.checked_sub(elapsed).filter(|left| !left.is_zero())
                else {
                    break;
                };
                let turned = core.full_turn(Wait::Until(Some(left.min(CANCEL_AGAIN))), &self.metrics);
                drop(core);
                // A panic of foreign code must not keep the kernel's memory from being waited for.
                if catch_unwind(AssertUnwindSafe(|| self.carry_out())).is_err() {
                    tracing::error!("a waker or an operation's drop panicked during shutdown");
                }
                if let Err(error) = &turned {
                    tracing::error!(%error, "the ring failed during shutdown");
                }
                core = self.core.borrow_mut();
                if turned.is_err() {
                    break;
                }
            }
            let leaked = core.slots.leak_held();
            let Core { ring, table, .. } = &mut *core;
            let unregistered = table.detach(&self.registry, ring, leaked == 0);
            if leaked > 0 {
                self.registry.leak();
            }
            let Core { ring, after, .. } = &mut *core;
            self.lender.close(ring, leaked > 0, &mut |left| after.rest.push_back(Rest::Lent(left)));
            // A future that outlives its runtime, or is leaked, keeps this driver, but not the kernel's ring: closing
            // that also ends its worker threads. A played one owns foreign code, so it goes when nothing is borrowed.
            let ring = std::mem::replace(&mut core.ring, Ring::Closed);
            let last = core.wakers.forget_last();
            drop(core);
            drop(ring);
            if leaked == 0 {
                table::forget(&self.registry, &self.pages);
            }
            if let Err(error) = unregistered {
                tracing::warn!(%error, "the registry's pages stay pinned until the ring is gone");
            }
            if leaked > 0 {
                tracing::error!(leaked, "the kernel did not let go of these operations in time; they are leaked");
            }
            self.carry_out();
            drop(last);
            if leaked == 0 && self.pages.slot().is_some() && !self.registry.is_attached() {
                self.registry.report_holders("the last runtime of the registry has shut down");
            }
        }
        let locals = std::mem::take(&mut *self.locals.borrow_mut());
        drop(locals);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shutdown();
    }
}
