//! Groups on a played kernel: whatever it names, nothing is believed that was not lent, and every page comes back.

mod refused;
mod waiting;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::stream::Stream;
use proptest::prelude::*;

use crate::runtime::abi;
use crate::runtime::{
    Completion, Config, Driver, Encoded, EncodedMultishot, Entered, FixedBuf, Multishot, MultishotOperation,
    MultishotSqe, Operation, Script, Sqe, Submission, Wait,
};

/// What a receive came to: its count or errno, and its buffer.
type Got = (Result<u32, i32>, Option<FixedBuf>);

fn got(mut completion: Completion) -> Got {
    let result = completion.result().map_err(|error| error.raw_os_error().unwrap());
    (result, completion.take_buffer())
}

struct One(OwnedFd);

impl Operation for One {
    type Output = Got;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let group = Driver::current().buffer_group(1, false)?;
        sqe.recv_lent(self.0.as_fd(), &group)
    }

    fn decode(self, completion: Completion) -> Got {
        got(completion)
    }
}

struct Many {
    fd: OwnedFd,
    incremental: bool,
    bundle: bool,
}

impl MultishotOperation for Many {
    type Item = Got;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        let group = Driver::current().buffer_group(1, self.incremental)?;
        sqe.recv(self.fd.as_fd(), &group, self.bundle)
    }

    fn item(&self, completion: Completion) -> Got {
        got(completion)
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A driver on a played kernel, entered.
struct Rig {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    wakes: Arc<Wakes>,
}

impl Rig {
    /// So many buffers of a page, in a registry of so many pages.
    fn new(count: u16, pages: u32) -> Self {
        let config = Config::default().entries(64).completions(4096).pages(pages).lent([(4096, count)]);
        let (driver, script) = Driver::scripted(&config).unwrap();
        let _entered = driver.enter();
        Self { driver, script, _entered, wakes: Arc::default() }
    }

    fn poll(&self, future: &mut Submission<One>) -> Poll<Got> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }

    fn next(&self, stream: &mut Multishot<Many>) -> Poll<Option<Got>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(stream).poll_next(&mut Context::from_waker(&waker))
    }

    fn turn(&self) {
        self.driver.turn(Wait::No).unwrap();
    }

    /// A receive that the kernel has, and its key there.
    fn receive(&self) -> (Submission<One>, u64) {
        let mut receive = Submission::new(One(null()));
        assert!(self.poll(&mut receive).is_pending());
        self.turn();
        (receive, self.last())
    }

    /// A stream that the kernel has, and its key there.
    fn stream(&self, incremental: bool, bundle: bool) -> (Multishot<Many>, u64) {
        let mut stream = Multishot::new(Many { fd: null(), incremental, bundle });
        assert!(self.next(&mut stream).is_pending());
        self.turn();
        (stream, self.last())
    }

    /// The key of what the kernel was given last and still has.
    fn last(&self) -> u64 {
        self.script.pending().last().expect("the kernel has an entry").entry.user_data
    }

    fn opcodes(&self) -> Vec<u8> {
        self.script.pending().iter().map(|pending| pending.entry.opcode).collect()
    }

    fn pages_free(&self) -> usize {
        self.driver.registry().snapshot().pages_free
    }
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn ready<T>(poll: Poll<T>) -> T {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("this should be ready"),
    }
}

/// An item that brought these bytes.
fn brought(got: Got) -> Vec<u8> {
    let (result, buffer) = got;
    let buffer = buffer.expect("a receive that succeeded has a buffer");
    assert_eq!(result, Ok(buffer.len() as u32));
    buffer.to_vec()
}

/// The flags of a completion that names this buffer.
fn naming(id: u16) -> u32 {
    abi::BUFFER | u32::from(id) << abi::BUFFER_SHIFT
}

#[test]
fn the_entry_of_a_lent_receive_names_a_group_and_no_memory() {
    let rig = Rig::new(4, 8);
    let (_receive, _) = rig.receive();
    let entry = rig.script.pending()[0].entry;
    assert_eq!((entry.opcode, entry.flags, entry.buf_index), (abi::RECV, abi::BUFFER_SELECT, 0));
    assert_eq!((entry.addr, entry.len, entry.ioprio), (0, 0, 0));
    let (_stream, _) = rig.stream(true, true);
    let entry = rig.script.pending()[1].entry;
    assert_eq!((entry.opcode, entry.flags, entry.buf_index), (abi::RECV, abi::BUFFER_SELECT, 1));
    assert_eq!((entry.addr, entry.len, entry.ioprio), (0, 0, abi::RECV_MULTISHOT | abi::RECV_BUNDLE));
}

#[test]
fn a_played_kernel_fills_the_buffers_that_it_was_lent() {
    let rig = Rig::new(2, 8);
    let (mut receive, key) = rig.receive();
    assert_eq!(rig.script.lent(key), [(2, 4096), (3, 4096)], "each use of a place has a number of its own");
    rig.script.complete_with_lent(key, b"lent", 0);
    rig.turn();
    assert_eq!(brought(ready(rig.poll(&mut receive))), b"lent");
    let (_receive, key) = rig.receive();
    assert_eq!(rig.script.lent(key), [(3, 4096), (4, 4096)], "what was taken is replaced");
    assert_eq!(rig.pages_free(), 6);
}

#[test]
fn an_incremental_buffer_serves_several_receives_and_its_page_returns_with_the_last() {
    let rig = Rig::new(1, 2);
    let (mut stream, key) = rig.stream(true, false);
    let buffer = vec![7; 4000];
    rig.script.complete_with_lent(key, b"front", abi::MORE);
    rig.script.complete_with_lent(key, &buffer, abi::MORE);
    assert_eq!(rig.script.lent(key), [(1, 91)]);
    rig.turn();
    let first = ready(rig.next(&mut stream)).unwrap();
    let second = ready(rig.next(&mut stream)).unwrap().1.unwrap();
    assert_eq!((second.len(), second.capacity(), rig.pages_free()), (4000, 4000, 1));
    rig.script.complete_with_lent(key, &[9; 91], abi::MORE);
    rig.turn();
    assert_eq!(rig.pages_free(), 0, "all of it is used, and another was lent");
    assert_eq!(brought(ready(rig.next(&mut stream)).unwrap()), [9; 91]);
    assert_eq!(brought(first), b"front");
    assert_eq!(rig.pages_free(), 0, "the page has one more holder");
    drop(second);
    assert_eq!(rig.pages_free(), 1);
}

#[test]
fn a_bundle_is_an_item_for_each_of_its_buffers() {
    let rig = Rig::new(4, 8);
    let (mut stream, key) = rig.stream(false, true);
    let bytes: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
    rig.script.complete_with_lent(key, &bytes, abi::MORE);
    rig.turn();
    let items: Vec<Vec<u8>> = (0..3).map(|_| brought(ready(rig.next(&mut stream)).unwrap())).collect();
    assert_eq!(items.iter().map(Vec::len).collect::<Vec<_>>(), [4096, 4096, 1808]);
    assert_eq!(items.concat(), bytes);
    assert!(rig.next(&mut stream).is_pending());
    assert_eq!(rig.pages_free(), 4);
}

#[test]
fn a_bundle_of_incremental_buffers_leaves_the_rest_of_the_last() {
    let rig = Rig::new(2, 8);
    let (mut stream, key) = rig.stream(true, true);
    rig.script.complete_with_lent(key, &[1; 4000], abi::MORE);
    rig.script.complete_with_lent(key, &[2; 1000], abi::MORE);
    rig.turn();
    let items: Vec<Vec<u8>> = (0..3).map(|_| brought(ready(rig.next(&mut stream)).unwrap())).collect();
    assert_eq!(items, [vec![1; 4000], vec![2; 96], vec![2; 904]]);
    assert_eq!(rig.script.lent(key).iter().map(|(_, len)| *len).collect::<Vec<_>>(), [3192, 4096]);
}

/// I3: wrong numbers, numbers that were right once, and numbers given twice.
#[test]
fn a_buffer_that_was_not_lent_is_not_believed() {
    let rig = Rig::new(2, 8);
    let (mut stream, key) = rig.stream(false, false);
    let lent = rig.script.lent(key);
    let mut wrong = 0;
    for id in [0, 1, 4, 77, u16::MAX] {
        rig.script.complete_with(key, 4, naming(id) | abi::MORE);
        rig.turn();
        assert!(matches!(ready(rig.next(&mut stream)), Some((Err(libc::EIO), None))));
        wrong += 1;
        assert_eq!(rig.driver.metrics().stale.get(), wrong);
    }
    assert_eq!(rig.script.lent(key), lent, "what was lent is lent");
    // Twice in one turn, and once more when its place has another number.
    rig.script.complete_with(key, 4, naming(2) | abi::MORE);
    rig.script.complete_with(key, 4, naming(2) | abi::MORE);
    rig.turn();
    rig.script.complete_with(key, 4, naming(2) | abi::MORE);
    rig.turn();
    let items: Vec<_> = (0..3).map(|_| ready(rig.next(&mut stream)).unwrap()).collect();
    assert!(items[0].1.is_some());
    assert!(items[1..].iter().all(|item| matches!(item, (Err(libc::EIO), None))));
    assert_eq!(rig.driver.metrics().stale.get(), wrong + 2);
}

/// I3: more bytes than the buffer has, bytes that lie nowhere, a rest where there can be none.
#[test]
fn more_bytes_than_were_lent_are_not_believed() {
    let rig = Rig::new(2, 8);
    let (mut stream, key) = rig.stream(false, false);
    for (result, flags) in [(4097, naming(2)), (i32::MAX, naming(2)), (1, 0), (4096, naming(2) | abi::BUFFER_MORE)] {
        rig.script.complete_with(key, result, flags | abi::MORE);
        rig.turn();
        assert!(matches!(ready(rig.next(&mut stream)), Some((Err(libc::EIO), None))), "{result} bytes, {flags:#x}");
    }
    let (mut bundle, key) = rig.stream(false, true);
    rig.script.complete_with(key, 2 * 4096 + 1, naming(2) | abi::MORE);
    rig.turn();
    assert!(matches!(ready(rig.next(&mut bundle)), Some((Err(libc::EIO), None))));
    assert_eq!(rig.driver.metrics().stale.get(), 5);
}

#[test]
fn a_stale_completion_takes_no_buffer() {
    let rig = Rig::new(2, 8);
    let (mut receive, key) = rig.receive();
    rig.script.complete_with_lent(key, b"lent", 0);
    rig.turn();
    drop(ready(rig.poll(&mut receive)));
    rig.script.complete_with(key, 4, naming(3));
    rig.turn();
    assert_eq!((rig.driver.metrics().stale.get(), rig.pages_free()), (1, 6));
    let (_receive, key) = rig.receive();
    assert_eq!(rig.script.lent(key).len(), 2);
}

#[test]
fn a_completion_that_nobody_takes_returns_its_page() {
    let rig = Rig::new(2, 3);
    // Done, and never polled again.
    let (receive, key) = rig.receive();
    rig.script.complete_with_lent(key, b"lost", 0);
    rig.turn();
    assert_eq!(rig.pages_free(), 0);
    drop(receive);
    assert_eq!(rig.pages_free(), 1);
    // Items that nobody took.
    let (stream, key) = rig.stream(false, false);
    rig.script.complete_with_lent(key, b"lost", abi::MORE);
    rig.turn();
    drop(stream);
    assert_eq!(rig.pages_free(), 1);
    rig.turn();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!((rig.pages_free(), rig.driver.slots_used()), (1, 0));
}

/// The cancel came too late: the kernel has filled a buffer for a future that is gone.
#[test]
fn p01_a_receive_that_was_dropped_and_succeeds_returns_its_page() {
    let rig = Rig::new(2, 8);
    for _ in 0..50 {
        let (receive, key) = rig.receive();
        drop(receive);
        rig.turn();
        rig.script.complete_with_lent(key, b"lost", 0);
        rig.turn();
        let (stream, key) = rig.stream(false, true);
        drop(stream);
        rig.turn();
        rig.script.complete_with_lent(key, &[1; 5000], 0);
        rig.turn();
        assert_eq!((rig.pages_free(), rig.driver.slots_used()), (6, 0));
    }
}

/// What failed and yet names a buffer: it is neither lost nor handed out while the kernel may have it.
#[test]
fn p01_a_buffer_that_a_failed_receive_names_comes_back() {
    let rig = Rig::new(4, 8);
    let (mut receive, key) = rig.receive();
    rig.script.complete_with(key, -libc::ECONNRESET, naming(4));
    rig.turn();
    assert!(matches!(ready(rig.poll(&mut receive)), (Err(libc::ECONNRESET), None)));
    assert_eq!(rig.pages_free(), 4, "it is still lent");
    let (mut receive, key) = rig.receive();
    assert_eq!(rig.script.lent(key).len(), 3);
    rig.script.complete_with_lent(key, b"next", 0);
    rig.turn();
    assert_eq!(brought(ready(rig.poll(&mut receive))), b"next");
    // The kernel takes them in order: the one before that is not with it any more, and was lent anew.
    let (_receive, key) = rig.receive();
    assert_eq!((rig.script.lent(key).len(), rig.pages_free()), (4, 4));
}

/// The same, when all buffers of a group are in doubt: others are lent in their place, and they come back in the end.
#[test]
fn p01_a_group_whose_every_buffer_a_failed_receive_names_goes_on() {
    let rig = Rig::new(1, 3);
    let (mut failed, key) = rig.receive();
    rig.script.complete_with(key, -libc::ECONNRESET, naming(1));
    rig.turn();
    assert!(ready(rig.poll(&mut failed)).0.is_err());
    let (mut receive, key) = rig.receive();
    assert_eq!(rig.script.lent(key), []);
    rig.script.complete(key, -libc::ENOBUFS);
    rig.turn();
    rig.turn();
    assert_eq!((rig.opcodes(), rig.pages_free()), (vec![abi::RECV], 1), "one is in doubt, another was lent");
    rig.script.complete_with_lent(key, b"goes on", 0);
    rig.turn();
    assert_eq!(brought(ready(rig.poll(&mut receive))), b"goes on");
    assert_eq!(rig.pages_free(), 2, "what was in doubt has been lent anew");
    drop((failed, receive));
    let registry = rig.driver.registry().clone();
    drop(rig);
    assert_eq!(registry.snapshot().pages_free, 3);
}

#[test]
fn p01_a_receive_of_nothing_that_names_a_buffer_returns_it() {
    let rig = Rig::new(2, 3);
    for _ in 0..20 {
        let (mut receive, key) = rig.receive();
        rig.script.complete_with_lent(key, b"", 0);
        rig.turn();
        assert!(matches!(ready(rig.poll(&mut receive)), (Ok(0), None)));
        let (mut stream, key) = rig.stream(false, false);
        rig.script.complete_with_lent(key, b"", 0);
        rig.turn();
        assert!(matches!(ready(rig.next(&mut stream)), Some((Ok(0), None))));
        assert!(ready(rig.next(&mut stream)).is_none());
        assert_eq!((rig.pages_free(), rig.driver.slots_used()), (1, 0));
    }
}

#[test]
fn p02_what_finds_no_buffer_is_queued_again_when_a_page_comes_back() {
    let rig = Rig::new(1, 1);
    let (mut stream, key) = rig.stream(false, false);
    rig.script.complete_with_lent(key, b"first", abi::MORE);
    rig.script.complete(key, -libc::ENOBUFS);
    rig.turn();
    let held = ready(rig.next(&mut stream)).unwrap();
    for _ in 0..10 {
        assert!(rig.next(&mut stream).is_pending());
        rig.turn();
        assert_eq!(rig.opcodes(), [], "nothing is tried that could not succeed");
    }
    let submissions = rig.driver.metrics().submissions.get();
    drop(held);
    rig.turn();
    assert_eq!((rig.opcodes(), rig.last()), (vec![abi::RECV], key));
    assert_eq!(rig.driver.metrics().submissions.get(), submissions + 1);
    rig.script.complete_with_lent(key, b"second", abi::MORE);
    rig.turn();
    assert_eq!(brought(ready(rig.next(&mut stream)).unwrap()), b"second");
}

#[test]
fn p02_single_receives_that_find_no_buffer_get_pages_in_their_order() {
    let rig = Rig::new(1, 1);
    let (mut first, first_key) = rig.receive();
    let (mut second, second_key) = rig.receive();
    let (third, third_key) = rig.receive();
    rig.script.complete_with_lent(first_key, b"first", 0);
    rig.script.complete(second_key, -libc::ENOBUFS);
    rig.script.complete(third_key, -libc::ENOBUFS);
    rig.turn();
    let held = ready(rig.poll(&mut first));
    rig.turn();
    assert_eq!((rig.opcodes(), rig.driver.operations_active()), (vec![], 2));
    drop(held);
    rig.turn();
    assert_eq!(rig.last(), second_key, "one page, one receive");
    assert_eq!(rig.opcodes().len(), 1);
    rig.script.complete_with_lent(second_key, b"second", 0);
    rig.turn();
    // The one that waits goes: so does the group's place in the queue for pages, and the page is free for others.
    drop(third);
    rig.turn();
    assert_eq!(rig.driver.operations_active(), 0);
    assert_eq!(brought(ready(rig.poll(&mut second))), b"second");
    rig.turn();
    assert_eq!(rig.pages_free(), 1);
    assert!(rig.driver.registry().try_lease(1).is_some(), "nobody waits for pages");
}

#[test]
fn cancelling_what_waits_for_a_page_ends_it() {
    let rig = Rig::new(1, 1);
    let held = rig.driver.registry().try_lease(4096).unwrap();
    let (receive, key) = rig.receive();
    let (mut stream, stream_key) = rig.stream(false, false);
    rig.script.complete(key, -libc::ENOBUFS);
    rig.script.complete(stream_key, -libc::ENOBUFS);
    rig.turn();
    let mut receive = receive.cancel();
    stream.cancel();
    assert!(matches!(ready(rig.poll(&mut receive)), (Err(libc::ECANCELED), None)));
    assert!(ready(rig.next(&mut stream)).is_none());
    assert_eq!(rig.driver.slots_used(), 0);
    // And one that ran dry when its cancel was on its way.
    let (receive, key) = rig.receive();
    let mut receive = receive.cancel();
    rig.turn();
    rig.script.complete(key, -libc::ENOBUFS);
    rig.turn();
    assert!(matches!(ready(rig.poll(&mut receive)), (Err(libc::ECANCELED), None)));
    drop(held);
    rig.turn();
    assert_eq!(rig.pages_free(), 1);
}

#[test]
fn a_consumer_that_is_late_pauses_the_stream_before_it_holds_all_pages() {
    let rig = Rig::new(20, 64);
    let (mut stream, key) = rig.stream(false, false);
    for _ in 0..20 {
        rig.script.complete_with_lent(key, b"late", abi::MORE);
    }
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::RECV, abi::ASYNC_CANCEL], "as many items as the group has buffers");
    // The cancel finds it without a buffer, or loses against one more receive: either is the pause, and no item.
    rig.script.complete_with_lent(key, b"more", abi::MORE);
    rig.script.complete(key, -libc::ENOBUFS);
    rig.script.complete(rig.last(), 0);
    rig.turn();
    assert_eq!(rig.opcodes(), []);
    for _ in 0..21 {
        assert_eq!(brought(ready(rig.next(&mut stream)).unwrap()).len(), 4);
    }
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    assert_eq!((rig.opcodes(), rig.last()), (vec![abi::RECV], key), "armed again");
}

/// A completion queue that is full ends a multishot by a last completion that is a success.
#[test]
fn a_stream_that_the_kernel_ends_by_a_success_goes_on() {
    let rig = Rig::new(4, 8);
    let (mut stream, key) = rig.stream(false, false);
    rig.script.complete_with_lent(key, b"last", 0);
    rig.turn();
    assert_eq!(brought(ready(rig.next(&mut stream)).unwrap()), b"last");
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::RECV]);
    rig.script.complete_with(rig.last(), 0, 0);
    rig.turn();
    assert!(matches!(ready(rig.next(&mut stream)), Some((Ok(0), None))));
    assert!(ready(rig.next(&mut stream)).is_none(), "a receive of nothing is an end");
}

/// A bundle that reaches a buffer which a failed receive has named before.
#[test]
fn a_buffer_in_doubt_that_a_bundle_reaches_is_taken_once() {
    let rig = Rig::new(3, 8);
    let (mut failed, key) = rig.receive();
    let (mut bundle, bundle_key) = rig.stream(false, true);
    rig.script.complete_with(key, -libc::ECONNRESET, naming(4));
    rig.turn();
    assert!(ready(rig.poll(&mut failed)).0.is_err());
    rig.script.complete_with(bundle_key, 5000, naming(3) | abi::MORE);
    rig.turn();
    let items: Vec<_> = (0..2).map(|_| ready(rig.next(&mut bundle)).unwrap()).collect();
    assert!(items.iter().all(|(result, buffer)| result.is_ok() && buffer.is_some()));
    assert_eq!(rig.driver.buffer_group(1, false).unwrap().available(), 3, "none is in doubt");
    rig.script.complete(bundle_key, -libc::ENOBUFS);
    rig.turn();
    rig.turn();
    assert_eq!((rig.opcodes(), rig.pages_free()), (vec![abi::RECV], 3));
}

#[test]
fn a_group_of_another_ring_is_refused() {
    let other = Rig::new(1, 1);
    let group = other.driver.buffer_group(1, false).unwrap();
    let rig = Rig::new(1, 1);
    struct With(OwnedFd, crate::runtime::BufferGroup);
    impl Operation for With {
        type Output = io::Result<u32>;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.read_lent(self.0.as_fd(), &self.1)
        }
        fn decode(self, mut completion: Completion) -> Self::Output {
            completion.result()
        }
    }
    let mut read = Submission::new(With(null(), group));
    let waker = Waker::noop();
    let error = ready(Pin::new(&mut read).poll(&mut Context::from_waker(waker))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(rig.driver.slots_used(), 0);
    let error = rig.driver.buffer_group(4097, false).unwrap_err();
    assert!(error.to_string().contains("the largest have 4096"), "{error}");
}

/// What a script does next.
#[derive(Clone, Debug)]
enum Step {
    Receive,
    Stream {
        incremental: bool,
        bundle: bool,
    },
    /// The kernel answers the pending entry of this number, counted around, in this way.
    Answer(usize, Way),
    /// Take what has come to this one.
    Poll(usize),
    Cancel(usize),
    Drop(usize),
    /// Give back the page that was taken as this number.
    Return(usize),
    Turn,
}

#[derive(Clone, Debug)]
enum Way {
    Fill {
        bytes: usize,
        more: bool,
    },
    Dry,
    End,
    Fail,
    /// Name any buffer, with any count.
    Lie {
        id: u16,
        result: i32,
        flags: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = prop_oneof![
        6 => (1usize..9000, any::<bool>()).prop_map(|(bytes, more)| Way::Fill { bytes, more }),
        2 => Just(Way::Dry),
        1 => Just(Way::End),
        1 => Just(Way::Fail),
        1 => (0u16..12, -200i32..9000, 0u32..32).prop_map(|(id, result, flags)| Way::Lie { id, result, flags }),
    ];
    let number = 0usize..8;
    let step = prop_oneof![
        2 => Just(Step::Receive),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(incremental, bundle)| Step::Stream { incremental, bundle }),
        6 => (number.clone(), way).prop_map(|(number, way)| Step::Answer(number, way)),
        5 => number.clone().prop_map(Step::Poll),
        1 => number.clone().prop_map(Step::Cancel),
        1 => number.clone().prop_map(Step::Drop),
        3 => number.prop_map(Step::Return),
        5 => Just(Step::Turn),
    ];
    proptest::collection::vec(step, 1..120)
}

enum Subject {
    One(Submission<One>),
    Many(Multishot<Many>),
}

impl Rig {
    /// Let the played kernel answer one of the lent receives that it has.
    fn answer(&self, number: usize, way: Way) {
        let lent = |pending: &crate::runtime::Pending| pending.entry.flags & abi::BUFFER_SELECT != 0;
        let entries: Vec<_> = self.script.pending().into_iter().filter(lent).map(|pending| pending.entry).collect();
        let Some(entry) = entries.get(number % entries.len().max(1)) else { return };
        let more = |more: bool| if more && entry.ioprio & abi::RECV_MULTISHOT != 0 { abi::MORE } else { 0 };
        let key = entry.user_data;
        let buffers = self.script.lent(key);
        let is_bundle = entry.ioprio & abi::RECV_BUNDLE != 0;
        let room = buffers.iter().take(if is_bundle { usize::MAX } else { 1 }).map(|(_, len)| len).sum::<usize>();
        match way {
            Way::Fill { .. } | Way::Dry if room == 0 => self.script.complete(key, -libc::ENOBUFS),
            Way::Fill { bytes, more: goes_on } => {
                self.script.complete_with_lent(key, &vec![7; bytes.min(room)], more(goes_on));
            }
            // There is one: that it has none would be a lie, and is a failure like others then.
            Way::Dry | Way::Fail => self.script.complete(key, -libc::ECONNRESET),
            Way::End => self.script.complete(key, 0),
            Way::Lie { id, result, flags } => {
                let flags = flags & (abi::BUFFER | abi::BUFFER_MORE) | u32::from(id) << abi::BUFFER_SHIFT;
                self.script.complete_with(key, result, flags | more(result % 2 == 0));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// I3, I4: whatever a kernel answers, no byte is in two hands, every page is somebody's, and all come back.
    #[test]
    fn whatever_the_kernel_answers_no_byte_is_in_two_hands(script in steps()) {
        let rig = Rig::new(3, 12);
        let registry = rig.driver.registry().clone();
        let mut subjects: Vec<Subject> = Vec::new();
        let mut held: Vec<FixedBuf> = Vec::new();
        for step in script {
            let count = subjects.len();
            match step {
                Step::Receive => subjects.push(Subject::One(Submission::new(One(null())))),
                Step::Stream { incremental, bundle } => {
                    subjects.push(Subject::Many(Multishot::new(Many { fd: null(), incremental, bundle })));
                }
                Step::Answer(number, way) => rig.answer(number, way),
                Step::Turn => rig.turn(),
                Step::Return(_) if held.is_empty() => {}
                Step::Return(number) => drop(held.swap_remove(number % held.len())),
                Step::Poll(_) | Step::Cancel(_) | Step::Drop(_) if subjects.is_empty() => {}
                Step::Cancel(number) => match &mut subjects[number % count] {
                    Subject::One(one) => one.request_cancel(),
                    Subject::Many(many) => many.cancel(),
                },
                Step::Drop(number) => {
                    let at = number % subjects.len();
                    drop(subjects.swap_remove(at));
                }
                Step::Poll(number) => {
                    let at = number % subjects.len();
                    let got = match &mut subjects[at] {
                        Subject::One(one) => rig.poll(one).map(Some),
                        Subject::Many(many) => rig.next(many),
                    };
                    if let Poll::Ready(Some((result, buffer))) = &got {
                        prop_assert_eq!(buffer.as_ref().map_or(0, |buffer| buffer.len()), result.unwrap_or(0) as usize);
                    }
                    let is_over = match &got {
                        Poll::Ready(None) => true,
                        Poll::Ready(Some(_)) => matches!(subjects[at], Subject::One(_)),
                        Poll::Pending => false,
                    };
                    if let Poll::Ready(Some((_, Some(buffer)))) = got {
                        held.push(buffer);
                    }
                    if is_over {
                        drop(subjects.swap_remove(at));
                    }
                }
            }
            let mut regions: Vec<_> = held.iter().map(|buffer| buffer.as_ptr_range()).collect();
            regions.sort_unstable_by_key(|region| region.start);
            prop_assert!(regions.windows(2).all(|pair| pair[0].end <= pair[1].start), "two hands on one byte");
            let now = registry.snapshot();
            prop_assert_eq!(now.pages_free + now.pages_leased + now.pages_lent, now.pages_total);
        }
        drop(subjects);
        drop(held);
        while rig.driver.operations_active() > 0 {
            rig.turn();
            for pending in rig.script.pending() {
                let result = if pending.entry.flags & abi::BUFFER_SELECT != 0 { -libc::ECANCELED } else { 0 };
                rig.script.complete(pending.entry.user_data, result);
            }
        }
        drop(rig);
        let now = registry.snapshot();
        prop_assert_eq!(now.pages_free, now.pages_total);
    }
}

/// I5: what the kernel does not let go of in time keeps its group's memory, for ever.
#[test]
fn a_kernel_that_keeps_a_lent_receive_keeps_the_pages() {
    let config = Config::default().pages(4).lent([(4096, 2)]).shutdown_timeout(std::time::Duration::from_millis(50));
    let (driver, script) = Driver::scripted(&config).unwrap();
    let registry = driver.registry().clone();
    let mut receive = Submission::new(One(null()));
    {
        let _entered = driver.enter();
        assert!(Pin::new(&mut receive).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        driver.turn(Wait::No).unwrap();
    }
    let key = script.pending()[0].entry.user_data;
    driver.shutdown();
    drop((receive, driver));
    assert_eq!(registry.snapshot().pages_free, 2);
    // The played kernel may still write there, as the real one may.
    script.complete_with_lent(key, b"late", 0);
}

#[test]
fn p07_the_memory_of_the_ring_is_ours_and_is_unmapped_after_its_end() {
    let maps = |address: u64| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter_map(|line| {
                let (from, rest) = line.split_once('-')?;
                let (to, rest) = rest.split_once(' ')?;
                let parse = |text| u64::from_str_radix(text, 16).ok();
                (parse(from)? <= address && address < parse(to)?).then(|| rest.to_owned())
            })
            .next()
    };
    let ring = crate::runtime::ring::buf_ring::BufRing::new(4096).unwrap();
    let address = ring.address();
    let mapping = maps(address).expect("it is mapped");
    assert!(mapping.starts_with("rw-p"), "private memory: {mapping}");
    assert!(!mapping.contains("io_uring"), "and not a mapping of the ring: {mapping}");
    drop(ring);
    assert!(maps(address).is_none_or(|mapping| !mapping.contains("io_uring")));
    // On the kernel's own ring: after the driver's end the buffers are the registry's again.
    let driver = Driver::new(&Config::default().pages(64).lent([(4096, 32)])).unwrap();
    let registry = driver.registry().clone();
    driver.buffer_group(1, true).unwrap();
    driver.buffer_group(1, false).unwrap();
    assert_eq!(registry.snapshot().pages_free, 0);
    drop(driver);
    assert_eq!(registry.snapshot().pages_free, 64);
}
