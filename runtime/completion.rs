//! One completion, and what it created.
//!
//! A completion says a count or an errno. For some opcodes the count is a new descriptor: then the opcode's method
//! on `Sqe` said so when the entry was encoded, and the [`Completion`] *owns* that descriptor from the moment it is
//! reaped. A completion nobody looks at closes it; a completion of any other opcode has none to give. In the same way
//! it owns the buffer that the kernel took from a group of lent ones, and returns its pages if nobody takes it.
#![allow(unsafe_code, reason = "takes ownership of the descriptor that the kernel has just created")]

use std::io;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{FromRawFd, OwnedFd};

use super::buf::Ticket;
use super::registry::FixedBuf;

/// `ERESTARTSYS`: a running splice or tee that was interrupted answers this instead of `EINTR`, a number that never
/// reaches user space otherwise (`io_uring/splice.c` has no fix-up for it).
const ERESTARTSYS: i32 = 512;

/// What an opcode's success brings into being.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Creates {
    /// The result is a count.
    #[default]
    Nothing,
    /// The result is a new descriptor.
    Descriptor,
    /// The result is a count, of bytes in a buffer that the kernel took from a group.
    Buffer(Lending),
}

/// How an entry takes lent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lending {
    /// The number of the group.
    pub(crate) group: u16,
    /// One completion may fill several consecutive buffers.
    pub(crate) bundle: bool,
}

/// The answer to one operation: a result, its flags, and what a success created.
#[derive(Debug)]
pub struct Completion {
    /// The kernel's count, or its negated errno.
    result: i32,
    flags: u32,
    ticket: Ticket,
    brought: Brought,
    // Bound to the thread of its ring, like everything it could be compared with.
    _ring_thread: PhantomData<*const ()>,
}

/// What a completion has beside its numbers, if it has anything.
///
/// What lets go of it is one call, out of line. The plain version, an enum, compiles what lets go of each kind into every
/// `decode`, and keeps a completion in memory for that, of which nearly every operation looks at one number.
#[derive(Debug)]
struct Brought(ManuallyDrop<What>);

#[derive(Debug)]
enum What {
    Nothing,
    /// The kernel never saw the operation.
    Refusal(io::Error),
    Descriptor(OwnedFd),
    Buffer(FixedBuf),
}

impl Brought {
    #[inline(always)]
    fn new(what: What) -> Self {
        Self(ManuallyDrop::new(what))
    }

    #[inline]
    fn take(&mut self) -> What {
        ManuallyDrop::into_inner(mem::replace(&mut self.0, ManuallyDrop::new(What::Nothing)))
    }

    #[cold]
    #[inline(never)]
    fn let_go(&mut self) {
        drop(self.take());
    }
}

impl Drop for Brought {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(*self.0, What::Nothing) {
            self.let_go();
        }
    }
}

/// What the kernel has answered, as the slot keeps it until the future takes it: small, and it owns what a success
/// created.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Answer {
    /// `creates` must be what the opcode's method recorded for the entry that this result answers.
    #[inline]
    pub(crate) fn new(result: i32, flags: u32, creates: Creates) -> Self {
        let descriptor = match creates {
            Creates::Descriptor if result >= 0 => {
                // SAFETY: I3 identity. The result answers an entry whose opcode makes a descriptor, and each result
                // is turned into an answer once, so this is the only owner of a number that the kernel has just
                // made. Guarded by `a_cancelled_accept_leaks_no_descriptor`.
                Some(unsafe { OwnedFd::from_raw_fd(result) })
            }
            _ => None,
        };
        // Bytes that lie nowhere: what came with a buffer is no count alone.
        let is_nowhere = matches!(creates, Creates::Buffer(_)) && result > 0;
        Self { result: if is_nowhere { -libc::EIO } else { result }, flags, descriptor }
    }
}

impl Completion {
    /// The count, or the error with the kernel's errno.
    ///
    /// An operation that was cancelled while it ran answers `ECANCELED`, whichever of its internal numbers the
    /// kernel used. An error from before the kernel saw the operation is handed out once, whole; asked again, only
    /// its kind is left.
    #[inline]
    pub fn result(&mut self) -> io::Result<u32> {
        if self.result >= 0 {
            return Ok(self.result.unsigned_abs());
        }
        Err(match &mut *self.brought.0 {
            What::Refusal(error) => hand_out(error),
            _ => io::Error::from_raw_os_error(errno(self.result)),
        })
    }

    /// Whether the operation ended because it was cancelled (`ECANCELED`).
    pub fn was_cancelled(&self) -> bool {
        match &*self.brought.0 {
            What::Refusal(error) => error.raw_os_error() == Some(libc::ECANCELED),
            _ => self.result < 0 && errno(self.result) == libc::ECANCELED,
        }
    }

    /// The completion's raw flags (`IORING_CQE_F_*`).
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The descriptor that the operation created, once. `None` for an error, and for every opcode that creates none.
    #[inline]
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        match self.brought.take() {
            What::Descriptor(descriptor) => Some(descriptor),
            what => {
                self.brought = Brought::new(what);
                None
            }
        }
    }

    /// The buffer that the kernel took from a group for this, once, with the bytes that came; it is whoever takes it
    /// who returns its pages. `None` where no byte came, and for every operation that was described with a buffer of
    /// its own.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<FixedBuf> {
        match self.brought.take() {
            What::Buffer(buffer) => Some(buffer),
            what => {
                self.brought = Brought::new(what);
                None
            }
        }
    }

    /// The same, with the lent buffer that the kernel took for it.
    #[inline(always)]
    pub(crate) fn with_buffer(self, buffer: Option<FixedBuf>) -> Self {
        match buffer {
            Some(buffer) => Self { brought: Brought::new(What::Buffer(buffer)), ..self },
            None => self,
        }
    }

    /// The same, with the descriptor that a success has made.
    #[inline(always)]
    pub(crate) fn with_descriptor(self, descriptor: Option<OwnedFd>) -> Self {
        match descriptor {
            Some(descriptor) => Self { brought: Brought::new(What::Descriptor(descriptor)), ..self },
            None => self,
        }
    }

    /// Which submission this answers: the proof [`Fill`](super::buf::Fill) asks for.
    #[inline(always)]
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// The completion of an operation that the kernel has answered.
    ///
    /// `creates` must be what the opcode's method recorded for the entry that this result answers.
    pub(crate) fn answered(ticket: Ticket, result: i32, flags: u32, creates: Creates) -> Self {
        let Answer { result, flags, descriptor } = Answer::new(result, flags, creates);
        Self::counted(ticket, result, flags).with_descriptor(descriptor)
    }

    /// The completion of an operation that the kernel has answered by its numbers alone.
    #[inline(always)]
    pub(crate) fn counted(ticket: Ticket, result: i32, flags: u32) -> Self {
        Self { result, flags, ticket, brought: Brought::new(What::Nothing), _ring_thread: PhantomData }
    }

    /// The completion of an operation that never reached the kernel.
    pub(crate) fn refused(ticket: Ticket, error: io::Error) -> Self {
        // The error itself says why; the number only says that it is none of the kernel's.
        let brought = Brought::new(What::Refusal(error));
        Self { result: -libc::EINVAL, flags: 0, ticket, brought, _ring_thread: PhantomData }
    }
}

/// The error of an operation that was refused, once, and from then on its kind.
#[cold]
fn hand_out(error: &mut io::Error) -> io::Error {
    let left = io::Error::from(error.kind());
    mem::replace(error, left)
}

/// The errno a negated result stands for.
#[inline]
pub(crate) fn errno(result: i32) -> i32 {
    match -result {
        ERESTARTSYS => libc::ECANCELED,
        errno => errno,
    }
}

/// Whether a result says that a signal, not an error, ended the operation.
pub(crate) fn is_interrupted(result: i32) -> bool {
    result == -libc::EINTR || result == -ERESTARTSYS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket { ring: 1, sequence: 1 }
    }

    #[test]
    fn an_interrupted_splice_reads_as_cancelled() {
        let mut completion = Completion::answered(ticket(), -512, 0, Creates::Nothing);
        assert!(completion.was_cancelled());
        assert_eq!(completion.result().unwrap_err().raw_os_error(), Some(125));
    }

    #[test]
    fn an_errno_arrives_unchanged() {
        let mut completion = Completion::answered(ticket(), -32, 0, Creates::Descriptor);
        assert_eq!(completion.result().unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert!(completion.take_descriptor().is_none());
    }

    #[test]
    fn a_count_is_never_a_descriptor() {
        let mut completion = Completion::answered(ticket(), 1, 0, Creates::Nothing);
        assert!(completion.take_descriptor().is_none());
    }

    #[test]
    fn a_refusal_hands_its_error_out_whole_and_once() {
        let mut completion =
            Completion::refused(ticket(), io::Error::new(io::ErrorKind::InvalidInput, "the buffer has no capacity"));
        assert_eq!(completion.result().unwrap_err().to_string(), "the buffer has no capacity");
        assert_eq!(completion.result().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
