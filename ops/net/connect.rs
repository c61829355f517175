use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockAddr;

use super::{Family, Stream};
use crate::runtime::{Completion, Encoded, Fd, Operation, Sleep, Sqe, Submission, sleep};

/// The first pause before another try on a full backlog; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest pause between two tries on a full backlog.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// The future of a connect: [`Stream::connect`] and its kin.
///
/// The socket is made when this is first polled. A Unix listener whose backlog is full is tried again, after pauses of
/// 1 to 64 ms: the kernel has no event for the room that comes (`unix_stream_connect` answers `EAGAIN`), and waiting in
/// it would take a thread.
///
/// # Cancel safety
/// Dropping it closes the socket; the peer may have seen a connection that ends at once.
///
/// # Panics
/// When polled again after it has ended, or inside another runtime than the one it started in.
#[must_use = "nothing is connected before it is awaited"]
pub struct Connecting<F: Family> {
    stage: Stage<F>,
    pause: Duration,
    cancelled: bool,
}

enum Stage<F: Family> {
    Trying(Submission<Attempt<F>>),
    Pausing(Attempt<F>, Sleep),
    Finished,
}

// The attempt does not lie pinned in here, and a sleep is Unpin.
impl<F: Family> Unpin for Connecting<F> {}

impl<F: Family> Connecting<F> {
    /// What is wrong with the address is said when this is polled.
    pub(super) fn new(address: io::Result<SockAddr>, options: F::Options) -> Self {
        let attempt = Attempt { address: address.map_err(Some), options, socket: None };
        Self { stage: Stage::Trying(Submission::new(attempt)), pause: PAUSE_MIN, cancelled: false }
    }

    /// `cancel()`: asks for the end; await what this returns for what it came to.
    ///
    /// A race with success is won by success. Otherwise it ends with `ECANCELED`, and the socket is closed.
    pub fn cancel(mut self) -> Self {
        self.cancelled = true;
        if let Stage::Trying(attempt) = &mut self.stage {
            attempt.request_cancel();
        }
        self
    }
}

impl<F: Family> Future for Connecting<F> {
    type Output = io::Result<Stream<F>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.stage, Stage::Finished) {
                Stage::Trying(mut attempt) => match Pin::new(&mut attempt).poll(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Trying(attempt);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Poll::Ready(Err(refusal)) if refusal.is_full_backlog() => {
                        this.stage = Stage::Pausing(refusal.attempt, sleep(this.pause));
                        this.pause = PAUSE_MAX.min(this.pause * 2);
                    }
                    Poll::Ready(Err(refusal)) => return Poll::Ready(Err(refusal.error)),
                },
                Stage::Pausing(attempt, mut pause) => {
                    if this.cancelled {
                        return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED)));
                    }
                    if Pin::new(&mut pause).poll(cx).is_pending() {
                        this.stage = Stage::Pausing(attempt, pause);
                        return Poll::Pending;
                    }
                    this.stage = Stage::Trying(Submission::new(attempt));
                }
                Stage::Finished => panic!("this connect has ended and was polled again"),
            }
        }
    }
}

impl<F: Family> fmt::Debug for Connecting<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("to", &F::STREAM).field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

/// One try: makes a socket, connects it, and becomes a stream. It owns its socket, so a dropped one leaves nothing
/// behind.
struct Attempt<F: Family> {
    address: Result<SockAddr, Option<io::Error>>,
    options: F::Options,
    socket: Option<OwnedFd>,
}

/// Why a try came to nothing, and what the next one needs.
struct Refusal<F: Family> {
    error: io::Error,
    attempt: Attempt<F>,
}

impl<F: Family> Refusal<F> {
    fn is_full_backlog(&self) -> bool {
        // Elsewhere, `EAGAIN` is about routes or ports (`connect(2)`), and a matter for the caller.
        self.error.raw_os_error() == Some(libc::EAGAIN) && self.attempt.address.as_ref().is_ok_and(SockAddr::is_unix)
    }
}

impl<F: Family> Operation for Attempt<F> {
    type Output = Result<Stream<F>, Box<Refusal<F>>>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let address = match &mut self.address {
            Ok(address) => address,
            Err(error) => {
                return Err(error.take().unwrap_or_else(|| io::ErrorKind::InvalidInput.into()));
            }
        };
        let socket: &OwnedFd = self.socket.insert(F::socket(address, &self.options)?.into());
        sqe.connect(socket.as_fd(), address)
    }

    fn decode(mut self, mut completion: Completion) -> Self::Output {
        match completion.result() {
            Ok(_) => {
                let socket = self.socket.take().expect("a connect that the kernel answered has its socket");
                Ok(Stream::over(Fd::new(socket)))
            }
            Err(error) => Err(Box::new(Refusal { error, attempt: self })),
        }
    }
}
