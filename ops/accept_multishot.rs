use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::stream::{FusedStream, Stream};

use super::accept::{Accept, FromCreated, created};
use crate::runtime::{
    Completion, EncodedMultishot, Fd, FdHold, Multishot, MultishotOperation, MultishotSqe, Submission,
};

/// `accept_multishot(listener)`: a stream of the connections that come in, from one operation.
///
/// One entry in the kernel takes connection after connection, where [`accept`](super::accept()) asks again for each. The
/// new descriptors are non-blocking and close-on-exec. The stream ends only with [`cancel`](Incoming::cancel), when the
/// listener's last handle has gone, or with its runtime: an error is an item, and the next poll listens again. Its consumer may fall 1,024
/// connections behind; then the kernel takes no more until they are taken.
///
/// # Cancel safety
/// Dropping the stream loses no connection silently: those that were taken for nobody are closed, and their peers see
/// that. [`cancel`](Incoming::cancel) yields them first.
///
/// # Errors
/// Those of `accept4(2)`, but for `EAGAIN`. Out of descriptors (`EMFILE`, `ENFILE`) leaves the connection in the backlog,
/// where the next poll finds it: wait before that one, or it spins.
///
/// # Panics
/// When polled inside another runtime than the one it started in.
///
/// # Kernel
/// `IORING_ACCEPT_MULTISHOT`, Linux 5.19. Without it, an accept for each connection.
///
/// # Examples
/// ```
/// use futures::StreamExt;
/// use ringmain::{net::{TcpListener, TcpStream}, ops};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
///     let mut incoming = ops::accept_multishot(&listener);
///     for _ in 0..3 {
///         let address = listener.local_addr()?;
///         let client = ringmain::spawn(async move { TcpStream::connect(address).await });
///         let _connection = incoming.next().await.expect("it does not end")?;
///         client.await.unwrap()?;
///     }
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `io_uring_prep_multishot_accept(3)`.
#[doc(alias = "IORING_ACCEPT_MULTISHOT")]
pub fn accept_multishot(listener: &impl AsRef<Fd>) -> Incoming {
    Incoming::new(listener.as_ref().hold())
}

/// The stream of [`accept_multishot`], and of the listeners' own: `T` is what a new descriptor becomes.
#[must_use = "nothing is accepted before it is polled"]
pub struct Incoming<T: FromCreated = OwnedFd> {
    fd: FdHold,
    stage: Stage<T>,
    cancelled: bool,
}

enum Stage<T: FromCreated> {
    /// No accept is under way.
    Idle,
    Streaming(Multishot<AcceptEach<T>>),
    /// This kernel knows no multishot accept.
    Single(Option<Submission<Accept<T>>>),
    Ended,
}

// No operation lies pinned in here.
impl<T: FromCreated> Unpin for Incoming<T> {}

impl<T: FromCreated> Incoming<T> {
    pub(super) fn new(fd: FdHold) -> Self {
        Self { fd, stage: Stage::Idle, cancelled: false }
    }

    /// `cancel()`: asks for the end: the stream yields what has already come, then ends.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        match &mut self.stage {
            Stage::Streaming(stream) => stream.cancel(),
            Stage::Single(Some(accept)) => accept.request_cancel(),
            Stage::Idle | Stage::Single(None) => self.stage = Stage::Ended,
            Stage::Ended => {}
        }
    }
}

impl<T: FromCreated> Stream for Incoming<T> {
    type Item = io::Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        let this = self.get_mut();
        loop {
            match &mut this.stage {
                Stage::Idle | Stage::Single(None) if this.cancelled || this.fd.is_hung_up() => {
                    this.stage = Stage::Ended;
                }
                Stage::Idle => {
                    let each = AcceptEach { fd: this.fd.clone(), _becomes: PhantomData };
                    this.stage = Stage::Streaming(Multishot::new(each));
                }
                Stage::Streaming(stream) => match ready!(Pin::new(stream).poll_next(cx)) {
                    Some(Ok(connection)) => return Poll::Ready(Some(Ok(connection))),
                    // By `cancel`, with the last handle, or with the runtime.
                    Some(Err(error)) if is_cancelled(&error) => this.stage = Stage::Ended,
                    // The flag of an older kernel's accept, or a descriptor that does not listen: the plain one tells.
                    Some(Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => this.stage = Stage::Single(None),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => this.stage = Stage::Idle,
                },
                Stage::Single(next) => {
                    let accept = next.get_or_insert_with(|| Submission::new(Accept::new(this.fd.clone())));
                    let outcome = ready!(Pin::new(accept).poll(cx));
                    *next = None;
                    match outcome {
                        Err(error) if is_cancelled(&error) => this.stage = Stage::Ended,
                        outcome => return Poll::Ready(Some(outcome)),
                    }
                }
                Stage::Ended => return Poll::Ready(None),
            }
        }
    }
}

impl<T: FromCreated> FusedStream for Incoming<T> {
    fn is_terminated(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }
}

impl<T: FromCreated> fmt::Debug for Incoming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("fd", &self.fd).field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

/// One accept for all connections.
struct AcceptEach<T> {
    fd: FdHold,
    _becomes: PhantomData<fn() -> T>,
}

impl<T: FromCreated> MultishotOperation for AcceptEach<T> {
    type Item = io::Result<T>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.accept(self.fd.as_fd())
    }

    fn item(&self, completion: Completion) -> io::Result<T> {
        created(completion)
    }
}

fn is_cancelled(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECANCELED)
}
