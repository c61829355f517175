//! Where the bytes are that have left the source and not reached the sink.

use super::stopped::Residue;
use crate::ops::pipe::PooledPipe;
use crate::runtime::{Driver, FixedBuf};

#[derive(Debug)]
pub(super) enum Carrier {
    Nothing,
    Pipe {
        pipe: PooledPipe,
        inside: usize,
        filled: bool,
    },
    Buffer {
        buffer: Buffer,
        from: usize,
        filled: bool,
    },
    /// The page is with the kernel, which gives what lies from `from` up to `len` to the sink.
    Away {
        from: usize,
        len: usize,
        filled: bool,
    },
}

/// A page of the registry, or of the heap when the registry has none to give.
#[derive(Debug)]
pub(super) enum Buffer {
    Leased(FixedBuf),
    Heap(Vec<u8>),
}

impl Carrier {
    /// Bytes inside.
    pub(super) fn inside(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Pipe { inside, .. } => *inside,
            Self::Buffer { buffer, from, .. } => buffer.len() - from,
            Self::Away { from, len, .. } => len - from,
        }
    }

    /// Whether the last hop in took all that there was room for, so that there may well be more.
    pub(super) fn was_filled(&self) -> bool {
        matches!(self, Self::Pipe { filled: true, .. } | Self::Buffer { filled: true, .. })
    }

    pub(super) fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe { .. })
    }

    /// So many bytes have left.
    pub(super) fn gave(&mut self, count: usize) {
        match self {
            Self::Pipe { inside, .. } => *inside -= count,
            Self::Buffer { from, .. } => *from += count,
            Self::Nothing | Self::Away { .. } => {}
        }
    }

    /// Give the pipe or the page back. A pipe with bytes in it is closed, and they are lost.
    pub(super) fn let_go(&mut self) {
        if let Self::Pipe { pipe, inside, .. } = std::mem::replace(self, Self::Nothing) {
            pipe.give_back(inside);
        }
    }

    /// The bytes inside, for somebody else.
    pub(super) fn into_residue(mut self) -> Option<Residue> {
        if self.inside() == 0 {
            self.let_go();
        }
        match self {
            Self::Nothing | Self::Away { .. } => None,
            Self::Pipe { pipe, inside, .. } => Some(Residue::Pipe(pipe.into_reader(), inside)),
            Self::Buffer { buffer: Buffer::Leased(mut page), from, .. } => Some(Residue::Page(page.split_off(from))),
            Self::Buffer { buffer: Buffer::Heap(mut bytes), from, .. } => {
                bytes.drain(..from);
                Some(Residue::Bytes(bytes))
            }
        }
    }
}

impl Buffer {
    /// Room for this many bytes.
    pub(super) fn new(driver: &Driver, bytes: usize) -> Self {
        match driver.registry().try_lease(bytes) {
            Some(page) => Self::Leased(page),
            None => Self::Heap(Vec::with_capacity(bytes)),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leased(page) => page.len(),
            Self::Heap(bytes) => bytes.len(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        match self {
            Self::Leased(page) => page.capacity(),
            Self::Heap(bytes) => bytes.capacity(),
        }
    }
}
