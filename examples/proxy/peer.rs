//! Connections and listeners, whichever family they are of.

use std::io;
use std::net::{self, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net as unix_net;
use std::path::Path;
use std::time::Duration;

use ringmain::Fd;
use ringmain::net::{ListenOptions, TcpListener, TcpOptions, TcpStream, UnixListener, UnixStream};
use rustix::io::Errno;

use crate::address::{Address, Place};

/// A listener on its way to the thread that will use it.
#[derive(Debug)]
pub(crate) enum ClosedDoor {
    Tcp(net::TcpListener),
    Unix(unix_net::UnixListener),
}

/// A listener of this thread's ring.
#[derive(Debug)]
pub(crate) enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// One end of a relay.
#[derive(Debug)]
pub(crate) enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Listens, once for each of `threads`, and says where.
///
/// # Errors
/// A sentence that names the address.
pub(crate) fn listen(address: &Address, threads: u32) -> io::Result<(String, Vec<ClosedDoor>)> {
    let listened = match &address.place {
        Place::Tcp(candidates) => listen_tcp(candidates, threads),
        Place::Unix(path) => listen_unix(path, threads),
    };
    let is_path = matches!(address.place, Place::Unix(_));
    let is_socket = matches!(&address.place, Place::Unix(path)
        if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()));
    listened.map_err(|error| {
        let advice = match error.kind() {
            _ if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => "raise `ulimit -n`",
            io::ErrorKind::AddrInUse if is_socket => "end what listens there, or remove the path if nothing does",
            io::ErrorKind::AddrInUse if is_path => "choose another path, as that is no socket",
            io::ErrorKind::NotFound if is_path => "make its directory first",
            io::ErrorKind::AddrInUse => "choose another address, or end what listens there",
            io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
            io::ErrorKind::PermissionDenied => "choose a port of 1024 or more, or a path that you may write",
            _ => "choose another address",
        };
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}; {advice}"))
    })
}

fn listen_tcp(candidates: &[SocketAddr], threads: u32) -> io::Result<(String, Vec<ClosedDoor>)> {
    let options = ListenOptions::new().backlog(4096).reuse_port(threads > 1);
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for &candidate in candidates {
        // Sharing a port would share it with a stranger too: another proxy of this user's that already listens there.
        // A listener that shares nothing finds out.
        if threads > 1
            && candidate.port() != 0
            && let Err(error) = TcpListener::bind(candidate)
        {
            refused = error;
            continue;
        }
        match TcpListener::bind_with(candidate, &options) {
            Ok(first) => {
                let at = first.local_addr()?;
                let mut doors = vec![ClosedDoor::Tcp(first.into_std().map_err(in_flight)?)];
                for _ in 1..threads {
                    doors.push(ClosedDoor::Tcp(TcpListener::bind_with(at, &options)?.into_std().map_err(in_flight)?));
                }
                return Ok((at.to_string(), doors));
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Unix sockets know no shared ports, but any number of threads can accept from one.
fn listen_unix(path: &Path, threads: u32) -> io::Result<(String, Vec<ClosedDoor>)> {
    let first = UnixListener::bind(path)?.into_std().map_err(in_flight)?;
    let mut doors = Vec::new();
    for _ in 1..threads {
        doors.push(ClosedDoor::Unix(first.try_clone()?));
    }
    doors.push(ClosedDoor::Unix(first));
    Ok((format!("unix:{}", path.display()), doors))
}

impl ClosedDoor {
    /// To be called on the thread whose ring takes the connections.
    pub(crate) fn open(self) -> Door {
        match self {
            Self::Tcp(listener) => Door::Tcp(listener.into()),
            Self::Unix(listener) => Door::Unix(listener.into()),
        }
    }
}

impl Door {
    pub(crate) async fn accept(&self) -> io::Result<Peer> {
        match self {
            Self::Tcp(listener) => {
                let stream = listener.accept().await?;
                // A relay hands on what it has; waiting for more to join it is for whoever makes the bytes.
                stream.set_nodelay(true)?;
                Ok(Peer::Tcp(stream))
            }
            Self::Unix(listener) => listener.accept().await.map(Peer::Unix),
        }
    }
}

impl Peer {
    /// Connects to the first address of the upstream that answers, each in the time given.
    pub(crate) async fn connect(to: &Address, limit: Option<Duration>) -> io::Result<Self> {
        match &to.place {
            Place::Unix(path) => within(limit, UnixStream::connect(path)).await.map(Self::Unix),
            Place::Tcp(addresses) => {
                let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for &address in addresses {
                    let options = TcpOptions::new().nodelay(true);
                    match within(limit, TcpStream::connect_with(address, options)).await {
                        Ok(stream) => return Ok(Self::Tcp(stream)),
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
            }
        }
    }

    /// Ends the connection so that the other side sees that it was broken off.
    ///
    /// A plain close would look like the end of the stream, and what was cut short like all there was. Unix sockets
    /// know no such difference; they are just closed.
    pub(crate) fn reset(self) {
        let Self::Tcp(stream) = &self else { return };
        // Not by a linger time of zero: that resets on close, which polls in flight would put off.
        match rustix::net::connect_unspec(stream) {
            Ok(()) | Err(Errno::NOTCONN) => {}
            Err(error) => tracing::warn!(%error, "a connection could not be reset; it is closed instead"),
        }
    }
}

impl AsRef<Fd> for Peer {
    fn as_ref(&self) -> &Fd {
        match self {
            Self::Tcp(stream) => stream.as_ref(),
            Self::Unix(stream) => stream.as_ref(),
        }
    }
}

/// A connect has no time limit of its own but the system's. Dropping it closes its socket.
async fn within<T>(limit: Option<Duration>, connect: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let Some(limit) = limit else { return connect.await };
    match ringmain::timeout(limit, connect).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", limit.as_secs_f64())))
        }
    }
}

/// A listener that was just made has nothing in flight; if it had, this is what would be said.
fn in_flight(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
