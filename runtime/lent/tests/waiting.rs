//! What waits for a buffer or for its consumer: when it is tried again, and how it ends.

use super::*;
use crate::runtime::{Fd, FdHold};

/// A stream of reads that has a share of its descriptor.
struct Reads(FdHold);

impl MultishotOperation for Reads {
    type Item = Got;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.read(self.0.as_fd(), &Driver::current().buffer_group(1, false)?)
    }

    fn item(&self, completion: Completion) -> Got {
        got(completion)
    }
}

/// The kernel has given its only buffer to a receive that takes long. What found none waits for that, and is not tried
/// over and over.
#[test]
fn what_finds_no_buffer_waits_for_the_one_that_another_receive_fills() {
    let rig = Rig::new(1, 4);
    let (mut slow, slow_key) = rig.receive();
    let waiting: Vec<_> = (0..3).map(|_| rig.receive()).collect();
    let submissions = rig.driver.metrics().submissions.get();
    for _ in 0..40 {
        for pending in rig.script.pending().iter().filter(|pending| pending.entry.user_data != slow_key) {
            rig.script.complete(pending.entry.user_data, -libc::ENOBUFS);
        }
        rig.turn();
    }
    let tries = rig.driver.metrics().submissions.get() - submissions;
    assert!(tries <= 6, "{tries} entries for three receives that find no buffer");
    rig.script.complete_with_lent(slow_key, b"slow", 0);
    rig.turn();
    rig.turn();
    assert_eq!(brought(ready(rig.poll(&mut slow))), b"slow");
    for _ in &waiting {
        rig.script.complete_with_lent(rig.last(), b"next", 0);
        rig.turn();
        rig.turn();
    }
    for (mut receive, _) in waiting {
        assert_eq!(brought(ready(rig.poll(&mut receive))), b"next");
    }
    assert_eq!(rig.driver.operations_active(), 0);
}

/// And if that one fails: whether the buffer is with the kernel is in doubt then, and one of those that wait asks.
#[test]
fn what_waits_while_every_buffer_comes_into_doubt_goes_on() {
    let rig = Rig::new(1, 4);
    let (_failing, failing_key) = rig.receive();
    let mut waiting: Vec<_> = (0..2).map(|_| rig.receive()).collect();
    for (_, key) in &waiting {
        rig.script.complete(*key, -libc::ENOBUFS);
    }
    rig.turn();
    for _ in 0..10 {
        for pending in rig.script.pending().iter().filter(|pending| pending.entry.user_data != failing_key) {
            rig.script.complete(pending.entry.user_data, -libc::ENOBUFS);
        }
        rig.turn();
    }
    let (id, _) = rig.script.lent(failing_key)[0];
    rig.script.complete_with(failing_key, -libc::EIO, naming(id));
    for _ in 0..10 {
        rig.turn();
        for pending in rig.script.pending() {
            match rig.script.lent(pending.entry.user_data).is_empty() {
                true => rig.script.complete(pending.entry.user_data, -libc::ENOBUFS),
                false => rig.script.complete_with_lent(pending.entry.user_data, b"next", 0),
            }
        }
    }
    rig.turn();
    for (receive, _) in &mut waiting {
        assert_eq!(brought(ready(rig.poll(receive))), b"next");
    }
}

/// I7: receives that give up while their group has no page leave nothing with it.
#[test]
fn receives_that_give_up_waiting_for_a_page_are_forgotten() {
    let rig = Rig::new(1, 1);
    let held = rig.driver.registry().try_lease(4096).unwrap();
    let (_first, key) = rig.receive();
    rig.script.complete(key, -libc::ENOBUFS);
    rig.turn();
    for _ in 0..1000 {
        let (receive, key) = rig.receive();
        rig.script.complete(key, -libc::ENOBUFS);
        rig.turn();
        drop(receive);
    }
    let group = rig.driver.buffer_group(1, false).unwrap();
    assert!(group.starved() < 20, "{} are remembered, and one waits", group.starved());
    drop(held);
}

/// A guest sleeps until it is told of something to do, and no completion tells of a buffer that was put in meanwhile.
#[test]
fn a_guest_is_told_that_what_waits_has_a_buffer() {
    let rig = Rig::new(1, 4);
    let (first, first_key) = rig.receive();
    let (_second, second_key) = rig.receive();
    rig.script.complete_with_lent(first_key, b"first", 0);
    rig.script.complete(second_key, -libc::ENOBUFS);
    rig.turn();
    assert!(rig.driver.has_queued(), "another buffer was lent before the second one was told that there is none");
    rig.turn();
    assert_eq!(rig.last(), second_key);
    assert!(!rig.driver.has_queued());
    // What waits for a page has nothing to do.
    let held: Vec<_> = std::iter::from_fn(|| rig.driver.registry().try_lease(4096)).collect();
    rig.script.complete_with_lent(second_key, b"second", 0);
    let (_third, third_key) = rig.receive();
    rig.script.complete(third_key, -libc::ENOBUFS);
    rig.turn();
    rig.turn();
    assert!(!rig.driver.has_queued());
    drop((held, first));
    assert!(rig.driver.has_queued(), "a page came back");
}

/// What is paused is nowhere in the kernel, and yet it is pending on its descriptor.
#[test]
fn a_paused_stream_ends_with_the_last_handle_of_its_descriptor() {
    let rig = Rig::new(20, 64);
    let fd = Fd::new(null());
    let mut stream = Multishot::new(Reads(fd.hold()));
    let mut next = || Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(next().is_pending());
    rig.turn();
    let key = rig.last();
    for _ in 0..20 {
        rig.script.complete_with_lent(key, b"late", abi::MORE);
    }
    rig.turn();
    rig.turn();
    rig.script.complete(rig.last(), 0);
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!(rig.opcodes(), []);
    drop(fd);
    for _ in 0..20 {
        assert_eq!(brought(ready(next()).unwrap()), b"late");
    }
    let (result, _) = ready(next()).unwrap();
    assert_eq!(result, Err(libc::ECANCELED), "this is not the end of what there was to read");
    assert!(ready(next()).is_none());
}

/// A registry that was given may be smaller than what the configuration lends.
#[test]
fn buffers_that_the_registry_could_never_have_are_refused_and_not_waited_for() {
    let registry = crate::Registry::new(1).unwrap();
    let config = Config::default().lent([(8192, 1)]);
    let runtime = crate::Runtime::builder().config(config).registry(registry).build().unwrap();
    let error = runtime.driver().buffer_group(1, false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("8192"), "{error}");
}

/// Neither is the end of the runtime, or of the last handle, the end of the data.
#[test]
fn a_stream_that_waits_for_a_page_is_told_that_others_have_ended_it() {
    for shuts_down in [false, true] {
        let rig = Rig::new(1, 1);
        let held = rig.driver.registry().try_lease(4096).unwrap();
        let fd = Fd::new(null());
        let mut stream = Multishot::new(Reads(fd.hold()));
        let mut next = || Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop()));
        assert!(next().is_pending());
        rig.turn();
        rig.script.complete(rig.last(), -libc::ENOBUFS);
        rig.turn();
        match shuts_down {
            true => rig.driver.shutdown(),
            false => drop(fd),
        }
        assert_eq!(ready(next()).unwrap().0, Err(libc::ECANCELED));
        assert!(ready(next()).is_none());
        drop(held);
    }
}
