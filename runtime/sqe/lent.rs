//! Receives into lent memory: described without a buffer, which the kernel takes from a group when data has come.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::AddressFamily;

use super::{Encoded, EncodedMultishot, MultishotSqe, Sqe};
use crate::runtime::abi;
use crate::runtime::completion::{Creates, Lending};
use crate::runtime::entry::Entry;
use crate::runtime::frame::Retry;
use crate::runtime::lent::BufferGroup;

impl<'op> Sqe<'op> {
    /// `recv_lent(fd, group)`: receive what comes next on a socket into a buffer that the kernel takes from the group
    /// once it has come. The buffer is the completion's.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{BufferGroup, Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd, BufferGroup);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.recv_lent(copy.as_fd(), &self.1)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn recv_lent(self, fd: BorrowedFd<'op>, group: &BufferGroup) -> io::Result<Encoded<'op>> {
        self.lent(Entry { opcode: abi::RECV, fd: fd.as_raw_fd(), ..Entry::default() }, group, false)
    }

    /// `read_lent(fd, group)`: as [`recv_lent`](Self::recv_lent), from anything that can be read as a stream.
    ///
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}}; use ringmain::{BufferGroup, Completion, Encoded, Operation, Sqe};
    /// struct Bad(OwnedFd, BufferGroup);
    /// impl Operation for Bad {
    ///     type Output = ();
    ///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.read_lent(copy.as_fd(), &self.1)
    ///     }
    ///     fn decode(self, _: Completion) {}
    /// }
    /// ```
    pub fn read_lent(self, fd: BorrowedFd<'op>, group: &BufferGroup) -> io::Result<Encoded<'op>> {
        self.lent(Entry { opcode: abi::READ, fd: fd.as_raw_fd(), off: super::CURSOR, ..Entry::default() }, group, false)
    }

    fn lent(self, entry: Entry, group: &BufferGroup, bundle: bool) -> io::Result<Encoded<'op>> {
        if !group.is_of(self.frame.ticket.ring) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "this group of buffers was lent to another ring; take it from the driver that the operation runs on",
            ));
        }
        self.frame.beside().creates = Creates::Buffer(Lending { group: group.id(), bundle });
        self.frame.retry = Retry::Readable;
        self.finish(Entry { flags: abi::BUFFER_SELECT, buf_index: group.id(), ..entry })
    }
}

impl<'op> MultishotSqe<'op> {
    /// `recv(fd, group, bundle)`: an item for each receive on a socket, or with `bundle` for each buffer of what one
    /// completion brings. Each buffer is its completion's. `bundle` needs a kernel that has it; see
    /// [`Setup::has_receive_bundles`](crate::Setup::has_receive_bundles).
    ///
    /// Without a group there is nothing to receive into, and the kernel would answer `EINVAL`:
    ///
    /// ```compile_fail,E0061
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         sqe.recv(self.0.as_fd())
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{BufferGroup, Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd, BufferGroup);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.recv(copy.as_fd(), &self.1, false)
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn recv(self, fd: BorrowedFd<'op>, group: &BufferGroup, bundle: bool) -> io::Result<EncodedMultishot<'op>> {
        let ioprio = abi::RECV_MULTISHOT | if bundle { abi::RECV_BUNDLE } else { 0 };
        let entry = Entry { opcode: abi::RECV, fd: fd.as_raw_fd(), ioprio, ..Entry::default() };
        self.lent(entry, group, bundle)
    }

    /// `read(fd, group)`: an item for each read of a pipe, or of anything else that can be polled.
    ///
    /// ```compile_fail,E0061
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         sqe.read(self.0.as_fd())
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{BufferGroup, Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd, BufferGroup);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.read(copy.as_fd(), &self.1)
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn read(self, fd: BorrowedFd<'op>, group: &BufferGroup) -> io::Result<EncodedMultishot<'op>> {
        let entry = Entry { opcode: abi::READ_MULTISHOT, fd: fd.as_raw_fd(), off: super::CURSOR, ..Entry::default() };
        self.lent(entry, group, false)
    }

    /// `recvmsg(fd, group, address_bytes, control_bytes)`: an item for each message, whose buffer begins with what the
    /// kernel says of it: four 32-bit numbers of this machine's byte order (bytes of the address, of the control data, of
    /// the payload, and `MSG_*` flags), `address_bytes` bytes of room for the address, `control_bytes` for the control
    /// data, then the payload.
    ///
    /// Control data of a Unix socket is refused: descriptors that come in it would be nobody's. Without room for it the
    /// kernel closes them, and says so by `MSG_CTRUNC`. A group of incremental buffers is refused as well: what is left
    /// of one would cut messages short.
    ///
    /// ```compile_fail,E0061
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         sqe.recvmsg(self.0.as_fd(), 128, 0)
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    /// ```compile_fail,E0515
    /// # use std::{io, os::fd::{AsFd, OwnedFd}};
    /// # use ringmain::{BufferGroup, Completion, EncodedMultishot, MultishotOperation, MultishotSqe};
    /// struct Bad(OwnedFd, BufferGroup);
    /// impl MultishotOperation for Bad {
    ///     type Item = ();
    ///     fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
    ///         let copy = self.0.try_clone()?;
    ///         sqe.recvmsg(copy.as_fd(), &self.1, 128, 0)
    ///     }
    ///     fn item(&self, _: Completion) {}
    /// }
    /// ```
    pub fn recvmsg(
        self,
        fd: BorrowedFd<'op>,
        group: &BufferGroup,
        address_bytes: u16,
        control_bytes: u16,
    ) -> io::Result<EncodedMultishot<'op>> {
        let refusal = |sentence: String| Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        let before = MESSAGE_HEADER_BYTES + usize::from(address_bytes) + usize::from(control_bytes);
        if before >= group.buffer_bytes() {
            return refusal(format!(
                "{before} bytes of header, address and control data leave no room for a payload in buffers of {} \
                 bytes; take larger ones",
                group.buffer_bytes()
            ));
        }
        if group.is_incremental() {
            return refusal("incremental buffers would cut messages short; take a group of whole ones".to_owned());
        }
        if control_bytes > 0 && rustix::net::sockopt::socket_domain(fd)? == AddressFamily::UNIX {
            return refusal(
                "descriptors that come with a message of a Unix socket would be nobody's; ask for no control \
                            data"
                    .to_owned(),
            );
        }
        // The kernel reads the two lengths, once, when it takes the entry.
        let message = self.0.frame.empty_message();
        message.name_len = u32::from(address_bytes);
        message.control_len = usize::from(control_bytes);
        let addr = std::ptr::from_ref(message).expose_provenance() as u64;
        let entry = Entry {
            opcode: abi::RECVMSG,
            fd: fd.as_raw_fd(),
            addr,
            len: 1,
            ioprio: abi::RECV_MULTISHOT,
            ..Entry::default()
        };
        self.lent(entry, group, false)
    }

    fn lent(self, entry: Entry, group: &BufferGroup, bundle: bool) -> io::Result<EncodedMultishot<'op>> {
        self.0.lent(entry, group, bundle).map(|_encoded| EncodedMultishot { _invariant: std::marker::PhantomData })
    }
}

/// `struct io_uring_recvmsg_out`.
const MESSAGE_HEADER_BYTES: usize = 16;
