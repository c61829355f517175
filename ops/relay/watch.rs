//! One poll of a source for many messages.
//!
//! The plain version waits with a poll for each message, which is asked whether the source has something when it is armed,
//! and so can never be too late. It takes a slot, an entry and a completion each time. Once a direction has copied a few
//! small messages from a TCP socket its poll stays armed, and answers whenever something has come. What has come is told
//! once, so the source has to be emptied before it is waited for again. A receive that says that nothing is there is proof
//! of that; it would be a system call more for each message. One that got less than it had room for is taken for proof, as
//! `epoll(7)` has it, and nearly is. It is not with urgent data in the stream, at which a receive stops short (no event
//! tells of them: what `POLLPRI` answers to a poll that stays armed is what the socket's wake says, and that says `PRI`
//! with every byte), nor with what else may be between a TCP socket and its bytes, such as the kernel's TLS. So there is a
//! guard: a source that has said nothing for [`QUIET`] after a receive that was only taken for proof is asked once more.
//! If it has something after all, it is waited for by a poll each from then on; if not, it is not busy, and is waited for so
//! for a while.
//!
//! The other way to spare the poll is a receive that stays armed and finds its own pages (`ops::recv_multishot`). It spares
//! the `recv(2)` as well. But what it has taken is nobody's when a relay is dropped: gone from the socket, and counted by no
//! one, where a poll takes nothing. And it does not pay: two tasks for each pair that hand on what such a receive brings, in
//! incremental pages, and do nothing else that a relay does, cost the same (13.0 us of CPU for a request and its answer,
//! this 13.0, medians of 8 rounds within which they took turns; cell `rr-64-100` of `cargo bench --bench relay`), as a page
//! lent, cut and returned is 6,273 instructions of user code for these two hops, to 2,715.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::Stream;
use rustix::event::PollFlags;
use rustix::net::{SocketType, ipproto, sockopt};

use crate::ops::poll::{PollEach, answered};
use crate::runtime::{Driver, FdHold, Multishot, Sleep, sleep_until};

/// How often a source is waited for by a poll each before one stays armed: a short connection has nothing to gain, and
/// its end would have to wait until that is cancelled.
const WAITS_BEFORE: u32 = 4;

/// As often again when it has been silent.
const WAITS_AFTER_SILENCE: u32 = 16;

/// How long a source has to be silent before it is asked once more.
const QUIET: Duration = Duration::from_millis(50);

/// What tells that nothing is left in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// Nothing does.
    No,
    /// The last receive got less than it had room for.
    ByRule,
    /// The source itself has said so.
    Proven,
}

#[derive(Debug)]
pub(super) struct Watch {
    poll: Option<Multishot<PollEach>>,
    /// It has been told to end.
    is_leaving: bool,
    /// How often it is waited for by a poll each before one is armed.
    waits_left: u32,
    /// Whether it is a TCP socket, once that is known, and has kept the rule.
    keeps_rule: Option<bool>,
    /// The peer has sent its last byte, or something has failed: no further event tells of what is left.
    has_ended: bool,
    guard: Option<Guard>,
}

/// What comes when a source has been silent.
#[derive(Debug)]
struct Guard {
    timer: Sleep,
    /// How far the direction was when the time began.
    hops: u64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            poll: None,
            is_leaving: false,
            waits_left: WAITS_BEFORE,
            keeps_rule: None,
            has_ended: false,
            guard: None,
        }
    }

    /// Whether the source is to be waited for by this: what there is to be emptied, and has been.
    #[inline]
    pub(super) fn is_next(&mut self, from: &FdHold) -> bool {
        if self.poll.is_some() {
            return !(self.is_leaving || self.has_ended);
        }
        if self.waits_left > 0 {
            self.waits_left -= 1;
            return false;
        }
        self.arm(from)
    }

    #[inline(never)]
    fn arm(&mut self, from: &FdHold) -> bool {
        if self.has_ended || !*self.keeps_rule.get_or_insert_with(|| is_tcp(from)) {
            return false;
        }
        self.poll = Some(Multishot::merged(PollEach::new(from.clone(), PollFlags::IN | PollFlags::RDHUP)));
        true
    }

    /// Whether the poll is armed, and the peer has not ended.
    pub(super) fn is_armed(&self) -> bool {
        self.poll.is_some() && !self.is_leaving
    }

    /// Whether the source has told of its end: all that is left is to be read now.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Wait until something has come: false if the poll has ended, which says nothing.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some(poll) = &mut self.poll else { return Poll::Ready(Ok(false)) };
        if let Some(seen) = poll.poll_events(cx.waker()) {
            return seen.map(|events| {
                self.has_ended |= is_end(answered(events));
                Ok(true)
            });
        }
        match Pin::new(poll).poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(events))) => {
                self.has_ended |= is_end(events);
                Poll::Ready(Ok(true))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error)),
            Poll::Ready(None) => {
                self.poll = None;
                Poll::Ready(Ok(false))
            }
        }
    }

    /// Whether nothing has come since [`poll`](Self::poll) was last pending.
    #[inline(always)]
    pub(super) fn is_quiet(&self, cx: &Context<'_>) -> bool {
        !self.is_leaving && self.poll.as_ref().is_some_and(|poll| poll.is_quiet(cx.waker()))
    }

    /// Wait by a poll each from now on, for so many times at least.
    pub(super) fn retire(&mut self) {
        self.waits_left = WAITS_AFTER_SILENCE;
        self.leave();
    }

    /// The source had something when the rule said that it had not: arm none any more.
    pub(super) fn distrust(&mut self) {
        self.keeps_rule = Some(false);
    }

    /// The poll is to end.
    pub(super) fn leave(&mut self) {
        self.guard = None;
        if let Some(poll) = &mut self.poll
            && !std::mem::replace(&mut self.is_leaving, true)
        {
            poll.cancel();
        }
    }

    /// Wait for the end of a poll that is to end. One that is merely dropped would keep the stream from its owner for
    /// another turn.
    #[inline]
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_leaving { self.poll_end(cx) } else { Poll::Ready(()) }
    }

    #[inline(never)]
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(poll) = &mut self.poll {
            match Pin::new(poll).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(_event)) => {}
                Poll::Ready(None) => self.poll = None,
            }
        }
        self.is_leaving = false;
        Poll::Ready(())
    }

    /// Whether the guard has to be looked at: by [`poll_guard`](Self::poll_guard).
    #[inline]
    pub(super) fn is_guard_due(&self) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.timer.has_fired())
    }

    /// Ready when the source has been silent for long, after it was emptied by the rule.
    #[inline(never)]
    pub(super) fn poll_guard(&mut self, cx: &mut Context<'_>, driver: &Driver, hops: u64) -> Poll<()> {
        loop {
            let guard = self.guard.get_or_insert_with(|| Guard { timer: sleep_until(driver.now() + QUIET), hops });
            if Pin::new(&mut guard.timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
            let was_silent = guard.hops == hops;
            self.guard = None;
            if was_silent {
                return Poll::Ready(());
            }
        }
    }
}

fn is_end(events: PollFlags) -> bool {
    events.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

fn is_tcp(from: &FdHold) -> bool {
    matches!(sockopt::socket_type(from.as_fd()), Ok(SocketType::STREAM))
        && matches!(sockopt::socket_protocol(from.as_fd()), Ok(Some(ipproto::TCP)))
}
