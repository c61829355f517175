use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{Connecting, Family, ListenOptions, Listener, Stream, sealed};

/// The family of Unix sockets of the stream type.
#[derive(Debug)]
pub enum Unix {}

/// A Unix connection: a [`Stream`].
pub type UnixStream = Stream<Unix>;

/// A Unix socket that takes connections: a [`Listener`].
pub type UnixListener = Listener<Unix>;

impl Family for Unix {
    type Address = SocketAddr;
    type StdStream = net::UnixStream;
    type StdListener = net::UnixListener;
}

impl sealed::Family for Unix {
    type Options = ();
    const STREAM: &str = "UnixStream";
    const LISTENER: &str = "UnixListener";

    fn address(address: SockAddr) -> io::Result<SocketAddr> {
        if let Some(path) = address.as_pathname() {
            SocketAddr::from_pathname(path)
        } else if let Some(name) = address.as_abstract_namespace() {
            SocketAddr::from_abstract_name(name)
        } else {
            // The empty path is how the standard library writes an address without a name.
            SocketAddr::from_pathname("")
        }
    }

    fn socket(_address: &SockAddr, _options: &()) -> io::Result<Socket> {
        stream_socket()
    }
}

impl Listener<Unix> {
    /// `bind(path)`: listens on a path, with the options of [`ListenOptions::new`].
    ///
    /// The path must not exist yet, and stays when the listener goes: removing it is the program's business.
    ///
    /// # Errors
    /// Those of `bind(2)` and `listen(2)`; `InvalidInput` for a path of more than 107 bytes (`unix(7)`).
    ///
    /// # Examples
    /// ```
    /// use ringmain::net::{UnixListener, UnixStream};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("socket");
    /// ringmain::Runtime::new()?.block_on(async {
    ///     let listener = UnixListener::bind(&path)?;
    ///     let mut client = UnixStream::connect(&path).await?;
    ///     client.send_all("hello").await.0?;
    ///     let (count, _) = listener.accept().await?.recv(vec![0; 16]).await;
    ///     assert_eq!(count?, 5);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_at(SockAddr::unix(path)?, &ListenOptions::new())
    }

    /// `bind_with(address, options)`: listens on a path or an abstract name (`unix(7)`).
    ///
    /// Of the options, only the backlog means anything here.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(address: &SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        Self::bind_at(of_std(address)?, options)
    }

    fn bind_at(address: SockAddr, options: &ListenOptions) -> io::Result<Self> {
        Self::listen(Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?, &address, options)
    }
}

impl Stream<Unix> {
    /// `connect(path)`: connects to a path. Waits when the listener's backlog is full, as [`Connecting`] says.
    ///
    /// # Cancel safety
    /// Dropping it closes the socket; the peer may have seen a connection that ends at once.
    ///
    /// # Errors
    /// Those of `socket(2)` and `connect(2)`; `InvalidInput` for a path of more than 107 bytes (`unix(7)`).
    ///
    /// # Kernel
    /// `IORING_OP_CONNECT`, Linux 5.5.
    pub fn connect(path: impl AsRef<Path>) -> Connecting<Unix> {
        Connecting::new(SockAddr::unix(path), ())
    }

    /// `connect_to(address)`: as [`connect`](Self::connect), to a path or an abstract name (`unix(7)`).
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to(address: &SocketAddr) -> Connecting<Unix> {
        Connecting::new(of_std(address), ())
    }

    /// `pair()`: two streams that are connected to each other.
    ///
    /// # Errors
    /// Those of `socketpair(2)`.
    ///
    /// # Examples
    /// ```
    /// let (mut left, right) = ringmain::net::UnixStream::pair()?;
    /// ringmain::Runtime::new()?.block_on(async {
    ///     left.send_all("hello").await.0?;
    ///     assert_eq!(right.recv(vec![0; 16]).await.0?, 5);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pair() -> io::Result<(Self, Self)> {
        let (left, right) = net::UnixStream::pair()?;
        Ok((left.into(), right.into()))
    }
}

/// The stream becomes non-blocking, and so do its clones (`try_clone`), as they share the flag.
impl From<net::UnixStream> for Stream<Unix> {
    fn from(stream: net::UnixStream) -> Self {
        Self::adopt(stream.into())
    }
}

/// The listener becomes non-blocking, and so do its clones (`try_clone`), as they share the flag.
impl From<net::UnixListener> for Listener<Unix> {
    fn from(listener: net::UnixListener) -> Self {
        Self::adopt(listener.into())
    }
}

fn stream_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
}

fn of_std(address: &SocketAddr) -> io::Result<SockAddr> {
    if let Some(path) = address.as_pathname() {
        return SockAddr::unix(path);
    }
    // A first byte of zero makes a name abstract (`unix(7)`); nothing at all makes an address without a name.
    let name = address.as_abstract_name().map(|name| [b"\0", name].concat()).unwrap_or_default();
    SockAddr::unix(OsStr::from_bytes(&name))
}
