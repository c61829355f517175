//! What a socket learns from its notifications, and from refusals.

use std::rc::Rc;

use ringmain::{Config, Fd, ops};
use rustix::io::Errno;

use super::{COPIED, MORE, NOTIFICATION, Rig, SEND, SEND_ZC, null, poll, ready};

/// Sends a kilobyte, lets the kernel say whether it was copied, and returns the opcode it was sent by.
fn sent_by(rig: &Rig, socket: &Fd, usage: i32) -> u8 {
    let bytes: &'static [u8] = &[7; 1024];
    let mut send = ops::send_zc(socket, bytes);
    let entry = rig.submit(&mut send);
    if entry.opcode == SEND {
        rig.answer(entry, 1024, 0);
    } else {
        rig.answer(entry, 1024, MORE);
        rig.answer(entry, usage, NOTIFICATION);
    }
    let (result, mut released) = ready(&mut send);
    assert_eq!((result.unwrap(), ready(&mut released)), (1024, bytes));
    entry.opcode
}

/// The metrics: (shared, copied, plain).
fn counted(rig: &Rig) -> (u64, u64, u64) {
    let metrics = rig.driver.metrics();
    (metrics.sends_zero_copy.get(), metrics.sends_copied.get(), metrics.sends_plain.get())
}

#[test]
fn sends_whose_pages_were_shared_stay_zero_copy() {
    let rig = Rig::new();
    for _ in 0..3 {
        assert_eq!(sent_by(&rig, &rig.socket, 0), SEND_ZC);
    }
    assert_eq!(counted(&rig), (3, 0, 0));
}

#[test]
fn after_a_copied_send_the_socket_sends_plainly_and_asks_again_after_64_mib() {
    let rig = Rig::new();
    assert_eq!(sent_by(&rig, &rig.socket, COPIED), SEND_ZC);
    assert_eq!(sent_by(&rig, &rig.socket, 0), SEND);
    assert_eq!(counted(&rig), (0, 1, 1));
    let clone = rig.socket.clone();
    assert_eq!(sent_by(&rig, &clone, 0), SEND, "all handles of a socket share what is known of it");
    assert_eq!(sent_by(&rig, &null(), 0), SEND_ZC, "and another socket does not");

    let megabyte: Rc<[u8]> = vec![0; 1 << 20].into();
    for _ in 0..64 {
        let mut send = ops::send_zc(&rig.socket, Rc::clone(&megabyte));
        let entry = rig.submit(&mut send);
        assert_eq!(entry.opcode, SEND);
        rig.answer(entry, 1 << 20, 0);
        assert_eq!(ready(&mut send).0.unwrap(), 1 << 20);
    }
    assert_eq!(sent_by(&rig, &rig.socket, 0), SEND_ZC, "the route may have changed");
    assert_eq!(sent_by(&rig, &rig.socket, 0), SEND_ZC);
}

#[test]
fn a_send_that_nobody_waits_for_teaches_as_well() {
    for dropped_early in [false, true] {
        let rig = Rig::new();
        let mut send = ops::send_zc(&rig.socket, "bytes");
        let entry = rig.submit(&mut send);
        if dropped_early {
            drop(send);
            rig.answer(entry, 5, MORE);
        } else {
            rig.answer(entry, 5, MORE);
            drop(ready(&mut send));
        }
        rig.answer(entry, COPIED, NOTIFICATION);
        assert_eq!(counted(&rig), (0, 1, 0));
        // What cancelled the dropped one is still with the kernel.
        for left in rig.script.pending() {
            rig.answer(left.entry, 0, 0);
        }
        assert_eq!(sent_by(&rig, &rig.socket, 0), SEND);
    }
}

#[test]
fn a_send_that_sent_nothing_teaches_nothing() {
    for dropped_early in [false, true] {
        let rig = Rig::new();
        let mut send = Some(ops::send_zc(&rig.socket, "bytes"));
        let entry = rig.submit(send.as_mut().unwrap());
        if dropped_early {
            send = None;
        }
        // The notification of a send that failed says "copied" too: no page was used.
        rig.answer(entry, -Errno::PIPE.raw_os_error(), MORE);
        rig.answer(entry, COPIED, NOTIFICATION);
        drop(send);
        for left in rig.script.pending() {
            rig.answer(left.entry, 0, 0);
        }
        assert_eq!(counted(&rig), (0, 0, 0));
        assert_eq!(sent_by(&rig, &rig.socket, 0), SEND_ZC);
    }
}

#[test]
fn a_socket_that_cannot_share_pages_sends_plainly_in_the_same_call_and_for_ever() {
    let rig = Rig::new();
    let mut send = ops::send_zc(&rig.socket, "bytes");
    let entry = rig.submit(&mut send);
    rig.answer(entry, -Errno::OPNOTSUPP.raw_os_error(), MORE);
    assert!(poll(&mut send).is_pending(), "the kernel still has the buffer");
    rig.answer(entry, 0, NOTIFICATION);
    let entry = rig.submit(&mut send);
    assert_eq!(entry.opcode, SEND);
    rig.answer(entry, 5, 0);
    let (result, mut released) = ready(&mut send);
    assert_eq!((result.unwrap(), ready(&mut released)), (5, "bytes"));
    assert_eq!(sent_by(&rig, &rig.socket, 0), SEND);
    assert_eq!(counted(&rig), (0, 0, 2));
}

#[test]
fn a_kernel_that_cannot_report_makes_plain_sends_and_a_wrong_argument_stays_an_error() {
    let rig = Rig::new();
    let mut send = ops::send_zc(&rig.socket, "bytes");
    let entry = rig.submit(&mut send);
    // Refused before it began: no notification.
    rig.answer(entry, -Errno::INVAL.raw_os_error(), 0);
    let entry = rig.submit(&mut send);
    assert_eq!(entry.opcode, SEND);
    rig.answer(entry, -Errno::INVAL.raw_os_error(), 0);
    let (result, mut released) = ready(&mut send);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    assert_eq!(ready(&mut released), "bytes");
}

#[test]
fn a_send_whose_pages_may_not_be_pinned_is_plain_and_the_socket_asks_again_later() {
    let rig = Rig::new();
    let mut send = ops::send_zc(&rig.socket, "bytes");
    let entry = rig.submit(&mut send);
    rig.answer(entry, -Errno::NOMEM.raw_os_error(), 0);
    let entry = rig.submit(&mut send);
    assert_eq!(entry.opcode, SEND);
    rig.answer(entry, 5, 0);
    assert_eq!(ready(&mut send).0.unwrap(), 5);
    assert_eq!(sent_by(&rig, &rig.socket, 0), SEND);
}

#[test]
fn the_threshold_is_that_of_the_configuration_and_of_all_parts_together() {
    let rig = Rig::with(Config::default().pages(8).zero_copy_min(8));
    let mut short = ops::send_vectored_zc(&rig.socket, vec!["abc", "defg"]);
    let entry = rig.submit(&mut short);
    assert_eq!(entry.opcode, ringmain::Opcode::Sendmsg.code());
    rig.answer(entry, 7, 0);
    assert_eq!(ready(&mut short).0.unwrap(), 7);
    let mut long = ops::send_vectored_zc(&rig.socket, vec!["abcd", "efgh"]);
    assert_eq!(rig.submit(&mut long).opcode, ringmain::Opcode::SendmsgZc.code());
}

/// What failed at once has no notification, and what its errno looks like as one is nobody's business.
#[test]
fn an_orphan_that_fails_without_notification_teaches_nothing() {
    let rig = Rig::new();
    let mut send = ops::send_zc(&rig.socket, "bytes");
    let entry = rig.submit(&mut send);
    drop(send);
    rig.answer(entry, -Errno::CANCELED.raw_os_error(), 0);
    assert_eq!((rig.driver.metrics().sends_copied.get(), rig.driver.slots_used()), (0, 0));
    let mut next = ops::send_zc(&rig.socket, "bytes");
    assert!(poll(&mut next).is_pending());
    rig.turn();
    assert_eq!(rig.script.pending().last().unwrap().entry.opcode, SEND_ZC, "the socket was not told that it copies");
}
