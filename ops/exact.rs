//! Whole transfers: the steps that follow a short one, until the buffer is done.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{BufResult, Read, Recv, Send, Write};
use crate::runtime::{Fd, FdHold, Fill, IoBuf, IoBufMut, Operation, Slice, Submission};

/// The future of [`read_exact`] and [`read_exact_at`].
pub type ReadExact<B> = Exact<Read<Slice<B>>>;

/// The future of [`recv_exact`].
pub type RecvExact<B> = Exact<Recv<Slice<B>>>;

/// The future of [`write_all`] and [`write_all_at`].
pub type WriteAll<B> = Exact<Write<Slice<B>>>;

/// The future of [`send_all`].
pub type SendAll<B> = Exact<Send<Slice<B>>>;

/// `read_exact(fd, buffer)`: reads until the buffer is full, to its capacity.
///
/// A vector's capacity may be more than was asked for; [`slice`](IoBuf::slice) says how many bytes are wanted.
///
/// # Cancel safety
/// Not: what the steps before the drop have read from a stream is gone with the buffer. [`cancel`](Exact::cancel) gives
/// it all back, with the count.
///
/// # Errors
/// `UnexpectedEof` when the stream ends first; those of [`read`](super::read()). The buffer's length is what was read
/// until then.
///
/// # Examples
/// ```
/// use ringmain::{Fd, IoBuf, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"ringmain")?;
/// let reader = Fd::new(reader.into());
/// let (result, head) = ringmain::Runtime::new()?.block_on(ops::read_exact(&reader, Vec::with_capacity(64).slice(..4)));
/// assert_eq!((result?, head.bytes()), (4, &b"ring"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_exact<B: IoBufMut>(fd: &impl AsRef<Fd>, buffer: B) -> ReadExact<B> {
    Exact::new(fd.as_ref().hold(), buffer, None)
}

/// `read_exact_at(fd, buffer, offset)`: as [`read_exact`], from a place in a file, in bytes.
///
/// # Cancel safety
/// Dropping it loses nothing: the bytes are still where they were.
///
/// # Errors
/// As [`read_exact`].
pub fn read_exact_at<B: IoBufMut>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> ReadExact<B> {
    Exact::new(fd.as_ref().hold(), buffer, Some(offset))
}

/// `recv_exact(socket, buffer)`: as [`read_exact`], by receives.
///
/// # Cancel safety
/// As [`read_exact`].
///
/// # Errors
/// `UnexpectedEof` when the peer's sending ends first; those of [`recv`](super::recv()).
pub fn recv_exact<B: IoBufMut>(socket: &impl AsRef<Fd>, buffer: B) -> RecvExact<B> {
    Exact::new(socket.as_ref().hold(), buffer, None)
}

/// `write_all(fd, buffer)`: writes until all of the buffer's bytes are written.
///
/// # Cancel safety
/// Not: a dropped one may have written any part. [`cancel`](Exact::cancel) tells how much.
///
/// # Errors
/// `WriteZero` when a step makes no progress, so that it never spins; those of [`write`](super::write()). How much had
/// been written by then, [`count`](Exact::count) says.
///
/// # Examples
/// ```
/// use ringmain::{Fd, ops};
///
/// let (mut reader, writer) = std::io::pipe()?;
/// let writer = Fd::new(writer.into());
/// let (result, _) = ringmain::Runtime::new()?.block_on(ops::write_all(&writer, "ringmain"));
/// assert_eq!(result?, 8);
/// # drop(writer);
/// # assert_eq!(std::io::read_to_string(&mut reader)?, "ringmain");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_all<B: IoBuf>(fd: &impl AsRef<Fd>, buffer: B) -> WriteAll<B> {
    Exact::new(fd.as_ref().hold(), buffer, None)
}

/// `write_all_at(fd, buffer, offset)`: as [`write_all`], to a place in a file, in bytes.
///
/// # Cancel safety
/// As [`write_all`].
///
/// # Errors
/// As [`write_all`].
pub fn write_all_at<B: IoBuf>(fd: &impl AsRef<Fd>, buffer: B, offset: u64) -> WriteAll<B> {
    Exact::new(fd.as_ref().hold(), buffer, Some(offset))
}

/// `send_all(socket, buffer)`: as [`write_all`], by sends.
///
/// # Cancel safety
/// As [`write_all`].
///
/// # Errors
/// `WriteZero` when a step makes no progress; those of [`send`](super::send()).
pub fn send_all<B: IoBuf>(socket: &impl AsRef<Fd>, buffer: B) -> SendAll<B> {
    Exact::new(socket.as_ref().hold(), buffer, None)
}

/// An operation that moves a part of a buffer, and that can be repeated with the rest of it.
///
/// Sealed: [`Read`], [`Recv`], [`Write`] and [`Send`] are such.
pub trait Step: sealed::Step {}

impl<O: sealed::Step> Step for O {}

/// Steps of one operation, until the whole buffer is done.
///
/// Its output is the buffer with `Ok` of all its bytes, or with the error that stopped it half-way.
///
/// # Panics
/// When polled again after it has ended, or inside another runtime than the one it started in.
#[must_use = "nothing is moved before it is awaited"]
pub struct Exact<O: Step> {
    fd: FdHold,
    offset: Option<u64>,
    total: usize,
    count: usize,
    stage: Stage<O>,
}

enum Stage<O: Step> {
    Between(O::Buffer),
    Moving(Submission<O>),
    Finished,
}

// Neither the buffer nor the submission lies pinned in here.
impl<O: Step> Unpin for Exact<O> {}

impl<O: Step> Exact<O> {
    fn new(fd: FdHold, buffer: O::Buffer, offset: Option<u64>) -> Self {
        let (total, buffer) = O::total(buffer);
        Self { fd, offset, total, count: 0, stage: Stage::Between(buffer) }
    }

    /// `count()`: the bytes that the steps which are over have moved.
    ///
    /// Exact once this has ended, and at most a step behind before.
    pub fn count(&self) -> usize {
        self.count
    }

    /// `cancel()`: asks for the end; await what this returns for how far it came.
    ///
    /// A race with success is won by success. A transfer that was never polled ends with `ECANCELED` and a count of 0.
    pub fn cancel(mut self) -> ExactCancel<O> {
        if let Stage::Moving(step) = &mut self.stage {
            step.request_cancel();
        }
        ExactCancel { exact: self }
    }

    /// Make steps until one has to be waited for. No step begins when `last` is asked for.
    fn advance(&mut self, cx: &mut Context<'_>, last: bool) -> Poll<BufResult<O::Buffer, ()>> {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Finished) {
                Stage::Between(buffer) => {
                    // A read into no capacity goes on, to be refused: its success would be no success.
                    if self.count == self.total && (self.total > 0 || !O::FILLS) {
                        return Poll::Ready((Ok(()), buffer));
                    }
                    // The handle may go between two steps, where there is nothing to be cancelled.
                    if last || (self.count > 0 && self.fd.is_hung_up()) {
                        return Poll::Ready((Err(cancelled()), buffer));
                    }
                    let offset = self.offset.map(|offset| offset.saturating_add(self.count as u64));
                    let step = O::step(self.fd.clone(), buffer.slice(self.count..), offset);
                    self.stage = Stage::Moving(Submission::new(step));
                }
                Stage::Moving(mut step) => match Pin::new(&mut step).poll(cx) {
                    Poll::Pending => {
                        self.stage = Stage::Moving(step);
                        return Poll::Pending;
                    }
                    Poll::Ready((Ok(0), rest)) => {
                        return Poll::Ready((Err(stalled::<O>()), rest.into_inner()));
                    }
                    Poll::Ready((Ok(count), rest)) => {
                        self.count += count;
                        self.stage = Stage::Between(rest.into_inner());
                    }
                    Poll::Ready((Err(error), rest)) => {
                        return Poll::Ready((Err(error), rest.into_inner()));
                    }
                },
                Stage::Finished => panic!("this transfer has ended and was polled again"),
            }
        }
    }
}

impl<O: Step> Future for Exact<O> {
    type Output = BufResult<O::Buffer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.advance(cx, false).map(|(result, buffer)| (result.map(|()| this.count), buffer))
    }
}

impl<O: Step> fmt::Debug for Exact<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exact").field("count", &self.count).field("total", &self.total).finish_non_exhaustive()
    }
}

/// The end of a cancelled [`Exact`]: `(result, count, buffer)`.
///
/// `Ok` when all was moved before the cancel came; otherwise `ECANCELED`, or the error that came first. In each case the
/// count is exact, and the buffer is whole: what was not moved is still in it.
///
/// # Cancel safety
/// Dropping it loses the answer, and with it what the answer would have given back.
#[must_use = "await it to learn how far the transfer came"]
pub struct ExactCancel<O: Step> {
    exact: Exact<O>,
}

impl<O: Step> Future for ExactCancel<O> {
    type Output = (io::Result<()>, usize, O::Buffer);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let exact = &mut self.exact;
        exact.advance(cx, true).map(|(result, buffer)| (result, exact.count, buffer))
    }
}

impl<O: Step> fmt::Debug for ExactCancel<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactCancel").field("exact", &self.exact).finish()
    }
}

mod sealed {
    use super::*;

    pub trait Step: Operation<Output = BufResult<Slice<Self::Buffer>>> {
        /// What is to be moved as a whole.
        type Buffer: IoBuf;

        /// Whether the buffer is filled, or emptied.
        const FILLS: bool;

        /// How many bytes there are to move.
        fn total(buffer: Self::Buffer) -> (usize, Self::Buffer);

        /// The operation that moves the rest, or a part of it.
        fn step(fd: FdHold, rest: Slice<Self::Buffer>, offset: Option<u64>) -> Self;
    }

    impl<B: IoBufMut> Step for Read<Slice<B>> {
        type Buffer = B;
        const FILLS: bool = true;

        fn total(buffer: B) -> (usize, B) {
            capacity_of(buffer)
        }

        fn step(fd: FdHold, rest: Slice<B>, offset: Option<u64>) -> Self {
            Read::new(fd, rest, offset)
        }
    }

    impl<B: IoBufMut> Step for Recv<Slice<B>> {
        type Buffer = B;
        const FILLS: bool = true;

        fn total(buffer: B) -> (usize, B) {
            capacity_of(buffer)
        }

        fn step(fd: FdHold, rest: Slice<B>, _stream: Option<u64>) -> Self {
            Recv::new(fd, rest)
        }
    }

    impl<B: IoBuf> Step for Write<Slice<B>> {
        type Buffer = B;
        const FILLS: bool = false;

        fn total(buffer: B) -> (usize, B) {
            (buffer.bytes().len(), buffer)
        }

        fn step(fd: FdHold, rest: Slice<B>, offset: Option<u64>) -> Self {
            Write::new(fd, rest, offset)
        }
    }

    impl<B: IoBuf> Step for Send<Slice<B>> {
        type Buffer = B;
        const FILLS: bool = false;

        fn total(buffer: B) -> (usize, B) {
            (buffer.bytes().len(), buffer)
        }

        fn step(fd: FdHold, rest: Slice<B>, _stream: Option<u64>) -> Self {
            Send::new(fd, rest)
        }
    }
}

fn capacity_of<B: IoBufMut>(buffer: B) -> (usize, B) {
    let mut fill = Fill::new(buffer);
    (fill.capacity(), fill.into_inner())
}

fn stalled<O: Step>() -> io::Error {
    if O::FILLS {
        io::Error::new(io::ErrorKind::UnexpectedEof, "the stream or file ended before the buffer was full")
    } else {
        io::Error::new(io::ErrorKind::WriteZero, "the kernel took none of the bytes that were left to write")
    }
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}
