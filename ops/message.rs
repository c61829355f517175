use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr as UnixAddr;

use crate::runtime::FixedBuf;

/// Room for any address that the kernel has (`struct sockaddr_storage`), in bytes.
pub(super) const ADDRESS_BYTES: u16 = 128;

/// `struct io_uring_recvmsg_out`: four 32-bit numbers.
const HEADER_BYTES: usize = 16;

/// One message of [`recvmsg_multishot`](super::recvmsg_multishot()): a page with its payload, its sender's address, and
/// its control data.
pub struct Message {
    buffer: FixedBuf,
    address_len: usize,
    control: [usize; 2],
    payload: [usize; 2],
    flags: u32,
}

impl Message {
    /// Read what the kernel says of a message, at the front of its buffer. Its lengths are of what there was, which can be
    /// more than there was room for.
    pub(super) fn new(buffer: FixedBuf, control_bytes: u16) -> io::Result<Self> {
        let number = |at: usize| -> Option<u32> {
            let bytes = buffer.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let header = [number(0), number(4), number(8), number(12)];
        let [Some(address_len), Some(control_len), Some(payload_len), Some(flags)] = header else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is shorter than its header"));
        };
        let control_start = HEADER_BYTES + usize::from(ADDRESS_BYTES);
        let start = control_start + usize::from(control_bytes);
        if buffer.len() < start {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is shorter than its header says"));
        }
        Ok(Self {
            address_len: (address_len as usize).min(usize::from(ADDRESS_BYTES)),
            control: [control_start, control_start + (control_len as usize).min(usize::from(control_bytes))],
            payload: [start, (start + payload_len as usize).min(buffer.len())],
            flags,
            buffer,
        })
    }

    /// `payload()`: what was sent.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let [start, end] = self.payload;
        &self.buffer[start..end]
    }

    /// `into_payload()`: the part of the page that holds the payload, as a lease of its own.
    #[must_use]
    pub fn into_payload(mut self) -> FixedBuf {
        let [start, end] = self.payload;
        self.buffer.truncate(end);
        drop(self.buffer.split_to(start));
        self.buffer
    }

    /// `address()`: who sent it, if that is an address of the internet's.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        let raw = self.raw_address();
        let port = u16::from_be_bytes(array(raw, 2)?);
        match i32::from(u16::from_ne_bytes(array(raw, 0)?)) {
            libc::AF_INET => Some(SocketAddrV4::new(Ipv4Addr::from(array::<4>(raw, 4)?), port).into()),
            libc::AF_INET6 => {
                let flow = u32::from_be_bytes(array(raw, 4)?);
                let scope = u32::from_ne_bytes(array(raw, 24)?);
                Some(SocketAddrV6::new(Ipv6Addr::from(array::<16>(raw, 8)?), port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// `unix_address()`: who sent it, if that is a Unix socket that has a name.
    #[must_use]
    pub fn unix_address(&self) -> Option<UnixAddr> {
        let raw = self.raw_address();
        if i32::from(u16::from_ne_bytes(array(raw, 0)?)) != libc::AF_UNIX {
            return None;
        }
        match raw.get(2..)? {
            [] => None,
            [0, name @ ..] => UnixAddr::from_abstract_name(name).ok(),
            path => {
                let path = path.split(|byte| *byte == 0).next()?;
                UnixAddr::from_pathname(std::ffi::OsStr::from_bytes(path)).ok()
            }
        }
    }

    /// `raw_address()`: who sent it, as the kernel's `struct sockaddr` of whatever family. Empty where there is none.
    #[must_use]
    pub fn raw_address(&self) -> &[u8] {
        &self.buffer[HEADER_BYTES..HEADER_BYTES + self.address_len]
    }

    /// `control()`: the control data, as the kernel's sequence of `struct cmsghdr`.
    #[must_use]
    pub fn control(&self) -> &[u8] {
        let [start, end] = self.control;
        &self.buffer[start..end]
    }

    /// `is_truncated()`: whether the payload was longer than the buffer (`MSG_TRUNC`).
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.flags & libc::MSG_TRUNC.unsigned_abs() != 0
    }

    /// `is_control_truncated()`: whether there was more control data than room for it (`MSG_CTRUNC`).
    #[must_use]
    pub fn is_control_truncated(&self) -> bool {
        self.flags & libc::MSG_CTRUNC.unsigned_abs() != 0
    }

    /// Whether it has neither bytes nor a sender, as the end of a stream has.
    pub(super) fn is_empty(&self) -> bool {
        self.payload().is_empty() && self.address_len == 0
    }
}

/// So many bytes from a place on, if they are there.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl fmt::Debug for Message {
    /// The lengths, not the bytes: they may be somebody's secret, and are many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("address", &self.address())
            .field("payload_len", &self.payload().len())
            .field("control_len", &self.control().len())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
