//! Each attempt against the kernel of this machine: what it moves, when it would wait, what it refuses.
//!
//! The entries are encoded by helpers that the tests of the ring share.

use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

/// Attempts an entry whose memory the calling test keeps alive.
pub(in crate::runtime::ring) fn attempt(entry: Entry) -> i32 {
    // SAFETY: I1, I2: each test owns what its entries name, and the attempt is over when this returns.
    unsafe { super::attempt(&entry) }
}

pub(in crate::runtime::ring) fn encode(opcode: Opcode, fd: impl AsFd) -> Entry {
    Entry { opcode: opcode.code(), fd: fd.as_fd().as_raw_fd(), ..Entry::default() }
}

pub(in crate::runtime::ring) fn nop(user_data: u64) -> Entry {
    Entry { opcode: Opcode::Nop.code(), user_data, ..Entry::default() }
}

pub(in crate::runtime::ring) fn splice(from: impl AsFd, to: impl AsFd, len: u32) -> Entry {
    let file_index = from.as_fd().as_raw_fd();
    Entry { off: u64::MAX, addr: u64::MAX, len, file_index, ..encode(Opcode::Splice, to) }
}

pub(in crate::runtime::ring) fn poll_in(fd: impl AsFd) -> Entry {
    Entry { op_flags: libc::POLLIN as u32, ..encode(Opcode::PollAdd, fd) }
}

/// An entry that reads into `bytes`; at the position of the file, or on a stream.
pub(in crate::runtime::ring) fn read(opcode: Opcode, fd: impl AsFd, bytes: &mut [u8]) -> Entry {
    let addr = bytes.as_mut_ptr().expose_provenance() as u64;
    Entry { addr, len: bytes.len() as u32, off: position(opcode), ..encode(opcode, fd) }
}

/// An entry that writes `bytes`; at the position of the file, or on a stream.
pub(in crate::runtime::ring) fn write(opcode: Opcode, fd: impl AsFd, bytes: &[u8]) -> Entry {
    let addr = bytes.as_ptr().expose_provenance() as u64;
    Entry { addr, len: bytes.len() as u32, off: position(opcode), ..encode(opcode, fd) }
}

/// What stands for "where the file is" in the offset of an opcode; message calls have an address there, or zero.
pub(in crate::runtime::ring) fn position(opcode: Opcode) -> u64 {
    if matches!(opcode, Opcode::Recv | Opcode::Send) { 0 } else { u64::MAX }
}

pub(in crate::runtime::ring) fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be made")
}

#[test]
fn an_attempt_splices_between_pipes() {
    let ((source, filler), (sink, target)) = (pipe(), pipe());
    assert_eq!(attempt(splice(&source, &target, 100)), -libc::EAGAIN);
    rustix::io::write(&filler, b"pages").expect("written");
    assert_eq!(attempt(splice(&source, &target, 100)), 5);
    let mut moved = [0; 8];
    assert_eq!(rustix::io::read(&sink, &mut moved), Ok(5));
    assert_eq!(&moved[..5], b"pages");
    drop(filler);
    assert_eq!(attempt(splice(&source, &target, 100)), 0, "the end of the stream");
}

#[test]
fn an_attempt_reads_a_pipe_that_was_spliced() {
    let (reader, filler) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe can be made");
    let (_sink, target) = pipe();
    rustix::io::write(&filler, b"spliced, read").expect("written");
    assert_eq!(attempt(splice(&reader, &target, 8)), 8);
    let mut bytes = [0; 8];
    assert_eq!(attempt(read(Opcode::Read, &reader, &mut bytes)), 5);
    assert_eq!(&bytes[..5], b" read");
    assert_eq!(attempt(read(Opcode::Read, &reader, &mut bytes)), -libc::EAGAIN, "and still does not wait");
}

#[test]
fn an_attempt_splices_from_an_offset_and_keeps_the_position() {
    let mut file = tempfile::tempfile().expect("made");
    file.write_all(b"0123456789").expect("written");
    let (sink, target) = pipe();
    assert_eq!(attempt(Entry { addr: 4, ..splice(&file, &target, 3) }), 3);
    let mut moved = [0; 8];
    assert_eq!(rustix::io::read(&sink, &mut moved), Ok(3));
    assert_eq!(&moved[..3], b"456");
    assert_eq!(file.stream_position().expect("a file has a position"), 10);
    assert_eq!(attempt(Entry { off: 4, ..splice(&file, &target, 3) }), -libc::ESPIPE, "a pipe has no offset");
}

#[test]
fn an_attempt_tees_and_leaves_the_source() {
    let ((source, filler), (sink, target)) = (pipe(), pipe());
    let tee = Entry { opcode: Opcode::Tee.code(), off: 0, addr: 0, ..splice(&source, &target, 100) };
    assert_eq!(attempt(tee), -libc::EAGAIN);
    rustix::io::write(&filler, b"twice").expect("written");
    assert_eq!(attempt(tee), 5);
    for end in [&source, &sink] {
        let mut held = [0; 8];
        assert_eq!(rustix::io::read(end, &mut held), Ok(5));
        assert_eq!(&held[..5], b"twice");
    }
    assert_eq!(attempt(Entry { off: 1, ..tee }), -libc::EINVAL, "as in the ring");
}

#[test]
fn an_attempt_to_poll_answers_readiness() {
    let (reader, writer) = pipe();
    assert_eq!(attempt(poll_in(&reader)), -libc::EAGAIN);
    rustix::io::write(&writer, b"x").expect("written");
    assert_eq!(attempt(poll_in(&reader)), i32::from(libc::POLLIN));
    drop(writer);
    assert_eq!(attempt(poll_in(&reader)), i32::from(libc::POLLIN | libc::POLLHUP));
    assert_eq!(attempt(Entry { fd: i32::MAX, ..poll_in(&reader) }), -libc::EBADF);
}

#[test]
fn an_attempt_receives_what_was_sent() {
    let (near, far) = UnixStream::pair().expect("made");
    let mut received = [0; 16];
    assert_eq!(attempt(read(Opcode::Recv, &far, &mut received)), -libc::EAGAIN, "though the socket blocks");
    assert_eq!(attempt(write(Opcode::Send, &near, b"message")), 7);
    assert_eq!(attempt(read(Opcode::Recv, &far, &mut received)), 7);
    assert_eq!(&received[..7], b"message");
    let flood = vec![0; 1 << 24];
    assert!(attempt(write(Opcode::Send, &near, &flood)) < 1 << 24, "what does not fit is not waited for");
    assert_eq!(attempt(write(Opcode::Send, &near, &flood)), -libc::EAGAIN);
    drop(far);
    assert_eq!(attempt(write(Opcode::Send, &near, b"late")), -libc::EPIPE, "an error and no signal");
}

#[test]
fn an_attempt_reads_what_was_written() {
    for (read_opcode, write_opcode) in [(Opcode::Read, Opcode::Write), (Opcode::ReadFixed, Opcode::WriteFixed)] {
        let (reader, writer) = pipe();
        let mut bytes = [0; 16];
        assert_eq!(attempt(read(read_opcode, &reader, &mut bytes)), -libc::EAGAIN, "though the pipe blocks");
        assert_eq!(attempt(write(write_opcode, &writer, b"bytes")), 5);
        assert_eq!(attempt(read(read_opcode, &reader, &mut bytes)), 5);
        assert_eq!(&bytes[..5], b"bytes");
        assert_eq!(attempt(Entry { off: 0, ..write(write_opcode, &writer, b"offset") }), 6, "a stream ignores it");
        assert_eq!(attempt(Entry { off: 9, ..read(read_opcode, &reader, &mut bytes) }), 6);
        assert_eq!(&bytes[..6], b"offset");
        drop(writer);
        assert_eq!(attempt(read(read_opcode, &reader, &mut bytes)), 0, "the end of the stream");
    }
}

#[test]
fn an_attempt_on_a_file_is_at_its_offset_or_refused() {
    let mut file = tempfile::tempfile().expect("made");
    file.write_all(b"0123456789").expect("written");
    let mut bytes = [0; 4];
    // The bytes were just written, so they are in the page cache; a file system without RWF_NOWAIT says so.
    match attempt(Entry { off: 3, ..read(Opcode::Read, &file, &mut bytes) }) {
        4 => assert_eq!(&bytes, b"3456"),
        refused => assert!(refused == -libc::EOPNOTSUPP || refused == -libc::EAGAIN, "{refused}"),
    }
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).expect("read");
    assert!(rest.is_empty(), "the position has not moved");
}

#[test]
fn an_attempt_reads_and_writes_vectors() {
    let (reader, writer) = pipe();
    // A slice of the standard library has the layout of a vector by its documentation.
    let sent = [IoSlice::new(b"two "), IoSlice::new(b"parts")];
    let addr = sent.as_ptr().expose_provenance() as u64;
    let entry = Entry { addr, len: 2, off: u64::MAX, ..encode(Opcode::Writev, &writer) };
    assert_eq!(attempt(entry), 9);
    let (mut first, mut second) = ([0; 3], [0; 16]);
    let mut received = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    let addr = received.as_mut_ptr().expose_provenance() as u64;
    let entry = Entry { addr, len: 2, off: u64::MAX, ..encode(Opcode::Readv, &reader) };
    assert_eq!(attempt(entry), 9);
    assert_eq!((&first, &second[..6]), (b"two", b" parts".as_slice()));
    assert_eq!(attempt(entry), -libc::EAGAIN);
}

#[test]
fn what_only_the_ring_can_do_is_refused() {
    let (reader, writer) = pipe();
    rustix::io::write(&writer, b"untouched").expect("written");
    let mut bytes = [0; 16];
    let read_entry = read(Opcode::Read, &reader, &mut bytes);
    for entry in [
        Entry { flags: 1, ..read_entry },
        Entry { personality: 1, ..read_entry },
        Entry { ioprio: 1, ..read(Opcode::Recv, &reader, &mut []) },
        Entry { op_flags: libc::MSG_WAITALL as u32, ..read(Opcode::Recv, &reader, &mut []) },
        Entry { off: 4096, ..write(Opcode::Send, &writer, b"") },
        Entry { len: 1, ..poll_in(&reader) },
        Entry { op_flags: 1 << 30, ..poll_in(&reader) },
        Entry { op_flags: 1 << 31, ..splice(&reader, &writer, 1) },
        Entry { file_index: 1, ..encode(Opcode::Accept, &reader) },
        encode(Opcode::Close, &reader),
        encode(Opcode::Fsync, &reader),
    ] {
        assert_eq!(attempt(entry), -libc::EOPNOTSUPP, "{entry:?}");
    }
    assert_eq!(attempt(read_entry), 9);
}
