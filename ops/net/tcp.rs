use std::io;
use std::net::{self, IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::{Connecting, Family, ListenOptions, Listener, Stream, TcpOptions, sealed};

/// The family of TCP over IPv4 and IPv6.
#[derive(Debug)]
pub enum Tcp {}

/// A TCP connection: a [`Stream`].
pub type TcpStream = Stream<Tcp>;

/// A TCP socket that takes connections: a [`Listener`].
pub type TcpListener = Listener<Tcp>;

impl Family for Tcp {
    type Address = SocketAddr;
    type StdStream = net::TcpStream;
    type StdListener = net::TcpListener;
}

impl sealed::Family for Tcp {
    type Options = TcpOptions;
    const STREAM: &str = "TcpStream";
    const LISTENER: &str = "TcpListener";

    fn address(address: SockAddr) -> io::Result<SocketAddr> {
        address.as_socket().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "this socket is not of IPv4 or IPv6, so it has no such address")
        })
    }

    fn socket(address: &SockAddr, options: &TcpOptions) -> io::Result<Socket> {
        let socket = stream_socket(address.domain())?;
        options.apply(&socket, address.is_ipv6())?;
        Ok(socket)
    }
}

impl Listener<Tcp> {
    /// `bind(address)`: listens on an address, with the options of [`ListenOptions::new`].
    ///
    /// # Errors
    /// Those of `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` for a privileged port.
    ///
    /// # Examples
    /// ```
    /// let listener = ringmain::net::TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, &ListenOptions::new())
    }

    /// `bind_with(address, options)`: listens on an address.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), and those of `setsockopt(2)`.
    pub fn bind_with(address: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let at = SockAddr::from(address);
        let socket = stream_socket(at.domain())?;
        options.apply(&socket, address.is_ipv6())?;
        Self::listen(socket, &at, options)
    }
}

impl Stream<Tcp> {
    /// `connect(address)`: connects to an address. Resolves no names.
    ///
    /// # Cancel safety
    /// Dropping it closes the socket; the peer may have seen a connection that ends at once.
    ///
    /// # Errors
    /// Those of `socket(2)` and `connect(2)`.
    ///
    /// # Kernel
    /// `IORING_OP_CONNECT`, Linux 5.5.
    pub fn connect(address: SocketAddr) -> Connecting<Tcp> {
        Self::connect_with(address, TcpOptions::new())
    }

    /// `connect_with(address, options)`: as [`connect`](Self::connect), with a choice of options.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and those of `setsockopt(2)` and `bind(2)`.
    pub fn connect_with(address: SocketAddr, options: TcpOptions) -> Connecting<Tcp> {
        Connecting::new(Ok(address.into()), options)
    }

    /// `nodelay()`: whether small sends leave at once.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().tcp_nodelay()
    }

    /// `set_nodelay(yes)`: whether small sends leave at once, instead of waiting for an acknowledgement to join more
    /// to them (`TCP_NODELAY`, `tcp(7)`).
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_nodelay(&self, yes: bool) -> io::Result<()> {
        self.socket().set_tcp_nodelay(yes)
    }

    /// `keepalive()`: how long the connection must be idle before the peer is probed, or `None` if it never is.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        let socket = self.socket();
        if socket.keepalive()? { socket.tcp_keepalive_time().map(Some) } else { Ok(None) }
    }

    /// `set_keepalive(times)`: probe an idle peer, and end the connection when it is silent (`SO_KEEPALIVE`,
    /// `tcp(7)`); or never. What the times leave open stays as it is, at first by `net.ipv4.tcp_keepalive_*`.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_keepalive(&self, times: Option<&TcpKeepalive>) -> io::Result<()> {
        match times {
            Some(times) => self.socket().set_tcp_keepalive(times),
            None => self.socket().set_keepalive(false),
        }
    }

    /// `keepalive_interval()`: the time between two probes of a peer that does not answer them (`TCP_KEEPINTVL`).
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn keepalive_interval(&self) -> io::Result<Duration> {
        self.socket().tcp_keepalive_interval()
    }

    /// `keepalive_retries()`: how many probes without an answer end the connection (`TCP_KEEPCNT`).
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn keepalive_retries(&self) -> io::Result<u32> {
        self.socket().tcp_keepalive_retries()
    }

    /// `user_timeout()`: how long what was sent may stay without an acknowledgement, or `None` if the kernel decides.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        self.socket().tcp_user_timeout()
    }

    /// `set_user_timeout(time)`: ends the connection with `ETIMEDOUT` when what was sent, or probed for, has had no
    /// acknowledgement for so long (`TCP_USER_TIMEOUT`, `tcp(7)`); `None` leaves that to the kernel, which tries for
    /// some 15 minutes.
    ///
    /// It counts whole milliseconds, rounded up. Together with a keepalive, it decides when probes have failed, and
    /// their number does not.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`: `EINVAL` for more than 24 days.
    pub fn set_user_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        set_user_timeout(&self.socket(), time)
    }

    /// `original_destination()`: where the peer wanted to go, for a connection that the firewall has redirected here
    /// (`REDIRECT`, `DNAT`).
    ///
    /// One that came by `TPROXY` has it as its [`local_addr`](Self::local_addr), as has one that was not redirected.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`: `ENOENT` when the connection has not been tracked, `ENOPROTOOPT` when the kernel does
    /// not track any.
    ///
    /// # Kernel
    /// `SO_ORIGINAL_DST` and `IP6T_SO_ORIGINAL_DST`, with `nf_conntrack`.
    #[doc(alias = "SO_ORIGINAL_DST")]
    pub fn original_destination(&self) -> io::Result<SocketAddr> {
        // An IPv4 connection of an IPv6 socket is tracked as what it is.
        let address = match self.local_addr()?.ip().to_canonical() {
            IpAddr::V4(_) => self.socket().original_dst_v4()?,
            IpAddr::V6(_) => self.socket().original_dst_v6()?,
        };
        <Tcp as sealed::Family>::address(address)
    }

    /// `linger()`: how long a close waits for unsent bytes, or `None` if the kernel sends them by itself.
    ///
    /// # Errors
    /// Those of `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket().linger()
    }

    /// `set_linger(time)`: what a close does with unsent bytes (`SO_LINGER`, `socket(7)`): `None` leaves them to the
    /// kernel, zero throws them away and resets the connection.
    ///
    /// Any other time makes the close wait, and with it the whole runtime: choose one of the two.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    pub fn set_linger(&self, time: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(time)
    }
}

/// The stream becomes non-blocking, and so do its clones (`try_clone`), as they share the flag.
impl From<net::TcpStream> for Stream<Tcp> {
    fn from(stream: net::TcpStream) -> Self {
        Self::adopt(stream.into())
    }
}

/// The listener becomes non-blocking, and so do its clones (`try_clone`), as they share the flag.
impl From<net::TcpListener> for Listener<Tcp> {
    fn from(listener: net::TcpListener) -> Self {
        Self::adopt(listener.into())
    }
}

/// `TCP_USER_TIMEOUT` counts milliseconds, and 0 means none: a time that is shorter than one becomes one.
pub(super) fn set_user_timeout(socket: &Socket, time: Option<Duration>) -> io::Result<()> {
    let whole = time
        .map(|time| Duration::from_millis(time.as_nanos().div_ceil(1_000_000).max(1).try_into().unwrap_or(u64::MAX)));
    socket.set_tcp_user_timeout(whole)
}

fn stream_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))
}
