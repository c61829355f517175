//! One script through the ring and through the plain system calls: the same bytes, counts and errnos.
//!
//! Both sides have a world of their own, made alike: two pipes, two files with a cursor, an append-only file, a pair of
//! stream sockets. A step runs on the plain side first. Where that says `EAGAIN` the ring's future must stay pending,
//! and a cancel must end it with nothing moved; everything else must come out the same. So a script never blocks, and
//! after it both worlds must hold the same bytes.
//!
//! Left out is what is documented to differ: a read without capacity and an offset for a pipe are refused by the crate
//! with a sentence, where the kernel has a 0 and an `ESPIPE`.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, RngAlgorithm, TestError, TestRng, TestRunner};
use ringmain::ops::{self, End, Route};
use ringmain::{Driver, Fd, FixedBuf, Runtime};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::peers::{drain, pattern, poll_once, turns, without_hanging, without_hanging_for};
use crate::rings;

const ROUTES: [Route; 3] = [Route::Auto, Route::Inline, Route::Ring];

/// What a file holds at first.
const FILE_BYTES: usize = 150_000;

/// One end of the world that something can be moved from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Reader(usize),
    Writer(usize),
    File(usize),
    FileAt(usize, u64),
    Append,
    Socket(usize),
}

#[derive(Clone, Debug)]
enum Step {
    Read { from: Place, len: usize, way: Way },
    Write { to: Place, len: usize, way: Way },
    Splice { from: Place, to: Place, len: usize },
    Tee { from: usize, to: usize, len: usize },
    CloseReader(usize),
    CloseWriter(usize),
}

/// Which of the calls that do the same.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Vectored,
    Fixed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..40)
}

fn step() -> impl Strategy<Value = Step> {
    let pipe = || 0..2_usize;
    prop_oneof![
        4 => (place(), len(), way()).prop_map(|(from, len, way)| Step::Read { from, len: len.max(1), way }),
        4 => (place(), len(), way()).prop_map(|(to, len, way)| match way {
            // An empty write of leased pages never comes to the kernel, so it cannot find a wrong descriptor.
            Way::Fixed => Step::Write { to, len: len.max(1), way },
            way => Step::Write { to, len, way },
        }),
        8 => (place(), place(), len()).prop_map(|(from, to, len)| Step::Splice { from, to, len }),
        3 => (pipe(), len()).prop_map(|(from, len)| Step::Tee { from, to: 1 - from, len }),
        // Rarely: most of what follows one of these fails.
        1 => (pipe(), any::<bool>(), 0..8_u8).prop_map(|(pipe, reader, rarity)| match (rarity, reader) {
            (0, true) => Step::CloseReader(pipe),
            (0, false) => Step::CloseWriter(pipe),
            _ => Step::Splice { from: Place::File(pipe), to: Place::Writer(pipe), len: 5_000 },
        }),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        4 => (0..2_usize).prop_map(Place::Reader),
        4 => (0..2_usize).prop_map(Place::Writer),
        2 => (0..2_usize).prop_map(Place::File),
        3 => (0..2_usize, 0..200_000_u64).prop_map(|(file, at)| Place::FileAt(file, at)),
        1 => Just(Place::FileAt(0, 1 << 63)),
        1 => Just(Place::Append),
        4 => (0..2_usize).prop_map(Place::Socket),
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![0..20_usize, 0..10_000_usize, Just(4096_usize), Just(65_536_usize), 0..150_000_usize]
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Plain), Just(Way::Vectored), Just(Way::Fixed)]
}

/// What a step came to. `None` means that it would have waited.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    result: Option<Result<usize, i32>>,
    bytes: Vec<u8>,
}

/// The descriptors of one side. A closed end stays `None`, and steps that name it do nothing.
struct World<F> {
    readers: [Option<F>; 2],
    writers: [Option<F>; 2],
    files: [F; 2],
    append: F,
    sockets: [F; 2],
}

impl<F: From<OwnedFd> + AsFd> World<F> {
    fn new() -> Self {
        let pipe = |_| {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
            (Some(reader.into()), Some(writer.into()))
        };
        let [(reader_0, writer_0), (reader_1, writer_1)] = [0, 1].map(pipe);
        let file = |seed| {
            let mut file = tempfile::tempfile().unwrap();
            io::Write::write_all(&mut file, &pattern(seed, FILE_BYTES)).unwrap();
            io::Seek::seek(&mut file, io::SeekFrom::Start(10_000)).unwrap();
            OwnedFd::from(file).into()
        };
        let append = tempfile::tempfile().unwrap();
        rustix::fs::fcntl_setfl(&append, rustix::fs::OFlags::APPEND).unwrap();
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = |stream: std::os::unix::net::UnixStream| {
            stream.set_nonblocking(true).unwrap();
            OwnedFd::from(stream).into()
        };
        Self {
            readers: [reader_0, reader_1],
            writers: [writer_0, writer_1],
            files: [100, 101].map(file),
            append: OwnedFd::from(append).into(),
            sockets: [left, right].map(socket),
        }
    }

    /// The descriptor of a place, and the offset if it has one.
    fn at(&self, place: Place) -> Option<(&F, Option<u64>)> {
        match place {
            Place::Reader(pipe) => self.readers[pipe].as_ref().map(|fd| (fd, None)),
            Place::Writer(pipe) => self.writers[pipe].as_ref().map(|fd| (fd, None)),
            Place::File(file) => Some((&self.files[file], None)),
            Place::FileAt(file, at) => Some((&self.files[file], Some(at))),
            Place::Append => Some((&self.append, None)),
            Place::Socket(side) => Some((&self.sockets[side], None)),
        }
    }

    fn close(&mut self, step: &Step) {
        match step {
            Step::CloseReader(pipe) => self.readers[*pipe] = None,
            Step::CloseWriter(pipe) => self.writers[*pipe] = None,
            _ => {}
        }
    }

    /// All that is in this world at the end, and where the cursors are.
    fn contents(&self) -> Vec<Vec<u8>> {
        let streams = self.readers.iter().flatten().chain(&self.sockets).map(drain);
        let files = self.files.iter().chain([&self.append]).map(|file| {
            let file = File::from(file.as_fd().try_clone_to_owned().unwrap());
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            bytes.extend(io::Seek::stream_position(&mut &file).unwrap().to_le_bytes());
            bytes
        });
        streams.chain(files).collect()
    }
}

/// The bytes that the step of this number writes.
fn payload(number: usize, len: usize) -> Vec<u8> {
    pattern(1_000 + number as u64, len)
}

/// A buffer in pieces, for the vectored calls.
fn pieces(bytes: &[u8]) -> Vec<Vec<u8>> {
    let third = bytes.len() / 3;
    [&bytes[..third], &bytes[third..2 * third], &bytes[2 * third..]].map(<[u8]>::to_vec).to_vec()
}

/// The whole script through the plain calls.
fn run_plain(script: &[Step]) -> (Vec<Option<Outcome>>, Vec<Vec<u8>>) {
    let mut world = World::<OwnedFd>::new();
    let mut outcomes = Vec::new();
    for (number, step) in script.iter().enumerate() {
        world.close(step);
        outcomes.push(plain(&world, number, step));
    }
    (outcomes, world.contents())
}

fn plain(world: &World<OwnedFd>, number: usize, step: &Step) -> Option<Outcome> {
    let mut bytes = Vec::new();
    let result = match *step {
        Step::Read { from, len, way } => {
            let (fd, at) = world.at(from)?;
            bytes = vec![0; len];
            let result = plain_read(fd.as_fd(), &mut bytes, at, way);
            bytes.truncate(result.unwrap_or(0));
            result
        }
        Step::Write { to, len, way } => {
            let (fd, at) = world.at(to)?;
            plain_write(fd.as_fd(), &payload(number, len), at, way)
        }
        Step::Splice { from, to, len } => {
            let ((from, mut from_at), (to, mut to_at)) = (world.at(from)?, world.at(to)?);
            rustix::pipe::splice(from, from_at.as_mut(), to, to_at.as_mut(), len, SpliceFlags::NONBLOCK)
        }
        Step::Tee { from, to, len } => {
            let (from, to) = (world.readers[from].as_ref()?, world.writers[to].as_ref()?);
            rustix::pipe::tee(from, to, len, SpliceFlags::NONBLOCK)
        }
        Step::CloseReader(_) | Step::CloseWriter(_) => return None,
    };
    let result = match result {
        Err(Errno::AGAIN) => None,
        result => Some(result.map_err(Errno::raw_os_error)),
    };
    Some(Outcome { result, bytes })
}

fn plain_read(fd: BorrowedFd<'_>, bytes: &mut [u8], at: Option<u64>, way: Way) -> rustix::io::Result<usize> {
    let third = bytes.len() / 3;
    match (way, at) {
        (Way::Vectored, at) => {
            let (first, rest) = bytes.split_at_mut(third);
            let (second, last) = rest.split_at_mut(third);
            // A read without room is refused by the crate, so empty pieces are left out on both sides.
            let vectors = [first, second, last].into_iter().filter(|piece| !piece.is_empty());
            let mut vectors: Vec<_> = vectors.map(io::IoSliceMut::new).collect();
            match at {
                Some(at) => rustix::io::preadv(fd, &mut vectors, at),
                None => rustix::io::readv(fd, &mut vectors),
            }
        }
        (_, Some(at)) => rustix::io::pread(fd, bytes, at),
        (_, None) => rustix::io::read(fd, bytes),
    }
}

fn plain_write(fd: BorrowedFd<'_>, bytes: &[u8], at: Option<u64>, way: Way) -> rustix::io::Result<usize> {
    match (way, at) {
        (Way::Vectored, at) => {
            let pieces = pieces(bytes);
            let vectors: Vec<_> = pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
            match at {
                Some(at) => rustix::io::pwritev(fd, &vectors, at),
                None => rustix::io::writev(fd, &vectors),
            }
        }
        (_, Some(at)) => rustix::io::pwrite(fd, bytes, at),
        (_, None) => rustix::io::write(fd, bytes),
    }
}

/// The whole script through the ring, beside what the plain calls came to.
async fn run_ring(script: &[Step], expected: &[Option<Outcome>], route: Route) -> Result<Vec<Vec<u8>>, TestCaseError> {
    let mut world = World::<Handle>::new();
    for (number, (step, expected)) in script.iter().zip(expected).enumerate() {
        world.close(step);
        let Some(expected) = expected else { continue };
        let waits = expected.result.is_none();
        let Some(outcome) = ring(&world, number, step, route, waits).await else { continue };
        prop_assert_eq!(&outcome, expected, "step {}, {:?}, by {:?}", number, step, route);
        // The poll of a step that was cancelled comes back by itself, and keeps its descriptor open until then.
        while Driver::current().operations_active() > 0 {
            turns(1).await;
        }
    }
    Ok(world.contents())
}

/// A descriptor as the ring has it.
struct Handle(Fd);

impl From<OwnedFd> for Handle {
    fn from(fd: OwnedFd) -> Self {
        Self(Fd::new(fd))
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRef<Fd> for Handle {
    fn as_ref(&self) -> &Fd {
        &self.0
    }
}

/// One step through the ring. `waits` is what the plain call did: then the future must wait, and a cancel end it.
async fn ring(world: &World<Handle>, number: usize, step: &Step, route: Route, waits: bool) -> Option<Outcome> {
    let mut bytes = Vec::new();
    let result = match *step {
        Step::Read { from, len, way } => {
            let (fd, at) = world.at(from)?;
            let (result, read) = ring_read(fd, from, len, at, way, waits).await;
            bytes = read;
            result
        }
        Step::Write { to, len, way } => {
            let (fd, at) = world.at(to)?;
            ring_write(fd, to, payload(number, len), at, way, waits).await
        }
        Step::Splice { from, to, len } => {
            let (from, to) = (end(world.at(from)?), end(world.at(to)?));
            settle(ops::splice(from, to, len).route(route), waits, |splice| splice.cancel()).await
        }
        Step::Tee { from, to, len } => {
            let (from, to) = (world.readers[from].as_ref()?, world.writers[to].as_ref()?);
            let from = ops::PipeReader::from_std(from.0.try_clone_to_owned().unwrap().into()).unwrap();
            let to = ops::PipeWriter::from_std(to.0.try_clone_to_owned().unwrap().into()).unwrap();
            settle(ops::tee(&from, &to, len).route(route), waits, |tee| tee.cancel()).await
        }
        Step::CloseReader(_) | Step::CloseWriter(_) => return None,
    };
    let result = match result {
        Err(error) if waits && error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => None,
        Err(error) => Some(Err(error.raw_os_error().unwrap_or_else(|| panic!("the crate refuses {step:?}: {error}")))),
        Ok(count) => Some(Ok(count)),
    };
    Some(Outcome { result, bytes })
}

fn end((fd, at): (&Handle, Option<u64>)) -> End {
    match at {
        Some(at) => End::at(fd, at),
        None => End::from(fd),
    }
}

/// Await a future, or if it has to wait, see that it does and cancel it.
async fn settle<F: Future + Unpin>(mut future: F, waits: bool, cancel: impl FnOnce(F) -> F) -> F::Output {
    if waits {
        for _ in 0..3 {
            if let Some(output) = poll_once(&mut future).await {
                return output;
            }
            turns(1).await;
        }
        future = cancel(future);
    }
    future.await
}

async fn ring_read(
    fd: &Handle,
    from: Place,
    len: usize,
    at: Option<u64>,
    way: Way,
    waits: bool,
) -> (io::Result<usize>, Vec<u8>) {
    match (way, at) {
        (Way::Vectored, at) => {
            let third = len / 3;
            let pieces = [third, third, len - 2 * third].into_iter().filter(|len| *len > 0);
            let pieces: Vec<_> = pieces.map(|len| vec![0; len]).collect();
            let read = match at {
                Some(at) => ops::readv_at(fd, pieces, at),
                None => ops::readv(fd, pieces),
            };
            let (result, pieces) = settle(read, waits, |read| read.cancel()).await;
            read_bytes(result, &pieces.concat())
        }
        (Way::Fixed, at) => {
            let pages = lease(len).await;
            let read = match at {
                Some(at) => ops::read_fixed_at(fd, pages, at),
                None => ops::read_fixed(fd, pages),
            };
            let (result, pages) = settle(read, waits, |read| read.cancel()).await;
            read_bytes(result, &pages)
        }
        (Way::Plain, None) if matches!(from, Place::Socket(_)) => {
            let (result, bytes) = settle(ops::recv(fd, vec![0; len]), waits, |recv| recv.cancel()).await;
            read_bytes(result, &bytes)
        }
        (Way::Plain, at) => {
            let read = match at {
                Some(at) => ops::read_at(fd, vec![0; len], at),
                None => ops::read(fd, vec![0; len]),
            };
            let (result, bytes) = settle(read, waits, |read| read.cancel()).await;
            read_bytes(result, &bytes)
        }
    }
}

fn read_bytes(result: io::Result<usize>, bytes: &[u8]) -> (io::Result<usize>, Vec<u8>) {
    let count = *result.as_ref().unwrap_or(&0);
    (result, bytes[..count].to_vec())
}

async fn ring_write(
    fd: &Handle,
    to: Place,
    bytes: Vec<u8>,
    at: Option<u64>,
    way: Way,
    waits: bool,
) -> io::Result<usize> {
    match (way, at) {
        (Way::Vectored, at) => {
            let write = match at {
                Some(at) => ops::writev_at(fd, pieces(&bytes), at),
                None => ops::writev(fd, pieces(&bytes)),
            };
            settle(write, waits, |write| write.cancel()).await.0
        }
        (Way::Fixed, at) => {
            let mut pages = lease(bytes.len()).await;
            pages.as_capacity_mut().copy_from_slice(&bytes);
            pages.set_len(bytes.len());
            let write = match at {
                Some(at) => ops::write_fixed_at(fd, pages, at),
                None => ops::write_fixed(fd, pages),
            };
            settle(write, waits, |write| write.cancel()).await.0
        }
        (Way::Plain, None) if matches!(to, Place::Socket(_)) => {
            settle(ops::send(fd, bytes), waits, |send| send.cancel()).await.0
        }
        (Way::Plain, at) => {
            let write = match at {
                Some(at) => ops::write_at(fd, bytes, at),
                None => ops::write(fd, bytes),
            };
            settle(write, waits, |write| write.cancel()).await.0
        }
    }
}

async fn lease(len: usize) -> FixedBuf {
    Driver::current().registry().lease(len).await.expect("no lease here is longer than the registry")
}

/// Play so many scripts of a seed under every ring configuration and by every route.
fn compare(seed: u64, scripts: u32) {
    let runtimes: Vec<(String, Runtime)> =
        rings::table().into_iter().map(|(name, config)| (name.clone(), rings::build(&name, config))).collect();
    let config = ProptestConfig {
        cases: scripts,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&steps(), |script| {
        let (expected, contents) = run_plain(&script);
        for (name, runtime) in &runtimes {
            for route in ROUTES {
                let ring_contents = runtime.block_on(run_ring(&script, &expected, route))?;
                prop_assert!(ring_contents == contents, "other bytes are left, with {}, by {:?}", name, route);
                let counts = runtime.driver().registry().snapshot();
                prop_assert_eq!(counts.pages_free, counts.pages_total, "with {}, by {:?}", name, route);
            }
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, script)) => panic!("seed {seed}: {why}\n{script:#?}"),
        Err(TestError::Abort(why)) => panic!("seed {seed}: {why}"),
    }
}

#[test]
fn the_ring_does_what_the_plain_calls_do() {
    without_hanging(|| {
        for seed in 1..=4 {
            compare(seed, 8);
        }
    });
}

#[test]
fn the_ring_does_what_the_plain_calls_do_for_a_seed_of_today() {
    without_hanging(|| {
        let seed = BuildHasher::hash_one(&RandomState::new(), 0);
        println!("seed {seed}");
        compare(seed, 8);
    });
}

#[test]
#[ignore = "the long form: 2,000 scripts"]
fn the_ring_does_what_the_plain_calls_do_long() {
    without_hanging_for(Duration::from_secs(1_800), || {
        let seed = BuildHasher::hash_one(&RandomState::new(), 0);
        println!("seed {seed}");
        compare(seed, 2_000);
    });
}
