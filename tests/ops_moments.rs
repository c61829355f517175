//! Every plain operation, left alone at every moment of its life: nothing of it may stay behind.
//!
//! One table of operations, one list of moments, and for each pair the same ledger: slots, operations, pages, memory and
//! descriptors are where they were. Descriptors are counted for the whole process, so the trials run in a process of
//! their own.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::process::Command;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::task::noop_waker;
use ringmain::ops::{Payload, Released, SendZc};
use ringmain::{Driver, Fd, FixedBuf, IoBuf, Mode, OFlags, Operation, PollFlags, Runtime, Submission, Wait, ops};

/// A hang is a failure, not an endless run; nothing here takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(60);

/// An operation that has been described, and what the test needs to see it through.
struct Subject {
    operation: Box<dyn Watched>,
    /// The handles that the operation was described with.
    handles: Box<dyn Any>,
    /// Lets an operation that waits come to its end, and gives back what must last until then.
    feed: Feed,
    kept: Box<dyn Any>,
}

type Feed = Box<dyn FnOnce() -> Box<dyn Any>>;

/// A submission whose output has been reduced to whether it succeeded.
trait Watched: Future<Output = io::Result<()>> + Unpin {
    fn request_cancel(&mut self);
}

struct Watch<O: Operation, S> {
    submission: Submission<O>,
    settle: S,
}

impl<O: Operation, S: Fn(O::Output) -> io::Result<()> + Unpin> Future for Watch<O, S> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        Pin::new(&mut this.submission).poll(cx).map(&this.settle)
    }
}

impl<O: Operation, S: Fn(O::Output) -> io::Result<()> + Unpin> Watched for Watch<O, S> {
    fn request_cancel(&mut self) {
        self.submission.request_cancel();
    }
}

/// A zero-copy send, and then its memory on the way back.
struct WatchSend<P: Payload> {
    send: SendZc<P>,
    sent: Option<(io::Result<()>, Released<P>)>,
}

impl<P: Payload> Future for WatchSend<P> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.sent.is_none() {
            let (result, released) = std::task::ready!(Pin::new(&mut this.send).poll(cx));
            this.sent = Some((result.map(drop), released));
        }
        let (_, released) = this.sent.as_mut().expect("it is sent");
        std::task::ready!(Pin::new(released).poll(cx));
        Poll::Ready(this.sent.take().expect("it is sent").0)
    }
}

impl<P: Payload> Watched for WatchSend<P> {
    fn request_cancel(&mut self) {
        self.send.request_cancel();
    }
}

impl Subject {
    fn sending<P: Payload>(send: SendZc<P>, handles: impl Any) -> Self {
        Self {
            operation: Box::new(WatchSend { send, sent: None }),
            handles: Box::new(handles),
            feed: Box::new(|| Box::new(())),
            kept: Box::new(()),
        }
    }

    fn new<O: Operation, K: Any>(
        submission: Submission<O>,
        handles: impl Any,
        settle: impl Fn(O::Output) -> io::Result<()> + Unpin + 'static,
        feed: impl FnOnce() -> K + 'static,
    ) -> Self {
        Self {
            operation: Box::new(Watch { submission, settle }),
            handles: Box::new(handles),
            feed: Box::new(|| Box::new(feed())),
            kept: Box::new(()),
        }
    }

    fn feed(&mut self) {
        let feed = std::mem::replace(&mut self.feed, Box::new(|| Box::new(())));
        self.kept = feed();
    }

    fn poll(&mut self) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.operation).poll(&mut Context::from_waker(&noop_waker()))
    }
}

/// Where a trial happens.
struct Bench {
    driver: Rc<Driver>,
    folder: tempfile::TempDir,
    /// Every buffer that can carry something carries one of these.
    token: Rc<()>,
}

/// Bytes to be written that tell whether they are still somewhere.
#[derive(Debug)]
struct Marked {
    bytes: Vec<u8>,
    _token: Rc<()>,
}

impl IoBuf for Marked {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bench {
    fn new(runtime: &Runtime) -> Self {
        Self { driver: runtime.driver().clone(), folder: tempfile::tempdir().unwrap(), token: Rc::new(()) }
    }

    fn marked(&self) -> Marked {
        Marked { bytes: vec![7; 100], _token: self.token.clone() }
    }

    /// Of a length that is worth a zero-copy send.
    fn large(&self) -> Marked {
        Marked { bytes: vec![7; 40_000], _token: self.token.clone() }
    }

    fn lease(&self) -> FixedBuf {
        let mut lease = self.driver.registry().try_lease(100).expect("pages are free");
        lease.set_len(100);
        lease
    }

    fn file(&self) -> Fd {
        let path = self.folder.path().join("file");
        let mut file = fs::File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.write_all(&[9; 100]).unwrap();
        Fd::new(file.into())
    }
}

/// An operation, whether it waits until it is fed, and how to describe one.
type Case = (&'static str, bool, fn(&Bench) -> Subject);

const CASES: &[Case] = &[
    ("nop", false, |_| Subject::new(ops::nop(), (), |done| done, || ())),
    ("read", true, |_| {
        let (fd, writer) = empty_pipe();
        let buffer = Vec::with_capacity(100);
        let settle = came_back(&buffer);
        Subject::new(ops::read(&fd, buffer), fd, settle, feed(writer))
    }),
    ("read_at", false, |bench| {
        let fd = bench.file();
        let buffer = Vec::with_capacity(100);
        let settle = came_back(&buffer);
        Subject::new(ops::read_at(&fd, buffer, 10), fd, settle, || ())
    }),
    ("readv", true, |bench| {
        let (fd, writer) = empty_pipe();
        let operation = ops::readv(&fd, vec![bench.lease(), bench.lease()]);
        Subject::new(operation, fd, |(result, buffers)| result.map(|_| assert_eq!(buffers.len(), 2)), feed(writer))
    }),
    ("read_fixed", true, |bench| {
        let (fd, writer) = empty_pipe();
        Subject::new(ops::read_fixed(&fd, bench.lease().slice(..50)), fd, |(r, _)| r.map(drop), feed(writer))
    }),
    ("read_fixed_at", false, |bench| {
        let fd = bench.file();
        Subject::new(ops::read_fixed_at(&fd, bench.lease(), 10), fd, |(result, _)| result.map(drop), || ())
    }),
    ("write", true, |bench| {
        let (fd, reader) = full_pipe();
        Subject::new(ops::write(&fd, bench.marked()), fd, |(result, _)| result.map(drop), drain(reader))
    }),
    ("write_at", false, |bench| {
        let fd = bench.file();
        Subject::new(ops::write_at(&fd, bench.marked(), 10), fd, |(result, _)| result.map(drop), || ())
    }),
    ("writev", true, |bench| {
        let (fd, reader) = full_pipe();
        let buffers = vec![bench.marked(), bench.marked()];
        Subject::new(ops::writev(&fd, buffers), fd, |(result, _)| result.map(drop), drain(reader))
    }),
    ("write_fixed", true, |bench| {
        let (fd, reader) = full_pipe();
        Subject::new(ops::write_fixed(&fd, bench.lease()), fd, |(result, _)| result.map(drop), drain(reader))
    }),
    ("write_fixed_at", false, |bench| {
        let fd = bench.file();
        Subject::new(ops::write_fixed_at(&fd, bench.lease(), 10), fd, |(result, _)| result.map(drop), || ())
    }),
    ("recv", true, |_| {
        let (fd, peer) = stream();
        let buffer = Vec::with_capacity(100);
        let settle = came_back(&buffer);
        Subject::new(ops::recv(&fd, buffer), fd, settle, feed(peer))
    }),
    ("recv_lent", true, |_| {
        let (fd, peer) = stream();
        Subject::new(ops::recv_lent(&fd), fd, |page| page.map(drop), feed(peer))
    }),
    ("read_lent", true, |_| {
        let (fd, writer) = empty_pipe();
        Subject::new(ops::read_lent(&fd), fd, |page| page.map(drop), feed(writer))
    }),
    ("peek", true, |_| {
        let (fd, peer) = stream();
        let buffer = Vec::with_capacity(100);
        let settle = came_back(&buffer);
        Subject::new(ops::peek(&fd, buffer), fd, settle, feed(peer))
    }),
    ("send", true, |bench| {
        let (fd, peer) = stream();
        fill(&fd);
        Subject::new(ops::send(&fd, bench.marked()), fd, |(result, _)| result.map(drop), drain(peer))
    }),
    ("readv_fixed", true, |bench| {
        let (fd, writer) = empty_pipe();
        let operation = ops::readv_fixed(&fd, vec![bench.lease(), bench.lease()]);
        Subject::new(operation, fd, |(result, buffers)| result.map(|_| assert_eq!(buffers.len(), 2)), feed(writer))
    }),
    ("readv_fixed_at", false, |bench| {
        let fd = bench.file();
        let operation = ops::readv_fixed_at(&fd, vec![bench.lease(), bench.lease()], 10);
        Subject::new(operation, fd, |(result, _)| result.map(drop), || ())
    }),
    ("writev_fixed", true, |bench| {
        let (fd, reader) = full_pipe();
        let operation = ops::writev_fixed(&fd, vec![bench.lease(), bench.lease()]);
        Subject::new(operation, fd, |(result, _)| result.map(drop), drain(reader))
    }),
    ("writev_fixed_at", false, |bench| {
        let fd = bench.file();
        let operation = ops::writev_fixed_at(&fd, vec![bench.lease(), bench.lease()], 10);
        Subject::new(operation, fd, |(result, _)| result.map(drop), || ())
    }),
    // A full socket, and a notification that is late, only a played kernel has: `tests/zero_copy`.
    ("send_zc", false, |bench| {
        let (fd, peer) = tcp_stream();
        Subject::sending(ops::send_zc(&fd, bench.large()), (fd, peer))
    }),
    ("send_vectored_zc", false, |bench| {
        let (fd, peer) = tcp_stream();
        Subject::sending(ops::send_vectored_zc(&fd, vec![bench.large(), bench.large()]), (fd, peer))
    }),
    ("poll", true, |_| {
        let (fd, writer) = empty_pipe();
        let settle = |events: io::Result<PollFlags>| events.map(|events| assert!(events.contains(PollFlags::IN)));
        Subject::new(ops::readable(&fd), fd, settle, feed(writer))
    }),
    ("accept", true, |bench| {
        let path = bench.folder.path().join("accept");
        let fd = Fd::new(OwnedFd::from(UnixListener::bind(&path).unwrap()));
        fd.set_nonblocking().unwrap();
        let connect = move || drop(UnixStream::connect(path).unwrap());
        Subject::new(ops::accept(&fd), fd, |connection| connection.map(drop), connect)
    }),
    ("connect", false, |bench| {
        let path = bench.folder.path().join("connect");
        let listener = UnixListener::bind(&path).unwrap();
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let fd = Fd::new(socket.into());
        let operation = ops::connect(&fd, socket2::SockAddr::unix(&path).unwrap());
        Subject::new(operation, (fd, listener), |done| done, || ())
    }),
    ("shutdown", false, |_| {
        let (fd, peer) = stream();
        let operation = ops::shutdown(&fd, std::net::Shutdown::Write);
        Subject::new(operation, (fd, peer), |done| done, || ())
    }),
    ("open", false, |_| {
        let operation = ops::open("/dev/null", OFlags::RDONLY, Mode::empty());
        Subject::new(operation, (), |file| file.map(drop), || ())
    }),
    ("close", false, |_| Subject::new(ops::close(fs::File::open("/dev/null").unwrap().into()), (), |done| done, || ())),
    ("fsync", false, |bench| {
        let fd = bench.file();
        Subject::new(ops::fsync(&fd, false), fd, |done| done, || ())
    }),
];

/// How far an operation comes before it is left alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// Described.
    Fresh,
    /// In its slot; the kernel has not seen it.
    Queued,
    /// With the kernel.
    Submitted,
    /// Over, and nobody has looked.
    Done,
}

const MOMENTS: [Moment; 4] = [Moment::Fresh, Moment::Queued, Moment::Submitted, Moment::Done];

/// Bring a described operation to a moment, and return what is then left of it.
fn bring(bench: &Bench, (name, waits, describe): &Case, moment: Moment) -> Subject {
    let idle = bench.driver.operations_active();
    let mut subject = describe(bench);
    if moment == Moment::Fresh {
        return subject;
    }
    assert!(subject.poll().is_pending(), "{name} cannot be over before the kernel has seen it");
    assert_eq!(bench.driver.operations_active(), idle + 1, "{name} is in flight");
    if moment == Moment::Queued {
        return subject;
    }
    bench.driver.turn(Wait::No).unwrap();
    assert!(!waits || subject.poll().is_pending(), "{name} waits");
    if moment == Moment::Done {
        subject.feed();
        settle(bench, name, idle);
    }
    subject
}

/// Turn until no more operations are in flight than there were.
fn settle(bench: &Bench, name: &str, idle: usize) {
    let started = Instant::now();
    while bench.driver.operations_active() > idle {
        assert!(started.elapsed() < PATIENCE, "{name} does not come to its end");
        bench.driver.turn(Wait::Until(Some(Duration::from_millis(100)))).unwrap();
    }
}

/// Run one trial on a runtime of its own, and see that nothing is left of it.
fn trial(name: &str, act: impl FnOnce(Runtime, &Bench)) {
    let descriptors = descriptors();
    let runtime = Runtime::new().unwrap();
    let bench = Bench::new(&runtime);
    let driver = bench.driver.clone();
    act(runtime, &bench);
    let counts = driver.registry().snapshot();
    // A group of lent buffers keeps its own until the runtime ends.
    assert_eq!(counts.pages_free + counts.pages_lent, counts.pages_total, "{name}: a lease was lost");
    assert_eq!(Rc::strong_count(&bench.token), 1, "{name}: a buffer was lost");
    drop(bench);
    drop(driver);
    assert_eq!(self::descriptors(), descriptors, "{name}: a descriptor was lost");
}

#[test]
fn a_dropped_operation_leaves_nothing_behind() {
    if !alone("a_dropped_operation_leaves_nothing_behind") {
        return;
    }
    for case in CASES {
        for moment in MOMENTS {
            let name = format!("{}, dropped when {moment:?}", case.0);
            trial(&name, |_runtime, bench| {
                let _entered = bench.driver.enter();
                let idle = (bench.driver.operations_active(), bench.driver.slots_used());
                let subject = bring(bench, case, moment);
                drop(subject.operation);
                settle(bench, &name, idle.0);
                assert_eq!(bench.driver.slots_used(), idle.1, "{name}: a slot was lost");
            });
        }
    }
}

#[test]
fn a_cancelled_operation_says_how_it_ended() {
    if !alone("a_cancelled_operation_says_how_it_ended") {
        return;
    }
    for case @ (_, waits, _) in CASES {
        for moment in MOMENTS {
            let name = format!("{}, cancelled when {moment:?}", case.0);
            trial(&name, |_runtime, bench| {
                let _entered = bench.driver.enter();
                let idle = (bench.driver.operations_active(), bench.driver.slots_used());
                let mut subject = bring(bench, case, moment);
                subject.operation.request_cancel();
                let outcome = finish(bench, &name, &mut subject);
                let cancelled = outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ECANCELED));
                match moment {
                    Moment::Fresh | Moment::Queued => assert!(cancelled, "{name}: {outcome:?}"),
                    Moment::Submitted if *waits => assert!(cancelled, "{name}: {outcome:?}"),
                    Moment::Submitted => assert!(cancelled || outcome.is_ok(), "{name}: {outcome:?}"),
                    Moment::Done => assert!(outcome.is_ok(), "{name}: {outcome:?}"),
                }
                settle(bench, &name, idle.0);
                assert_eq!(bench.driver.slots_used(), idle.1, "{name}: a slot was lost");
            });
        }
    }
}

#[test]
fn an_operation_whose_last_handle_goes_comes_to_its_end() {
    if !alone("an_operation_whose_last_handle_goes_comes_to_its_end") {
        return;
    }
    for case in CASES {
        for moment in MOMENTS.into_iter().skip(1) {
            let name = format!("{}, hung up when {moment:?}", case.0);
            trial(&name, |_runtime, bench| {
                let _entered = bench.driver.enter();
                let mut subject = bring(bench, case, moment);
                subject.handles = Box::new(());
                // Which end it is depends on the moment; that there is one does not.
                let outcome = finish(bench, &name, &mut subject);
                assert!(moment != Moment::Done || outcome.is_ok(), "{name}: {outcome:?}");
            });
        }
    }
}

#[test]
fn a_future_that_outlives_its_runtime_still_resolves() {
    if !alone("a_future_that_outlives_its_runtime_still_resolves") {
        return;
    }
    for case @ (_, waits, _) in CASES {
        for moment in MOMENTS.into_iter().skip(1) {
            let name = format!("{}, runtime dropped when {moment:?}", case.0);
            trial(&name, |runtime, bench| {
                let mut subject = {
                    let _entered = bench.driver.enter();
                    bring(bench, case, moment)
                };
                drop(runtime);
                assert_eq!(bench.driver.operations_active(), 0, "{name}: the kernel still has it");
                match subject.poll() {
                    Poll::Pending => panic!("{name}: nothing will ever end it"),
                    Poll::Ready(Ok(())) => assert!(!waits || moment == Moment::Done, "{name}: it was not fed"),
                    Poll::Ready(Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{name}"),
                }
            });
        }
    }
}

#[test]
fn a_leaked_future_leaves_the_kernel_with_nothing_when_the_runtime_goes() {
    for case in CASES {
        for moment in [Moment::Queued, Moment::Submitted, Moment::Done] {
            let runtime = Runtime::new().unwrap();
            let bench = Bench::new(&runtime);
            let subject = {
                let _entered = bench.driver.enter();
                bring(&bench, case, moment)
            };
            std::mem::forget(subject.operation);
            drop(runtime);
            assert_eq!(bench.driver.operations_active(), 0, "{}, leaked when {moment:?}", case.0);
        }
    }
}

#[test]
fn an_aborted_task_leaves_nothing_behind() {
    if !alone("an_aborted_task_leaves_nothing_behind") {
        return;
    }
    for case in CASES {
        let name = format!("{}, aborted", case.0);
        trial(&name, |runtime, bench| {
            let idle = (bench.driver.operations_active(), bench.driver.slots_used());
            let subject = (case.2)(bench);
            let task = runtime.spawn(subject.operation);
            runtime.block_on(async {
                // One round starts the task; its operation may be over in the next.
                one_round().await;
                task.abort();
                let ended = task.await;
                assert!(ended.is_err_and(|error| error.is_cancelled()), "{name}");
            });
            settle(bench, &name, idle.0);
            assert_eq!(bench.driver.slots_used(), idle.1, "{name}: a slot was lost");
        });
    }
}

async fn one_round() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn finish(bench: &Bench, name: &str, subject: &mut Subject) -> io::Result<()> {
    let started = Instant::now();
    loop {
        if let Poll::Ready(outcome) = subject.poll() {
            return outcome;
        }
        assert!(started.elapsed() < PATIENCE, "{name} does not come to its end");
        bench.driver.turn(Wait::Until(Some(Duration::from_millis(100)))).unwrap();
    }
}

/// The same memory comes back.
fn came_back(buffer: &[u8]) -> impl Fn((io::Result<usize>, Vec<u8>)) -> io::Result<()> + use<> {
    let address = buffer.as_ptr().addr();
    move |(result, buffer)| {
        assert_eq!(buffer.as_ptr().addr(), address, "another buffer came back");
        result.map(drop)
    }
}

fn empty_pipe() -> (Fd, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    let fd = Fd::new(reader.into());
    fd.set_nonblocking().unwrap();
    (fd, writer)
}

fn full_pipe() -> (Fd, io::PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    let fd = Fd::new(writer.into());
    fill(&fd);
    (fd, reader)
}

fn tcp_stream() -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    let fd = Fd::new(OwnedFd::from(ours));
    fd.set_nonblocking().unwrap();
    (fd, theirs)
}

fn stream() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = Fd::new(OwnedFd::from(ours));
    fd.set_nonblocking().unwrap();
    (fd, theirs)
}

/// Make a non-blocking writer of it that has no room.
fn fill(fd: &Fd) {
    fd.set_nonblocking().unwrap();
    for step in [4096, 1] {
        while rustix::io::write(fd, &[0; 4096][..step]).is_ok() {}
    }
}

fn feed<W: Write + 'static>(mut writer: W) -> impl FnOnce() -> W {
    move || {
        writer.write_all(&[3; 100]).unwrap();
        writer
    }
}

/// Take everything that is there now. The reader lasts: without one, the write would fail.
fn drain<R: Read + AsFd + 'static>(mut reader: R) -> impl FnOnce() -> R {
    move || {
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut rest = Vec::new();
        let error = reader.read_to_end(&mut rest).expect_err("the other end is still open");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        reader
    }
}

/// What this process has open: descriptor numbers, and what they are.
fn descriptors() -> BTreeMap<String, String> {
    let names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    // The descriptor that lists the folder is gone by the time it is looked at.
    let open = names.filter_map(|path| Some((path.display().to_string(), fs::read_link(&path).ok()?)));
    open.map(|(name, target)| (name, target.display().to_string())).collect()
}

/// Whether this process runs nothing but the named test; if not, one that does is started and waited for.
fn alone(test: &str) -> bool {
    const MARK: &str = "RINGMAIN_TEST_RUNS_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    // The test's name begins with the modules below the crate's root.
    let module = module_path!().split_once("::").map(|(_, module)| format!("{module}::")).unwrap_or_default();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("{module}{test}"), "--exact", "--nocapture", "--include-ignored"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    assert!(output.contains("1 passed"), "the test was not found by its name: {output}");
    false
}
