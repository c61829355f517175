//! Cancelled, dropped, leaked: in every state, and at shutdown.

use super::*;

#[test]
fn dropping_a_queued_operation_frees_it_at_once() {
    let rig = Rig::new();
    drop(rig.start(What::Read));
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    rig.turn();
    assert_eq!(rig.script.pending().len(), 0, "there is nothing to cancel");
}

#[test]
fn dropping_a_waiting_operation_keeps_it_until_the_kernel_answers() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    drop(submission);
    assert_eq!((rig.counts(), rig.alive()), ((1, 1), 1), "orphaned");
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::READ, abi::ASYNC_CANCEL]);
    assert_eq!(rig.last().addr, key, "the cancel names the orphan");
    // The cancel's own answer ends nothing.
    rig.script.complete(rig.last().user_data, 0);
    rig.turn();
    assert_eq!(rig.alive(), 1);
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    assert_eq!(rig.driver.metrics().cancels.get(), 1);
}

#[test]
fn an_orphan_that_succeeds_after_all_ends_too() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    drop(submission);
    // The kernel was faster than the cancel.
    rig.script.complete(key, 8);
    rig.turn();
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn dropping_a_done_operation_vacates_its_slot() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    rig.script.complete(key, 8);
    rig.turn();
    drop(submission);
    assert_eq!((rig.counts(), rig.alive(), rig.driver.has_queued()), ((0, 0), 0, false));
}

#[test]
fn a_leaked_operation_stays_and_shutdown_still_ends() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    std::mem::forget(submission);
    rig.script.play(move |kernel| {
        let cancelled = kernel.pending().iter().any(|pending| pending.entry.opcode == abi::ASYNC_CANCEL);
        if cancelled && kernel.pending().iter().any(|pending| pending.entry.user_data == key) {
            kernel.complete(key, -libc::ECANCELED);
        }
    });
    rig.turn();
    assert_eq!(rig.counts(), (1, 1));
    rig.driver.shutdown();
    assert_eq!(rig.counts(), (0, 1), "the result waits for a future that never comes");
}

#[test]
fn what_the_kernel_never_lets_go_of_is_leaked_and_not_freed() {
    let rig = Rig::new();
    let (submission, _) = rig.in_kernel(What::Read);
    drop(submission);
    let before = rig.driver.now();
    rig.driver.shutdown();
    assert!(rig.driver.now() - before >= rig.driver.config().shutdown_timeout, "it was waited for");
    assert_eq!(rig.alive(), 1);
    let Rig { driver, script, _entered, token, .. } = rig;
    drop((script, _entered, driver));
    assert_eq!(Rc::strong_count(&token), 2, "the driver is gone and the operation is not");
}

#[test]
fn cancelling_a_queued_operation_completes_it_without_the_kernel() {
    let rig = Rig::new();
    let mut submission = rig.start(What::Read).cancel();
    assert_eq!(rig.wakes(), 1);
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((errno(result), memory.len()), (libc::ECANCELED, 8));
    rig.turn();
    assert_eq!((rig.counts(), rig.script.pending().len()), ((0, 0), 0));
}

#[test]
fn cancelling_a_waiting_operation_asks_the_kernel_once() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::Read);
    for _ in 0..3 {
        submission.request_cancel();
        rig.turn();
    }
    assert_eq!(rig.opcodes(), [abi::READ, abi::ASYNC_CANCEL]);
    assert!(rig.poll(&mut submission).is_pending(), "a cancel ends nothing by itself");
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::ECANCELED);
}

#[test]
fn a_cancel_that_comes_too_late_gives_the_result() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    let mut submission = submission.cancel();
    rig.script.complete(key, 8);
    rig.turn();
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap(), memory), (8, vec![0xA5; 8]));
}

#[test]
fn a_cancelled_operation_is_never_retried() {
    for result in [-libc::EAGAIN, -libc::EINTR, -512] {
        let rig = Rig::new();
        let (submission, key) = rig.in_kernel(What::Read);
        let mut submission = submission.cancel();
        rig.script.complete(key, result);
        rig.turn();
        assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::ECANCELED);
        rig.turn();
        assert_eq!((rig.counts(), rig.opcodes()), ((0, 0), vec![abi::ASYNC_CANCEL]));
    }
}

#[test]
fn cancelling_while_it_waits_for_readiness_ends_the_poll_and_the_operation() {
    for answer in [1, -libc::ECANCELED] {
        let rig = Rig::new();
        let (submission, key) = rig.in_kernel(What::Read);
        rig.script.complete(key, -libc::EAGAIN);
        rig.turn();
        rig.turn();
        let mut submission = submission.cancel();
        rig.turn();
        assert_eq!(rig.opcodes(), [abi::POLL_ADD, abi::ASYNC_CANCEL]);
        rig.script.complete(key, answer);
        rig.turn();
        assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::ECANCELED);
        assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    }
}

#[test]
fn dropping_between_eagain_and_its_poll_frees_it_at_once() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Read);
    rig.script.complete(key, -libc::EAGAIN);
    rig.turn();
    drop(submission);
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    rig.turn();
    assert_eq!(rig.script.pending().len(), 0);
}

/// The answer to that poll is a set of events. Read as a descriptor it would close the program's standard output.
#[test]
fn the_readiness_of_an_orphaned_accept_is_not_taken_for_a_descriptor() {
    let rig = Rig::new();
    let (submission, key) = rig.in_kernel(What::Accept);
    rig.script.complete(key, -libc::EAGAIN);
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::POLL_ADD]);
    drop(submission);
    // The events, read as a number, are those of a descriptor that this test owns.
    let (bystander, peer) = descriptor();
    let number = std::os::fd::AsRawFd::as_raw_fd(&bystander);
    rig.script.complete(key, number);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    assert!(!is_closed(peer), "the orphan closed a descriptor that it did not create");
    drop(bystander);
}

#[test]
fn a_cancelled_accept_leaks_no_descriptor() {
    let rig = Rig::new();
    // Orphaned, then done and dropped, then cancelled too late.
    let (submission, key) = rig.in_kernel(What::Accept);
    drop(submission);
    let (fd, peer) = descriptor();
    rig.script.complete_with_descriptor(key, fd, 0);
    rig.turn();
    assert!(is_closed(peer));

    let (submission, key) = rig.in_kernel(What::Accept);
    let (fd, peer) = descriptor();
    rig.script.complete_with_descriptor(key, fd, 0);
    rig.turn();
    drop(submission);
    assert!(is_closed(peer));

    let (submission, key) = rig.in_kernel(What::Accept);
    let mut submission = submission.cancel();
    let (fd, peer) = descriptor();
    rig.script.complete_with_descriptor(key, fd, 0);
    rig.turn();
    let (result, fd, _) = ready(rig.poll(&mut submission));
    assert!(result.is_ok() && fd.is_some(), "a cancel that came too late gives the connection");
    drop(fd);
    assert!(is_closed(peer));
}
