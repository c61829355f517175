//! Attacks on the seam from safe code outside the crate: each test is an attempt to make the runtime write to memory
//! that nobody lent, believe a completion that is not an operation's own, forge or leak a descriptor, run foreign code
//! while it has something borrowed, or lose a slot.

#![forbid(unsafe_code)]

mod descriptors;
mod foreign;
mod memory;
mod own_operations;
mod panics;
mod played;
mod reentrancy;
mod runtimes;
mod threads;

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ringmain::{Completion, Config, Driver, Encoded, Entered, Fd, Fill, IoBufMut, Operation, Script, Sqe, Wait};

/// A hang is a failure, not a job without an end; nothing here waits for this to pass.
const HANG: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config::default().entries(8).completions(16).pages(4)
}

fn scripted() -> (Rc<Driver>, Script, Entered) {
    let (driver, script) = Driver::scripted(&config()).unwrap();
    let entered = driver.enter();
    (driver, script, entered)
}

fn kernel() -> (Rc<Driver>, Entered) {
    let driver = Driver::new(&config()).unwrap();
    let entered = driver.enter();
    (driver, entered)
}

fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

/// Turn until the future is ready.
fn finish<F: Future + Unpin>(driver: &Driver, future: &mut F) -> F::Output {
    loop {
        if let Poll::Ready(output) = poll(future) {
            return output;
        }
        if driver.operations_active() == 0 {
            // Nothing to wait for: it has been settled meanwhile.
            continue;
        }
        driver.turn(Wait::Until(Some(HANG))).unwrap();
    }
}

/// Turn until no slot is used.
fn settle(driver: &Driver) {
    while driver.slots_used() > 0 {
        driver.turn(Wait::Until(Some(HANG))).unwrap();
    }
}

/// The `user_data` of the only entry of this opcode that the played kernel has.
fn pending(script: &Script, opcode: u8) -> u64 {
    let all: Vec<_> = script.pending().into_iter().filter(|pending| pending.entry.opcode == opcode).collect();
    assert_eq!(all.len(), 1, "one entry of opcode {opcode} is with the kernel: {:?}", script.pending());
    all[0].entry.user_data
}

/// What a panic said.
fn panic_of(what: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(what)).expect_err("this has to panic");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&'static str>().expect("a panic with a sentence")).to_owned(),
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK).unwrap()
}

/// Whether every write end of this pipe has been closed.
fn is_at_end(reader: &OwnedFd) -> bool {
    match rustix::io::read(reader, &mut [0; 1]) {
        Ok(0) => true,
        Ok(_) => panic!("nobody wrote to this pipe"),
        Err(error) => {
            assert_eq!(error, rustix::io::Errno::AGAIN);
            false
        }
    }
}

/// A read written as anybody would, without a line of the crate's own operations.
struct Take<B> {
    from: ringmain::FdHold,
    fill: Fill<B>,
}

fn take(fd: &Fd, capacity: usize) -> ringmain::Submission<Take<Vec<u8>>> {
    ringmain::Submission::new(Take { from: fd.hold(), fill: Fill::new(Vec::with_capacity(capacity)) })
}

impl<B: IoBufMut> Operation for Take<B> {
    type Output = (io::Result<usize>, B);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.read(self.from.as_fd(), &mut self.fill, None)
    }

    fn decode(self, completion: Completion) -> Self::Output {
        self.fill.finish(completion)
    }
}

/// Take a connection, and give the descriptor up to whoever asks.
struct Admit(ringmain::FdHold);

fn admit(listener: &Fd) -> ringmain::Submission<Admit> {
    ringmain::Submission::new(Admit(listener.hold()))
}

impl Operation for Admit {
    type Output = io::Result<OwnedFd>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.accept(self.0.as_fd())
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()?;
        completion.take_descriptor().ok_or_else(|| io::Error::other("an accept that succeeded made nothing"))
    }
}

const NOP: u8 = ringmain::Opcode::Nop.code();
const READ: u8 = ringmain::Opcode::Read.code();
const ACCEPT: u8 = ringmain::Opcode::Accept.code();
const POLL: u8 = ringmain::Opcode::PollAdd.code();
const MORE: u32 = 1 << 1;
const ECANCELED: i32 = rustix::io::Errno::CANCELED.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
