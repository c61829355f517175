//! A look at what a socket has received, which leaves it there: once, or until enough has come.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use rustix::event::PollFlags;

use super::BufResult;
use crate::runtime::{
    Completion, Encoded, EncodedMultishot, Fd, FdHold, Fill, IoBufMut, Multishot, MultishotOperation, MultishotSqe,
    Operation, Sqe, Submission,
};

/// `peek(socket, buffer)`: looks at what comes next on a connected socket, and leaves it there.
///
/// Copies as [`recv`](super::recv()) does, waits as it does, and answers as it does: at least one byte, or 0 at the
/// end of the peer's sending. The next receive, splice or peek sees the same bytes again. Peeking again to see more
/// than last time answers at once with the same bytes; [`peek_at_least`] waits.
///
/// # Cancel safety
/// Dropping it loses nothing but the buffer.
///
/// # Errors
/// Those of `recv(2)`, but for `EAGAIN`; `InvalidInput` for a buffer without capacity.
///
/// # Kernel
/// `IORING_OP_RECV` with `MSG_PEEK`, Linux 5.6.
///
/// # Examples
/// ```
/// use ringmain::{net::UnixStream, ops};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let (mut client, server) = UnixStream::pair()?;
///     client.send_all("GET / HTTP/1.1").await.0?;
///     let (count, first) = ops::peek(&server, vec![0; 4].into_boxed_slice()).await;
///     assert_eq!((count?, &first[..]), (4, &b"GET "[..]));
///     assert_eq!(server.recv(vec![0; 64]).await.0?, 14, "all of it is still there");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `recv(2)`.
#[doc(alias = "MSG_PEEK")]
pub fn peek<B: IoBufMut>(socket: &impl AsRef<Fd>, buffer: B) -> Submission<Peek<B>> {
    Submission::new(Peek { fd: socket.as_ref().hold(), fill: Fill::new(buffer) })
}

/// `peek_at_least(socket, buffer, bytes)`: as [`peek()`], once so many bytes are there.
///
/// Answers fewer only when no more will come: the peer's sending has ended, or the connection has been reset, of which
/// the receive behind these bytes will tell. It looks once at what is there, and then each time when more
/// has arrived: between two arrivals it does nothing, however long that takes. It takes nothing out, so what is waited
/// for must fit the socket's receive buffer beside the kernel's bookkeeping: a peer that may not send more will not.
/// Some 16 KiB are safe under every default.
///
/// # Cancel safety
/// Dropping it loses nothing but the buffer. [`cancel`](PeekAtLeast::cancel) gives that back.
///
/// # Errors
/// As [`peek()`]; `InvalidInput` for a buffer that has no room for so many; `ECANCELED` when it is cancelled or the
/// socket's last handle has gone.
///
/// # Panics
/// When polled again after it has ended, or inside another runtime than the one it started in.
///
/// # Kernel
/// `IORING_OP_RECV` with `MSG_PEEK`, and `IORING_OP_POLL_ADD` with many answers, Linux 5.13.
///
/// # Examples
/// ```
/// use ringmain::{net::UnixStream, ops};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let (mut client, server) = UnixStream::pair()?;
///     let look = ringmain::spawn(async move { ops::peek_at_least(&server, vec![0; 64], 10).await });
///     client.send_all("hello").await.0?;
///     client.send_all("world").await.0?;
///     assert_eq!(look.await.expect("it does not panic").1, b"helloworld");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn peek_at_least<B: IoBufMut>(socket: &impl AsRef<Fd>, buffer: B, bytes: usize) -> PeekAtLeast<B> {
    let fd = socket.as_ref().hold();
    let mut fill = Fill::new(buffer);
    let capacity = fill.capacity();
    let stage = if capacity < bytes {
        let sentence = format!("the buffer has room for {capacity} bytes, and {bytes} are to be seen; give it more");
        let refusal = io::Error::new(io::ErrorKind::InvalidInput, sentence);
        Stage::Ending((Err(refusal), fill.into_inner()))
    } else {
        Stage::Looking(Submission::new(Peek { fd: fd.clone(), fill }))
    };
    PeekAtLeast { fd, least: bytes, stage, arrivals: None, is_over: false, is_cancelled: false }
}

/// The operation of [`peek()`].
#[derive(Debug)]
pub struct Peek<B> {
    fd: FdHold,
    fill: Fill<B>,
}

impl<B: IoBufMut> Operation for Peek<B> {
    type Output = BufResult<B>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.peek(self.fd.as_fd(), &mut self.fill)
    }

    fn decode(self, completion: Completion) -> BufResult<B> {
        self.fill.finish(completion)
    }
}

/// The future of [`peek_at_least`].
#[must_use = "nothing is looked at before it is awaited"]
pub struct PeekAtLeast<B: IoBufMut> {
    fd: FdHold,
    least: usize,
    stage: Stage<B>,
    /// Asked only when a look has shown too little. The plain version is to poll the socket before each look; but the
    /// bytes that were too few stay, so it is always readable, and that would spin.
    arrivals: Option<Multishot<Arrivals>>,
    /// Nothing will come after what is there.
    is_over: bool,
    is_cancelled: bool,
}

enum Stage<B: IoBufMut> {
    Looking(Submission<Peek<B>>),
    Waiting(B),
    /// The result is out, and the kernel may still watch for arrivals.
    Ending(BufResult<B>),
    Finished,
}

// Neither the buffer nor what is in flight lies pinned in here.
impl<B: IoBufMut> Unpin for PeekAtLeast<B> {}

impl<B: IoBufMut> PeekAtLeast<B> {
    /// `cancel()`: asks for the end; await what this returns for the buffer.
    ///
    /// A race with success is won by success. Otherwise it ends with `ECANCELED`.
    pub fn cancel(mut self) -> Self {
        self.is_cancelled = true;
        if let Stage::Looking(look) = &mut self.stage {
            look.request_cancel();
        }
        self
    }

    /// Wait until there is something new to see. `Ready` once there is.
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_cancelled || self.fd.is_hung_up() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED)));
        }
        let mut seen = false;
        // All that have come are one reason to look.
        loop {
            let arrivals = self.arrivals.get_or_insert_with(|| Multishot::new(Arrivals { fd: self.fd.clone() }));
            match Pin::new(arrivals).poll_next(cx) {
                Poll::Ready(Some(Ok(events))) => {
                    seen = true;
                    self.is_over |= events.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                // The kernel may end a poll of many answers at any time. A new one begins with what holds then.
                Poll::Ready(None) => self.arrivals = None,
                Poll::Pending if seen => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Wait until the kernel no longer watches, so that the socket is free for whatever comes next.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(arrivals) = &mut self.arrivals else {
            return Poll::Ready(());
        };
        arrivals.cancel();
        while std::task::ready!(Pin::new(&mut *arrivals).poll_next(cx)).is_some() {}
        self.arrivals = None;
        Poll::Ready(())
    }
}

impl<B: IoBufMut> Future for PeekAtLeast<B> {
    type Output = BufResult<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BufResult<B>> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.stage, Stage::Finished) {
                Stage::Looking(mut look) => match Pin::new(&mut look).poll(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Looking(look);
                        return Poll::Pending;
                    }
                    Poll::Ready((Ok(count), buffer)) if 0 < count && count < this.least && !this.is_over => {
                        this.stage = Stage::Waiting(buffer);
                    }
                    Poll::Ready(outcome) => this.stage = Stage::Ending(outcome),
                },
                Stage::Waiting(buffer) => match this.poll_arrival(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Waiting(buffer);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(())) => {
                        let look = Peek { fd: this.fd.clone(), fill: Fill::new(buffer) };
                        this.stage = Stage::Looking(Submission::new(look));
                    }
                    Poll::Ready(Err(error)) => this.stage = Stage::Ending((Err(error), buffer)),
                },
                Stage::Ending(outcome) => {
                    if this.poll_end(cx).is_pending() {
                        this.stage = Stage::Ending(outcome);
                        return Poll::Pending;
                    }
                    return Poll::Ready(outcome);
                }
                Stage::Finished => panic!("this peek has ended and was polled again"),
            }
        }
    }
}

impl<B: IoBufMut> fmt::Debug for PeekAtLeast<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekAtLeast").field("fd", &self.fd).field("least", &self.least).finish_non_exhaustive()
    }
}

/// An item each time when something arrives on a socket, and one at the start if something is there.
struct Arrivals {
    fd: FdHold,
}

impl MultishotOperation for Arrivals {
    type Item = io::Result<PollFlags>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.poll(self.fd.as_fd(), PollFlags::IN | PollFlags::RDHUP)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        // The kernel answers with events of 16 bits, whatever room the result has.
        completion.result().map(|events| PollFlags::from_bits_retain(events as u16))
    }
}
