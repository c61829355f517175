//! `splice_exact`: splice until so many bytes have moved, in as many steps as it takes.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::route::{End, Route, Transfer};
use super::splice::{Splice, splice};

/// Steps in one poll before other tasks get their turn: ends that are always ready must not starve them.
const STEPS_MAX: u32 = 16;

/// `splice_exact(from, to, len)`: move exactly `len` bytes, of which one end at least is a pipe.
///
/// It resolves with a result and the bytes moved, whatever the result: `(Ok(()), len)`, or an error and how far it
/// came. One [`splice`](super::splice()) moves what there is and what there is room for; this makes the next one at the
/// place where the last one stopped, until all is moved. The offset of an end that has one advances by what was
/// moved. Bytes that have been moved into a pipe stay there when it fails.
///
/// Beyond a pipe's room it waits for whoever empties the pipe: do both at once, or move a pipe's room at a time.
///
/// There is no such future for [`tee`](super::tee()): each tee begins at the head of its input, so a second step would
/// share the first bytes again.
///
/// # Cancel safety
/// Not: what was moved is moved, and dropping it forgets how much. [`cancel`](SpliceExact::cancel) tells.
///
/// # Errors
/// * the input ends before `len` bytes -> `UnexpectedEof`
/// * a file range that ends beyond what an offset can express (2^63 - 1) -> `InvalidInput`, before anything moves
/// * those of [`splice`](super::splice())
///
/// # Panics
/// When polled again after it has ended, or outside of a runtime.
///
/// # Kernel
/// `IORING_OP_SPLICE` since 5.7, for the ring route only.
///
/// # Examples
/// A range of a file to a socket, the pipe's room at a time:
/// ```
/// use ringmain::{Runtime, ops::{self, End, net::UnixStream}};
///
/// let runtime = Runtime::new()?;
/// let file = ops::fs::File::from(std::fs::File::open("Cargo.toml")?);
/// let (reader, writer) = ops::pipe()?;
/// let (sink, peer) = UnixStream::pair()?;
/// runtime.block_on(async {
///     for at in (0..9).step_by(4) {
///         let len = 4.min(9 - at);
///         ops::splice_exact(End::at(&file, at), &writer, len).await.0?;
///         let (result, moved) = ops::splice_exact(&reader, &sink, len).await;
///         assert_eq!((result?, moved), ((), len));
///     }
///     let (result, text) = peer.recv_exact(vec![0; 9]).await;
///     assert_eq!((result?, &text[..]), (9, &b"[package]"[..]));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `splice(2)`; `fs/splice.c`.
pub fn splice_exact(from: impl Into<End>, to: impl Into<End>, len: u64) -> SpliceExact {
    SpliceExact {
        from: from.into(),
        to: to.into(),
        route: Route::Auto,
        len,
        moved: 0,
        cancelled: false,
        step: None,
        is_finished: false,
    }
}

/// Splices that follow one another until a length is moved: the future of [`splice_exact`].
#[must_use = "nothing moves before it is awaited"]
pub struct SpliceExact {
    from: End,
    to: End,
    route: Route,
    len: u64,
    moved: u64,
    cancelled: bool,
    /// The splice that is under way; `None` between two.
    step: Option<Transfer<Splice>>,
    is_finished: bool,
}

impl SpliceExact {
    /// Choose how it is done.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// `moved()`: the bytes that the steps which are over have moved.
    ///
    /// Exact once this has ended, and at most a step behind before.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// `cancel()`: asks for the end; await what this returns for how far it came.
    ///
    /// A race with success is won by success. Otherwise the result is `ECANCELED`, or the error that came first; the
    /// count is exact in each case.
    #[must_use = "await it to learn how far it came"]
    pub fn cancel(mut self) -> Self {
        self.cancelled = true;
        self.step = self.step.take().map(Transfer::cancel);
        self
    }

    /// The splice that moves the rest, or a part of it.
    fn next(&self) -> io::Result<Transfer<Splice>> {
        let left = self.len - self.moved;
        let rest =
            |end: &End, name: &str| {
                let offset = end.offset.map(|offset| {
                let rest = offset.checked_add(self.moved);
                rest.filter(|rest| rest.checked_add(left).is_some_and(|end| i64::try_from(end).is_ok())).ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!(
                            "the {name} would end at byte {offset} + {}, beyond what a file offset can express; \
                             splice a shorter range",
                            self.len
                        ),
                    )
                })
            });
                io::Result::Ok(End { hold: end.hold.clone(), offset: offset.transpose()? })
            };
        let (from, to) = (rest(&self.from, "input")?, rest(&self.to, "output")?);
        Ok(splice(from, to, usize::try_from(left).unwrap_or(usize::MAX)).route(self.route))
    }

    /// Make steps until one has to be waited for, or until it is the turn of others.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..STEPS_MAX {
            let mut step = match self.step.take() {
                Some(step) => step,
                None if self.moved == self.len => return Poll::Ready(Ok(())),
                None if self.cancelled => {
                    return Poll::Ready(Err(io::Error::from_raw_os_error(rustix::io::Errno::CANCELED.raw_os_error())));
                }
                None => self.next()?,
            };
            let Poll::Ready(count) = Pin::new(&mut step).poll(cx)? else {
                self.step = Some(step);
                return Poll::Pending;
            };
            if count == 0 {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the input ended after {} of {} bytes", self.moved, self.len),
                )));
            }
            self.moved += count as u64;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Future for SpliceExact {
    type Output = (io::Result<()>, u64);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        assert!(!this.is_finished, "this transfer has ended and was polled again");
        let result = ready!(this.advance(cx));
        this.is_finished = true;
        Poll::Ready((result, this.moved))
    }
}

impl fmt::Debug for SpliceExact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpliceExact")
            .field("from", &self.from)
            .field("to", &self.to)
            .field("route", &self.route)
            .field("len", &self.len)
            .field("moved", &self.moved)
            .finish_non_exhaustive()
    }
}
