//! Waiting for pages, as a future with a name.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::PAGE_BYTES;
use super::arena::{Arena, Segment};
use super::fixed_buf::FixedBuf;

/// `Lease` - the future of [`Registry::lease`](super::Registry::lease): waits its turn for a [`FixedBuf`].
///
/// It joins the queue when it is first polled.
///
/// # Cancel safety
///
/// Dropping it gives up its place in the queue. Pages that were granted to it and that it did not see yet go to whoever
/// is next.
///
/// # Panics
///
/// When polled again after it was ready.
#[must_use = "a lease joins the queue when it is polled"]
pub struct Lease {
    arena: Arc<Arena>,
    len: usize,
    /// Where it was asked for.
    place: &'static Location<'static>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Unpolled,
    /// In the queue at this place, or granted pages since.
    Waiting(u64),
    Ready,
}

impl Lease {
    pub(super) fn new(arena: Arc<Arena>, len: usize, place: &'static Location<'static>) -> Self {
        Self { arena, len, place, state: State::Unpolled }
    }

    fn check_len(&self) -> io::Result<()> {
        let max = self.arena.lease_bytes_max();
        if self.len == 0 {
            let sentence = "a lease of 0 bytes has no page; ask for at least one byte";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        }
        if self.len > max {
            let sentence = format!(
                "a lease of {} bytes can never be granted: the longest run of this registry is {max} bytes ({} pages); \
                 ask for less, or build the registry with more pages",
                self.len,
                max / PAGE_BYTES
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        }
        Ok(())
    }

    fn poll_segment(&mut self, cx: &Context<'_>) -> Poll<io::Result<Segment>> {
        match self.state {
            State::Unpolled => {
                self.check_len()?;
                // Most leases are granted at once and need no clone of the waker.
                if let Some(segment) = self.arena.try_take(self.len, self.place) {
                    return Poll::Ready(Ok(segment));
                }
                match self.arena.take_or_wait(self.len, cx.waker().clone(), self.place) {
                    Ok(segment) => Poll::Ready(Ok(segment)),
                    Err(place) => {
                        self.state = State::Waiting(place);
                        Poll::Pending
                    }
                }
            }
            State::Waiting(place) => match self.arena.collect(place, cx.waker().clone(), self.place) {
                Some(segment) => Poll::Ready(Ok(segment)),
                None => Poll::Pending,
            },
            State::Ready => panic!("a lease is polled after it was ready; await it once"),
        }
    }
}

impl Future for Lease {
    type Output = io::Result<FixedBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.poll_segment(cx);
        if answer.is_ready() {
            self.state = State::Ready;
        }
        answer.map_ok(FixedBuf::new)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let State::Waiting(place) = self.state {
            self.arena.abandon(place);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &self.len).field("state", &self.state).finish_non_exhaustive()
    }
}
