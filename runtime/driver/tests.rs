//! The claims that the arguments for unsafe code rest on, each on a ring that a test plays, or on the kernel's.

use std::cell::Cell;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use rustix::event::PollFlags;

use super::*;
use crate::runtime::abi;
use crate::runtime::buf::Fill;
use crate::runtime::completion::Completion;
use crate::runtime::fd::{Fd, FdHold};
use crate::runtime::operation::{MultishotOperation, Operation};
use crate::runtime::registry::FixedBuf;
use crate::runtime::sqe::{Encoded, EncodedMultishot, MultishotSqe, Sqe};
use crate::runtime::submission::{Multishot, Submission};

fn scripted() -> (Rc<Driver>, Script, Entered) {
    let (driver, script) = Driver::scripted(&Config::default().entries(8).completions(16).pages(4)).unwrap();
    let entered = driver.enter();
    (driver, script, entered)
}

fn kernel() -> (Rc<Driver>, Entered) {
    let driver = Driver::new(&Config::default().pages(4)).unwrap();
    let entered = driver.enter();
    (driver, entered)
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Turn until the future is ready.
fn finish<F: Future + Unpin>(driver: &Driver, future: &mut F) -> F::Output {
    loop {
        if let Poll::Ready(output) = poll(future) {
            return output;
        }
        driver.turn(Wait::Until(Some(Duration::from_secs(60)))).unwrap();
    }
}

fn pipe() -> (Fd, Fd) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (Fd::new(reader), Fd::new(writer))
}

/// The `user_data` of the only entry that the played kernel has.
fn only(script: &Script) -> u64 {
    let pending = script.pending();
    assert_eq!(pending.len(), 1, "one entry is with the kernel: {pending:?}");
    pending[0].entry.user_data
}

struct Take<B>(FdHold, Fill<B>);

impl<B: crate::runtime::IoBufMut> Operation for Take<B> {
    type Output = (io::Result<usize>, B);
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.0.as_fd(), &mut self.1, None)
    }
    fn decode(self, completion: Completion) -> Self::Output {
        self.1.finish(completion)
    }
}

fn take(fd: &Fd, capacity: usize) -> Submission<Take<Vec<u8>>> {
    Submission::new(Take(fd.hold(), Fill::new(Vec::with_capacity(capacity))))
}

struct TakeMany(FdHold, [Fill<Vec<u8>>; 3]);

impl Operation for TakeMany {
    type Output = (io::Result<usize>, Vec<Vec<u8>>);
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.readv(self.0.as_fd(), &mut self.1, None)
    }
    fn decode(self, completion: Completion) -> Self::Output {
        Fill::finish_all(self.1, completion)
    }
}

struct Take1(FdHold);

impl Operation for Take1 {
    type Output = io::Result<OwnedFd>;
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.accept(self.0.as_fd())
    }
    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()?;
        completion.take_descriptor().ok_or_else(|| io::Error::other("an accept gives a descriptor"))
    }
}

struct EachEvent(FdHold);

impl MultishotOperation for EachEvent {
    type Item = io::Result<u32>;
    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.poll(self.0.as_fd(), PollFlags::IN)
    }
    fn item(&self, mut completion: Completion) -> Self::Item {
        completion.result()
    }
}

#[test]
fn dropping_a_read_keeps_its_buffer() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let mut read = take(&reader, 64);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let user_data = only(&script);
    drop(read);
    assert_eq!(driver.slots_used(), 1, "the slot keeps what the kernel may still write");
    driver.turn(Wait::No).unwrap();
    let cancel = script.pending().into_iter().find(|pending| pending.entry.opcode == abi::ASYNC_CANCEL).unwrap();
    assert_eq!(cancel.entry.addr, user_data, "the drop asked the kernel to cancel");
    // The kernel answers the cancel, and writes all the same: only the read's own completion ends it.
    script.complete(cancel.entry.user_data, -libc::EALREADY);
    driver.turn(Wait::No).unwrap();
    assert_eq!(driver.slots_used(), 1);
    script.complete_with_bytes(user_data, &[7; 64]);
    driver.turn(Wait::No).unwrap();
    assert_eq!((driver.slots_used(), driver.operations_active()), (0, 0));
}

#[test]
fn a_cancel_that_misses_is_sent_again() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let mut read = take(&reader, 64);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let user_data = only(&script);
    drop(read);
    let cancels = Rc::new(Cell::new(0));
    let seen = Rc::clone(&cancels);
    script.play(move |kernel| {
        for pending in kernel.pending().iter().filter(|pending| pending.entry.opcode == abi::ASYNC_CANCEL) {
            seen.set(seen.get() + 1);
            // Found only at the fifth time.
            let found = seen.get() == 5;
            kernel.complete(pending.entry.user_data, if found { 0 } else { -libc::ENOENT });
            if found {
                kernel.complete(user_data, -libc::ECANCELED);
            }
        }
    });
    let begun = driver.now();
    for _ in 0..20 {
        driver.turn(Wait::Until(Some(Duration::from_secs(60)))).unwrap();
        if driver.slots_used() == 0 {
            break;
        }
    }
    assert_eq!((cancels.get(), driver.slots_used()), (5, 0));
    assert!(driver.now() - begun >= Duration::from_millis(4), "and not in a spin");
}

/// A request that is on its way through the ring's own work queue is in none of those that a cancel searches.
#[test]
fn a_connect_to_a_full_backlog_is_cancelled_at_any_moment() {
    let (driver, _entered) = kernel();
    let path = tempfile::tempdir().unwrap();
    let path = path.path().join("full");
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _fills_the_backlog = std::os::unix::net::UnixStream::connect(&path).unwrap();

    struct Connect(FdHold, socket2::SockAddr);
    impl Operation for Connect {
        type Output = io::Result<u32>;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.connect(self.0.as_fd(), &self.1)
        }
        fn decode(self, mut completion: Completion) -> Self::Output {
            completion.result()
        }
    }
    for turns in 0..12 {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let fd = Fd::new(socket.into());
        let mut connect = Submission::new(Connect(fd.hold(), socket2::SockAddr::unix(&path).unwrap()));
        assert!(poll(&mut connect).is_pending());
        for _ in 0..turns {
            driver.turn(Wait::No).unwrap();
        }
        drop(connect);
        let begun = driver.now();
        while driver.operations_active() > 0 {
            assert!(driver.now() - begun < Duration::from_secs(60), "after {turns} turns the cancel was lost");
            driver.turn(Wait::Until(Some(Duration::from_millis(10)))).unwrap();
        }
    }
}

#[test]
fn a_stale_completion_wakes_nobody() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let mut first = take(&reader, 8);
    assert!(poll(&mut first).is_pending());
    driver.turn(Wait::No).unwrap();
    let stale = only(&script);
    script.complete(stale, 0);
    assert_eq!(finish(&driver, &mut first).0.unwrap(), 0);

    let mut second = take(&reader, 8);
    assert!(poll(&mut second).is_pending());
    driver.turn(Wait::No).unwrap();
    assert_ne!(only(&script), stale, "the slot is the same, its use is another");
    script.complete(stale, 5);
    driver.turn(Wait::No).unwrap();
    assert!(poll(&mut second).is_pending(), "another's completion is not believed");
    assert_eq!(driver.metrics().stale.get(), 1);
    script.complete_with_bytes(only(&script), b"mine");
    assert_eq!(finish(&driver, &mut second).1, b"mine");
}

#[test]
fn a_panic_in_encode_leaves_the_slot_vacant() {
    struct Explodes(Rc<()>);
    impl Operation for Explodes {
        type Output = ();
        fn encode<'op>(&'op mut self, _sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            panic!("no entry for {:?}", self.0)
        }
        fn decode(self, _: Completion) {}
    }
    let (driver, script, _entered) = scripted();
    let token = Rc::new(());
    let mut submission = Submission::new(Explodes(Rc::clone(&token)));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut submission))).is_err());
    assert_eq!((driver.slots_used(), Rc::strong_count(&token)), (0, 1), "the operation is gone and so is its slot");
    driver.turn(Wait::No).unwrap();
    assert!(script.pending().is_empty(), "the ring was not touched");
    let (reader, _writer) = pipe();
    assert!(poll(&mut take(&reader, 8)).is_pending(), "and the driver goes on");
}

#[test]
fn a_multishot_delivers_every_item() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let mut events = Multishot::new(EachEvent(reader.hold()));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(events.poll_next_unpin(&mut cx).is_pending());
    driver.turn(Wait::No).unwrap();
    let user_data = only(&script);
    for item in 1..=3 {
        script.complete_with(user_data, item, abi::MORE);
    }
    script.complete(user_data, -libc::ECANCELED);
    driver.turn(Wait::No).unwrap();
    for item in 1..=3 {
        assert!(matches!(events.poll_next_unpin(&mut cx), Poll::Ready(Some(Ok(got))) if got == item));
    }
    assert!(matches!(events.poll_next_unpin(&mut cx), Poll::Ready(Some(Err(_)))), "and how it ended");
    assert!(matches!(events.poll_next_unpin(&mut cx), Poll::Ready(None)));
    assert_eq!(driver.slots_used(), 0);
}

#[test]
fn a_cancelled_accept_leaks_no_descriptor() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    for poll_again in [false, true] {
        let mut accept = Submission::new(Take1(reader.hold()));
        assert!(poll(&mut accept).is_pending());
        driver.turn(Wait::No).unwrap();
        let user_data = only(&script);
        let (connection, peer) = rustix::pipe::pipe().unwrap();
        let number = connection.as_raw_fd();
        if poll_again {
            // Done, but dropped before anybody looked.
            script.complete_with_descriptor(user_data, connection, 0);
            driver.turn(Wait::No).unwrap();
            drop(accept);
        } else {
            drop(accept);
            driver.turn(Wait::No).unwrap();
            script.complete_with_descriptor(user_data, connection, 0);
            driver.turn(Wait::No).unwrap();
            for cancel in script.pending() {
                script.complete(cancel.entry.user_data, -libc::ENOENT);
            }
            driver.turn(Wait::No).unwrap();
        }
        let gone = rustix::io::write(&peer, b"x");
        assert_eq!(gone, Err(rustix::io::Errno::PIPE), "descriptor {number} was closed with its completion");
    }
    assert_eq!(driver.slots_used(), 0);
}

#[test]
fn shutdown_waits_for_the_kernel() {
    let (driver, script, entered) = scripted();
    let (reader, _writer) = pipe();
    let token = Rc::new(());
    struct Holds(FdHold, [u8; 8], #[expect(dead_code, reason = "counts who is alive")] Rc<()>);
    impl Operation for Holds {
        type Output = ();
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.read(self.0.as_fd(), &mut self.1[..], None)
        }
        fn decode(self, _: Completion) {}
    }
    let mut read = Submission::new(Holds(reader.hold(), [0; 8], Rc::clone(&token)));
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    drop(read);
    let rounds = Rc::new(Cell::new(0));
    let seen = Rc::clone(&rounds);
    let alive = Rc::clone(&token);
    script.play(move |kernel| {
        seen.set(seen.get() + 1);
        assert_eq!(Rc::strong_count(&alive), 3, "the operation lives while the kernel has it");
        for pending in kernel.pending() {
            match pending.entry.opcode {
                abi::ASYNC_CANCEL => kernel.complete(pending.entry.user_data, -libc::EALREADY),
                // Lets go only in the third round.
                _ if seen.get() >= 3 => kernel.complete(pending.entry.user_data, -libc::ECANCELED),
                _ => {}
            }
        }
    });
    drop(entered);
    drop(driver);
    assert!(rounds.get() >= 3, "shutdown entered the ring until the kernel had let go");
    drop(script);
    assert_eq!(Rc::strong_count(&token), 1, "and dropped the operation then");
}

#[test]
fn what_the_kernel_does_not_let_go_of_is_leaked() {
    let config = Config::default().entries(8).completions(16).pages(4).shutdown_timeout(Duration::from_millis(50));
    let (driver, script) = Driver::scripted(&config).unwrap();
    let entered = driver.enter();
    let registry = driver.registry().clone();
    let (reader, _writer) = pipe();
    let lease = registry.try_lease(4096).unwrap();
    let mut read = Submission::new(Take(reader.hold(), Fill::new(lease)));
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let user_data = only(&script);
    drop(read);
    drop(entered);
    drop(driver);
    assert_eq!(registry.snapshot().pages_in_flight, 1, "the page is still the kernel's");
    // The kernel writes after all. Were the operation freed, this would write into freed memory.
    script.complete_with_bytes(user_data, &[9; 4096]);
}

#[test]
fn an_attempt_reads_into_the_buffer_or_leaves_it() {
    let (driver, _entered) = kernel();
    let (reader, writer) = pipe();
    let Err(read) = driver.attempt(Take(reader.hold(), Fill::new(Vec::with_capacity(8)))) else {
        panic!("an empty pipe would have to be waited for");
    };
    assert!(read.1.into_inner().is_empty());
    rustix::io::write(&writer, b"here").unwrap();
    let Ok((count, bytes)) = driver.attempt(Take(reader.hold(), Fill::new(Vec::with_capacity(8)))) else {
        panic!("four bytes are there");
    };
    assert_eq!((count.unwrap(), &bytes[..]), (4, &b"here"[..]));
    assert_eq!(driver.slots_used(), 0, "an attempt needs no slot");
}

#[test]
fn a_scripted_read_fills_the_buffer() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(only(&script), 3);
    assert_eq!(finish(&driver, &mut read).1, [0xA5; 3], "what is claimed was really written");
}

#[test]
fn a_scripted_readv_fills_the_buffers_in_order() {
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let room = || Fill::new(Box::<[u8]>::from([0u8; 4]).into_vec());
    let mut read = Submission::new(TakeMany(reader.hold(), [room(), room(), room()]));
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(only(&script), 6);
    let (count, parts) = finish(&driver, &mut read);
    assert_eq!(count.unwrap(), 6);
    assert_eq!(parts, [vec![0xA5; 4], vec![0xA5; 2], vec![]], "no part counts bytes that another one got");
}

#[test]
fn an_opcode_that_the_kernel_does_not_know_is_refused_by_name() {
    let (driver, script) = Driver::scripted_without(&[Opcode::Read], &Config::default().pages(4)).unwrap();
    let _entered = driver.enter();
    let (reader, _writer) = pipe();
    let mut read = take(&reader, 8);
    let Poll::Ready((outcome, buffer)) = poll(&mut read) else { panic!("there is nothing to wait for") };
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("IORING_OP_READ") && error.to_string().contains("5.6"), "{error}");
    assert_eq!(buffer.capacity(), 8, "the buffer comes back");
    driver.turn(Wait::No).unwrap();
    assert!(script.pending().is_empty(), "the kernel never saw it");
}

/// Several leases at once, read into or written or sent.
struct Leases(FdHold, [FixedBuf; 2], u8);

impl Operation for Leases {
    type Output = io::Result<u32>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let fd = self.0.as_fd();
        match self.2 {
            abi::READV_FIXED => sqe.readv_fixed(fd, self.1.iter_mut().map(FixedBuf::as_capacity_mut), None),
            abi::WRITEV_FIXED => sqe.writev_fixed(fd, self.1.iter().map(|lease| &lease[..]), None),
            _ => sqe.sendmsg_zc(fd, self.1.iter().map(|lease| &lease[..])),
        }
    }

    fn decode(self, mut completion: Completion) -> io::Result<u32> {
        completion.result()
    }
}

#[test]
fn where_the_kernel_takes_no_fixed_vectors_the_same_memory_goes_as_plain_ones() {
    let unknown = [Opcode::ReadvFixed, Opcode::WritevFixed];
    for known in [false, true] {
        let unknown = if known { &[] } else { &unknown[..] };
        let (driver, script) = Driver::scripted_without(unknown, &Config::default().pages(4)).unwrap();
        let _entered = driver.enter();
        let (reader, _writer) = pipe();
        let lease = || {
            let mut lease = driver.registry().try_lease(100).unwrap();
            lease.set_len(100);
            lease
        };
        let plain =
            [(abi::READV_FIXED, abi::READV), (abi::WRITEV_FIXED, abi::WRITEV), (abi::SENDMSG_ZC, abi::SENDMSG_ZC)];
        for (fixed, plain) in plain {
            let mut both = Submission::new(Leases(reader.hold(), [lease(), lease()], fixed));
            assert!(poll(&mut both).is_pending());
            driver.turn(Wait::No).unwrap();
            let entry = script.pending()[0].entry;
            assert_eq!(entry.opcode, if known { fixed } else { plain });
            let names_its_buffer = entry.ioprio & abi::RECVSEND_FIXED_BUF != 0;
            assert_eq!(names_its_buffer, known && fixed == abi::SENDMSG_ZC);
            script.complete(entry.user_data, 200);
            assert_eq!(finish(&driver, &mut both).unwrap(), 200);
        }
    }
}

#[test]
fn a_lease_outlives_its_runtime() {
    let (driver, entered) = kernel();
    let (reader, writer) = pipe();
    rustix::io::write(&writer, b"pinned").unwrap();
    let lease = driver.registry().try_lease(16).unwrap();
    let mut read = Submission::new(Take(reader.hold(), Fill::new(lease)));
    let (count, mut lease) = finish(&driver, &mut read);
    assert_eq!(count.unwrap(), 6);
    drop(entered);
    drop(driver);
    assert_eq!(&lease[..], b"pinned");
    assert!(!lease.is_registered());
    lease.as_capacity_mut().fill(1);
}

#[test]
fn a_push_outside_a_turn_arms_one_flush() {
    let (driver, _entered) = kernel();
    let eventfd = driver.event_fd().unwrap();
    driver.turn(Wait::No).unwrap();
    let mut count = [0; 8];
    let _cleared = rustix::io::read(&*eventfd, &mut count);
    let (reader, _writer) = pipe();
    let (mut first, mut second) = (take(&reader, 8), take(&reader, 8));
    assert!(poll(&mut first).is_pending());
    assert!(poll(&mut second).is_pending());
    rustix::io::read(&*eventfd, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1, "two pushes, one signal");
    drop((first, second));
}

#[test]
fn the_last_handle_ends_what_is_pending_on_it() {
    let (driver, _entered) = kernel();
    let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let ours = Fd::new(ours.into());
    let mut read = take(&ours, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    drop(ours);
    let mut byte = [0];
    assert_eq!(rustix::io::read(&peer, &mut byte), Ok(0), "the peer sees the end at once");
    let (outcome, _) = finish(&driver, &mut read);
    // The shutdown ends the read, or the cancel does, whichever the kernel comes to first.
    let ended = match outcome {
        Ok(count) => count == 0,
        Err(error) => error.raw_os_error() == Some(libc::ECANCELED),
    };
    assert!(ended, "the read has ended without bytes");
    assert_eq!(driver.operations_active(), 0);
}
