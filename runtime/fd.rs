//! A descriptor that several handles share and that stays open while the kernel works on it.
//!
//! Two counts, because they mean two things. *Handles* are what the program holds: when the last one goes, the
//! program has closed the file, so what is pending on it is cancelled and a connection is shut down, and the peer
//! sees it at once. *Operations* are what the kernel may still use: the number is closed, and can be given to another
//! file, only after the last of them has completed. `close(2)` alone does neither: io_uring holds its own reference
//! to the file, so the peer of a pending receive would never learn of it, and a number that is free too early is the
//! next file's.

use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::driver::Driver;
use super::zero_copy::ZeroCopy;

/// A handle on a shared descriptor. Cloning it makes another handle on the same one.
#[derive(Debug)]
pub struct Fd {
    shared: Rc<Shared>,
}

/// An operation's hold on a descriptor: keeps the number from being closed, but not the connection from being hung
/// up.
#[derive(Debug)]
pub struct FdHold {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    fd: OwnedFd,
    handles: Cell<usize>,
    holds: Cell<usize>,
    /// Made by the first send that could be a zero-copy one.
    zero_copy: OnceCell<Rc<ZeroCopy>>,
}

impl Fd {
    /// Take a descriptor over. Its flags are left as they are.
    pub fn new(fd: OwnedFd) -> Self {
        let shared = Shared { fd, handles: Cell::new(1), holds: Cell::new(0), zero_copy: OnceCell::new() };
        Self { shared: Rc::new(shared) }
    }

    /// What an operation keeps of it.
    #[inline]
    pub fn hold(&self) -> FdHold {
        self.shared.hold()
    }

    /// The descriptor itself, if this is the last handle and no operation holds it; otherwise the handle back.
    pub fn into_owned(self) -> Result<OwnedFd, Self> {
        if self.shared.handles.get() > 1 || self.shared.holds.get() > 0 {
            return Err(self);
        }
        let shared = Rc::clone(&self.shared);
        // No operation holds it, so dropping the handle hangs nothing up.
        drop(self);
        Ok(Rc::into_inner(shared).expect("the last handle is the last owner").fd)
    }

    /// A second descriptor for the same open file, for the standard library's types: it shares the file's status
    /// flags and position.
    ///
    /// # Errors
    /// Out of descriptors (`EMFILE`, `ENFILE`).
    pub fn try_clone_to_owned(&self) -> io::Result<OwnedFd> {
        self.shared.fd.try_clone()
    }

    /// Make sure that system calls on this file answer `EAGAIN` instead of waiting.
    ///
    /// The flag belongs to the open file, which other processes may share: this is for files that the program made
    /// or was given for its own.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.shared.fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            rustix::fs::fcntl_setfl(&self.shared.fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(())
    }
}

impl FdHold {
    /// Whether every handle has gone.
    pub fn is_hung_up(&self) -> bool {
        self.shared.handles.get() == 0
    }

    /// What is known of zero-copy sends on this socket.
    pub(crate) fn zero_copy(&self) -> &Rc<ZeroCopy> {
        self.shared.zero_copy.get_or_init(Rc::default)
    }
}

impl Clone for Fd {
    fn clone(&self) -> Self {
        self.shared.handles.set(self.shared.handles.get() + 1);
        Self { shared: Rc::clone(&self.shared) }
    }
}

impl Clone for FdHold {
    fn clone(&self) -> Self {
        self.shared.hold()
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let left = self.shared.handles.get() - 1;
        self.shared.handles.set(left);
        if left == 0 && self.shared.holds.get() > 0 {
            self.shared.hang_up();
        }
    }
}

impl Drop for FdHold {
    #[inline]
    fn drop(&mut self) {
        self.shared.holds.set(self.shared.holds.get() - 1);
    }
}

impl AsFd for Fd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl AsRef<Fd> for Fd {
    #[inline]
    fn as_ref(&self) -> &Fd {
        self
    }
}

impl AsFd for FdHold {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

impl Shared {
    #[inline]
    fn hold(self: &Rc<Self>) -> FdHold {
        self.holds.set(self.holds.get() + 1);
        FdHold { shared: Rc::clone(self) }
    }

    fn hang_up(&self) {
        // A listening socket has no peer to be told, and may be shared with a process that goes on with it: a shutdown
        // would end the listening there too. The cancel alone ends what is pending here.
        if rustix::net::sockopt::socket_acceptconn(&self.fd) != Ok(true) {
            self.shut_down();
        }
        Driver::hang_up(self.fd.as_fd());
    }

    fn shut_down(&self) {
        match rustix::net::shutdown(&self.fd, Shutdown::Both) {
            // A pipe or file has no connection, and a connection that never was, or is no more, needs no end.
            Ok(()) | Err(Errno::NOTSOCK | Errno::NOTCONN) => {}
            Err(error) => {
                tracing::warn!(fd = self.fd.as_raw_fd(), %error, "a connection could not be shut down")
            }
        }
    }
}
