//! What the kernel is asked for, field by field.

use ringmain::{Config, Entry, IoBuf, Opcode, ops};
use std::os::fd::{AsFd, AsRawFd};

use super::{NOTIFICATION, PAGE, Rig, SEND, SEND_ZC, null, poll, ready};

/// `MSG_WAITALL`.
const WAIT_ALL: u32 = 0x100;
/// `IORING_RECVSEND_FIXED_BUF` and `IORING_SEND_ZC_REPORT_USAGE`.
const FIXED: u16 = 1 << 2;
const REPORT: u16 = 1 << 3;
/// The first byte of the second registered buffer.
const GIB: usize = 1 << 30;

fn send_entry(rig: &Rig, opcode: u8, bytes: &[u8], user_data: u64) -> Entry {
    Entry {
        opcode,
        fd: rig.socket.as_fd().as_raw_fd(),
        addr: bytes.as_ptr().addr() as u64,
        len: u32::try_from(bytes.len()).unwrap(),
        op_flags: WAIT_ALL,
        user_data,
        ..Entry::default()
    }
}

#[test]
fn a_zero_copy_send_of_any_memory_names_it_and_asks_for_a_report() {
    let rig = Rig::new();
    let bytes: &'static [u8] = b"anywhere";
    let mut send = ops::send_zc(&rig.socket, bytes);
    let entry = rig.submit(&mut send);
    let expected = Entry { ioprio: REPORT, ..send_entry(&rig, SEND_ZC, bytes, entry.user_data) };
    assert_eq!(entry, expected);
}

#[test]
fn a_zero_copy_send_of_a_lease_names_its_registered_buffer() {
    let rig = Rig::new();
    let lease = rig.lease(PAGE);
    let expected = Entry { ioprio: REPORT | FIXED, buf_index: 0, ..send_entry(&rig, SEND_ZC, &lease, 0) };
    let mut send = ops::send_zc(&rig.socket, lease);
    let entry = rig.submit(&mut send);
    assert_eq!(Entry { user_data: 0, ..entry }, expected);
}

#[test]
fn pages_that_are_not_registered_are_sent_as_any_memory() {
    let rig = Rig::with(Config::default().pages(8).zero_copy_min(1).register_pages(false));
    let mut send = ops::send_zc(&rig.socket, rig.lease(PAGE));
    assert_eq!(rig.submit(&mut send).ioprio, REPORT);
    drop(send);
    let mut send = ops::send_vectored_zc(&null(), vec![rig.lease(PAGE)]);
    assert!(poll(&mut send).is_pending());
    rig.turn();
    let last = rig.script.pending().pop().unwrap().entry;
    assert_eq!((last.opcode, last.ioprio), (Opcode::SendmsgZc.code(), REPORT));
}

#[test]
fn several_leases_of_one_registered_buffer_are_one_message_that_names_it() {
    let rig = Rig::new();
    let mut send = ops::send_vectored_zc(&rig.socket, vec![rig.lease(100), rig.lease(PAGE)]);
    let entry = rig.submit(&mut send);
    let expected = Entry {
        opcode: Opcode::SendmsgZc.code(),
        fd: rig.socket.as_fd().as_raw_fd(),
        ioprio: REPORT | FIXED,
        len: 1,
        op_flags: WAIT_ALL,
        ..Entry::default()
    };
    assert_ne!(entry.addr, 0);
    assert_eq!(Entry { user_data: 0, addr: 0, ..entry }, expected);
}

#[test]
fn leases_of_two_registered_buffers_are_sent_as_any_memory() {
    let rig = Rig::with(Config::default().pages((GIB / PAGE) as u32 + 8).zero_copy_min(1));
    let first = rig.lease(GIB);
    let second = rig.lease(PAGE);
    let mut send = ops::send_vectored_zc(&rig.socket, vec![first.slice(..1), second.slice(..1)]);
    assert_eq!(rig.submit(&mut send).ioprio, REPORT);
}

#[test]
fn a_short_send_and_an_empty_one_are_plain() {
    let rig = Rig::with(Config::default().pages(8).zero_copy_min(100));
    let bytes: &'static [u8] = &[7; 99];
    let mut send = ops::send_zc(&rig.socket, bytes);
    let entry = rig.submit(&mut send);
    assert_eq!(entry, send_entry(&rig, SEND, bytes, entry.user_data));
    rig.answer(entry, 99, 0);
    let (result, mut released) = ready(&mut send);
    assert_eq!(result.unwrap(), 99);
    assert_eq!(ready(&mut released), bytes);

    let rig = Rig::with(Config::default().pages(8).zero_copy_min(0));
    let mut send = ops::send_zc(&rig.socket, "");
    assert_eq!(rig.submit(&mut send).opcode, SEND);
    drop(send);
    let mut send = ops::send_vectored_zc(&rig.socket, vec!["", ""]);
    assert!(poll(&mut send).is_pending());
    rig.turn();
    assert_eq!(rig.script.pending().pop().unwrap().entry.opcode, Opcode::Nop.code());
    let mut none = ops::send_vectored_zc(&rig.socket, Vec::<&'static str>::new());
    assert_eq!(ready(&mut none).0.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn leases_of_one_registered_buffer_are_read_and_written_by_it() {
    let rig = Rig::new();
    let mut read = ops::readv_fixed_at(&rig.socket, vec![rig.lease(100), rig.lease(PAGE)], 5);
    let entry = rig.submit(&mut read);
    let fd = rig.socket.as_fd().as_raw_fd();
    let expected = Entry { opcode: 60, fd, off: 5, len: 2, buf_index: 0, ..Entry::default() };
    assert_eq!(Entry { user_data: 0, addr: 0, ..entry }, expected);
    rig.answer(entry, 103, 0);
    let (count, parts) = ready(&mut read);
    assert_eq!((count.unwrap(), parts[0].len(), &parts[1][..]), (103, 100, &[0xA5; 3][..]));

    let mut write = ops::writev_fixed(&rig.socket, parts);
    let entry = rig.submit(&mut write);
    let expected = Entry { opcode: 61, fd, off: u64::MAX, len: 2, buf_index: 0, ..Entry::default() };
    assert_eq!(Entry { user_data: 0, addr: 0, ..entry }, expected);
    rig.answer(entry, 103, 0);
    assert_eq!(ready(&mut write).0.unwrap(), 103);
}

#[test]
fn leases_of_two_registered_buffers_are_read_and_written_as_any_memory() {
    let rig = Rig::with(Config::default().pages((GIB / PAGE) as u32 + 8));
    let first = rig.lease(GIB);
    let second = rig.lease(PAGE);
    let mut read = ops::readv_fixed(&rig.socket, vec![first.slice(GIB - 10..), second.slice(..)]);
    let entry = rig.submit(&mut read);
    assert_eq!((entry.opcode, entry.len, entry.buf_index), (Opcode::Readv.code(), 2, 0));
    rig.answer(entry, 12, 0);
    let (count, parts) = ready(&mut read);
    assert_eq!((count.unwrap(), parts[0].bytes().len(), parts[1].bytes().len()), (12, 10, 2));
    let mut write = ops::writev_fixed(&rig.socket, parts);
    let entry = rig.submit(&mut write);
    assert_eq!((entry.opcode, entry.len), (Opcode::Writev.code(), 2));
    rig.answer(entry, 12, 0);
    assert_eq!(ready(&mut write).0.unwrap(), 12);
}

#[test]
fn memory_of_another_registry_is_refused_with_a_sentence_and_comes_back() {
    let rig = Rig::new();
    let other = ringmain::Registry::new(1).unwrap();
    let foreign = || {
        let mut lease = other.try_lease(10).unwrap();
        lease.set_len(10);
        lease
    };
    let (result, parts) = ready(&mut ops::readv_fixed(&rig.socket, vec![rig.lease(10), foreign()]));
    let error = result.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("lease it from the runtime that uses it"), "{error}");
    let (result, parts) = ready(&mut ops::writev_fixed(&rig.socket, parts));
    assert_eq!((result.unwrap_err().kind(), parts.len()), (std::io::ErrorKind::InvalidInput, 2));
    drop(parts);

    // To be sent, it is memory like any other.
    let mut send = ops::send_zc(&rig.socket, foreign());
    let entry = rig.submit(&mut send);
    assert_eq!(entry.ioprio, REPORT);
    rig.answer(entry, 10, super::MORE);
    rig.answer(entry, 0, NOTIFICATION);
    assert_eq!(ready(&mut send).0.unwrap(), 10);
    assert_eq!(rig.driver.slots_used(), 0);
}

#[test]
fn nothing_to_write_succeeds_and_empty_leases_are_left_out() {
    let rig = Rig::new();
    let empty = || {
        let mut lease = rig.lease(10);
        lease.clear();
        lease
    };
    let mut write = ops::writev_fixed(&rig.socket, vec![empty(), empty()]);
    let entry = rig.submit(&mut write);
    assert_eq!(entry.opcode, Opcode::Nop.code());
    rig.answer(entry, 0, 0);
    assert_eq!(ready(&mut write).0.unwrap(), 0);
    let mut write = ops::writev_fixed(&rig.socket, vec![empty(), rig.lease(10), empty()]);
    let entry = rig.submit(&mut write);
    assert_eq!((entry.opcode, entry.len), (61, 1));
}
