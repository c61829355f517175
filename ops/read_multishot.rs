use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{FusedStream, Stream};

use super::arrivals::{Arrival, Arrivals, FromSource, Source};
use crate::runtime::{Completion, EncodedMultishot, Fd, FixedBuf, MultishotOperation, MultishotSqe};

/// `read_multishot(fd)`: a stream of what comes through a pipe, each piece in a page that is found when it has come.
///
/// As [`recv_multishot`](super::recv_multishot()), for the reading end of a pipe, or anything else that is read as a stream
/// and can be polled.
///
/// # Cancel safety
/// As [`recv_multishot`](super::recv_multishot()).
///
/// # Errors
/// Those of `read(2)`, but for `EAGAIN`; `EBADFD` for what cannot be polled, a file on a disk for one; those of
/// [`Driver::buffer_group`](crate::Driver::buffer_group).
///
/// # Kernel
/// `IORING_OP_READ_MULTISHOT`, Linux 6.7.
///
/// # Examples
/// ```
/// use futures::stream::{Stream, StreamExt};
/// use ringmain::{Fd, ops};
///
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"through a page")?;
/// drop(writer);
/// ringmain::Runtime::new()?.block_on(async {
///     let mut pieces = ops::read_multishot(&Fd::new(reader.into()));
///     let piece = pieces.next().await.expect("something has come")?;
///     assert_eq!(&piece[..], b"through a page");
///     assert!(pieces.next().await.is_none(), "the end");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_READ_MULTISHOT")]
pub fn read_multishot(fd: &impl AsRef<Fd>) -> ReadMultishot {
    ReadMultishot { arrivals: Arrivals::new(Source::new(fd.as_ref().hold())) }
}

/// The stream of [`read_multishot`].
#[derive(Debug)]
#[must_use = "a stream does nothing before it is polled"]
pub struct ReadMultishot {
    arrivals: Arrivals<Reads>,
}

impl ReadMultishot {
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

    /// `cancel()`: asks for the end of the stream, which yields what has already come, then `ECANCELED` if the kernel had
    /// it, then ends.
    pub fn cancel(&mut self) {
        self.arrivals.cancel();
    }
}

impl Stream for ReadMultishot {
    type Item = io::Result<FixedBuf>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.arrivals.poll(cx)
    }
}

impl FusedStream for ReadMultishot {
    fn is_terminated(&self) -> bool {
        self.arrivals.is_over()
    }
}

/// The operation behind the stream.
#[derive(Debug)]
struct Reads {
    source: Source,
}

impl FromSource for Reads {
    fn from_source(source: &Source) -> Self {
        Self { source: source.clone() }
    }
}

impl MultishotOperation for Reads {
    type Item = Arrival<FixedBuf>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.read(self.source.fd.as_fd(), &self.source.group()?)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        match completion.result() {
            Err(error) => Arrival::Item(Err(error)),
            Ok(_) => completion.take_buffer().map_or(Arrival::End, |buffer| Arrival::Item(Ok(buffer))),
        }
    }
}
