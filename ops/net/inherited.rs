//! Sockets that the process was started with, by systemd or by whoever speaks as it does.

use std::env;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;
use socket2::{Domain, SockRef, Type};

use super::{Listener, TcpListener, UnixListener};

/// The first of the descriptors (`SD_LISTEN_FDS_START`).
const FIRST: u64 = 3;

/// A socket that the process was started with: [`inherited_listeners`].
#[derive(Debug)]
pub struct Inherited {
    /// What `LISTEN_FDNAMES` calls it (`FileDescriptorName=` in a systemd socket unit).
    pub name: Option<String>,
    /// The socket.
    pub socket: InheritedSocket,
}

/// What an [`Inherited`] is.
#[derive(Debug)]
pub enum InheritedSocket {
    /// A listener of TCP.
    Tcp(TcpListener),
    /// A listener of Unix sockets of the stream type.
    Unix(UnixListener),
    /// Something else, with its flags as they were, but for close-on-exec.
    Other(OwnedFd),
}

/// `inherited_listeners()`: takes the sockets that the process was started with (`LISTEN_FDS`), in their order.
///
/// None, if the variables are not there or are for another process (`LISTEN_PID`). All become close-on-exec, and
/// listeners non-blocking. Call it once, before anything else makes use of the descriptors from number 3 on; the
/// variables stay, and mean nothing to a child, whose process id is another one.
///
/// # Errors
/// * `InvalidData`, with a sentence: a variable is no number, or a descriptor that they promise is not open. Nothing is
///   taken.
/// * `AlreadyExists`: they have been taken before.
///
/// # Examples
/// ```
/// use ringmain::net::{InheritedSocket, TcpListener, inherited_listeners};
///
/// let given = inherited_listeners()?.into_iter().find_map(|inherited| match inherited.socket {
///     InheritedSocket::Tcp(listener) => Some(listener),
///     _ => None,
/// });
/// let listener = match given {
///     Some(listener) => listener,
///     None => TcpListener::bind("127.0.0.1:0".parse().unwrap())?,
/// };
/// # drop(listener);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// `sd_listen_fds(3)`, `systemd.socket(5)`.
#[doc(alias = "LISTEN_FDS")]
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let Some(count) = promised()? else {
        return Ok(Vec::new());
    };
    // No number may be owned twice,
    if TAKEN.swap(true, Ordering::Relaxed) {
        let sentence = "the sockets that this process was started with have been taken; take them once";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, sentence));
    }
    // and none that is not open.
    for number in FIRST..FIRST + count {
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err() {
            TAKEN.store(false, Ordering::Relaxed);
            let sentence = format!("LISTEN_FDS promises {count} descriptors from 3 on, and {number} is not open");
            return Err(io::Error::new(io::ErrorKind::InvalidData, sentence));
        }
    }
    let given = sd_listen_fds::get().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    given
        .into_iter()
        .map(|(name, socket)| Ok(Inherited { name, socket: InheritedSocket::new(socket.into_std())? }))
        .collect()
}

impl InheritedSocket {
    /// Take a descriptor of any kind over, as what it is: how a process takes over those that
    /// [`recv_descriptors`](super::Stream::recv_descriptors) has brought.
    ///
    /// It becomes close-on-exec, and a listener non-blocking.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&fd, rustix::io::fcntl_getfd(&fd)? | FdFlags::CLOEXEC)?;
        Ok(match family_of_listener(&fd) {
            Some(Domain::IPV4 | Domain::IPV6) => Self::Tcp(Listener::adopt(fd)),
            Some(Domain::UNIX) => Self::Unix(Listener::adopt(fd)),
            _ => Self::Other(fd),
        })
    }
}

/// How many descriptors the variables promise to this process.
fn promised() -> io::Result<Option<u64>> {
    let number = |name: &str| match env::var_os(name) {
        None => Ok(None),
        Some(value) => match value.to_str().and_then(|value| value.parse::<u32>().ok()) {
            Some(number) => Ok(Some(number)),
            None => {
                let sentence = format!("{name} is {value:?}, which is no number");
                Err(io::Error::new(io::ErrorKind::InvalidData, sentence))
            }
        },
    };
    match (number("LISTEN_PID")?, number("LISTEN_FDS")?) {
        (Some(process), Some(count)) if process == std::process::id() => Ok(Some(count.into())),
        _ => Ok(None),
    }
}

/// The family of a socket of the stream type that listens; `None` for everything else.
fn family_of_listener(fd: &impl AsFd) -> Option<Domain> {
    let socket = SockRef::from(fd);
    let is_listener = socket.is_listener().unwrap_or(false) && socket.r#type().is_ok_and(|kind| kind == Type::STREAM);
    if is_listener { socket.domain().ok() } else { None }
}
