//! Sockets: receive, send, accept, connect, shut down.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use socket2::SockAddr;

use super::{Destination, Encoded, EncodedMultishot, MultishotSqe, Sqe, sealed};
use crate::runtime::abi;
use crate::runtime::completion::Creates;
use crate::runtime::entry::Entry;
use crate::runtime::frame::Retry;

impl<'op> Sqe<'op> {
    /// `recv(fd, into)`: fill a region from a connected socket.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.recv(self.0.as_fd(), &mut vec![0u8; 16][..])
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn recv<D: Destination + ?Sized>(self, fd: BorrowedFd<'op>, into: &'op mut D) -> io::Result<Encoded<'op>> {
        let (region, len) = sealed::Destination::arm(into, self.frame.ticket, 0)?;
        self.transfer(abi::RECV, fd, region, len, Some(0), Retry::Readable)
    }

    /// `peek(fd, into)`: fill a region from a connected socket, and leave the bytes to be received.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.peek(self.0.as_fd(), &mut vec![0u8; 16][..])
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn peek<D: Destination + ?Sized>(self, fd: BorrowedFd<'op>, into: &'op mut D) -> io::Result<Encoded<'op>> {
        let encoded = self.recv(fd, into)?;
        encoded.frame.entry.op_flags = abi::MSG_PEEK;
        Ok(encoded)
    }

    /// `send(fd, from)`: send a region on a connected socket. Never raises `SIGPIPE`.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         sqe.send(self.0.as_fd(), String::from("gone").as_bytes())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn send(self, fd: BorrowedFd<'op>, from: &'op [u8]) -> io::Result<Encoded<'op>> {
        let region = NonNull::from(from).cast();
        self.transfer(abi::SEND, fd, region, from.len(), Some(0), Retry::Writable)
    }

    /// `accept(fd)`: take a connection off a listening socket, close-on-exec and non-blocking. The new descriptor is
    /// the completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.accept(copy.as_fd())
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn accept(self, fd: BorrowedFd<'op>) -> io::Result<Encoded<'op>> {
        self.frame.beside().creates = Creates::Descriptor;
        self.frame.retry = Retry::Readable;
        self.finish(accept_entry(fd))
    }

    /// `connect(fd, address)`: connect a socket.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let address = socket2::SockAddr::unix("/gone")?;
    ///         sqe.connect(self.0.as_fd(), &address)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn connect(self, fd: BorrowedFd<'op>, address: &'op SockAddr) -> io::Result<Encoded<'op>> {
        self.finish(Entry {
            opcode: abi::CONNECT,
            fd: fd.as_raw_fd(),
            addr: address.as_ptr().expose_provenance() as u64,
            off: u64::from(address.len()),
            ..Entry::default()
        })
    }

    /// `shutdown(fd, how)`: end one or both directions of a connection.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.shutdown(copy.as_fd(), std::net::Shutdown::Both)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn shutdown(self, fd: BorrowedFd<'op>, how: Shutdown) -> io::Result<Encoded<'op>> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        self.finish(Entry { opcode: abi::SHUTDOWN, fd: fd.as_raw_fd(), len: how.unsigned_abs(), ..Entry::default() })
    }
}

impl<'op> MultishotSqe<'op> {
    /// `accept(fd)`: an item for each connection; each new descriptor is its completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.accept(copy.as_fd())
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn accept(self, fd: BorrowedFd<'op>) -> io::Result<EncodedMultishot<'op>> {
        self.0.frame.beside().creates = Creates::Descriptor;
        let entry = Entry { ioprio: abi::ACCEPT_MULTISHOT, ..accept_entry(fd) };
        self.finish(entry)
    }
}

fn accept_entry(fd: BorrowedFd<'_>) -> Entry {
    Entry {
        opcode: abi::ACCEPT,
        fd: fd.as_raw_fd(),
        op_flags: (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).unsigned_abs(),
        ..Entry::default()
    }
}
