use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Socket, TcpKeepalive};

use super::tcp::set_user_timeout;

/// What can be chosen for a listener before it listens, and for the streams that it accepts.
///
/// # Examples
/// ```
/// use ringmain::net::{ListenOptions, TcpListener};
///
/// // One of several listeners on a port: the kernel spreads the connections over them.
/// let options = ListenOptions::new().backlog(4096).reuse_port(true);
/// let listener = TcpListener::bind_with("127.0.0.1:0".parse().unwrap(), &options)?;
/// let twin = TcpListener::bind_with(listener.local_addr()?, &options)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ListenOptions {
    backlog: u32,
    reuse_address: bool,
    reuse_port: bool,
    only_v6: Option<bool>,
    transparent: bool,
    of_streams: StreamOptions,
}

/// What a TCP stream gets by its own options, or from the listener that accepts it.
#[derive(Clone, Debug, Default)]
struct StreamOptions {
    nodelay: Option<bool>,
    keepalive: Option<TcpKeepalive>,
    user_timeout: Option<Duration>,
}

impl ListenOptions {
    /// `new()`: a backlog of 1,024 and addresses reused, as the standard library's listeners; ports not shared.
    pub fn new() -> Self {
        Self {
            backlog: 1024,
            reuse_address: true,
            reuse_port: false,
            only_v6: None,
            transparent: false,
            of_streams: StreamOptions::default(),
        }
    }

    /// `backlog(connections)`: how many connections wait for an accept at most; the kernel bounds it by
    /// `net.core.somaxconn` (`listen(2)`).
    #[must_use]
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// `reuse_address(yes)`: whether to bind although connections of an earlier listener linger (`SO_REUSEADDR`,
    /// `socket(7)`).
    #[must_use]
    pub fn reuse_address(mut self, yes: bool) -> Self {
        self.reuse_address = yes;
        self
    }

    /// `reuse_port(yes)`: whether several listeners of one user share the port, each with a backlog of its own
    /// (`SO_REUSEPORT`, `socket(7)`). Of no use to Unix sockets.
    #[must_use]
    pub fn reuse_port(mut self, yes: bool) -> Self {
        self.reuse_port = yes;
        self
    }

    /// `only_v6(yes)`: whether a listener on an IPv6 address takes no IPv4 connections (`IPV6_V6ONLY`, `ipv6(7)`).
    ///
    /// Unset, `net.ipv6.bindv6only` decides.
    #[must_use]
    pub fn only_v6(mut self, yes: bool) -> Self {
        self.only_v6 = Some(yes);
        self
    }

    /// `transparent(yes)`: whether it may listen on addresses that are not this machine's, and take connections that
    /// `TPROXY` brings (`IP_TRANSPARENT`, `ip(7)`). Needs `CAP_NET_ADMIN`.
    #[must_use]
    pub fn transparent(mut self, yes: bool) -> Self {
        self.transparent = yes;
        self
    }

    /// `nodelay(yes)`: whether small sends of the streams that it accepts leave at once, as by
    /// [`TcpStream::set_nodelay`](super::TcpStream::set_nodelay). They have it from the listener, without a system
    /// call for each.
    #[must_use]
    pub fn nodelay(mut self, yes: bool) -> Self {
        self.of_streams.nodelay = Some(yes);
        self
    }

    /// `keepalive(times)`: probe idle peers of the streams that it accepts, as by
    /// [`TcpStream::set_keepalive`](super::TcpStream::set_keepalive). They have it from the listener.
    #[must_use]
    pub fn keepalive(mut self, times: TcpKeepalive) -> Self {
        self.of_streams.keepalive = Some(times);
        self
    }

    /// `user_timeout(time)`: how long what the streams that it accepts have sent may stay without an acknowledgement,
    /// as by [`TcpStream::set_user_timeout`](super::TcpStream::set_user_timeout). They have it from the listener.
    #[must_use]
    pub fn user_timeout(mut self, time: Duration) -> Self {
        self.of_streams.user_timeout = Some(time);
        self
    }

    /// Choose all that is of TCP alone.
    pub(super) fn apply(&self, socket: &Socket, is_v6: bool) -> io::Result<()> {
        socket.set_reuse_address(self.reuse_address)?;
        if self.transparent {
            set_transparent(socket, is_v6)?;
        }
        self.of_streams.apply(socket)?;
        if self.reuse_port {
            socket.set_reuse_port(true)?;
        }
        match self.only_v6 {
            Some(only_v6) if is_v6 => socket.set_only_v6(only_v6),
            _ => Ok(()),
        }
    }

    pub(super) fn backlog_clamped(&self) -> i32 {
        i32::try_from(self.backlog).unwrap_or(i32::MAX)
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What can be chosen for a TCP stream before it connects.
///
/// Buffer sizes belong here: how large the window can become is settled while connecting (`tcp(7)`).
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    of_stream: StreamOptions,
    transparent: bool,
    linger: Option<Duration>,
    send_buffer_size: Option<usize>,
    recv_buffer_size: Option<usize>,
    bind: Option<SocketAddr>,
}

impl TcpOptions {
    /// `new()`: everything as the kernel has it.
    pub fn new() -> Self {
        Self::default()
    }

    /// `nodelay(yes)`: whether small sends leave at once. See [`TcpStream::set_nodelay`](super::TcpStream::set_nodelay).
    #[must_use]
    pub fn nodelay(mut self, yes: bool) -> Self {
        self.of_stream.nodelay = Some(yes);
        self
    }

    /// `keepalive(times)`: probe an idle peer. See [`TcpStream::set_keepalive`](super::TcpStream::set_keepalive).
    #[must_use]
    pub fn keepalive(mut self, times: TcpKeepalive) -> Self {
        self.of_stream.keepalive = Some(times);
        self
    }

    /// `user_timeout(time)`: how long what was sent may stay without an acknowledgement, the connect's own first packet
    /// included. See [`TcpStream::set_user_timeout`](super::TcpStream::set_user_timeout).
    #[must_use]
    pub fn user_timeout(mut self, time: Duration) -> Self {
        self.of_stream.user_timeout = Some(time);
        self
    }

    /// `transparent(yes)`: whether [`bind`](Self::bind) may name an address that is not this machine's, such as the
    /// client's (`IP_TRANSPARENT`, `ip(7)`). Needs `CAP_NET_ADMIN`, and routes that bring the answers here.
    #[must_use]
    pub fn transparent(mut self, yes: bool) -> Self {
        self.transparent = yes;
        self
    }

    /// `linger(time)`: what a close does with unsent bytes. See [`TcpStream::set_linger`](super::TcpStream::set_linger).
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// `send_buffer_size(bytes)`: asks for room to send. See [`Stream::set_send_buffer_size`](super::Stream::set_send_buffer_size).
    #[must_use]
    pub fn send_buffer_size(mut self, bytes: usize) -> Self {
        self.send_buffer_size = Some(bytes);
        self
    }

    /// `recv_buffer_size(bytes)`: asks for room to receive. See [`Stream::set_recv_buffer_size`](super::Stream::set_recv_buffer_size).
    #[must_use]
    pub fn recv_buffer_size(mut self, bytes: usize) -> Self {
        self.recv_buffer_size = Some(bytes);
        self
    }

    /// `bind(address)`: the address to connect from; port 0 lets the kernel choose one.
    #[must_use]
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.bind = Some(address);
        self
    }

    pub(super) fn apply(&self, socket: &Socket, is_v6: bool) -> io::Result<()> {
        if self.transparent {
            set_transparent(socket, is_v6)?;
        }
        self.of_stream.apply(socket)?;
        if self.linger.is_some() {
            socket.set_linger(self.linger)?;
        }
        if let Some(bytes) = self.send_buffer_size {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.recv_buffer_size {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(address) = self.bind {
            socket.bind(&address.into())?;
        }
        Ok(())
    }
}

impl StreamOptions {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        if let Some(yes) = self.nodelay {
            socket.set_tcp_nodelay(yes)?;
        }
        if let Some(times) = &self.keepalive {
            socket.set_tcp_keepalive(times)?;
        }
        if self.user_timeout.is_some() {
            set_user_timeout(socket, self.user_timeout)?;
        }
        Ok(())
    }
}

fn set_transparent(socket: &Socket, is_v6: bool) -> io::Result<()> {
    if is_v6 { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) }
}
