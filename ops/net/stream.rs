use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use socket2::SockRef;

use super::{Family, OwnedReadHalf, OwnedWriteHalf, Sending, halves};
use crate::ops::accept::FromCreated;
use crate::ops::{
    self, FixedBytes, FixedSource, InFlight, Parts, Peek, PeekAtLeast, ReadFixed, Recv, RecvExact, Send, SendAll,
    SendZc, WriteFixed, recv, recv_exact, send, send_all, send_vectored_zc, send_zc,
};
use crate::runtime::{Fd, IoBuf, IoBufMut, Submission};

/// A connection. See [`TcpStream`](super::TcpStream) and [`UnixStream`](super::UnixStream) for how one is made.
///
/// Dropping it cancels what is pending on it and shuts the connection down.
pub struct Stream<F: Family> {
    fd: Fd,
    _family: PhantomData<F>,
}

impl<F: Family> Stream<F> {
    /// `recv(buffer)`: receives what comes next.
    ///
    /// See [`ops::recv`](ops::recv()) for what moves.
    ///
    /// # Cancel safety
    /// A receive that is dropped may have taken bytes, which are then gone with the buffer.
    /// [`cancel`](Submission::cancel) gives the count and the buffer back and loses nothing.
    ///
    /// # Errors
    /// Those of `recv(2)`, but for `EAGAIN`; `InvalidInput` for a buffer without capacity.
    pub fn recv<B: IoBufMut>(&self, buffer: B) -> Submission<Recv<B>> {
        recv(self, buffer)
    }

    /// `recv_exact(buffer)`: receives until the buffer is full, to its capacity.
    ///
    /// # Cancel safety
    /// Not: see [`ops::recv_exact`], and [`cancel`](ops::Exact::cancel), which loses nothing.
    ///
    /// # Errors
    /// `UnexpectedEof` when the peer's sending ends first; those of `recv(2)`.
    pub fn recv_exact<B: IoBufMut>(&self, buffer: B) -> RecvExact<B> {
        recv_exact(self, buffer)
    }

    /// `peek(buffer)`: looks at what comes next, and leaves it there.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing but the buffer.
    ///
    /// # Errors
    /// As [`ops::peek`](ops::peek()).
    pub fn peek<B: IoBufMut>(&self, buffer: B) -> Submission<Peek<B>> {
        ops::peek(self, buffer)
    }

    /// `peek_at_least(buffer, bytes)`: looks at what comes next once so many bytes are there, and leaves them there.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing but the buffer.
    ///
    /// # Errors
    /// As [`ops::peek_at_least`].
    pub fn peek_at_least<B: IoBufMut>(&self, buffer: B, bytes: usize) -> PeekAtLeast<B> {
        ops::peek_at_least(self, buffer, bytes)
    }

    /// `recv_fixed(buffer)`: receives what comes next into registered pages.
    ///
    /// # Cancel safety
    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`ops::read_fixed`](ops::read_fixed()).
    pub fn recv_fixed<B: FixedBytes>(&self, buffer: B) -> Submission<ReadFixed<B>> {
        ops::read_fixed(self, buffer)
    }

    /// `send(buffer)`: sends the buffer's bytes, or the first of them.
    ///
    /// See [`ops::send`](ops::send()) for what moves. The stream is borrowed until the send is over.
    ///
    /// # Cancel safety
    /// A send that is dropped may have sent some of its bytes or all, so what is sent after it may follow a part.
    /// [`cancel`](Sending::cancel) tells how many.
    ///
    /// # Errors
    /// Those of `send(2)`, but for `EAGAIN`.
    pub fn send<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, Submission<Send<B>>> {
        Sending::new(send(self, buffer))
    }

    /// `send_all(buffer)`: sends until all of the buffer's bytes are sent.
    ///
    /// # Cancel safety
    /// Not: a dropped one may have sent any part. [`cancel`](Sending::cancel) tells how much.
    ///
    /// # Errors
    /// Those of `send(2)`; [`count`](Sending::count) says how much had been sent by then.
    pub fn send_all<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, SendAll<B>> {
        Sending::new(send_all(self, buffer))
    }

    /// `send_fixed(buffer)`: sends from registered pages, or the first of their bytes.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`ops::write_fixed`](ops::write_fixed()), which may raise `SIGPIPE` where the program does not ignore it.
    pub fn send_fixed<B: FixedSource>(&mut self, buffer: B) -> Sending<'_, Submission<WriteFixed<B>>> {
        Sending::new(ops::write_fixed(self, buffer))
    }

    /// `send_zc(buffer)`: sends from the buffer's own pages, which come back when the network has let go of them.
    ///
    /// See [`ops::send_zc`](ops::send_zc()) for when it copies all the same. The stream is borrowed until the result is
    /// there, and not until the pages are released.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_zc<B: IoBuf>(&mut self, buffer: B) -> Sending<'_, SendZc<B>> {
        Sending::new(send_zc(self, buffer))
    }

    /// `send_vectored_zc(buffers)`: as [`send_zc`](Self::send_zc), from several buffers in order.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`ops::send_vectored_zc`].
    pub fn send_vectored_zc<B: IoBuf>(&mut self, buffers: Vec<B>) -> Sending<'_, SendZc<Parts<B>>> {
        Sending::new(send_vectored_zc(self, buffers))
    }

    /// `shutdown(how)`: ends one direction of the connection, or both, at once.
    ///
    /// Bytes that the kernel has taken to send are still sent. A plain system call, which does not wait. What is
    /// pending in that direction ends: a receive with 0, a send with `EPIPE`.
    ///
    /// # Errors
    /// Those of `shutdown(2)`: `ENOTCONN` when there is no connection any more.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }

    /// `split()`: two handles, for receiving and for sending, that two tasks can have.
    ///
    /// Dropping the write half ends the sending direction, so that the peer sees the end.
    pub fn split(self) -> (OwnedReadHalf<F>, OwnedWriteHalf<F>) {
        halves::split(self)
    }

    /// `local_addr()`: this end's address.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        F::address(self.socket().local_addr()?)
    }

    /// `peer_addr()`: the other end's address.
    ///
    /// # Errors
    /// Those of `getpeername(2)`: `ENOTCONN` when the peer has already gone.
    pub fn peer_addr(&self) -> io::Result<F::Address> {
        F::address(self.socket().peer_addr()?)
    }

    /// `send_buffer_size()`: the bytes that the kernel holds for sending at most, its bookkeeping included.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.socket().send_buffer_size()
    }

    /// `set_send_buffer_size(bytes)`: asks for room to send; the kernel doubles the number, and bounds it by
    /// `net.core.wmem_max` (`socket(7)`).
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }

    /// `recv_buffer_size()`: the bytes that the kernel holds until they are received at most, its bookkeeping included.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.socket().recv_buffer_size()
    }

    /// `set_recv_buffer_size(bytes)`: asks for room to receive; the kernel doubles the number, and bounds it by
    /// `net.core.rmem_max` (`socket(7)`).
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// `into_std()`: the standard library's twin. It stays non-blocking.
    ///
    /// # Errors
    /// [`InFlight`] gives the stream back while operations on it are in flight, a half of it among them.
    pub fn into_std(self) -> Result<F::StdStream, InFlight<Self>> {
        match self.fd.into_owned() {
            Ok(fd) => Ok(fd.into()),
            Err(fd) => Err(InFlight::new(Self::over(fd))),
        }
    }

    pub(super) fn over(fd: Fd) -> Self {
        Self { fd, _family: PhantomData }
    }

    /// Another handle on the same connection, for a half of it.
    pub(super) fn share(&self) -> Self {
        Self::over(self.fd.clone())
    }

    /// Whether two handles are of one connection: numbers are unique as long as a handle is there.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.fd.as_fd().as_raw_fd() == other.fd.as_fd().as_raw_fd()
    }

    pub(super) fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.fd)
    }

    /// A stream of the program's own making: it becomes non-blocking, and so do its duplicates, as they share the flag.
    pub(super) fn adopt(fd: OwnedFd) -> Self {
        let fd = Fd::new(fd);
        fd.set_nonblocking().expect("the flags of an open socket can be set");
        Self::over(fd)
    }

    /// End the sending direction; no error if there is none any more.
    pub(super) fn finish_sending(&self) {
        match rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write) {
            Ok(()) | Err(Errno::NOTCONN) => {}
            Err(error) => tracing::warn!(?self, %error, "the sending direction could not be ended"),
        }
    }
}

impl<F: Family> FromCreated for Stream<F> {
    fn from_created(fd: OwnedFd) -> Self {
        Self::over(Fd::new(fd))
    }
}

impl<F: Family> AsRef<Fd> for Stream<F> {
    fn as_ref(&self) -> &Fd {
        &self.fd
    }
}

impl<F: Family> AsFd for Stream<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<F: Family> fmt::Debug for Stream<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(F::STREAM).field("fd", &self.fd.as_fd().as_raw_fd()).finish()
    }
}
