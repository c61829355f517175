use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{FusedStream, Stream};

use super::arrivals::{Arrival, Arrivals, FromSource, Source};
use crate::runtime::{Completion, Driver, EncodedMultishot, Fd, FixedBuf, MultishotOperation, MultishotSqe};

/// `recv_multishot(socket)`: a stream of what comes on a socket, each piece in a page that is found when it has come.
///
/// One entry in the kernel receives for as long as something comes; it holds no memory meanwhile. Each item is a lease of
/// the runtime's registry with the bytes of one receive, at least one: a part of a stream, or a datagram (of which what
/// does not fit is lost; an empty one is passed over). It can be written to a file or sent at once, and returns its pages
/// when it is dropped. The end of the peer's sending ends the stream; so does an error, after it was yielded.
///
/// Items that nobody takes hold pages. So when as many wait as the size has buffers (at least 16, at most 1,024), the
/// receive is cancelled, and armed again once they are taken. Where no page is left it waits until one comes back, without
/// an entry in the kernel.
///
/// # Cancel safety
/// Dropping the stream cancels the receive; bytes that had come and that nobody has taken are lost, and their pages
/// return. [`cancel`](RecvMultishot::cancel) yields them first.
///
/// # Errors
/// Those of `recv(2)`, but for `EAGAIN` and `ENOBUFS`, which is how the kernel says that no page is left (and how netlink
/// says that it has dropped messages: use [`recv`](super::recv()) there); those of
/// [`Driver::buffer_group`](crate::Driver::buffer_group).
///
/// # Kernel
/// `IORING_RECV_MULTISHOT`, Linux 6.0: an older one answers `EINVAL`.
///
/// # Examples
/// ```
/// use futures::stream::{Stream, StreamExt};
/// use ringmain::{Fd, ops};
///
/// let (ours, mut theirs) = std::os::unix::net::UnixStream::pair()?;
/// std::io::Write::write_all(&mut theirs, b"through a page")?;
/// drop(theirs);
/// ringmain::Runtime::new()?.block_on(async {
///     let mut pieces = ops::recv_multishot(&Fd::new(ours.into()));
///     let mut text = Vec::new();
///     while let Some(piece) = pieces.next().await {
///         text.extend_from_slice(&piece?);
///     }
///     assert_eq!(text, b"through a page");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_RECV")]
#[doc(alias = "IORING_RECV_MULTISHOT")]
pub fn recv_multishot(socket: &impl AsRef<Fd>) -> RecvMultishot {
    RecvMultishot { arrivals: Arrivals::new(Source::new(socket.as_ref().hold())) }
}

/// The stream of [`recv_multishot`].
#[derive(Debug)]
#[must_use = "a stream does nothing before it is polled"]
pub struct RecvMultishot {
    arrivals: Arrivals<Receives>,
}

impl RecvMultishot {
    /// `buffer_bytes(bytes)`: takes buffers of at least this many bytes, the smallest that
    /// [`Config::lent`](crate::Config::lent) has. To be set before the stream is first polled. Default: the smallest.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.arrivals.source.bytes = bytes;
        self
    }

    /// `incremental()`: takes buffers of which each receive gets a front of just what has come, so that small messages
    /// share pages. What is left of a buffer bounds the next receive, so it is for streams: of a datagram the kernel would
    /// cut off the rest. To be set before the stream is first polled.
    pub fn incremental(mut self) -> Self {
        self.arrivals.source.incremental = true;
        self
    }

    /// `bundled()`: lets one completion bring several consecutive buffers, each of them an item. Fewer completions where
    /// much comes at once; where the kernel does not know it, there is no difference. For sockets of streams. To be set
    /// before the stream is first polled.
    pub fn bundled(mut self) -> Self {
        self.arrivals.source.bundle = true;
        self
    }

    /// `cancel()`: asks for the end of the stream, which yields what has already come, then `ECANCELED` if the kernel had
    /// it, then ends.
    pub fn cancel(&mut self) {
        self.arrivals.cancel();
    }
}

impl Stream for RecvMultishot {
    type Item = io::Result<FixedBuf>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.arrivals.poll(cx)
    }
}

impl FusedStream for RecvMultishot {
    fn is_terminated(&self) -> bool {
        self.arrivals.is_over()
    }
}

/// The operation behind the stream.
#[derive(Debug)]
struct Receives {
    source: Source,
}

impl FromSource for Receives {
    fn from_source(source: &Source) -> Self {
        Self { source: source.clone() }
    }
}

impl MultishotOperation for Receives {
    type Item = Arrival<FixedBuf>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        let bundle = self.source.bundle && Driver::current().setup().has_receive_bundles();
        sqe.recv(self.source.fd.as_fd(), &self.source.group()?, bundle)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        match completion.result() {
            Err(error) => Arrival::Item(Err(error)),
            Ok(_) => match completion.take_buffer() {
                Some(buffer) => Arrival::Item(Ok(buffer)),
                None if self.source.is_end() => Arrival::End,
                None => Arrival::Nothing,
            },
        }
    }
}
