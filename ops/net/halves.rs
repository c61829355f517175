use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Family, Sending, Stream};
use crate::ops::{
    FixedBytes, FixedSource, Parts, Peek, PeekAtLeast, ReadFixed, Recv, RecvExact, Send, SendAll, SendZc, WriteFixed,
};
use crate::runtime::{Fd, IoBuf, IoBufMut, Submission};

/// The receiving half of a [`Stream`].
pub struct OwnedReadHalf<F: Family> {
    stream: Stream<F>,
}

/// The sending half of a [`Stream`].
///
/// Dropping it ends the sending direction, so that the peer sees the end, behind all that was sent.
/// [`forget`](Self::forget) does not.
pub struct OwnedWriteHalf<F: Family> {
    stream: Stream<F>,
    shutdown_on_drop: bool,
}

/// Two halves that are not of one stream, given back.
pub struct ReuniteError<F: Family>(pub OwnedReadHalf<F>, pub OwnedWriteHalf<F>);

pub(super) fn split<F: Family>(stream: Stream<F>) -> (OwnedReadHalf<F>, OwnedWriteHalf<F>) {
    (OwnedReadHalf { stream: stream.share() }, OwnedWriteHalf { stream, shutdown_on_drop: true })
}

impl<F: Family> OwnedReadHalf<F> {
    /// As [`Stream::recv`].
    pub fn recv<B: IoBufMut>(&self, buffer: B) -> Submission<Recv<B>> {
        self.stream.recv(buffer)
    }

    /// As [`Stream::recv_exact`].
    pub fn recv_exact<B: IoBufMut>(&self, buffer: B) -> RecvExact<B> {
        self.stream.recv_exact(buffer)
    }

    /// As [`Stream::peek`].
    pub fn peek<B: IoBufMut>(&self, buffer: B) -> Submission<Peek<B>> {
        self.stream.peek(buffer)
    }

    /// As [`Stream::peek_at_least`].
    pub fn peek_at_least<B: IoBufMut>(&self, buffer: B, bytes: usize) -> PeekAtLeast<B> {
        self.stream.peek_at_least(buffer, bytes)
    }

    /// As [`Stream::recv_fixed`].
    pub fn recv_fixed<B: FixedBytes>(&self, buffer: B) -> Submission<ReadFixed<B>> {
        self.stream.recv_fixed(buffer)
    }

    /// As [`Stream::local_addr`].
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.stream.local_addr()
    }

    /// As [`Stream::peer_addr`].
    ///
    /// # Errors
    /// Those of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.stream.peer_addr()
    }

    /// `reunite(write)`: the whole stream again.
    ///
    /// # Errors
    /// [`ReuniteError`] gives both halves back if they are not of one stream.
    pub fn reunite(self, write: OwnedWriteHalf<F>) -> Result<Stream<F>, ReuniteError<F>> {
        if !self.stream.is_same(&write.stream) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        Ok(self.stream)
    }
}

impl<F: Family> OwnedWriteHalf<F> {
    /// As [`Stream::send`].
    pub fn send<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, Submission<Send<B>>> {
        self.stream.send(buffer)
    }

    /// As [`Stream::send_all`].
    pub fn send_all<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, SendAll<B>> {
        self.stream.send_all(buffer)
    }

    /// As [`Stream::send_zc`].
    pub fn send_zc<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, SendZc<B>> {
        self.stream.send_zc(buffer)
    }

    /// As [`Stream::send_vectored_zc`].
    pub fn send_vectored_zc<B: IoBuf>(&mut self, buffers: Vec<B>) -> Sending<'_, SendZc<Parts<B>>> {
        self.stream.send_vectored_zc(buffers)
    }

    /// As [`Stream::send_fixed`].
    pub fn send_fixed<B: FixedSource>(&mut self, buffer: B) -> Sending<'_, Submission<WriteFixed<B>>> {
        self.stream.send_fixed(buffer)
    }

    /// As [`Stream::local_addr`].
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.stream.local_addr()
    }

    /// As [`Stream::peer_addr`].
    ///
    /// # Errors
    /// Those of `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        self.stream.peer_addr()
    }

    /// `forget()`: gives this half up without ending the sending direction, which then lasts as long as the other
    /// half.
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }
}

impl<F: Family> Drop for OwnedWriteHalf<F> {
    fn drop(&mut self) {
        if self.shutdown_on_drop {
            self.stream.finish_sending();
        }
    }
}

impl<F: Family> AsRef<Fd> for OwnedReadHalf<F> {
    fn as_ref(&self) -> &Fd {
        self.stream.as_ref()
    }
}

impl<F: Family> AsRef<Fd> for OwnedWriteHalf<F> {
    fn as_ref(&self) -> &Fd {
        self.stream.as_ref()
    }
}

impl<F: Family> AsFd for OwnedReadHalf<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<F: Family> AsFd for OwnedWriteHalf<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<F: Family> fmt::Debug for OwnedReadHalf<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedReadHalf").field(&self.stream).finish()
    }
}

impl<F: Family> fmt::Debug for OwnedWriteHalf<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedWriteHalf").field(&self.stream).finish()
    }
}

impl<F: Family> fmt::Debug for ReuniteError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReuniteError").field(&self.0).field(&self.1).finish()
    }
}

impl<F: Family> fmt::Display for ReuniteError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these halves are not of one stream; reunite those that one split has made")
    }
}

impl<F: Family> Error for ReuniteError<F> {}
