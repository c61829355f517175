//! The copy route: bytes through a buffer, by system calls that do not wait, or in the ring where there are none.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::ops::route::{End, Kind};
use crate::ops::{BufResult, Read, Recv, Send, Write};
use crate::runtime::{Driver, IoBuf, Slice, Submission};

/// A read into or a write out of a buffer that is with the kernel: of a file that a disk can block, or of a device
/// that knows no way not to wait.
#[derive(Debug)]
pub(super) enum RingCopy {
    Read(Submission<Read<Slice<Vec<u8>>>>),
    Write(Submission<Write<Slice<Vec<u8>>>>),
}

impl RingCopy {
    /// Read up to `most` bytes.
    pub(super) fn read(from: &End, buffer: Vec<u8>, most: usize) -> Self {
        Self::Read(Submission::new(Read::new(from.hold.clone(), buffer.slice(..most), from.offset)))
    }

    /// Write what is in the buffer from `at` on.
    pub(super) fn write(to: &End, buffer: Vec<u8>, at: usize) -> Self {
        Self::Write(Submission::new(Write::new(to.hold.clone(), buffer.slice(at..), to.offset)))
    }

    pub(super) fn request_cancel(&mut self) {
        match self {
            Self::Read(read) => read.request_cancel(),
            Self::Write(write) => write.request_cancel(),
        }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        match self {
            Self::Read(read) => read.is_in_flight(),
            Self::Write(write) => write.is_in_flight(),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BufResult<Vec<u8>>> {
        let outcome = match self {
            Self::Read(read) => Pin::new(read).poll(cx),
            Self::Write(write) => Pin::new(write).poll(cx),
        };
        outcome.map(|(outcome, slice)| (outcome, slice.into_inner()))
    }
}

/// Take up to `most` bytes of what the source has into this buffer, if it has something.
pub(super) fn take_now(driver: &Driver, from: &End, kind: Kind, buffer: Vec<u8>, most: usize) -> BufResult<Vec<u8>> {
    if kind == Kind::Socket && most >= buffer.capacity() && !driver.is_played() {
        return receive(driver, from, buffer);
    }
    let room = buffer.slice(..most);
    // A socket is received from, because that never waits, whatever its flags; a pipe's own flags see to it.
    let (outcome, slice) = if kind == Kind::Socket {
        let recv = driver.attempt(Recv::new(from.hold.clone(), room));
        recv.unwrap_or_else(|recv| would_block(recv.into_buffer()))
    } else {
        let read = driver.attempt(Read::new(from.hold.clone(), room, None));
        read.unwrap_or_else(|read| would_block(read.into_buffer()))
    };
    (outcome, slice.into_inner())
}

/// Give the sink what is in this buffer from `at` on, as much as it takes now.
pub(super) fn give_now(driver: &Driver, to: &End, kind: Kind, buffer: Vec<u8>, at: usize) -> BufResult<Vec<u8>> {
    if kind == Kind::Socket && !driver.is_played() {
        return (transmit(driver, to, &buffer[at..]), buffer);
    }
    let rest = buffer.slice(at..);
    let (outcome, slice) = if kind == Kind::Socket {
        let send = driver.attempt(Send::new(to.hold.clone(), rest));
        send.unwrap_or_else(|send| would_block(send.into_buffer()))
    } else {
        let write = driver.attempt(Write::new(to.hold.clone(), rest, None));
        write.unwrap_or_else(|write| would_block(write.into_buffer()))
    };
    (outcome, slice.into_inner())
}

/// `recv(2)`, as it stands.
///
/// The plain version is an attempt of [`Recv`], as below, which is the same call and some 300 instructions more: to
/// describe an entry, and to read it. Nothing here can outlive the call, and so needs neither.
fn receive(driver: &Driver, from: &End, mut buffer: Vec<u8>) -> BufResult<Vec<u8>> {
    buffer.clear();
    let room = rustix::buffer::spare_capacity(&mut buffer);
    driver.metrics().attempts.add(1);
    let outcome = rustix::net::recv(&from.hold, room, RecvFlags::DONTWAIT);
    (outcome.map(|(count, _)| count).map_err(io::Error::from), buffer)
}

/// `send(2)`, as it stands: see [`receive`].
fn transmit(driver: &Driver, to: &End, bytes: &[u8]) -> io::Result<usize> {
    driver.metrics().attempts.add(1);
    Ok(rustix::net::send(&to.hold, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

/// Whether this is the kernel saying that it cannot do this without waiting, whether or not there is something to wait
/// for: a terminal, a pipe in blocking mode.
pub(super) fn only_waits(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

fn would_block<B>(buffer: B) -> BufResult<B> {
    (Err(io::Error::from(io::ErrorKind::WouldBlock)), buffer)
}
