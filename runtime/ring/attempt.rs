//! One encoded entry tried at once, as the plain system call it stands for, without waiting.
//!
//! The kernel hands every ring splice to a worker thread, which costs some ten times the call itself. Where both
//! ends can be polled it is cheaper to try the call and, on `EAGAIN`, to wait with a poll in the ring. The entry
//! stays the one description of the operation, so a scripted ring can play an attempt like anything else.
//!
//! An attempt answers what the completion would: a count, or a negative error number. `-EAGAIN` says that it
//! would wait, `-EOPNOTSUPP` that only the ring can do this entry. What cannot be done faithfully without the
//! ring (links, fixed descriptors, provided buffers, multishot, `MSG_WAITALL`) is refused and never approximated.
//!
//! Two things are the caller's: a socket in a splice must be `O_NONBLOCK`, since `SPLICE_F_NONBLOCK` acts on pipe
//! ends only and a blocking socket sleeps holding the pipe's mutex (`fs/splice.c`, `splice_file_to_pipe`); and
//! `SIGPIPE`, which splice and write raise where it is not ignored (the Rust runtime ignores it in `main`).
//!
//! Invariants: I1 ownership and I2 address, for the length of the call.

#![allow(unsafe_code, reason = "plain system calls on the addresses of an encoded entry")]

use std::ffi::c_int;
use std::io;
use std::ptr;

use crate::runtime::entry::Entry;
use crate::runtime::opcode::Opcode;

/// `SPLICE_F_FD_IN_FIXED` of `include/uapi/linux/io_uring.h`: the input is a slot of the ring's table.
const SPLICE_F_FD_IN_FIXED: u32 = 1 << 31;

/// Runs `entry` as one system call that does not wait; the result is a count or a negative error number.
///
/// # Safety
///
/// Every address in `entry` must be valid, for the length the entry gives and in the direction its opcode implies,
/// until this returns: by I1 nobody else touches that memory meanwhile.
pub(super) unsafe fn attempt(entry: &Entry) -> i32 {
    if entry.flags != 0 || entry.personality != 0 || entry.ioprio != 0 {
        return -libc::EOPNOTSUPP;
    }
    const NOP: u8 = Opcode::Nop.code();
    const SPLICE: u8 = Opcode::Splice.code();
    const TEE: u8 = Opcode::Tee.code();
    const POLL_ADD: u8 = Opcode::PollAdd.code();
    const RECV: u8 = Opcode::Recv.code();
    const SEND: u8 = Opcode::Send.code();
    const READ: u8 = Opcode::Read.code();
    const READ_FIXED: u8 = Opcode::ReadFixed.code();
    const WRITE: u8 = Opcode::Write.code();
    const WRITE_FIXED: u8 = Opcode::WriteFixed.code();
    const READV: u8 = Opcode::Readv.code();
    const WRITEV: u8 = Opcode::Writev.code();
    const READV_FIXED: u8 = Opcode::ReadvFixed.code();
    const WRITEV_FIXED: u8 = Opcode::WritevFixed.code();
    const ACCEPT: u8 = Opcode::Accept.code();
    match entry.opcode {
        NOP if entry.op_flags == 0 => 0,
        SPLICE if entry.op_flags & SPLICE_F_FD_IN_FIXED == 0 => splice(entry),
        TEE if entry.op_flags & SPLICE_F_FD_IN_FIXED == 0 => tee(entry),
        POLL_ADD if entry.len == 0 => poll(entry),
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_receives_what_was_sent`.
        RECV => unsafe { receive(entry) },
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_receives_what_was_sent`.
        SEND => unsafe { send(entry) },
        READ | READ_FIXED => {
            let vector = one_vector(entry);
            // SAFETY: I1, I2 by this function's contract; the vector lives until the call returns.
            // Tested by `an_attempt_reads_what_was_written`.
            unsafe { read_vectors(entry, &vector, 1) }
        }
        WRITE | WRITE_FIXED => {
            let vector = one_vector(entry);
            // SAFETY: I1, I2 by this function's contract; the vector lives until the call returns.
            // Tested by `an_attempt_reads_what_was_written`.
            unsafe { write_vectors(entry, &vector, 1) }
        }
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_reads_and_writes_vectors`.
        READV | READV_FIXED => unsafe { read_vectors(entry, address(entry.addr), entry.len) },
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_reads_and_writes_vectors`.
        WRITEV | WRITEV_FIXED => unsafe { write_vectors(entry, address(entry.addr), entry.len) },
        // SAFETY: I1, I2 by this function's contract.
        // Tested by `an_attempt_accepts_only_from_a_listener_that_does_not_block`.
        ACCEPT if entry.file_index == 0 => unsafe { accept(entry) },
        _ => -libc::EOPNOTSUPP,
    }
}

fn splice(entry: &Entry) -> i32 {
    let mut offset_in = entry.addr.cast_signed();
    let mut offset_out = entry.off.cast_signed();
    // As in the ring, -1 says: no offset, a pipe or the file's own position.
    let offset_in = if offset_in == -1 { ptr::null_mut() } else { &raw mut offset_in };
    let offset_out = if offset_out == -1 { ptr::null_mut() } else { &raw mut offset_out };
    let flags = entry.op_flags | libc::SPLICE_F_NONBLOCK;
    retry(|| {
        // SAFETY: I2: the offsets are null or live on this frame; no other memory is named, pages move between
        // descriptors. Tested by `an_attempt_splices_between_pipes`.
        unsafe { libc::splice(entry.file_index, offset_in, entry.fd, offset_out, entry.len as usize, flags) }
    })
}

fn tee(entry: &Entry) -> i32 {
    if entry.off != 0 || entry.addr != 0 {
        return -libc::EINVAL;
    }
    let flags = entry.op_flags | libc::SPLICE_F_NONBLOCK;
    retry(|| {
        // SAFETY: no memory is named, only descriptors. Tested by `an_attempt_tees_and_leaves_the_source`.
        unsafe { libc::tee(entry.file_index, entry.fd, entry.len as usize, flags) }
    })
}

fn poll(entry: &Entry) -> i32 {
    // poll(2) knows the low 16 bits; those above are flags of epoll that change what waiting means.
    let Ok(events) = u16::try_from(entry.op_flags) else {
        return -libc::EOPNOTSUPP;
    };
    let mut descriptor = libc::pollfd { fd: entry.fd, events: events.cast_signed(), revents: 0 };
    let ready = retry(|| {
        // SAFETY: I2: one record, living on this frame. Tested by `an_attempt_to_poll_answers_readiness`.
        unsafe { libc::poll(&raw mut descriptor, 1, 0) as isize }
    });
    match ready {
        0 => -libc::EAGAIN,
        1 if descriptor.revents & libc::POLLNVAL != 0 => -libc::EBADF,
        1 => i32::from(descriptor.revents.cast_unsigned()),
        error => error,
    }
}

/// # Safety
///
/// As [`attempt`]: `addr` names `len` bytes that may be written.
unsafe fn receive(entry: &Entry) -> i32 {
    let Some(flags) = message_flags(entry) else {
        return -libc::EOPNOTSUPP;
    };
    retry(|| {
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_receives_what_was_sent`.
        unsafe { libc::recv(entry.fd, address(entry.addr), entry.len as usize, flags) }
    })
}

/// # Safety
///
/// As [`attempt`]: `addr` names `len` bytes that may be read.
unsafe fn send(entry: &Entry) -> i32 {
    // A destination address makes it sendto(2), which no operation here encodes.
    let Some(flags) = message_flags(entry).filter(|_| entry.off == 0) else {
        return -libc::EOPNOTSUPP;
    };
    retry(|| {
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_receives_what_was_sent`.
        unsafe { libc::send(entry.fd, address(entry.addr), entry.len as usize, flags | libc::MSG_NOSIGNAL) }
    })
}

/// The flags of a message call that does not wait; `None` for one that insists on waiting for all its bytes.
fn message_flags(entry: &Entry) -> Option<c_int> {
    let flags = entry.op_flags.cast_signed();
    (flags & libc::MSG_WAITALL == 0).then_some(flags | libc::MSG_DONTWAIT)
}

/// # Safety
///
/// As [`attempt`]: `vectors` points to `count` vectors whose bytes may be written.
unsafe fn read_vectors(entry: &Entry, vectors: *const libc::iovec, count: u32) -> i32 {
    positioned(entry, |offset, flags| {
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_reads_what_was_written`.
        unsafe { libc::preadv2(entry.fd, vectors, count.cast_signed(), offset, flags) }
    })
}

/// # Safety
///
/// As [`attempt`]: `vectors` points to `count` vectors whose bytes may be read.
unsafe fn write_vectors(entry: &Entry, vectors: *const libc::iovec, count: u32) -> i32 {
    positioned(entry, |offset, flags| {
        // SAFETY: I1, I2 by this function's contract. Tested by `an_attempt_reads_what_was_written`.
        unsafe { libc::pwritev2(entry.fd, vectors, count.cast_signed(), offset, flags) }
    })
}

/// Runs a positioned call; on a stream, where the ring takes any offset and ignores it, without the offset.
fn positioned(entry: &Entry, mut call: impl FnMut(libc::off_t, c_int) -> isize) -> i32 {
    let flags = entry.op_flags.cast_signed() | libc::RWF_NOWAIT;
    let offset = entry.off.cast_signed();
    let mut result = retry(|| call(offset, flags));
    if result == -libc::ESPIPE && offset != -1 {
        result = retry(|| call(-1, flags));
    }
    // splice(2) takes a pipe's ability to do RWF_NOWAIT away for good (`pipe_clear_nowait`, `fs/splice.c`); a
    // descriptor that does not block needs no such flag.
    if result == -libc::EOPNOTSUPP && offset == -1 && does_not_block(entry.fd) {
        result = retry(|| call(-1, entry.op_flags.cast_signed()));
    }
    result
}

fn does_not_block(fd: c_int) -> bool {
    let status = retry(|| {
        // SAFETY: F_GETFL takes no memory. Tested by `an_attempt_reads_a_pipe_that_was_spliced`.
        unsafe { libc::fcntl(fd, libc::F_GETFL) as isize }
    });
    status >= 0 && status & libc::O_NONBLOCK != 0
}

/// # Safety
///
/// As [`attempt`]: `addr` and `off` are null, or name a socket address and its length that may be written.
unsafe fn accept(entry: &Entry) -> i32 {
    let status = retry(|| {
        // SAFETY: F_GETFL takes no memory. Tested by `an_attempt_accepts_only_from_a_listener_that_does_not_block`.
        unsafe { libc::fcntl(entry.fd, libc::F_GETFL) as isize }
    });
    if status < 0 {
        return status;
    }
    // accept4(2) has no flag that says "do not wait", and a poll before it would race with other threads.
    if status & libc::O_NONBLOCK == 0 {
        return -libc::EOPNOTSUPP;
    }
    retry(|| {
        // SAFETY: I1, I2 by this function's contract.
        // Tested by `an_attempt_accepts_only_from_a_listener_that_does_not_block`.
        unsafe {
            libc::accept4(entry.fd, address(entry.addr), address(entry.off), entry.op_flags.cast_signed()) as isize
        }
    })
}

fn one_vector(entry: &Entry) -> libc::iovec {
    libc::iovec { iov_base: address(entry.addr), iov_len: entry.len as usize }
}

/// The pointer that an entry carries as a number; its encoder exposed it.
fn address<T>(number: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(number as usize)
}

/// Repeats a call that a signal interrupted, and turns its result into a completion's.
fn retry(mut call: impl FnMut() -> isize) -> i32 {
    loop {
        let result = call();
        if result >= 0 {
            // The kernel moves at most 0x7ffff000 bytes in one call (MAX_RW_COUNT).
            return i32::try_from(result).expect("a system call moved more bytes than the kernel allows in one call");
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(errno) => return -errno,
            None => unreachable!("the last error of the system always has a number"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
