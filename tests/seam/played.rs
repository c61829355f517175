//! The played kernel is public and safe: whatever a script does, nothing is written that is not lent, and no
//! operation is told what did not happen to it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmain::{Completion, Driver, Encoded, Fd, FdHold, Operation, Sqe, Submission, Wait, ops};
use std::io;
use std::os::fd::AsFd;

use super::*;

/// The key of the next operation in the same slot: the sequence stands above the 24 bits of the index.
fn next_in_slot(user_data: u64) -> u64 {
    user_data + (1 << 24)
}

/// Let one read come and go, so that the key of the next one is known.
fn known_key(driver: &Driver, script: &Script, fd: &Fd) -> u64 {
    let mut first = take(fd, 16);
    assert!(poll(&mut first).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(script, READ);
    script.complete(key, -5);
    assert!(finish(driver, &mut first).0.is_err());
    key
}

#[test]
fn an_answer_from_before_the_question_is_not_believed() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let key = next_in_slot(known_key(&driver, &script, &reader));
    // Nobody has asked yet. Believed, it would show sixteen bytes that nobody wrote.
    script.complete(key, 16);
    let mut read = take(&reader, 16);
    assert!(poll(&mut read).is_pending());
    let said = panic_of(|| driver.turn(Wait::No).unwrap());
    assert!(said.contains("before it was submitted"), "{said}");
    assert!(poll(&mut read).is_pending());
    // The read is still where it was, and is answered by what is really written.
    script.complete_with_bytes(key, b"real");
    let (result, bytes) = finish(&driver, &mut read);
    assert_eq!((result.unwrap(), &bytes[..]), (4, &b"real"[..]));
}

#[test]
fn an_answer_from_before_an_accept_is_not_a_descriptor() {
    let (driver, script, _entered) = scripted();
    let (reader, victim) = pipe();
    let reader = Fd::new(reader);
    let key = next_in_slot(known_key(&driver, &script, &reader));
    script.complete(key, victim.as_raw_fd());
    let mut accept = admit(&reader);
    assert!(poll(&mut accept).is_pending());
    let outcome = catch_unwind(AssertUnwindSafe(|| driver.turn(Wait::No)));
    assert!(outcome.is_err());
    assert!(poll(&mut accept).is_pending());
    assert!(rustix::io::fcntl_getfd(&victim).is_ok(), "the number still belongs to its owner");
}

#[test]
fn a_second_answer_is_not_taken_for_the_retrys() {
    // A read that would wait is tried again under the same key, so a second answer to the first try could pass for
    // the answer to the second one.
    let (driver, script) = Driver::scripted(&config().entries(1).completions(2)).unwrap();
    let _entered = driver.enter();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 16);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    script.complete(key, -EAGAIN);
    // More than one turn can take: some of them come when the poll, and then the read, is in flight again.
    let strays = 64;
    for _ in 0..strays {
        script.complete(key, 16);
    }
    let mut refused = 0;
    for _ in 0..=strays {
        refused += u32::from(catch_unwind(AssertUnwindSafe(|| driver.turn(Wait::No))).is_err());
        assert!(poll(&mut read).is_pending(), "no byte has been written, so none may be shown");
    }
    assert!(refused > 0 && driver.metrics().stale.get() > 0, "some come in between, and some while it is in flight");
    assert_eq!(refused as u64 + driver.metrics().stale.get(), strays);
    script.complete(pending(&script, POLL), 1);
    driver.turn(Wait::No).unwrap();
    driver.turn(Wait::No).unwrap();
    script.complete_with_bytes(pending(&script, READ), b"real");
    assert_eq!(finish(&driver, &mut read).1, b"real");
}

#[test]
fn more_to_come_from_the_poll_before_a_retry_is_not_the_retrys_answer() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 16);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(pending(&script, READ), -EAGAIN);
    driver.turn(Wait::No).unwrap();
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, POLL);
    script.complete_with(key, 1, MORE);
    driver.turn(Wait::No).unwrap();
    driver.turn(Wait::No).unwrap();
    assert_eq!(script.pending().len(), 1, "one key, one entry");
    script.complete(key, 16);
    driver.turn(Wait::No).unwrap();
    assert!(poll(&mut read).is_pending(), "no byte has been written, so none may be shown");
    driver.turn(Wait::No).unwrap();
    script.complete_with_bytes(pending(&script, READ), b"real");
    assert_eq!(finish(&driver, &mut read).1, b"real");
}

#[test]
fn the_events_of_a_poll_are_not_a_descriptor() {
    let (driver, script, _entered) = scripted();
    let (reader, victim) = pipe();
    let reader = Fd::new(reader);
    let mut accept = admit(&reader);
    assert!(poll(&mut accept).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(pending(&script, ACCEPT), -EAGAIN);
    driver.turn(Wait::No).unwrap();
    driver.turn(Wait::No).unwrap();
    let readiness = pending(&script, POLL);
    drop(accept);
    script.complete(readiness, victim.as_raw_fd());
    driver.turn(Wait::No).unwrap();
    assert_eq!(driver.slots_used(), 0);
    assert!(rustix::io::fcntl_getfd(&victim).is_ok(), "the number still belongs to its owner");
}

#[test]
fn a_read_that_was_answered_is_not_written_to_again() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    script.complete_with_bytes(key, b"first");
    let (result, bytes) = finish(&driver, &mut read);
    assert_eq!(result.unwrap(), 5);
    script.complete(key, 8);
    assert!(catch_unwind(AssertUnwindSafe(|| script.complete_with_bytes(key, b"second"))).is_err());
    driver.turn(Wait::No).unwrap();
    assert_eq!(bytes, b"first");
    assert_eq!(driver.metrics().stale.get(), 1);
}

#[test]
fn an_entry_that_the_kernel_has_not_been_given_cannot_be_answered() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let key = next_in_slot(known_key(&driver, &script, &reader));
    script.take_only(0);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    assert!(script.pending().is_empty(), "the kernel took nothing");
    let said = panic_of(|| script.complete(key, 8));
    assert!(said.contains("has not been given"), "{said}");
    driver.turn(Wait::No).unwrap();
    script.complete_with_bytes(key, b"ring");
    assert_eq!(finish(&driver, &mut read).1, b"ring");
}

#[test]
fn an_answer_that_cannot_be_true_is_refused_and_leaves_the_entry() {
    let (driver, script, _entered) = scripted();
    let (reader, writer) = pipe();
    let (reader, writer) = (Fd::new(reader), Fd::new(writer));
    let mut read = take(&reader, 4);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    assert!(panic_of(|| script.complete(key, 5)).contains("cannot bring more"));
    assert!(panic_of(|| script.complete_with_bytes(key, b"longer")).contains("cannot bring more"));
    let (other, _end) = pipe();
    assert!(panic_of(|| script.complete_with_descriptor(key, other, 0)).contains("gives no descriptor"));
    script.complete_with_bytes(key, b"fits");
    assert_eq!(finish(&driver, &mut read).1, b"fits");

    let mut write = ops::write(&writer, b"four".to_vec());
    assert!(poll(&mut write).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = script.pending()[0].entry.user_data;
    assert!(panic_of(|| script.complete(key, 5)).contains("cannot bring more"));
    script.complete(key, 4);
    assert_eq!(finish(&driver, &mut write).0.unwrap(), 4);

    let mut accept = admit(&reader);
    assert!(poll(&mut accept).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, ACCEPT);
    assert!(panic_of(|| script.complete(key, 0)).contains("complete_with_descriptor"));
    script.complete(key, -5);
    assert_eq!(finish(&driver, &mut accept).unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn more_to_come_from_a_read_shows_only_what_the_first_answer_wrote() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    script.complete_with(key, 3, MORE);
    driver.turn(Wait::No).unwrap();
    assert!(poll(&mut read).is_pending(), "the kernel still has the buffer");
    script.complete_with(key, 8, 0);
    let (result, bytes) = finish(&driver, &mut read);
    assert_eq!((result.unwrap(), &bytes[..]), (3, &[0xA5; 3][..]));
}

#[test]
fn a_vectored_read_is_filled_up_to_its_regions_and_no_further() {
    struct Pair(FdHold, [ringmain::Fill<Vec<u8>>; 2]);
    impl Operation for Pair {
        type Output = Vec<Vec<u8>>;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.readv(self.0.as_fd(), &mut self.1, None)
        }
        fn decode(self, completion: Completion) -> Self::Output {
            ringmain::Fill::finish_all(self.1, completion).1
        }
    }
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let fills = [3, 5].map(|capacity| ringmain::Fill::new(Vec::from(vec![0; capacity].into_boxed_slice())));
    let mut read = Submission::new(Pair(reader.hold(), fills));
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = script.pending()[0].entry.user_data;
    assert!(panic_of(|| script.complete(key, 9)).contains("cannot bring more"));
    script.complete_with_bytes(key, b"abcdefgh");
    assert_eq!(finish(&driver, &mut read), [b"abc".to_vec(), b"defgh".to_vec()]);
}

#[test]
fn a_descriptor_of_a_dropped_accept_is_closed() {
    let (driver, script, _entered) = scripted();
    let (reader, listener): (OwnedFd, OwnedFd) = pipe();
    let listener = Fd::new(listener);
    let (made_reader, made) = pipe();
    let mut accept = admit(&listener);
    assert!(poll(&mut accept).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, ACCEPT);
    drop(accept);
    script.complete_with_descriptor(key, made, 0);
    assert!(!is_at_end(&made_reader));
    driver.turn(Wait::No).unwrap();
    assert!(is_at_end(&made_reader), "nobody took it, so the runtime closes it");
    drop(reader);
}

#[test]
fn what_the_kernel_kept_at_shutdown_may_still_be_written() {
    let config = config().shutdown_timeout(std::time::Duration::from_millis(1));
    let (driver, script) = Driver::scripted(&config).unwrap();
    let entered = driver.enter();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let lease = driver.registry().try_lease(4096).unwrap();
    let registry = driver.registry().clone();
    let mut into_heap = take(&reader, 1 << 20);
    let mut into_pages = Submission::new(Take { from: reader.hold(), fill: ringmain::Fill::new(lease) });
    assert!(poll(&mut into_heap).is_pending());
    assert!(poll(&mut into_pages).is_pending());
    driver.turn(Wait::No).unwrap();
    let keys: Vec<u64> = script.pending().iter().map(|pending| pending.entry.user_data).collect();
    drop((into_heap, into_pages, entered, driver));
    // The runtime is gone and the kernel is not done: the memory must still be there.
    script.complete(keys[0], 1 << 20);
    script.complete(keys[1], 4096);
    assert_eq!(registry.snapshot().pages_in_flight, 1, "the page is never lent again");
}

#[test]
fn a_script_that_panics_in_shutdown_frees_nothing_and_ends_no_process() {
    let (driver, script) = Driver::scripted(&config()).unwrap();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let entered = driver.enter();
    let mut read = take(&reader, 1 << 20);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    drop((read, entered));
    script.play(|_| panic!("the play breaks off"));
    assert!(panic_of(|| drop(driver)).contains("breaks off"));
    script.complete(key, 1 << 20);
}
