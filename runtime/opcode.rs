//! The kernel operations this crate uses, each with its name, its age, and what is done without it.

use std::fmt;
use std::io;

/// `IORING_OP_*`: a kernel operation that ringmain submits.
///
/// Which of them a kernel knows is asked from the kernel itself, never derived from its version; the versions
/// given here are for people. See [`is_supported`](crate::is_supported) and
/// [`Setup::supports`](crate::Setup::supports).
///
/// # Examples
///
/// ```
/// use ringmain::Opcode;
///
/// assert_eq!(Opcode::Splice.name(), "IORING_OP_SPLICE");
/// assert_eq!(Opcode::Splice.code(), 30);
/// assert_eq!(Opcode::Splice.since(), "5.7");
/// ```
///
/// # References
///
/// `io_uring_enter(2)`; `include/uapi/linux/io_uring.h`, `enum io_uring_op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Opcode {
    /// `IORING_OP_NOP`: does nothing, and answers.
    Nop = 0,
    /// `IORING_OP_READV`: reads into several buffers.
    Readv = 1,
    /// `IORING_OP_WRITEV`: writes from several buffers.
    Writev = 2,
    /// `IORING_OP_FSYNC`: makes a file's data durable.
    Fsync = 3,
    /// `IORING_OP_READ_FIXED`: reads into registered memory.
    ReadFixed = 4,
    /// `IORING_OP_WRITE_FIXED`: writes from registered memory.
    WriteFixed = 5,
    /// `IORING_OP_POLL_ADD`: waits until a descriptor is ready.
    PollAdd = 6,
    /// `IORING_OP_SENDMSG`: sends from several buffers on a socket.
    Sendmsg = 9,
    /// `IORING_OP_RECVMSG`: receives a message with its address and control data.
    RecvMsg = 10,
    /// `IORING_OP_ACCEPT`: takes a connection from a listener.
    Accept = 13,
    /// `IORING_OP_ASYNC_CANCEL`: cancels an operation in flight.
    AsyncCancel = 14,
    /// `IORING_OP_CONNECT`: connects a socket.
    Connect = 16,
    /// `IORING_OP_OPENAT`: opens a file.
    OpenAt = 18,
    /// `IORING_OP_CLOSE`: closes a descriptor.
    Close = 19,
    /// `IORING_OP_READ`: reads into one buffer.
    Read = 22,
    /// `IORING_OP_WRITE`: writes from one buffer.
    Write = 23,
    /// `IORING_OP_SEND`: sends on a socket.
    Send = 26,
    /// `IORING_OP_RECV`: receives from a socket.
    Recv = 27,
    /// `IORING_OP_SPLICE`: moves pages between a pipe and a descriptor.
    Splice = 30,
    /// `IORING_OP_TEE`: makes a second pipe hold the pages of a first one.
    Tee = 33,
    /// `IORING_OP_SHUTDOWN`: ends one or both directions of a socket.
    Shutdown = 34,
    /// `IORING_OP_SEND_ZC`: sends on a socket, and says later that the memory is free.
    SendZc = 47,
    /// `IORING_OP_SENDMSG_ZC`: the same from several buffers.
    SendmsgZc = 48,
    /// `IORING_OP_READ_MULTISHOT`: reads into lent buffers for as long as something comes.
    ReadMultishot = 49,
    /// `IORING_OP_READV_FIXED`: reads into several pieces of registered memory.
    ReadvFixed = 60,
    /// `IORING_OP_WRITEV_FIXED`: writes from several pieces of registered memory.
    WritevFixed = 61,
}

/// What people want to know of one opcode.
struct About {
    name: &'static str,
    since: &'static str,
    without: &'static str,
}

impl Opcode {
    /// Every opcode, in the kernel's order.
    pub const ALL: &'static [Opcode] = &[
        Opcode::Nop,
        Opcode::Readv,
        Opcode::Writev,
        Opcode::Fsync,
        Opcode::ReadFixed,
        Opcode::WriteFixed,
        Opcode::PollAdd,
        Opcode::Sendmsg,
        Opcode::RecvMsg,
        Opcode::Accept,
        Opcode::AsyncCancel,
        Opcode::Connect,
        Opcode::OpenAt,
        Opcode::Close,
        Opcode::Read,
        Opcode::Write,
        Opcode::Send,
        Opcode::Recv,
        Opcode::Splice,
        Opcode::Tee,
        Opcode::Shutdown,
        Opcode::SendZc,
        Opcode::SendmsgZc,
        Opcode::ReadMultishot,
        Opcode::ReadvFixed,
        Opcode::WritevFixed,
    ];

    /// The number the kernel knows it by.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name the kernel's header gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// The Linux version it came with.
    #[must_use]
    pub const fn since(self) -> &'static str {
        self.about().since
    }

    /// What the crate does where the kernel does not have it: a sentence's end, without a full stop.
    #[must_use]
    pub const fn without(self) -> &'static str {
        self.about().without
    }

    /// The error of an operation whose opcode this kernel does not have.
    ///
    /// The kernel itself would answer `EINVAL`, which reads like a wrong argument.
    #[must_use]
    pub fn unsupported(self) -> io::Error {
        let message = format!(
            "this kernel does not know {}; it needs Linux {} or newer: run a newer kernel",
            self.name(),
            self.since()
        );
        io::Error::new(io::ErrorKind::Unsupported, message)
    }

    /// Versions: the manual page `io_uring_enter(2)`.
    const fn about(self) -> About {
        const FAILS: &str = "the operation fails with ErrorKind::Unsupported";
        let (name, since, without) = match self {
            Opcode::Nop => ("IORING_OP_NOP", "5.1", FAILS),
            Opcode::Readv => ("IORING_OP_READV", "5.1", FAILS),
            Opcode::Writev => ("IORING_OP_WRITEV", "5.1", FAILS),
            Opcode::Fsync => ("IORING_OP_FSYNC", "5.1", FAILS),
            Opcode::ReadFixed => ("IORING_OP_READ_FIXED", "5.1", FAILS),
            Opcode::WriteFixed => ("IORING_OP_WRITE_FIXED", "5.1", FAILS),
            Opcode::PollAdd => ("IORING_OP_POLL_ADD", "5.1", FAILS),
            Opcode::Sendmsg => ("IORING_OP_SENDMSG", "5.3", FAILS),
            Opcode::RecvMsg => ("IORING_OP_RECVMSG", "5.3", FAILS),
            Opcode::Accept => ("IORING_OP_ACCEPT", "5.5", FAILS),
            Opcode::AsyncCancel => {
                ("IORING_OP_ASYNC_CANCEL", "5.5", "a dropped operation is kept until the kernel ends it by itself")
            }
            Opcode::Connect => ("IORING_OP_CONNECT", "5.5", FAILS),
            Opcode::OpenAt => ("IORING_OP_OPENAT", "5.6", FAILS),
            Opcode::Close => ("IORING_OP_CLOSE", "5.6", FAILS),
            Opcode::Read => ("IORING_OP_READ", "5.6", FAILS),
            Opcode::Write => ("IORING_OP_WRITE", "5.6", FAILS),
            Opcode::Send => ("IORING_OP_SEND", "5.6", FAILS),
            Opcode::Recv => ("IORING_OP_RECV", "5.6", FAILS),
            Opcode::Splice => ("IORING_OP_SPLICE", "5.7", "the ring route fails; the inline route works"),
            Opcode::Tee => ("IORING_OP_TEE", "5.8", "the ring route fails; the inline route works"),
            Opcode::Shutdown => ("IORING_OP_SHUTDOWN", "5.11", FAILS),
            Opcode::SendZc => ("IORING_OP_SEND_ZC", "6.0", "zero-copy sends are plain ones"),
            Opcode::SendmsgZc => ("IORING_OP_SENDMSG_ZC", "6.1", "vectored zero-copy sends are plain ones"),
            Opcode::ReadMultishot => ("IORING_OP_READ_MULTISHOT", "6.7", FAILS),
            Opcode::ReadvFixed => ("IORING_OP_READV_FIXED", "6.15", "the same memory is read into by READV"),
            Opcode::WritevFixed => ("IORING_OP_WRITEV_FIXED", "6.15", "the same memory is written by WRITEV"),
        };
        About { name, since, without }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The set of opcodes a kernel answered to have, as bits by number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpcodeSet([u64; 4]);

impl OpcodeSet {
    /// The set of the numbers for which `is_known` is true.
    pub(crate) fn collect(is_known: impl Fn(u8) -> bool) -> OpcodeSet {
        let mut words = [0; 4];
        for code in (0..=u8::MAX).filter(|code| is_known(*code)) {
            words[usize::from(code / 64)] |= 1 << (code % 64);
        }
        OpcodeSet(words)
    }

    pub(crate) fn contains(&self, code: u8) -> bool {
        self.0[usize::from(code / 64)] & (1 << (code % 64)) != 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

impl fmt::Debug for OpcodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..=u8::MAX).filter(|code| self.contains(*code))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    #[test]
    fn the_numbers_are_those_of_the_kernel_header() {
        let from_header = [
            (Opcode::Nop, opcode::Nop::CODE),
            (Opcode::Readv, opcode::Readv::CODE),
            (Opcode::Writev, opcode::Writev::CODE),
            (Opcode::Fsync, opcode::Fsync::CODE),
            (Opcode::ReadFixed, opcode::ReadFixed::CODE),
            (Opcode::WriteFixed, opcode::WriteFixed::CODE),
            (Opcode::PollAdd, opcode::PollAdd::CODE),
            (Opcode::Sendmsg, opcode::SendMsg::CODE),
            (Opcode::RecvMsg, opcode::RecvMsg::CODE),
            (Opcode::Accept, opcode::Accept::CODE),
            (Opcode::AsyncCancel, opcode::AsyncCancel::CODE),
            (Opcode::Connect, opcode::Connect::CODE),
            (Opcode::OpenAt, opcode::OpenAt::CODE),
            (Opcode::Close, opcode::Close::CODE),
            (Opcode::Read, opcode::Read::CODE),
            (Opcode::Write, opcode::Write::CODE),
            (Opcode::Send, opcode::Send::CODE),
            (Opcode::Recv, opcode::Recv::CODE),
            (Opcode::Splice, opcode::Splice::CODE),
            (Opcode::Tee, opcode::Tee::CODE),
            (Opcode::Shutdown, opcode::Shutdown::CODE),
            (Opcode::SendZc, opcode::SendZc::CODE),
            (Opcode::SendmsgZc, opcode::SendMsgZc::CODE),
            (Opcode::ReadMultishot, opcode::ReadMulti::CODE),
            (Opcode::ReadvFixed, opcode::ReadvFixed::CODE),
            (Opcode::WritevFixed, opcode::WritevFixed::CODE),
        ];
        for (ours, header) in from_header {
            assert_eq!(ours.code(), header, "{ours}");
        }
        assert_eq!(Opcode::ALL, from_header.map(|(ours, _)| ours));
    }

    #[test]
    fn a_missing_opcode_is_named_with_the_kernel_it_needs() {
        let error = Opcode::Splice.unsupported();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("IORING_OP_SPLICE"), "{error}");
        assert!(error.to_string().contains("5.7"), "{error}");
    }

    #[test]
    fn a_set_holds_what_it_was_made_of() {
        let set = OpcodeSet::collect(|code| code == 0 || code == 63 || code == 64 || code == 255);
        let held: Vec<u8> = (0..=u8::MAX).filter(|code| set.contains(*code)).collect();
        assert_eq!(held, [0, 63, 64, 255]);
        assert_eq!(set.len(), 4);
    }
}
