//! What the two ends of a direction allow, found out once.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::net::SocketType;

use super::flow::{RelayRoute, RouteReason};
use crate::ops::route::{End, Kind, is_blocking_socket};

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) from: Kind,
    pub(super) to: Kind,
    /// Whether a splice is possible at all; if not, why.
    pub(super) splices: Result<(), RouteReason>,
    /// One end is a pipe itself, so that no other is needed between them.
    pub(super) is_direct: bool,
    /// The source, or the sink, can block on a disk, or the caller wants the ring.
    pub(super) ring_in: bool,
    pub(super) ring_out: bool,
    /// A read of the source, or a write to the sink, has to go through the ring: no call is certain not to wait.
    pub(super) waits_in: bool,
    pub(super) waits_out: bool,
}

impl Plan {
    pub(super) fn new(from: &End, to: &End, route: RelayRoute) -> io::Result<Self> {
        let (source, sink) = (Kind::of(from.hold.as_fd())?, Kind::of(to.hold.as_fd())?);
        for (end, kind, name) in [(from, source, "source"), (to, sink, "sink")] {
            if kind == Kind::Socket {
                refuse_no_stream(end, name)?;
            }
            if end.offset.is_some() && kind != Kind::Disk {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("the {name} of this relay is no file on a disk and has no offset; leave the offset out"),
                ));
            }
        }
        if source == Kind::Pipe && sink == Kind::Pipe && is_same(from, to)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "both ends of this relay are the same pipe, which would go round for ever; give it another one",
            ));
        }
        let forces_splice = matches!(route, RelayRoute::Inline | RelayRoute::Ring);
        let splices = match (hindrance(from, source)?, hindrance(to, sink)?) {
            _ if route == RelayRoute::Copy => Err(RouteReason::Forced),
            (None, None) => Ok(()),
            _ if forces_splice
                && (is_blocking_socket(from.hold.as_fd(), source)? || is_blocking_socket(to.hold.as_fd(), sink)?) =>
            {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a stream of this relay is a blocking socket, on which a splice would hold the pipe's lock while it \
                     waits; make it non-blocking, or let the relay copy",
                ));
            }
            // Somebody who insists on a splice into a file in append mode hears of it from the kernel.
            _ if forces_splice => Ok(()),
            (Some(reason), _) | (None, Some(reason)) => Err(reason),
        };
        let is_ring = route == RelayRoute::Ring;
        Ok(Self {
            from: source,
            to: sink,
            splices,
            is_direct: source == Kind::Pipe || sink == Kind::Pipe,
            ring_in: is_ring || route == RelayRoute::Auto && source == Kind::Disk,
            ring_out: is_ring || route == RelayRoute::Auto && sink == Kind::Disk,
            waits_in: source == Kind::Disk,
            waits_out: sink == Kind::Disk,
        })
    }

    /// Whether the source can be asked by a poll if it has something.
    pub(super) fn can_poll_source(&self) -> bool {
        self.from != Kind::Disk
    }
}

/// Datagrams and packets have bounds that a copy of a stream does not keep, and no end; a listener has no bytes.
fn refuse_no_stream(end: &End, name: &str) -> io::Result<()> {
    let what = if rustix::net::sockopt::socket_type(&end.hold)? != SocketType::STREAM {
        "a socket of datagrams or packets, which is no stream; receive and send those one by one"
    } else if rustix::net::sockopt::socket_acceptconn(&end.hold)? {
        "a listening socket; accept a connection from it first"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the {name} of this relay is {what}")))
}

fn is_same(from: &End, to: &End) -> io::Result<bool> {
    let (from, to) = (rustix::fs::fstat(from.hold.as_fd())?, rustix::fs::fstat(to.hold.as_fd())?);
    Ok((from.st_dev, from.st_ino) == (to.st_dev, to.st_ino))
}

/// What keeps this end out of a splice.
fn hindrance(end: &End, kind: Kind) -> io::Result<Option<RouteReason>> {
    let blocks = matches!(kind, Kind::Socket | Kind::Device);
    if !blocks && kind != Kind::Disk {
        return Ok(None);
    }
    let flags = rustix::fs::fcntl_getfl(end.hold.as_fd())?;
    Ok(if blocks && !flags.contains(OFlags::NONBLOCK) {
        Some(RouteReason::Blocking)
    } else if flags.contains(OFlags::APPEND) {
        Some(RouteReason::NoSplice)
    } else {
        None
    })
}
