//! One operation with one completion: vacant to done, retries, links, identity, capacity.

use super::*;

#[test]
fn an_operation_goes_from_vacant_to_done_and_back() {
    let rig = Rig::new();
    let mut submission = rig.submission(What::Read);
    assert_eq!(rig.counts(), (0, 0), "nothing happens before the first poll");
    assert!(rig.poll(&mut submission).is_pending());
    assert_eq!((rig.counts(), rig.script.pending().len()), ((1, 1), 0), "queued");
    rig.turn();
    assert_eq!((rig.counts(), rig.opcodes()), ((1, 1), vec![abi::READ]), "waiting");
    rig.script.complete(rig.last().user_data, 3);
    rig.turn();
    assert_eq!((rig.counts(), rig.wakes()), ((0, 1), 1), "done, and not polled yet");
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap(), &memory[..4]), (3, &[0xA5, 0xA5, 0xA5, 0][..]));
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn a_panic_in_encode_leaves_the_slot_vacant() {
    let rig = Rig::new();
    let mut submission = rig.submission(What::Panics);
    assert!(catch_unwind(AssertUnwindSafe(|| rig.poll(&mut submission).is_pending())).is_err());
    assert_eq!((rig.counts(), rig.alive(), rig.driver.has_queued()), ((0, 0), 0, false));
    // The body that the panic left behind serves the next operation.
    let (mut next, key) = rig.in_kernel(What::Nop);
    rig.script.complete(key, 0);
    rig.turn();
    assert!(rig.poll(&mut next).is_ready());
}

#[test]
fn a_refused_operation_comes_back_and_the_kernel_never_sees_it() {
    let rig = Rig::new();
    let mut submission = rig.submission(What::Refused);
    let (result, _, memory) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap_err().kind(), memory.len()), (io::ErrorKind::InvalidInput, 8));
    rig.turn();
    assert_eq!((rig.counts(), rig.script.pending().len()), ((0, 0), 0));
}

#[test]
fn eagain_waits_for_readiness_and_tries_again() {
    let rig = Rig::new();
    for (what, opcode, events) in
        [(What::Read, abi::READ, 1), (What::Send, abi::SEND, 4), (What::Accept, abi::ACCEPT, 1)]
    {
        let (submission, key) = rig.in_kernel(what);
        rig.script.complete(key, -libc::EAGAIN);
        rig.turn();
        rig.turn();
        let poll = rig.last();
        assert_eq!((poll.opcode, poll.op_flags, poll.user_data), (abi::POLL_ADD, events, key));
        rig.script.complete(key, 1);
        rig.turn();
        rig.turn();
        assert_eq!((rig.last().opcode, rig.wakes()), (opcode, 0), "nobody learns of the detour");
        rig.script.complete(key, -libc::EIO);
        rig.turn();
        drop(submission);
        rig.wakes.0.store(0, Ordering::SeqCst);
    }
    assert_eq!((rig.counts(), rig.alive(), rig.driver.metrics().retries.get()), ((0, 0), 0, 6));
}

#[test]
fn an_error_of_the_readiness_poll_ends_the_operation() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::Read);
    rig.script.complete(key, -libc::EAGAIN);
    rig.turn();
    rig.turn();
    rig.script.complete(key, -libc::EBADF);
    rig.turn();
    assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::EBADF);
}

#[test]
fn an_interrupted_operation_is_pushed_again() {
    for interruption in [libc::EINTR, 512] {
        let rig = Rig::new();
        let (mut submission, key) = rig.in_kernel(What::Read);
        rig.script.complete(key, -interruption);
        rig.turn();
        rig.turn();
        assert_eq!(rig.opcodes(), [abi::READ]);
        rig.script.complete(key, 2);
        rig.turn();
        assert_eq!(ready(rig.poll(&mut submission)).0.unwrap(), 2);
    }
}

#[test]
fn an_operation_that_may_not_be_repeated_reports_what_the_kernel_said() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::Splice);
    rig.script.complete(key, -libc::EAGAIN);
    rig.turn();
    assert_eq!(errno(ready(rig.poll(&mut submission)).0), libc::EAGAIN);
}

#[test]
fn a_stale_completion_wakes_nobody() {
    let rig = Rig::new();
    let (mut first, old) = rig.in_kernel(What::Read);
    rig.script.complete(old, 8);
    rig.turn();
    assert!(rig.poll(&mut first).is_ready());
    // The same slot, used again, while a completion of its former use comes once more.
    let (mut second, new) = rig.in_kernel(What::Read);
    assert_eq!(old & super::super::INDEX_MAX, new & super::super::INDEX_MAX, "it is the same slot");
    rig.script.complete(old, 8);
    rig.turn();
    assert!(rig.poll(&mut second).is_pending());
    assert_eq!((rig.counts(), rig.wakes(), rig.driver.metrics().stale.get()), ((1, 1), 1, 1));
    rig.script.complete(new, 1);
    rig.turn();
    assert_eq!(ready(rig.poll(&mut second)).0.unwrap(), 1);
}

#[test]
fn a_completion_of_a_slot_that_never_was_is_counted() {
    let rig = Rig::new();
    rig.script.complete(12_345, 0);
    rig.turn();
    assert_eq!((rig.counts(), rig.driver.metrics().stale.get()), ((0, 0), 1));
}

#[test]
fn the_answer_to_a_cancel_of_what_has_ended_is_nothing() {
    let rig = Rig::new();
    let (submission, _) = rig.in_kernel(What::Read);
    rig.script.complete(super::super::CANCEL | 12_345, -libc::ENOENT);
    rig.turn();
    assert_eq!((rig.counts(), rig.driver.metrics().stale.get()), ((1, 1), 0));
    drop(submission);
}

#[test]
fn only_the_last_waker_is_woken() {
    let rig = Rig::new();
    let (mut submission, key) = rig.in_kernel(What::Nop);
    let other = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&other));
    assert!(Pin::new(&mut submission).poll(&mut Context::from_waker(&waker)).is_pending());
    rig.script.complete(key, 0);
    rig.turn();
    assert_eq!((rig.wakes(), other.0.load(Ordering::SeqCst)), (0, 1));
}

#[test]
fn a_lease_is_in_flight_from_push_to_final_completion() {
    let rig = Rig::new();
    let registry = rig.driver.registry().clone();
    let mut submission = Submission::new(ReadFixed { fd: null(), fill: Fill::new(registry.try_lease(4096).unwrap()) });
    assert!(rig.poll(&mut submission).is_pending());
    assert_eq!((registry.snapshot().pages_leased, registry.snapshot().pages_in_flight), (1, 0), "queued");
    rig.turn();
    assert_eq!((registry.snapshot().pages_leased, registry.snapshot().pages_in_flight), (0, 1), "waiting");
    drop(submission);
    rig.turn();
    assert_eq!(registry.snapshot().pages_in_flight, 1, "orphaned");
    rig.script.complete(rig.script.pending()[0].entry.user_data, 17);
    rig.turn();
    assert_eq!(registry.snapshot().pages_free, 8);
}

#[test]
fn a_lease_waits_for_readiness_in_the_programs_hands() {
    let rig = Rig::new();
    let registry = rig.driver.registry().clone();
    let mut submission = Submission::new(ReadFixed { fd: null(), fill: Fill::new(registry.try_lease(4096).unwrap()) });
    assert!(rig.poll(&mut submission).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    rig.script.complete(key, -libc::EAGAIN);
    rig.turn();
    rig.turn();
    assert_eq!((rig.opcodes(), registry.snapshot().pages_in_flight), (vec![abi::POLL_ADD], 0));
    rig.script.complete(key, 1);
    rig.turn();
    rig.turn();
    assert_eq!(registry.snapshot().pages_in_flight, 1);
    rig.script.complete_with_bytes(key, b"here");
    rig.turn();
    let (result, lease) = ready(rig.poll(&mut submission));
    assert_eq!((result.unwrap(), &lease[..]), (4, &b"here"[..]));
}

#[test]
fn a_linked_pair_is_taken_by_one_enter() {
    let rig = Rig::with(&Config::default().entries(4).completions(8));
    let filler: Vec<_> = (0..3).map(|_| rig.start(What::Nop)).collect();
    let first = rig.start(What::LinkedNop);
    let second = rig.start(What::Nop);
    let enters = Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = Rc::clone(&enters);
    rig.script.play(move |kernel| seen.borrow_mut().push(kernel.pending().len()));
    rig.turn();
    // Three entries fill all but one place of the queue: the pair must not be torn across two enters.
    assert_eq!(*enters.borrow(), [3, 5]);
    let pending = rig.script.pending();
    assert_eq!((pending[3].entry.flags, pending[4].entry.flags), (abi::LINK, 0));
    drop((filler, first, second));
}

#[test]
fn operations_beyond_the_limit_wait_and_are_admitted_in_order() {
    let rig = Rig::with(&Config::default().operations(2).ring_splices(1));
    let mut all: Vec<_> = (0..4).map(|_| rig.submission(What::Nop)).collect();
    for submission in &mut all {
        assert!(rig.poll(submission).is_pending());
    }
    assert_eq!(rig.counts(), (2, 2));
    assert!(!all[2].is_in_flight());
    rig.turn();
    let first = rig.script.pending()[0].entry.user_data;
    rig.script.complete(first, 0);
    rig.turn();
    // The last in the queue is polled first, and still has to wait for the one before it.
    assert!(rig.poll(&mut all[3]).is_pending());
    assert!(!all[3].is_in_flight());
    assert!(rig.poll(&mut all[2]).is_pending());
    assert!(all[2].is_in_flight());
    assert_eq!(rig.counts(), (2, 3), "the done one blocks nobody");
    // Giving up a place lets the next one in.
    drop(all.remove(2));
    assert!(rig.poll(&mut all[2]).is_pending());
    assert!(all[2].is_in_flight());
    rig.script.play(|kernel| {
        for pending in kernel.pending() {
            kernel.complete(pending.entry.user_data, 0);
        }
    });
    rig.turn();
    rig.turn();
    for mut submission in all {
        assert!(rig.poll(&mut submission).is_ready());
    }
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}
