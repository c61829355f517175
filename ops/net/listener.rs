use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::{SockAddr, SockRef, Socket};

use super::{Family, ListenOptions, Stream};
use crate::ops::{Accept, InFlight, Incoming};
use crate::runtime::{Fd, Submission};

/// A socket that takes connections. See [`TcpListener`](super::TcpListener) and [`UnixListener`](super::UnixListener)
/// for how one is made.
///
/// Dropping it ends the accepts that are pending on it. A process that shares the socket goes on listening; so that no
/// connection is taken here and then closed, [`cancel`](Submission::cancel) the accepts first and await what they came
/// to.
pub struct Listener<F: Family> {
    fd: Fd,
    _family: PhantomData<F>,
}

impl<F: Family> Listener<F> {
    /// `accept()`: takes the next connection.
    ///
    /// Who the peer is, [`Stream::peer_addr`] says; it is not asked here, as a peer that has already gone would make an
    /// error of a connection whose bytes can still be received.
    ///
    /// # Cancel safety
    /// Dropping it loses no connection silently: one that was taken for nobody is closed, and its peer sees that.
    ///
    /// # Errors
    /// Those of `accept4(2)`, but for `EAGAIN`. Out of descriptors (`EMFILE`, `ENFILE`) leaves the connection in the
    /// backlog, where the next accept finds it: wait before that one, or it spins. `ECONNABORTED` is of one connection
    /// only: accept the next.
    pub fn accept(&self) -> Submission<Accept<Stream<F>>> {
        Submission::new(Accept::new(self.fd.hold()))
    }

    /// `incoming()`: a stream of the connections that come in, from one operation.
    ///
    /// See [`ops::accept_multishot`](crate::ops::accept_multishot) for when it ends, and what an error means.
    ///
    /// # Cancel safety
    /// Dropping it loses no connection silently: those that were taken for nobody are closed, and their peers see that.
    /// [`cancel`](Incoming::cancel) yields them first.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Examples
    /// ```
    /// use futures::StreamExt;
    /// use ringmain::net::{TcpListener, TcpStream};
    ///
    /// ringmain::Runtime::new()?.block_on(async {
    ///     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
    ///     let mut incoming = listener.incoming();
    ///     let _client = TcpStream::connect(listener.local_addr()?).await?;
    ///     let server = incoming.next().await.expect("it does not end")?;
    ///     assert_eq!(server.local_addr()?, listener.local_addr()?);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn incoming(&self) -> Incoming<Stream<F>> {
        Incoming::new(self.fd.hold())
    }

    /// `local_addr()`: the address it listens on, with the port that the kernel chose if it was asked to.
    ///
    /// # Errors
    /// Those of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<F::Address> {
        F::address(SockRef::from(&self.fd).local_addr()?)
    }

    /// `into_std()`: the standard library's twin. It stays non-blocking.
    ///
    /// # Errors
    /// [`InFlight`] gives the listener back while accepts are in flight.
    pub fn into_std(self) -> Result<F::StdListener, InFlight<Self>> {
        match self.fd.into_owned() {
            Ok(fd) => Ok(fd.into()),
            Err(fd) => Err(InFlight::new(Self { fd, _family: PhantomData })),
        }
    }

    pub(super) fn listen(socket: Socket, address: &SockAddr, options: &ListenOptions) -> io::Result<Self> {
        socket.bind(address)?;
        socket.listen(options.backlog_clamped())?;
        Ok(Self { fd: Fd::new(socket.into()), _family: PhantomData })
    }

    /// A listener of the program's own making: it becomes non-blocking, and so do its duplicates, as they share the
    /// flag.
    pub(super) fn adopt(fd: OwnedFd) -> Self {
        let fd = Fd::new(fd);
        fd.set_nonblocking().expect("the flags of an open socket can be set");
        Self { fd, _family: PhantomData }
    }
}

impl<F: Family> AsRef<Fd> for Listener<F> {
    fn as_ref(&self) -> &Fd {
        &self.fd
    }
}

impl<F: Family> AsFd for Listener<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<F: Family> fmt::Debug for Listener<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(F::LISTENER).field("fd", &self.fd.as_fd().as_raw_fd()).finish()
    }
}
