use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{FusedStream, Stream};

use super::arrivals::{Arrival, Arrivals, FromSource, Source};
use super::message::{ADDRESS_BYTES, Message};
use crate::runtime::{Completion, EncodedMultishot, Fd, MultishotOperation, MultishotSqe};

/// `recvmsg_multishot(socket)`: a stream of the messages that come to a socket, each with its sender's address, in a page
/// that is found when it has come.
///
/// As [`recv_multishot`](super::recv_multishot()), with a [`Message`] for an item: the payload, who sent it, control data if
/// room for it was [asked for](RecvmsgMultishot::control_bytes), and whether something was cut off. The page holds all of
/// them, so that the longest payload is that much shorter: 4,096 bytes have room for 3,952.
///
/// Descriptors that come over a Unix socket are not received: the kernel closes them.
///
/// # Cancel safety
/// As [`recv_multishot`](super::recv_multishot()).
///
/// # Errors
/// Those of `recvmsg(2)`, but for `EAGAIN` and `ENOBUFS`; `InvalidInput` for control data of a Unix socket, or for more of
/// it than a buffer has room for; those of [`Driver::buffer_group`](crate::Driver::buffer_group).
///
/// # Kernel
/// `IORING_OP_RECVMSG` with `IORING_RECV_MULTISHOT`, Linux 6.0: an older one answers `EINVAL`.
///
/// # Examples
/// ```
/// use futures::stream::{Stream, StreamExt};
/// use ringmain::{Fd, ops};
///
/// let ours = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// let theirs = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// theirs.send_to(b"ring", ours.local_addr()?)?;
/// ringmain::Runtime::new()?.block_on(async {
///     let mut messages = ops::recvmsg_multishot(&Fd::new(ours.into()));
///     let message = messages.next().await.expect("one was sent")?;
///     assert_eq!((message.payload(), message.address()), (&b"ring"[..], Some(theirs.local_addr()?)));
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_RECVMSG")]
#[doc(alias = "IORING_RECV_MULTISHOT")]
pub fn recvmsg_multishot(socket: &impl AsRef<Fd>) -> RecvmsgMultishot {
    RecvmsgMultishot { arrivals: Arrivals::new(Source::new(socket.as_ref().hold())) }
}

/// The stream of [`recvmsg_multishot`].
#[derive(Debug)]
#[must_use = "a stream does nothing before it is polled"]
pub struct RecvmsgMultishot {
    arrivals: Arrivals<Messages>,
}

impl RecvmsgMultishot {
    /// `buffer_bytes(bytes)`: takes buffers of at least this many bytes, the smallest that
    /// [`Config::lent`](crate::Config::lent) has. To be set before the stream is first polled. Default: the smallest.
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.arrivals.source.bytes = bytes;
        self
    }

    /// `control_bytes(bytes)`: keeps room for control data. Default 0: what comes is cut off. To be set before the stream is
    /// first polled.
    pub fn control_bytes(mut self, bytes: u16) -> Self {
        self.arrivals.source.control_bytes = bytes;
        self
    }

    /// `cancel()`: asks for the end of the stream, which yields what has already come, then `ECANCELED` if the kernel had
    /// it, then ends.
    pub fn cancel(&mut self) {
        self.arrivals.cancel();
    }
}

impl Stream for RecvmsgMultishot {
    type Item = io::Result<Message>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.arrivals.poll(cx)
    }
}

impl FusedStream for RecvmsgMultishot {
    fn is_terminated(&self) -> bool {
        self.arrivals.is_over()
    }
}

/// The operation behind the stream.
#[derive(Debug)]
struct Messages {
    source: Source,
}

impl FromSource for Messages {
    fn from_source(source: &Source) -> Self {
        Self { source: source.clone() }
    }
}

impl MultishotOperation for Messages {
    type Item = Arrival<Message>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.recvmsg(self.source.fd.as_fd(), &self.source.group()?, ADDRESS_BYTES, self.source.control_bytes)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        match completion.result() {
            Err(error) => Arrival::Item(Err(error)),
            Ok(_) => match completion.take_buffer().map(|buffer| Message::new(buffer, self.source.control_bytes)) {
                None => Arrival::End,
                Some(Ok(message)) if message.is_empty() && self.source.is_end() => Arrival::End,
                Some(message) => Arrival::Item(message),
            },
        }
    }
}
