//! The operations of the scripts: one of each kind of memory and of each rule for retries.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use ringmain::{Completion, Encoded, Fill, FixedBuf, Operation, SpliceFlags, Sqe};
use rustix::io::Errno;

/// How much each operation asks to move.
pub(super) const BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nop,
    Read,
    Write,
    ReadFixed,
    WriteFixed,
    Splice,
    Accept,
    SendZc,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Nop,
        Self::Read,
        Self::Write,
        Self::ReadFixed,
        Self::WriteFixed,
        Self::Splice,
        Self::Accept,
        Self::SendZc,
    ];

    /// By `include/uapi/linux/io_uring.h`.
    pub(super) fn opcode(self) -> u8 {
        match self {
            Self::Nop => 0,
            Self::ReadFixed => 4,
            Self::WriteFixed => 5,
            Self::Accept => 13,
            Self::Read => 22,
            Self::Write => 23,
            Self::Splice => 30,
            Self::SendZc => 47,
        }
    }

    pub(super) fn is_fixed(self) -> bool {
        matches!(self, Self::ReadFixed | Self::WriteFixed)
    }

    /// Whether `EAGAIN` and signals stay between the runtime and the kernel.
    pub(super) fn is_retried(self) -> bool {
        !matches!(self, Self::Nop | Self::Splice)
    }

    /// The largest result.
    pub(super) fn most(self) -> i32 {
        if self == Self::Nop { 0 } else { BYTES as i32 }
    }
}

/// One operation, its memory, and a token that tells when it ends.
#[derive(Debug)]
pub(super) struct Played {
    kind: Kind,
    fd: Rc<OwnedFd>,
    memory: Memory,
    token: Token,
}

#[derive(Debug)]
enum Memory {
    Plain(Fill<Vec<u8>>),
    Source(Vec<u8>),
    Lease(Fill<FixedBuf>),
    LeasedSource(FixedBuf),
}

/// What an operation came to: the kernel's result, a descriptor if it made one, and all that went in.
#[derive(Debug)]
pub(super) struct Output {
    result: io::Result<usize>,
    descriptor: Option<OwnedFd>,
    filled: Option<Vec<u8>>,
    _token: Token,
}

impl Played {
    pub(super) fn new(kind: Kind, fd: Rc<OwnedFd>, lease: Option<FixedBuf>, token: Token) -> Self {
        let memory = match (kind, lease) {
            (Kind::ReadFixed, Some(lease)) => Memory::Lease(Fill::new(lease)),
            (Kind::WriteFixed, Some(mut lease)) => {
                lease.set_len(BYTES);
                Memory::LeasedSource(lease)
            }
            (Kind::Read, _) => Memory::Plain(Fill::new(Vec::with_capacity(BYTES))),
            _ => Memory::Source(vec![7; BYTES]),
        };
        Self { kind, fd, memory, token }
    }
}

impl Operation for Played {
    type Output = Output;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let fd = self.fd.as_fd();
        match (self.kind, &mut self.memory) {
            (Kind::Accept, _) => sqe.accept(fd),
            (Kind::Splice, _) => sqe.splice(fd, None, fd, None, BYTES, SpliceFlags::empty()),
            (Kind::SendZc, Memory::Source(bytes)) => sqe.send_zc(fd, bytes),
            (Kind::Write, Memory::Source(bytes)) => sqe.write(fd, bytes, None),
            (_, Memory::Plain(fill)) => sqe.read(fd, fill, None),
            (_, Memory::Lease(fill)) => sqe.read_fixed(fd, fill, None),
            (_, Memory::LeasedSource(lease)) => sqe.write_fixed(fd, lease, None),
            (_, Memory::Source(_)) => sqe.nop(),
        }
    }

    fn decode(self, mut completion: Completion) -> Output {
        let descriptor = completion.take_descriptor();
        let (result, filled) = match self.memory {
            Memory::Plain(fill) => {
                let (result, bytes) = fill.finish(completion);
                (result, Some(bytes))
            }
            Memory::Lease(fill) => {
                let (result, bytes) = fill.finish(completion);
                (result, Some(bytes.to_vec()))
            }
            Memory::Source(_) | Memory::LeasedSource(_) => (completion.result().map(|count| count as usize), None),
        };
        Output { result, descriptor, filled, _token: self.token }
    }
}

impl Output {
    /// Whether this is what the kernel said.
    pub(super) fn check(&self, kind: Kind, expected: i32) {
        match &self.result {
            Ok(count) => assert_eq!(i32::try_from(*count), Ok(expected), "{kind:?} reports the kernel's count"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(-expected), "{kind:?} reports the kernel's errno"),
        }
        let made = kind == Kind::Accept && expected >= 0;
        assert_eq!(self.descriptor.is_some(), made, "{kind:?} gives a descriptor exactly when it made one");
        if let (Some(bytes), Ok(count)) = (&self.filled, &self.result) {
            assert_eq!(bytes, &vec![0xA5; *count], "{kind:?} shows the bytes that came, and no others");
        }
    }
}

/// How often the token of each operation was dropped.
#[derive(Debug, Default)]
pub(super) struct Drops(Rc<RefCell<Vec<usize>>>);

#[derive(Debug)]
pub(super) struct Token {
    id: usize,
    drops: Rc<RefCell<Vec<usize>>>,
}

impl Drops {
    pub(super) fn token(&self, id: usize) -> Token {
        let mut drops = self.0.borrow_mut();
        assert_eq!(drops.len(), id, "tokens are numbered in order");
        drops.push(0);
        Token { id, drops: Rc::clone(&self.0) }
    }

    pub(super) fn of(&self, id: usize) -> usize {
        self.0.borrow()[id]
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.drops.borrow_mut()[self.id] += 1;
    }
}

pub(super) fn errno(errno: Errno) -> i32 {
    errno.raw_os_error()
}
