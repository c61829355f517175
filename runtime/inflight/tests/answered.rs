//! Two completions: the result, and the notification that the kernel has let go.

use super::*;

#[test]
fn a_zero_copy_send_is_done_only_after_its_notification() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    assert!(rig.poll(&mut submission).is_pending(), "the kernel may still read the memory");
    assert_eq!((rig.counts(), rig.wakes()), ((1, 1), 1), "whoever wants the result alone is woken for it");
    rig.script.complete_with(key, i32::MIN, abi::NOTIFICATION);
    rig.turn();
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap(), memory.len()), (8, 8), "the count is the first completion's");
    assert_eq!((rig.counts(), rig.wakes()), ((0, 0), 2));
}

#[test]
fn a_zero_copy_send_that_failed_is_done_after_its_notification_too() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, -libc::EPIPE, abi::MORE);
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
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
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::POLL_ADD]);
    rig.script.complete(key, 4);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC]);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
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
    assert_eq!(rig.opcodes(), [abi::SEND_ZC], "there is nothing left to be cancelled");
    rig.script.complete_with(key, i32::MIN, abi::NOTIFICATION);
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
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
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
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 5);
}

#[test]
fn the_result_of_a_zero_copy_send_is_there_before_its_memory() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    assert!(rig.answer(&mut submission).is_pending());
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    for _ in 0..2 {
        let Answer::Early(result) = ready(rig.answer(&mut submission)) else { panic!("the kernel has the memory") };
        assert_eq!(result.unwrap(), 8);
    }
    rig.script.complete_with(key, i32::MIN, abi::NOTIFICATION);
    rig.turn();
    let Answer::Output((result, _, memory)) = ready(rig.answer(&mut submission)) else { panic!("it is over") };
    assert_eq!((result.unwrap(), memory.len(), rig.alive()), (8, 8, 0));
}

#[test]
fn n07_a_notification_that_says_copied_is_no_errno() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.script.complete_with(key, i32::MIN, abi::NOTIFICATION);
    rig.turn();
    let Answer::Output((result, ..)) = ready(rig.answer(&mut submission)) else { panic!("it is over") };
    assert_eq!(result.unwrap(), 8);
}

#[test]
fn a_zero_copy_send_that_will_be_tried_again_has_no_result_yet() {
    for error in [libc::EAGAIN, libc::EINTR] {
        let rig = Rig::new();
        let (mut submission, key) = rig.in_kernel(What::SendZc);
        assert!(rig.answer(&mut submission).is_pending());
        rig.script.complete_with(key, -error, abi::MORE);
        rig.turn();
        assert!(rig.answer(&mut submission).is_pending());
        assert_eq!(rig.wakes(), 0);
        let mut submission = submission.cancel();
        assert!(rig.answer(&mut submission).is_pending(), "what is not to be tried again ends with the notification");
        rig.script.complete_with(key, 0, abi::NOTIFICATION);
        rig.turn();
        let Answer::Output((result, ..)) = ready(rig.answer(&mut submission)) else { panic!("it is over") };
        assert_eq!(errno(result), libc::ECANCELED);
    }
}

#[test]
fn a_cancel_that_came_too_late_for_an_answered_operation_is_not_sent_again() {
    for dropped in [false, true] {
        let rig = Rig::new();
        let (submission, key) = rig.in_kernel(What::SendZc);
        let mut submission = Some(submission.cancel());
        rig.turn();
        rig.script.complete_with(key, 8, abi::MORE);
        rig.turn();
        if dropped {
            submission = None;
        }
        rig.script.complete(rig.last().user_data, -libc::ENOENT);
        for _ in 0..3 {
            rig.turn();
        }
        assert_eq!(rig.opcodes(), [abi::SEND_ZC], "the kernel was asked once");
        rig.script.complete_with(key, 0, abi::NOTIFICATION);
        rig.turn();
        drop(submission);
        assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    }
}

#[test]
fn a_cancel_that_misses_an_orphan_which_is_answered_meanwhile_is_not_sent_again() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::SendZc);
    drop(submission);
    rig.turn();
    rig.script.complete_with(key, 8, abi::MORE);
    rig.script.complete(rig.last().user_data, -libc::ENOENT);
    for _ in 0..3 {
        rig.turn();
    }
    assert_eq!(rig.opcodes(), [abi::SEND_ZC], "the kernel was asked once");
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn a_page_is_not_leased_again_before_the_notification() {
    for dropped in [false, true] {
        let rig = Rig::with(&Config::default().pages(1));
        let mut lease = rig.driver.registry().try_lease(4096).unwrap();
        lease.set_len(4096);
        let mut submission = Some(Submission::new(SendFixedZc { fd: null(), lease }));
        assert!(rig.poll(submission.as_mut().unwrap()).is_pending());
        rig.turn();
        let entry = rig.last();
        assert_eq!(entry.ioprio, abi::RECVSEND_FIXED_BUF | abi::SEND_ZC_REPORT_USAGE);
        rig.script.complete_with(entry.user_data, 4096, abi::MORE);
        rig.turn();
        if dropped {
            submission = None;
        }
        let now = rig.driver.registry().snapshot();
        assert_eq!((now.pages_free, now.pages_notifying), (0, 1), "the kernel still reads it");
        assert!(rig.driver.registry().try_lease(1).is_none());
        rig.script.complete_with(entry.user_data, 0, abi::NOTIFICATION);
        rig.turn();
        if let Some(mut submission) = submission {
            let (result, lease) = ready(rig.poll(&mut submission));
            assert_eq!((result.unwrap(), lease.len()), (4096, 4096));
        }
        assert!(rig.driver.registry().try_lease(4096).is_some());
    }
}

#[test]
fn shutdown_asks_for_no_end_of_what_is_answered() {
    for dropped in [false, true] {
        let rig = Rig::with(&Config::default().pages(8).shutdown_timeout(std::time::Duration::from_secs(1)));
        let (submission, key) = rig.in_kernel(What::SendZc);
        let mut submission = Some(submission);
        rig.script.complete_with(key, 8, abi::MORE);
        rig.turn();
        if dropped {
            submission = None;
        }
        let mut enters = 0;
        rig.script.play(move |script| {
            enters += 1;
            assert!(script.pending().iter().all(|pending| pending.entry.opcode == abi::SEND_ZC), "nothing to cancel");
            if enters == 10 {
                script.complete_with(key, 0, abi::NOTIFICATION);
            }
        });
        rig.driver.shutdown();
        assert_eq!(rig.driver.metrics().cancels.get(), 0);
        drop(submission);
        assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    }
}

/// That of memory outside the registry, too: nothing of it stays with the slot.
#[test]
fn dropping_an_operation_cancels_it_in_a_slot_that_a_zero_copy_send_had() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 8);
    let (submission, key) = rig.in_kernel(What::Read);
    drop(submission);
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::READ, abi::ASYNC_CANCEL]);
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

/// The same for the next try of the send itself.
#[test]
fn dropping_a_zero_copy_send_that_is_tried_again_cancels_it() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, -libc::EAGAIN, abi::MORE);
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    rig.turn();
    rig.script.complete(key, 4);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC]);
    drop(submission);
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC, abi::ASYNC_CANCEL]);
}

/// An orphan is answered once, whatever comes after that.
#[test]
fn a_second_result_of_an_orphan_is_not_counted_as_another_notification_to_come() {
    let rig = Rig::with(&Config::default().pages(1));
    let mut lease = rig.driver.registry().try_lease(4096).unwrap();
    lease.set_len(4096);
    let mut submission = Submission::new(SendFixedZc { fd: null(), lease });
    assert!(rig.poll(&mut submission).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    drop(submission);
    for _ in 0..2 {
        rig.script.complete_with(key, 4096, abi::MORE);
        rig.turn();
        assert_eq!(rig.driver.registry().snapshot().pages_notifying, 1);
    }
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    assert_eq!((rig.counts(), rig.driver.registry().snapshot().pages_free), ((0, 0), 1));
}

#[test]
fn an_orphan_that_is_notified_first_is_kept_and_cancelled_until_its_result() {
    for drops_first in [false, true] {
        let rig = Rig::new();
        let (submission, key) = rig.in_kernel(What::SendZc);
        let mut submission = Some(submission);
        if drops_first {
            submission = None;
        }
        rig.script.complete_with(key, 0, abi::NOTIFICATION);
        rig.turn();
        drop(submission);
        rig.turn();
        assert_eq!(rig.opcodes(), [abi::SEND_ZC, abi::ASYNC_CANCEL]);
        assert_eq!((rig.counts(), rig.alive()), ((1, 1), 1));
        rig.script.complete_with(key, -libc::ECANCELED, abi::MORE);
        rig.turn();
        assert_eq!((rig.counts(), rig.alive(), rig.driver.metrics().stale.get()), ((0, 0), 0, 0));
    }
}

#[test]
fn a_send_that_is_notified_first_is_tried_again_as_any_other() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::SendZc);
    rig.script.complete_with(key, i32::MIN, abi::NOTIFICATION);
    rig.script.complete_with(key, -libc::EAGAIN, abi::MORE);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::POLL_ADD]);
    rig.script.complete(key, 4);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::SEND_ZC]);
    rig.script.complete_with(key, 8, abi::MORE);
    rig.turn();
    assert!(rig.poll(&mut submission).is_pending(), "the notification of the first try is not the second one's");
    rig.script.complete_with(key, 0, abi::NOTIFICATION);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 8);
}

#[test]
fn shutdown_waits_for_the_result_of_what_is_notified_first() {
    for dropped in [false, true] {
        let rig = Rig::with(&Config::default().pages(8).shutdown_timeout(std::time::Duration::from_secs(1)));
        let (submission, key) = rig.in_kernel(What::SendZc);
        let mut submission = Some(submission);
        rig.script.complete_with(key, 0, abi::NOTIFICATION);
        rig.turn();
        if dropped {
            submission = None;
        }
        let mut enters = 0;
        rig.script.play(move |script| {
            enters += 1;
            if enters == 10 {
                script.complete_with(key, 8, abi::MORE);
            }
        });
        rig.driver.shutdown();
        if let Some(mut submission) = submission {
            assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 8);
        }
        assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    }
}
