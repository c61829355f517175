//! Memory: no byte is shown that was not written, and nothing is believed about a buffer but by the completion of
//! the submission that it was lent to.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use ringmain::{Completion, Encoded, Fd, FdHold, Fill, IoBuf, Operation, Sqe, Submission, Wait, ops};

use super::*;

thread_local! {
    static STOLEN: RefCell<Vec<Completion>> = const { RefCell::new(Vec::new()) };
}

/// Keeps its completion for others.
struct Thief(FdHold, Fill<Vec<u8>>);

impl Operation for Thief {
    type Output = Vec<u8>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.0.as_fd(), &mut self.1, None)
    }

    fn decode(self, completion: Completion) -> Vec<u8> {
        STOLEN.with_borrow_mut(|stolen| stolen.push(completion));
        self.1.into_inner()
    }
}

/// Shows its buffer by a completion that is not its own.
struct Fence(FdHold, Fill<Vec<u8>>);

impl Operation for Fence {
    type Output = (io::Result<usize>, Vec<u8>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.0.as_fd(), &mut self.1, None)
    }

    fn decode(self, _own: Completion) -> Self::Output {
        let stolen = STOLEN.with_borrow_mut(Vec::pop).expect("one was stolen");
        self.1.finish(stolen)
    }
}

#[test]
fn a_stolen_completion_shows_nothing() {
    let (driver, _entered) = kernel();
    let (reader, writer) = pipe();
    rustix::io::write(&writer, &[7; 64]).unwrap();
    let reader = Fd::new(reader);
    let untouched = finish(&driver, &mut Submission::new(Thief(reader.hold(), Fill::new(Vec::with_capacity(32)))));
    assert!(untouched.is_empty(), "without its completion a buffer shows nothing");
    let mut fence = Submission::new(Fence(reader.hold(), Fill::new(Vec::with_capacity(64))));
    assert!(poll(&mut fence).is_pending());
    driver.turn(Wait::Until(Some(HANG))).unwrap();
    assert!(panic_of(|| drop(finish(&driver, &mut fence))).contains("comes to the buffer of"));
    // Nor does one of another ring, wherever the two are in their orders.
    let (other, other_entered) = kernel();
    drop(other_entered);
    for _ in 0..8 {
        rustix::io::write(&writer, &[7; 16]).unwrap();
        let thief = Thief(reader.hold(), Fill::new(Vec::with_capacity(8)));
        assert!(finish(&driver, &mut Submission::new(thief)).is_empty());
        let _entered = other.enter();
        let mut fence = Submission::new(Fence(reader.hold(), Fill::new(Vec::with_capacity(8))));
        assert!(panic_of(|| drop(finish(&other, &mut fence))).contains("comes to the buffer of"));
    }
}

/// Lends its buffer, and then says that it could not.
struct LendsThenRefuses(FdHold, Fill<Vec<u8>>, bool);

impl Operation for LendsThenRefuses {
    type Output = (io::Result<usize>, Vec<u8>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        if std::mem::replace(&mut self.2, false) {
            let _unused = sqe.read(self.0.as_fd(), &mut self.1, None)?;
            return Err(io::Error::other("no"));
        }
        // Another entry, which fills nothing, for a buffer that was armed before.
        sqe.nop()
    }

    fn decode(self, completion: Completion) -> Self::Output {
        self.1.finish(completion)
    }
}

#[test]
fn an_armed_buffer_shows_nothing_without_its_read() {
    let (driver, _entered) = kernel();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let refused = LendsThenRefuses(reader.hold(), Fill::new(Vec::with_capacity(64)), true);
    let (result, bytes) = finish(&driver, &mut Submission::new(refused));
    assert_eq!((result.unwrap_err().to_string(), bytes.len()), ("no".to_owned(), 0));
    // A nop succeeds with 0 and never got the buffer.
    let never = LendsThenRefuses(reader.hold(), Fill::new(Vec::with_capacity(64)), false);
    assert!(panic_of(|| drop(finish(&driver, &mut Submission::new(never)))).contains("no submission was given"));
    // Armed by an attempt that would have waited, and taken on by another entry.
    struct Twice(FdHold, Fill<Vec<u8>>, u32);
    impl Operation for Twice {
        type Output = (io::Result<usize>, Vec<u8>);
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            self.2 += 1;
            if self.2 == 1 { sqe.read(self.0.as_fd(), &mut self.1, None) } else { sqe.nop() }
        }
        fn decode(self, completion: Completion) -> Self::Output {
            self.1.finish(completion)
        }
    }
    let waits = driver.attempt(Twice(reader.hold(), Fill::new(Vec::with_capacity(64)), 0));
    let Err(again) = waits else { panic!("the pipe is empty") };
    assert!(panic_of(|| drop(finish(&driver, &mut Submission::new(again)))).contains("comes to the buffer of"));
}

/// A safe buffer that never says the same twice.
struct Fickle(RefCell<usize>, [Vec<u8>; 2]);

impl IoBuf for Fickle {
    fn bytes(&self) -> &[u8] {
        let mut calls = self.0.borrow_mut();
        *calls += 1;
        &self.1[*calls % 2]
    }
}

#[test]
fn a_buffer_that_changes_its_mind_is_sent_as_it_was_when_asked() {
    let (driver, _entered) = kernel();
    let (reader, writer) = pipe();
    let writer = Fd::new(writer);
    for round in 0..4 {
        let fickle = Fickle(RefCell::new(round), [vec![b'a'; 4], vec![b'b'; 3000]]).slice(1..4000);
        let (result, _fickle) = finish(&driver, &mut ops::write(&writer, fickle));
        let sent = result.unwrap();
        let mut got = vec![0; 4000];
        let count = rustix::io::read(&reader, &mut got).unwrap();
        assert_eq!(count, sent);
        assert!(got[..count].iter().all(|byte| *byte == got[0]), "one of the two, whole");
    }
    // The composite asks again and again, and must neither spin nor leave the buffer.
    let fickle = Fickle(RefCell::new(0), [vec![b'a'; 4], vec![b'b'; 30]]);
    let mut all = std::pin::pin!(ops::write_all(&writer, fickle));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..64 {
            if let std::task::Poll::Ready((result, _buffer)) = all.as_mut().poll(&mut cx) {
                return result.is_ok();
            }
            driver.turn(Wait::Until(Some(HANG))).unwrap();
        }
        panic!("it has to come to an end");
    }));
    assert!(outcome.is_ok(), "a lie about lengths ends in a result");
}

/// Panics when it is asked for its bytes.
struct Explosive;

impl IoBuf for Explosive {
    fn bytes(&self) -> &[u8] {
        panic!("no bytes today")
    }
}

#[test]
fn a_buffer_that_panics_leaves_no_slot_behind() {
    let (driver, script, _entered) = scripted();
    let (_reader, writer) = pipe();
    let writer = Fd::new(writer);
    assert!(panic_of(|| drop(poll(&mut ops::write(&writer, Explosive)))).contains("no bytes today"));
    driver.turn(Wait::No).unwrap();
    assert_eq!((driver.slots_used(), script.pending().len()), (0, 0));
}

#[test]
fn lengths_beyond_what_an_entry_can_say_are_cut_and_not_wrapped() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    // Reserved, never touched: more than 32 bits of bytes.
    let huge = Vec::with_capacity((u32::MAX as usize) + 4097);
    let mut read = Submission::new(Take { from: reader.hold(), fill: Fill::new(huge) });
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let entry = script.pending()[0].entry;
    assert_eq!(entry.len, 0x7fff_f000, "the kernel's most for one transfer");
    script.complete_with_bytes(entry.user_data, b"tail");
    let (result, bytes) = finish(&driver, &mut read);
    assert_eq!((result.unwrap(), &bytes[..]), (4, &b"tail"[..]));
}

#[test]
fn a_slice_of_extreme_bounds_stays_inside_its_buffer() {
    let (driver, _entered) = kernel();
    let (reader, writer) = pipe();
    let (reader, writer) = (Fd::new(reader), Fd::new(writer));
    for (start, end) in [(0, 0), (0, usize::MAX), (usize::MAX, usize::MAX), (5, 5), (5, usize::MAX), (9, 20)] {
        let (result, slice) = finish(&driver, &mut ops::write(&writer, b"12345678".to_vec().slice(start..end)));
        let sent = result.unwrap();
        assert_eq!(sent, slice.bytes().len());
        let expected = b"12345678".get(start.min(8)..end.min(8)).unwrap().to_vec();
        assert_eq!(slice.bytes(), expected);
        if sent > 0 {
            let (result, slice) =
                finish(&driver, &mut ops::read(&reader, Vec::with_capacity(16).slice(start.min(8)..end)));
            assert_eq!(result.unwrap(), sent);
            let whole = slice.into_inner();
            assert!(whole[..start].iter().all(|byte| *byte == 0), "the gap shows zeros");
            assert_eq!(&whole[start..], expected);
        }
    }
    let error = finish(&driver, &mut ops::read(&reader, Vec::with_capacity(16).slice(usize::MAX..))).0.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_kernel_has_let_go() {
    /// A buffer whose end can be seen. It lends only what it owns.
    struct Watched(
        Fill<Vec<u8>>,
        FdHold,
        #[expect(dead_code, reason = "its count tells when the operation ends")] Rc<()>,
    );
    impl Operation for Watched {
        type Output = ();
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.read(self.1.as_fd(), &mut self.0, None)
        }
        fn decode(self, _: Completion) {}
    }
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let alive = Rc::new(());
    let operation = Watched(Fill::new(Vec::with_capacity(4096)), reader.hold(), Rc::clone(&alive));
    let mut read = Submission::new(operation);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let key = pending(&script, READ);
    drop(read);
    for _ in 0..4 {
        driver.turn(Wait::No).unwrap();
    }
    assert_eq!(Rc::strong_count(&alive), 2, "the kernel may still write into it");
    script.complete(key, 4096);
    driver.turn(Wait::No).unwrap();
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn a_lease_of_another_registry_is_refused_and_comes_back() {
    let (driver, _entered) = kernel();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let foreign = ringmain::Registry::new(1).unwrap();
    let lease = foreign.try_lease(64).unwrap();
    let (result, lease) = finish(&driver, &mut ops::read_fixed(&reader, lease));
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(lease.capacity(), 64);
    drop(lease);
    assert_eq!(foreign.snapshot().pages_free, 1);
}
