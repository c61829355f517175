//! The other side of a test: plain sockets, bytes that can be told apart, and a limit for hangs.

use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

/// Long enough for a busy machine, short enough to notice.
const HANG: Duration = Duration::from_secs(60);

/// How long a TCP socket that is full stays so, before it is believed: longer than TCP waits before it sends as much of a
/// segment as still fits the peer's window (200 ms), which makes room once more.
const FULL_FOR_GOOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Run a test's body on a thread of its own, and fail instead of hanging when that thread hangs.
pub(crate) fn without_hanging(body: impl FnOnce() + Send + 'static) {
    without_hanging_for(HANG, body);
}

/// As [`without_hanging`], for the long forms.
pub(crate) fn without_hanging_for(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel::<()>();
    let name = thread::current().name().unwrap_or("test").to_owned();
    let body = thread::Builder::new().name(name).spawn(move || {
        // Dropped at the end, by a panic too: that is the signal.
        let _ended = ended;
        body();
    });
    let body = body.expect("a thread for the test");
    match end.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Disconnected) => {}
        _ => panic!("the test hangs: it has not ended after {limit:?}"),
    }
    if let Err(panic) = body.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Let the runtime have one turn: what is queued goes to the kernel, what has completed comes back.
pub(crate) async fn turn() {
    let mut has_turned = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_turned, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Let the runtime have so many turns.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        turn().await;
    }
}

/// Poll once: the output if it is ready.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Poll a future that must not be ready, over some turns.
pub(crate) async fn stays_pending<F: Future + Unpin>(future: &mut F, why: &str) {
    for _ in 0..20 {
        assert!(poll_once(future).await.is_none(), "{why}");
        turn().await;
    }
}

/// Bytes of which every stretch is different, and different for each seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A small generator of random numbers, the same ones for the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Two ends of a TCP connection over loopback.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    tcp_pair_with(|_| {})
}

/// Two ends of a TCP connection whose first end has little room to receive, so that its peer is soon blocked.
pub(crate) fn tcp_pair_with_a_small_window() -> (TcpStream, TcpStream) {
    let (reader, writer) = tcp_pair_with(|socket| socket.set_recv_buffer_size(4096).expect("a small receive buffer"));
    socket2::SockRef::from(&writer).set_send_buffer_size(4096).expect("a small send buffer");
    (reader, writer)
}

fn tcp_pair_with(prepare: impl FnOnce(&Socket)) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener on loopback");
    let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    prepare(&client);
    client.connect(&listener.local_addr().expect("its address").into()).expect("a connection over loopback");
    let client = TcpStream::from(client);
    let (server, address) = listener.accept().expect("the connection just made");
    assert_eq!(address, client.local_addr().expect("its address"), "a stranger has connected");
    (client, server)
}

/// Close a connection so that the peer sees a reset instead of an end.
pub(crate) fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a linger of zero");
}

/// A thread that reads to the end and gives what it read.
pub(crate) fn read_to_end(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the peer reads to the end");
        bytes
    })
}

/// A thread that writes these bytes and closes.
pub(crate) fn write_and_close(mut stream: impl Write + Send + 'static, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    thread::spawn(move || stream.write_all(&bytes).expect("the peer writes all"))
}

/// Write to a non-blocking descriptor until it takes no more, and goes on taking none; how many bytes it took.
pub(crate) fn fill(fd: impl AsFd) -> usize {
    let page = [b'-'; 4096];
    let mut filled = 0;
    let is_tcp = socket2::SockRef::from(&fd).local_addr().is_ok_and(|address| !address.is_unix());
    let mut is_settled = !is_tcp;
    loop {
        match rustix::io::write(&fd, &page) {
            Ok(count) => {
                filled += count;
                is_settled = !is_tcp;
            }
            Err(Errno::AGAIN) if is_settled => return filled,
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&FULL_FOR_GOOD)).expect("a poll");
                is_settled = true;
            }
            Err(error) => panic!("filling failed: {error}"),
        }
    }
}

/// Read all that a non-blocking descriptor has now.
pub(crate) fn drain(fd: impl AsFd) -> Vec<u8> {
    let mut page = [0; 4096];
    let mut drained = Vec::new();
    loop {
        match rustix::io::read(&fd, &mut page) {
            Ok(0) | Err(Errno::AGAIN) => return drained,
            Ok(count) => drained.extend_from_slice(&page[..count]),
            Err(error) => panic!("draining failed: {error}"),
        }
    }
}

/// The connection is over, one way or the other: what a writer may see when its reader goes.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
