//! Where the bytes are that have left the source and not reached the sink.

use std::cell::RefCell;

use super::stopped::Residue;
use crate::ops::pipe::PooledPipe;

/// Room of a buffer that bytes are copied through.
pub(super) const COPY_BYTES: usize = 64 * 1024;

/// A buffer with so little left in it is exchanged for one that fits, if its sink has to be waited for.
const COMPACT_BYTES: usize = COPY_BYTES / 4;

#[derive(Debug)]
pub(super) enum Carrier {
    Nothing,
    Pipe {
        pipe: PooledPipe,
        inside: usize,
        filled: bool,
    },
    Buffer {
        bytes: Vec<u8>,
        from: usize,
        filled: bool,
    },
    /// The buffer is with the kernel, which gives what lies from `from` up to `len` to the sink.
    Away {
        from: usize,
        len: usize,
        filled: bool,
    },
}

/// The buffer that all relays of a driver copy through, while nobody has it.
///
/// The plain version leases pages of the registry for each message, and takes a third more instructions for one of 64
/// bytes. Most messages leave as soon as they come, so that one buffer does for all, and stays in the processor's
/// cache. A connection whose sink is full takes it away, and the next one gets another.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    free: RefCell<Option<Vec<u8>>>,
}

impl Scratch {
    /// A buffer with room for [`COPY_BYTES`].
    pub(super) fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().take().unwrap_or_else(|| Vec::with_capacity(COPY_BYTES))
    }

    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        if buffer.capacity() >= COPY_BYTES {
            let surplus = self.free.borrow_mut().replace(buffer);
            drop(surplus);
        }
    }
}

impl Carrier {
    /// Bytes inside.
    pub(super) fn inside(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Pipe { inside, .. } => *inside,
            Self::Buffer { bytes, from, .. } => bytes.len() - from,
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

    /// Give the pipe or the buffer back. A pipe with bytes in it is closed, and they are lost.
    pub(super) fn let_go(&mut self, scratch: Option<&Scratch>) {
        match std::mem::replace(self, Self::Nothing) {
            Self::Pipe { pipe, inside, .. } => pipe.give_back(inside),
            Self::Buffer { bytes, .. } => {
                if let Some(scratch) = scratch {
                    scratch.give_back(bytes);
                }
            }
            Self::Nothing | Self::Away { .. } => {}
        }
    }

    /// The sink has to be waited for, maybe for long: keep no more memory than there are bytes.
    pub(super) fn compact(&mut self, scratch: &Scratch) {
        if let Self::Buffer { bytes, from, .. } = self
            && bytes.capacity() >= COPY_BYTES
            && bytes.len() - *from <= COMPACT_BYTES
        {
            let rest = bytes[*from..].to_vec();
            scratch.give_back(std::mem::replace(bytes, rest));
            *from = 0;
        }
    }

    /// The bytes inside, for somebody else.
    pub(super) fn into_residue(mut self) -> Option<Residue> {
        if self.inside() == 0 {
            self.let_go(None);
        }
        match self {
            Self::Nothing | Self::Away { .. } => None,
            Self::Pipe { pipe, inside, .. } => Some(Residue::Pipe(pipe.into_reader(), inside)),
            Self::Buffer { mut bytes, from, .. } => {
                bytes.drain(..from);
                Some(Residue::Bytes(bytes))
            }
        }
    }
}
