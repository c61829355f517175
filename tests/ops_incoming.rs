//! Streams of connections: what comes, what ends them and what does not, and what is left of one at every moment.

#![forbid(unsafe_code)]

#[path = "rings/mod.rs"]
mod rings;
#[path = "turns/mod.rs"]
mod turns;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::stream::{FusedStream, Stream, StreamExt};
use ringmain::net::{TcpListener, TcpStream as Connection};
use ringmain::ops::{self, Incoming};
use ringmain::{Config, Driver, Entered, Fd, Opcode, Runtime, Script, Wait};
use rustix::io::Errno;

const ACCEPT: u8 = Opcode::Accept.code();
const ASYNC_CANCEL: u8 = Opcode::AsyncCancel.code();
const MORE: u32 = 1 << 1;
/// `IORING_ACCEPT_MULTISHOT`.
const MULTISHOT: u16 = 1;

struct Rig {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    listener: Fd,
}

impl Rig {
    fn new() -> Self {
        let (driver, script) = Driver::scripted(&Config::default().pages(4)).unwrap();
        let _entered = driver.enter();
        Self { driver, script, _entered, listener: Fd::new(std::fs::File::open("/dev/null").unwrap().into()) }
    }

    /// A stream that the kernel has, and the `user_data` it has there.
    fn listening(&self) -> (Incoming, u64) {
        let mut incoming = ops::accept_multishot(&self.listener);
        assert!(next(&mut incoming).is_pending());
        self.turn();
        (incoming, self.only(MULTISHOT))
    }

    fn turn(&self) {
        self.driver.turn(Wait::No).unwrap();
    }

    fn only(&self, ioprio: u16) -> u64 {
        let pending = self.script.pending();
        assert_eq!(pending.len(), 1, "one entry is with the kernel: {pending:?}");
        assert_eq!((pending[0].entry.opcode, pending[0].entry.ioprio), (ACCEPT, ioprio));
        pending[0].entry.user_data
    }

    fn connect(&self, key: u64, flags: u32) -> io::PipeReader {
        let (fd, peer) = connection();
        self.script.complete_with_descriptor(key, fd, flags);
        self.turn();
        peer
    }

    fn fail(&self, key: u64, errno: Errno, flags: u32) {
        self.script.complete_with(key, -errno.raw_os_error(), flags);
        self.turn();
    }
}

/// What stands for a connection, and a peer that sees when it is closed.
fn connection() -> (OwnedFd, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    (writer.into(), reader)
}

fn is_closed(mut peer: &io::PipeReader) -> bool {
    rustix::io::ioctl_fionbio(peer, true).unwrap();
    matches!(peer.read(&mut [0]), Ok(0))
}

fn next<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop()))
}

fn item(incoming: &mut Incoming) -> io::Result<OwnedFd> {
    match next(incoming) {
        Poll::Ready(Some(item)) => item,
        other => panic!("a connection or an error, and not {other:?}"),
    }
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn each_connection_is_an_item_of_one_operation() {
    let rig = Rig::new();
    let (mut incoming, key) = rig.listening();
    for _ in 0..3 {
        let peer = rig.connect(key, MORE);
        let fd = item(&mut incoming).unwrap();
        assert!(!is_closed(&peer));
        drop(fd);
        assert!(is_closed(&peer));
        assert!(next(&mut incoming).is_pending());
    }
    assert_eq!(rig.driver.metrics().submissions.get(), 1);
}

#[test]
fn an_error_is_an_item_and_the_next_poll_listens_again() {
    for (errno_of, flags) in [(Errno::MFILE, 0), (Errno::CONNABORTED, 0)] {
        let rig = Rig::new();
        let (mut incoming, key) = rig.listening();
        let _peer = rig.connect(key, MORE);
        rig.fail(key, errno_of, flags);
        assert!(item(&mut incoming).is_ok(), "what came first comes first");
        assert_eq!(errno(item(&mut incoming)), errno_of.raw_os_error());
        assert_eq!(rig.driver.slots_used(), 1, "nobody has asked for more");
        assert!(next(&mut incoming).is_pending());
        rig.turn();
        let key = rig.only(MULTISHOT);
        let _peer = rig.connect(key, MORE);
        assert!(item(&mut incoming).is_ok());
        assert!(!incoming.is_terminated());
    }
}

#[test]
fn a_kernel_that_stops_after_a_connection_is_asked_again() {
    let rig = Rig::new();
    let (mut incoming, key) = rig.listening();
    let _peer = rig.connect(key, 0);
    assert!(item(&mut incoming).is_ok());
    assert!(next(&mut incoming).is_pending());
    rig.turn();
    rig.only(MULTISHOT);
}

#[test]
fn a_kernel_without_multishot_makes_an_accept_for_each_connection() {
    let rig = Rig::new();
    let (mut incoming, key) = rig.listening();
    rig.fail(key, Errno::INVAL, 0);
    for _ in 0..2 {
        assert!(next(&mut incoming).is_pending());
        rig.turn();
        let _peer = rig.connect(rig.only(0), 0);
        assert!(item(&mut incoming).is_ok());
    }
    // And a descriptor that does not listen is an error, by the same words as from an accept.
    assert!(next(&mut incoming).is_pending());
    rig.turn();
    rig.fail(rig.only(0), Errno::INVAL, 0);
    assert_eq!(errno(item(&mut incoming)), Errno::INVAL.raw_os_error());

    assert!(next(&mut incoming).is_pending());
    rig.turn();
    let key = rig.only(0);
    incoming.cancel();
    rig.turn();
    rig.fail(key, Errno::CANCELED, 0);
    assert!(matches!(next(&mut incoming), Poll::Ready(None)));
}

#[test]
fn cancelling_yields_what_has_come_and_then_ends() {
    let rig = Rig::new();
    let (mut incoming, key) = rig.listening();
    let _first = rig.connect(key, MORE);
    let _second = rig.connect(key, MORE);
    incoming.cancel();
    rig.turn();
    rig.fail(key, Errno::CANCELED, 0);
    assert!(item(&mut incoming).is_ok());
    assert!(item(&mut incoming).is_ok());
    for _ in 0..2 {
        assert!(matches!(next(&mut incoming), Poll::Ready(None)));
    }
    assert!(incoming.is_terminated());
    assert_eq!(rig.driver.slots_used(), 0);

    let mut fresh = ops::accept_multishot(&rig.listener);
    fresh.cancel();
    assert!(matches!(next(&mut fresh), Poll::Ready(None)), "the kernel never saw it");
}

#[test]
fn c04_connections_that_were_taken_for_nobody_are_closed_whenever_the_stream_is_dropped() {
    // Waiting with some taken and some not; ended; and with one that comes after the drop.
    for ended in [false, true] {
        let rig = Rig::new();
        let (incoming, key) = rig.listening();
        let first = rig.connect(key, MORE);
        let second = rig.connect(key, if ended { 0 } else { MORE });
        drop(incoming);
        assert!(is_closed(&first) && is_closed(&second));
        if !ended {
            let late = rig.connect(key, MORE);
            assert!(is_closed(&late));
            assert!(rig.script.pending().iter().any(|pending| pending.entry.opcode == ASYNC_CANCEL));
            rig.fail(key, Errno::CANCELED, 0);
        }
        rig.turn();
        assert_eq!((rig.driver.operations_active(), rig.driver.slots_used()), (0, 0));
    }
    // Never polled, and polled but not pushed.
    let rig = Rig::new();
    drop(ops::accept_multishot(&rig.listener));
    let mut queued = ops::accept_multishot(&rig.listener);
    assert!(next(&mut queued).is_pending());
    drop(queued);
    rig.turn();
    assert!(rig.script.pending().is_empty());
    assert_eq!((rig.driver.operations_active(), rig.driver.slots_used()), (0, 0));
}

#[test]
fn the_last_handle_ends_the_stream() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let mut incoming = listener.incoming();
            assert!(next_now(&mut incoming).await.is_pending());
            turns::one_turn().await;
            drop(listener);
            assert!(incoming.next().await.is_none());
            turns::settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn all_connections_of_a_burst_come_through() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            let mut incoming = listener.incoming();
            let mut sum = 0;
            for _ in 0..3 {
                let clients: Vec<TcpStream> = (0..20u8)
                    .map(|number| {
                        let mut client = TcpStream::connect(address).unwrap();
                        client.write_all(&[number]).unwrap();
                        client
                    })
                    .collect();
                for _ in 0..20 {
                    let connection: Connection = incoming.next().await.expect("it does not end").unwrap();
                    let (count, byte) = connection.recv(Vec::with_capacity(1)).await;
                    assert_eq!(count.unwrap(), 1);
                    sum += usize::from(byte[0]);
                }
                drop(clients);
            }
            assert_eq!(sum, 3 * 190);
            incoming.cancel();
            assert!(incoming.next().await.is_none());
            turns::settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn a_stream_that_outlives_its_runtime_ends() {
    let runtime = Runtime::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut incoming = listener.incoming();
    runtime.block_on(async {
        assert!(next_now(&mut incoming).await.is_pending());
        turns::one_turn().await;
    });
    drop(runtime);
    assert!(matches!(next(&mut incoming), Poll::Ready(None)));
}

async fn next_now<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_next(cx))).await
}
