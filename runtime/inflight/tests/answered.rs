//! Two completions: the result, and the notification that the kernel has let go.

use super::*;

#[test]
fn a_zero_copy_send_is_done_only_after_its_notification() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    assert!(rig.poll(&mut submission).is_pending(), "the kernel may still read the memory");
    assert_eq!((rig.counts(), rig.wakes()), ((1, 1), 0));
    rig.script.complete_with(key, i32::MIN, NOTIFICATION);
    rig.turn();
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap(), memory.len()), (8, 8), "the count is the first completion's");
    assert_eq!((rig.counts(), rig.wakes()), ((0, 0), 1));
}

#[test]
fn a_zero_copy_send_that_failed_is_done_after_its_notification_too() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, -libc::EPIPE, abi::MORE);
    rig.script.complete_with(key, 0, NOTIFICATION);
    rig.turn();
    assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::EPIPE);
}

#[test]
fn a_zero_copy_send_without_notification_is_done_at_once() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete(key, -libc::EBADF);
    rig.turn();
    assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::EBADF);
}

#[test]
fn a_zero_copy_send_that_would_have_waited_is_retried_after_its_notification() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, -libc::EAGAIN, abi::MORE);
    rig.script.complete_with(key, 0, NOTIFICATION);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::POLL_ADD]);
    rig.script.complete(key, 4);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC]);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.script.complete_with(key, 0, NOTIFICATION);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 8);
}

#[test]
fn dropping_an_answered_operation_keeps_it_until_the_notification() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    drop(submission);
    assert_eq!((rig.counts(), rig.alive()), ((1, 1), 1));
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC, abi::ASYNC_CANCEL]);
    rig.script.complete_with(key, i32::MIN, NOTIFICATION);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn an_orphan_that_is_answered_still_waits_for_its_notification() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::SendZc);
    drop(submission);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((1, 1), 1));
    rig.script.complete_with(key, 0, NOTIFICATION);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn cancelling_an_answered_operation_gives_its_result() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 5, abi::MORE);
    rig.turn();
    let mut submission = submission.cancel();
    rig.turn();
    assert!(rig.poll(&mut submission).is_pending());
    rig.script.complete_with(key, 0, NOTIFICATION);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 5);
}
