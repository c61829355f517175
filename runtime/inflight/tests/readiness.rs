//! A multishot poll whose items are merged.

use rustix::event::PollFlags;

use super::*;

/// A multishot poll, which says what it saw.
struct Polling {
    fd: OwnedFd,
    _token: Rc<()>,
}

impl MultishotOperation for Polling {
    type Item = io::Result<u32>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.poll(self.fd.as_fd(), PollFlags::IN | PollFlags::RDHUP)
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        completion.result()
    }
}

const IN: i32 = 1;
const RDHUP: i32 = 0x2000;

fn polling(rig: &Rig) -> Multishot<Polling> {
    Multishot::merged(Polling { fd: null(), _token: Rc::clone(&rig.token) })
}

/// A poll that the kernel has, and its `user_data`.
fn armed(rig: &Rig) -> (Multishot<Polling>, u64) {
    let mut stream = polling(rig);
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    (stream, rig.last().user_data)
}

fn seen(next: Poll<Option<io::Result<u32>>>) -> i32 {
    ready(next).unwrap().unwrap().cast_signed()
}

#[test]
fn what_a_poll_has_seen_is_one_item_and_one_wake() {
    let rig = Rig::new();
    let (mut stream, key) = armed(&rig);
    for events in [IN, IN, RDHUP, IN] {
        rig.script.complete_with(key, events, abi::MORE);
        rig.turn();
    }
    assert_eq!((rig.wakes(), rig.counts()), (1, (1, 1)));
    assert_eq!(seen(rig.next(&mut stream)), IN | RDHUP);
    rig.script.complete_with(key, IN, abi::MORE);
    rig.turn();
    assert_eq!(rig.wakes(), 1, "whoever has not looked again waits for nothing");
    assert_eq!(seen(rig.next(&mut stream)), IN);
    for wakes in 2..5 {
        assert!(rig.next(&mut stream).is_pending());
        rig.script.complete_with(key, IN, abi::MORE);
        rig.turn();
        assert_eq!(rig.wakes(), wakes);
        assert_eq!(seen(rig.next(&mut stream)), IN);
    }
    drop(stream);
    rig.turn();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn a_poll_that_ends_says_first_what_it_saw() {
    let rig = Rig::new();
    for last in [IN, -libc::ECANCELED, -libc::ENOMEM] {
        let (mut stream, key) = armed(&rig);
        let wakes = rig.wakes();
        rig.script.complete_with(key, RDHUP, abi::MORE);
        rig.script.complete(key, last);
        rig.turn();
        assert_eq!((rig.wakes() - wakes, rig.counts()), (1, (0, 1)));
        assert_eq!(seen(rig.next(&mut stream)), RDHUP);
        match ready(rig.next(&mut stream)).unwrap() {
            Ok(events) => assert_eq!(events.cast_signed(), last),
            Err(error) => assert_eq!(error.raw_os_error(), Some(-last)),
        }
        assert!(ready(rig.next(&mut stream)).is_none());
        assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
    }
}

#[test]
fn a_poll_that_ends_while_nobody_waits_is_found_ended() {
    let rig = Rig::new();
    let (mut stream, key) = armed(&rig);
    rig.script.complete_with(key, IN, abi::MORE);
    rig.turn();
    assert_eq!(seen(rig.next(&mut stream)), IN);
    rig.script.complete(key, IN);
    rig.turn();
    assert_eq!(seen(rig.next(&mut stream)), IN);
    assert!(ready(rig.next(&mut stream)).is_none());
}

#[test]
fn a_cancelled_poll_yields_what_it_saw_and_its_end() {
    let rig = Rig::new();
    let (mut stream, key) = armed(&rig);
    stream.cancel();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::POLL_ADD, abi::ASYNC_CANCEL]);
    rig.script.complete_with(key, IN, abi::MORE);
    rig.turn();
    assert_eq!(seen(rig.next(&mut stream)), IN);
    assert!(rig.next(&mut stream).is_pending());
    let wakes = rig.wakes();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!(rig.wakes(), wakes + 1);
    assert_eq!(errno(ready(rig.next(&mut stream)).unwrap()), libc::ECANCELED);
    assert!(ready(rig.next(&mut stream)).is_none());
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn a_poll_wakes_whoever_looked_last() {
    let rig = Rig::new();
    let (mut stream, key) = armed(&rig);
    let other: Arc<Wakes> = Arc::default();
    let waker = Waker::from(Arc::clone(&other));
    assert!(!stream.is_quiet(&waker), "that one would never be woken");
    assert!(Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert!(stream.is_quiet(&waker) && !stream.is_quiet(&rig.waker()));
    rig.script.complete_with(key, IN, abi::MORE);
    rig.turn();
    assert_eq!((rig.wakes(), other.0.load(Ordering::SeqCst)), (0, 1));
    assert!(!stream.is_quiet(&waker), "something has come");
    assert_eq!(stream.poll_events(&waker), Some(Poll::Ready(IN.cast_unsigned())));
    assert_eq!(stream.poll_events(&waker), Some(Poll::Pending));
    // One waker is the test's, and one the slot's for as long as the stream goes on.
    assert_eq!(Arc::strong_count(&other), 3);
    drop(stream);
    rig.turn();
    assert_eq!(Arc::strong_count(&other), 2, "a stream that has gone keeps nobody's waker");
}

#[test]
fn the_slot_of_a_merged_poll_serves_others_as_before() {
    let rig = Rig::new();
    let (stream, key) = armed(&rig);
    rig.script.complete_with(key, IN, abi::MORE);
    rig.turn();
    drop(stream);
    rig.turn();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    rig.script.complete_with_descriptor(key, null(), abi::MORE);
    rig.script.complete_with_descriptor(key, null(), abi::MORE);
    rig.turn();
    for _ in 0..2 {
        assert!(ready(rig.next(&mut stream)).unwrap().1.is_some(), "an item each");
    }
    assert!(rig.next(&mut stream).is_pending());
}
