//! What the streams of lent memory share: where from, into what, and when they end.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::stream::Stream;
use rustix::net::SocketType;

use crate::runtime::{BufferGroup, Driver, FdHold, Multishot, MultishotOperation};

/// Where the bytes come from, and what they come into.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) fd: FdHold,
    pub(super) bytes: usize,
    pub(super) incremental: bool,
    pub(super) bundle: bool,
    /// Room for the control data of a message.
    pub(super) control_bytes: u16,
}

/// One completion, as a stream takes it.
#[derive(Debug)]
pub(super) enum Arrival<T> {
    Item(io::Result<T>),
    /// The peer has ended it.
    End,
    /// Nothing came, which is not the end.
    Nothing,
}

/// A multishot operation that can be described from its source alone, so that it can begin anew.
pub(super) trait FromSource: MultishotOperation {
    fn from_source(source: &Source) -> Self;
}

/// One such operation after the other, until the peer or an error ends it.
#[derive(Debug)]
pub(super) struct Arrivals<O: MultishotOperation> {
    pub(super) source: Source,
    stream: Option<Multishot<O>>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The end of the operation is the end.
    Once,
    /// The operation ends for nothing, and another one follows.
    Again,
    Cancelled,
    Over,
}

impl Source {
    pub(super) fn new(fd: FdHold) -> Self {
        Self { fd, bytes: 1, incremental: false, bundle: false, control_bytes: 0 }
    }

    /// The group that the operation is described with.
    pub(super) fn group(&self) -> io::Result<BufferGroup> {
        Driver::current().buffer_group(self.bytes, self.incremental)
    }

    /// What a receive of nothing means: on a socket of datagrams a message like others, elsewhere the end.
    pub(super) fn is_end(&self) -> bool {
        !matches!(rustix::net::sockopt::socket_type(self.fd.as_fd()), Ok(SocketType::DGRAM | SocketType::RAW))
    }
}

impl<O: MultishotOperation> Arrivals<O> {
    pub(super) fn new(source: Source) -> Self {
        Self { source, stream: None, stage: Stage::Once }
    }

    pub(super) fn cancel(&mut self) {
        match &mut self.stream {
            Some(stream) if self.stage != Stage::Over => {
                stream.cancel();
                self.stage = Stage::Cancelled;
            }
            _ => self.stage = Stage::Over,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }
}

impl<T, O: FromSource + MultishotOperation<Item = Arrival<T>>> Arrivals<O> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<T>>> {
        while self.stage != Stage::Over {
            let stream = self.stream.get_or_insert_with(|| Multishot::new(O::from_source(&self.source)));
            match ready!(Pin::new(stream).poll_next(cx)) {
                Some(Arrival::Item(item)) => return Poll::Ready(Some(item)),
                Some(Arrival::Nothing) if self.stage == Stage::Once => self.stage = Stage::Again,
                Some(Arrival::Nothing) => {}
                None if self.stage == Stage::Again => {
                    self.stream = None;
                    self.stage = Stage::Once;
                }
                Some(Arrival::End) | None => {
                    self.stage = Stage::Over;
                    self.stream = None;
                }
            }
        }
        Poll::Ready(None)
    }
}
