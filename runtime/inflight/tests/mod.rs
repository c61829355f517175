//! Every transition of the slot table, on a played kernel: the test decides what is answered, and when.

mod answered;
mod cancelling;
mod multishot;
mod readiness;
mod single;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::stream::Stream;
use rustix::pipe::SpliceFlags;

use super::ITEMS_MAX;
use crate::runtime::abi;
use crate::runtime::buf::Fill;
use crate::runtime::entry::Entry;
use crate::runtime::{
    Answer, Completion, Config, Driver, Encoded, EncodedMultishot, Entered, FixedBuf, Multishot, MultishotOperation,
    MultishotSqe, Operation, Script, Sqe, Submission, Wait,
};

/// What a played operation asks for.
#[derive(Clone, Copy)]
enum What {
    Nop,
    LinkedNop,
    Read,
    Send,
    SendZc,
    Splice,
    Accept,
    Panics,
    Refused,
}

/// One operation of any opcode, whose life can be seen from outside by its token.
struct Played {
    what: What,
    fd: OwnedFd,
    memory: Vec<u8>,
    _token: Rc<()>,
}

impl Operation for Played {
    type Output = (io::Result<u32>, Option<OwnedFd>, Vec<u8>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        match self.what {
            What::Nop => sqe.nop(),
            What::LinkedNop => sqe.nop().map(Encoded::linked),
            What::Read => sqe.read(self.fd.as_fd(), &mut self.memory[..], None),
            What::Send => sqe.send(self.fd.as_fd(), &self.memory),
            What::SendZc => sqe.send_zc(self.fd.as_fd(), &self.memory),
            What::Splice => sqe.splice(self.fd.as_fd(), None, self.fd.as_fd(), None, 8, SpliceFlags::empty()),
            What::Accept => sqe.accept(self.fd.as_fd()),
            What::Panics => panic!("this operation cannot be described"),
            What::Refused => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        }
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        (completion.result(), completion.take_descriptor(), self.memory)
    }
}

/// A read into a lease.
struct ReadFixed {
    fd: OwnedFd,
    fill: Fill<FixedBuf>,
}

impl Operation for ReadFixed {
    type Output = (io::Result<usize>, FixedBuf);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read_fixed(self.fd.as_fd(), &mut self.fill, None)
    }

    fn decode(self, completion: Completion) -> Self::Output {
        self.fill.finish(completion)
    }
}

/// A zero-copy send from a lease.
struct SendFixedZc {
    fd: OwnedFd,
    lease: FixedBuf,
}

impl Operation for SendFixedZc {
    type Output = (io::Result<u32>, FixedBuf);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.send_zc(self.fd.as_fd(), &self.lease)
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        (completion.result(), self.lease)
    }
}

/// A multishot accept.
struct Listening {
    fd: OwnedFd,
    _token: Rc<()>,
}

impl MultishotOperation for Listening {
    type Item = (io::Result<u32>, Option<OwnedFd>);

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        sqe.accept(self.fd.as_fd())
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        (completion.result(), completion.take_descriptor())
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A driver on a played kernel, entered; one token for all its operations, one waker for all its futures.
struct Rig {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    token: Rc<()>,
    wakes: Arc<Wakes>,
}

impl Rig {
    fn new() -> Self {
        Self::with(&Config::default().pages(8))
    }

    fn with(config: &Config) -> Self {
        let (driver, script) = Driver::scripted(config).unwrap();
        let _entered = driver.enter();
        Self { driver, script, _entered, token: Rc::new(()), wakes: Arc::default() }
    }

    fn submission(&self, what: What) -> Submission<Played> {
        Submission::new(Played { what, fd: null(), memory: vec![0; 8], _token: Rc::clone(&self.token) })
    }

    /// A submission that was polled once.
    fn start(&self, what: What) -> Submission<Played> {
        let mut submission = self.submission(what);
        assert!(self.poll(&mut submission).is_pending());
        submission
    }

    /// A submission that the kernel has, and the `user_data` it has there.
    fn in_kernel(&self, what: What) -> (Submission<Played>, u64) {
        let submission = self.start(what);
        self.turn();
        (submission, self.last().user_data)
    }

    fn stream(&self) -> Multishot<Listening> {
        Multishot::new(Listening { fd: null(), _token: Rc::clone(&self.token) })
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker()))
    }

    fn answer<O: Operation>(&self, submission: &mut Submission<O>) -> Poll<Answer<O::Output>> {
        submission.poll_answer(&mut Context::from_waker(&self.waker()))
    }

    fn next<S: Stream + Unpin>(&self, stream: &mut S) -> Poll<Option<S::Item>> {
        Pin::new(stream).poll_next(&mut Context::from_waker(&self.waker()))
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.wakes))
    }

    fn turn(&self) {
        self.driver.turn(Wait::No).unwrap();
    }

    /// The entry that the kernel was given last and still has.
    fn last(&self) -> Entry {
        self.script.pending().last().expect("the kernel has an entry").entry
    }

    /// Opcodes of all that the kernel has, in the order of submission.
    fn opcodes(&self) -> Vec<u8> {
        self.script.pending().iter().map(|pending| pending.entry.opcode).collect()
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }

    /// Operations that still exist anywhere.
    fn alive(&self) -> usize {
        Rc::strong_count(&self.token) - 1
    }

    /// (operations queued or in the kernel, slots in use).
    fn counts(&self) -> (usize, usize) {
        (self.driver.operations_active(), self.driver.slots_used())
    }
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

/// A descriptor to give away, and the peer that sees when it is closed.
fn descriptor() -> (OwnedFd, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    (writer.into(), reader)
}

/// Whether every copy of the descriptor that `peer` belongs to is closed.
fn is_closed(mut peer: std::io::PipeReader) -> bool {
    rustix::io::ioctl_fionbio(&peer, true).unwrap();
    matches!(io::Read::read(&mut peer, &mut [0]), Ok(0))
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

fn ready<T>(poll: Poll<T>) -> T {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future should be ready"),
    }
}
