//! Bytes that go from a socket to a file, and from a file to a socket, without a copy in user space. Proven by counting:
//!
//! * what a receive brought and what a write was made of lie at the same address, byte for byte, and so what a read
//!   brought and what was sent;
//! * no operation that names its memory by address is made: reads and writes are those of registered pages;
//! * no memory is asked for that is as long as one piece, and all of it together is a small part of what is moved;
//! * no page is mapped or registered after the start;
//! * and the hashes of what went in and of what came out are one.
//!
//! What it took is printed beside, and nothing is claimed of it. The counts are the whole process's, so one test runs at
//! a time.

mod allocations;
mod peers;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::StreamExt;
use ringmain::ops::{self, End};
use ringmain::{Config, Driver, Fd, FixedBuf, OFlags, Opcode, Runtime, Snapshot};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::ClockId;

use peers::{Moved, cpu, sink, source};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

static ALONE: Mutex<()> = Mutex::new(());

const SHORT: usize = 64 << 20;
const LONG: usize = 1 << 30;
/// The length of a lent buffer, of a read, and of what the source writes at once.
const PIECE: usize = 128 << 10;
const PAGE: usize = 4096;

#[test]
fn a_stream_goes_into_a_file_and_out_again_without_a_copy() {
    through_a_file(SHORT);
}

#[test]
#[ignore = "moves some gibibytes; in release it takes seconds"]
fn a_gibibyte_goes_into_a_file_and_out_again_without_a_copy() {
    through_a_file(LONG);
}

fn through_a_file(bytes: usize) {
    // A test that failed says so itself; the next one counts afresh.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config::default().pages(1024).lent([(PIECE as u32, 16)]);
    let runtime = Runtime::builder().config(config).build().unwrap();
    if let Some(reason) = runtime.driver().registry().unregistered_reason() {
        assert!(std::env::var_os("CI").is_none(), "the way without a copy was skipped: {reason}");
        return eprintln!("SKIPPED: {reason}");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    runtime.block_on(async {
        // Records come whole, so that each of them is a multiple of what O_DIRECT asks for; a stream is cut anywhere.
        for is_stream in [false, true] {
            let (incoming, source_end) = if is_stream { tcp() } else { records() };
            let sent = take_in(&incoming, source(std::fs::File::from(source_end), bytes, PIECE), &path, bytes).await;
            for way in [Way::Sends, Way::Splices] {
                let (outgoing, sink_end) = tcp();
                let came = give_out(outgoing, sink(TcpStream::from(sink_end)), &path, bytes, way).await;
                assert_eq!(came, sent, "what comes out is what went in");
            }
        }
    });
}

/// Socket to file: what comes lies in lent pages, and is written from there.
async fn take_in(socket: &Fd, source: std::thread::JoinHandle<Moved>, path: &Path, bytes: usize) -> [u8; 32] {
    let (direct, buffered) = (File::direct(path), File::buffered(path));
    let proof = Proof::begin().await;
    let mut pieces = ops::recv_multishot(socket).buffer_bytes(PIECE);
    let (mut at, mut past_cache, mut count) = (0, 0, 0u64);
    while at < bytes {
        let piece = pieces.next().await.expect("more is to come").unwrap();
        let (place, len) = (piece.as_ptr(), piece.len());
        let is_aligned = at % PAGE == 0 && len % PAGE == 0 && piece.alignment() >= PAGE;
        let file = direct.as_ref().filter(|_| is_aligned).unwrap_or(&buffered);
        past_cache += if file.is_direct { len } else { 0 };
        let piece = write(file, piece, at).await;
        proof.same(place, len, &piece);
        at += len;
        count += 1;
    }
    let receives = submitted(Opcode::Recv) - proof.receives;
    drop(pieces);
    proof.end(bytes, bytes, [0, count]);
    let moved = source.join().unwrap();
    let past_cache = past_cache * 100 / bytes;
    let what = format!("socket to file, {count} pieces by {receives} receives, {past_cache} % past the page cache");
    proof.report(&what, bytes, moved.cpu);
    moved.hash
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Registered pages are filled from the file and sent.
    Sends,
    /// The pages of the file are moved through a pipe, and nobody has them.
    Splices,
}

/// File to socket.
async fn give_out(socket: Fd, sink: std::thread::JoinHandle<Moved>, path: &Path, bytes: usize, way: Way) -> [u8; 32] {
    let (direct, buffered) = (File::direct(path), File::buffered(path));
    let pipe = ops::pipe_sized(1 << 20).unwrap();
    let room = pipe.1.size().unwrap();
    let proof = Proof::begin().await;
    let registry = Driver::current().registry().clone();
    let file = direct.as_ref().unwrap_or(&buffered);
    match way {
        Way::Sends => {
            let mut lease = registry.lease(PIECE).await.unwrap();
            let place = lease.as_ptr();
            for at in (0..bytes).step_by(PIECE) {
                let (count, filled) = ops::read_fixed_at(&file.fd, lease, at as u64).await;
                assert_eq!(count.unwrap(), PIECE);
                let (count, released) = ops::send_zc(&socket, filled).await;
                assert_eq!(count.unwrap(), PIECE);
                lease = released.await;
                proof.same(place, PIECE, &lease);
            }
            drop(lease);
            proof.end(bytes, bytes, [bytes.div_ceil(PIECE) as u64, 0]);
        }
        Way::Splices => {
            let held = registry.snapshot().pages_held_max;
            for at in (0..bytes).step_by(room) {
                let len = room.min(bytes - at) as u64;
                ops::splice_exact(End::at(&buffered.fd, at as u64), &pipe.1, len).await.0.unwrap();
                ops::splice_exact(&pipe.0, &socket, len).await.0.unwrap();
            }
            assert_eq!(registry.snapshot().pages_held_max, held, "no page of ours is involved");
            proof.end(bytes, 0, [0, 0]);
        }
    }
    drop(socket);
    let moved = sink.join().unwrap();
    let sends = Driver::current();
    let metrics = sends.metrics();
    let detail = format!(
        "file to socket, {way:?} (sends so far: {} in place, {} copied by the kernel, {} plain)",
        metrics.sends_zero_copy.get(),
        metrics.sends_copied.get(),
        metrics.sends_plain.get()
    );
    proof.report(&detail, bytes, moved.cpu);
    moved.hash
}

/// All of a piece.
async fn write(file: &File, piece: FixedBuf, at: usize) -> FixedBuf {
    let len = piece.len();
    let (count, piece) = ops::write_fixed_at(&file.fd, piece, at as u64).await;
    assert_eq!(count.unwrap(), len, "a file takes what it is given");
    piece
}

/// What has to be the same at the end as at the beginning, and what is counted between.
struct Proof {
    snapshot: Snapshot,
    named: [u64; NAMING_ADDRESSES.len()],
    receives: u64,
    fixed: [u64; 2],
    in_place: std::cell::Cell<usize>,
    began: Instant,
    cpu: Duration,
}

/// Transfers that name memory by its address, which need not be registered.
const NAMING_ADDRESSES: [Opcode; 4] = [Opcode::Read, Opcode::Write, Opcode::Readv, Opcode::Writev];

/// Transfers of registered pages.
const FIXED: [Opcode; 2] = [Opcode::ReadFixed, Opcode::WriteFixed];

fn submitted(opcode: Opcode) -> u64 {
    Driver::current().metrics().submissions_of(opcode)
}

impl Proof {
    async fn begin() -> Self {
        // The driver's own read, of what other threads wake it by, is with the kernel after this.
        ops::nop().await.unwrap();
        let proof = Self {
            snapshot: Driver::current().registry().snapshot(),
            named: NAMING_ADDRESSES.map(submitted),
            receives: submitted(Opcode::Recv),
            fixed: FIXED.map(submitted),
            in_place: std::cell::Cell::new(0),
            began: Instant::now(),
            cpu: cpu(ClockId::ProcessCPUTime),
        };
        allocations::reset();
        proof
    }

    /// These bytes were here when they came, and are here after they have gone.
    fn same(&self, place: *const u8, len: usize, gone: &FixedBuf) {
        assert_eq!((place, len), (gone.as_ptr(), gone.len()), "the bytes lie where they came");
        self.in_place.set(self.in_place.get() + len);
    }

    /// So many bytes have been moved, so many of them in pages of ours, by so many reads and writes of registered pages
    /// (or more, where one was interrupted).
    fn end(&self, bytes: usize, in_place: usize, transfers: [u64; 2]) {
        let (asked, largest) = allocations::counted();
        assert_eq!(self.in_place.get(), in_place, "every byte that was in a page went from there");
        assert_eq!(NAMING_ADDRESSES.map(submitted), self.named, "no transfer names other memory");
        for (at, opcode) in FIXED.into_iter().enumerate() {
            let (made, expected) = (submitted(opcode) - self.fixed[at], transfers[at]);
            assert!(
                made >= expected && (made > 0) == (expected > 0),
                "{made} of {opcode:?} in the place of {expected}"
            );
        }
        let now = Driver::current().registry().snapshot();
        let set_up = |counts: &Snapshot| (counts.chunks_mapped, counts.registrations, counts.pages_total);
        assert_eq!(set_up(&now), set_up(&self.snapshot), "nothing is mapped or registered after the start");
        assert!(largest < PIECE / 2, "{largest} bytes were asked for at once: is that a buffer?");
        assert!(asked < bytes / 500, "{asked} bytes were asked for while {bytes} were moved");
        println!("asked of the allocator: {asked} bytes for {} MiB, {largest} at most at once", bytes >> 20);
    }

    fn report(&self, what: &str, bytes: usize, peer: Duration) {
        let (time, cpu) = (self.began.elapsed().as_secs_f64(), cpu(ClockId::ProcessCPUTime) - self.cpu);
        let ours = cpu.saturating_sub(peer).as_secs_f64();
        let rate = bytes as f64 / 1e6 / time;
        println!(
            "{what}: {} MiB, {rate:.0} MB/s, {:.3} CPU s/GB without the peer",
            bytes >> 20,
            ours * 1e9 / bytes as f64
        );
    }
}

/// A file that is read and written at offsets.
struct File {
    fd: Fd,
    is_direct: bool,
}

impl File {
    fn open(path: &Path, flags: OFlags) -> std::io::Result<Self> {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | flags, mode)?;
        Ok(Self { fd: Fd::new(fd), is_direct: flags.contains(OFlags::DIRECT) })
    }

    fn buffered(path: &Path) -> Self {
        Self::open(path, OFlags::empty()).unwrap()
    }

    /// Past the page cache, if that can be had.
    fn direct(path: &Path) -> Option<Self> {
        let opened = Self::open(path, OFlags::DIRECT);
        if let Err(error) = &opened {
            eprintln!("SKIPPED: {} is not read and written past the page cache: {error}", path.display());
        }
        opened.ok()
    }
}

/// Two connected TCP sockets over loopback, the first one the runtime's.
fn tcp() -> (Fd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    (Fd::new(OwnedFd::from(ours)), theirs.into())
}

/// Two connected sockets that keep records apart, with room for some.
fn records() -> (Fd, OwnedFd) {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for end in [ours.as_fd(), theirs.as_fd()] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, 4 * PIECE).unwrap();
    }
    (Fd::new(ours), theirs)
}
