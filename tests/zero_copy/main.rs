//! Sends from pages in place: what is asked of the kernel, what comes back and when, and what a socket learns.
//!
//! Where the moment of a notification matters the kernel is a played one, for nothing holds a real one back on loopback;
//! what the kernel makes of it is tested against it.

#![forbid(unsafe_code)]

#[path = "../rings/mod.rs"]
mod rings;
#[path = "../turns/mod.rs"]
mod turns;

mod entries;
mod kernel;
mod learning;
mod moments;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringmain::{Config, Driver, Entered, Entry, Fd, IoBuf, Opcode, Script, Wait};

const SEND: u8 = Opcode::Send.code();
const SEND_ZC: u8 = Opcode::SendZc.code();
const MORE: u32 = 1 << 1;
const NOTIFICATION: u32 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = i32::MIN;
const PAGE: usize = 4096;

/// A driver on a played kernel, which sends without copying from the first byte on.
struct Rig {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    /// What stands for a socket; the played kernel does not look.
    socket: Fd,
}

impl Rig {
    fn new() -> Self {
        Self::with(Config::default().pages(8).zero_copy_min(1))
    }

    fn with(config: Config) -> Self {
        let (driver, script) = Driver::scripted(&config).unwrap();
        let _entered = driver.enter();
        Self { driver, script, _entered, socket: null() }
    }

    fn turn(&self) {
        self.driver.turn(Wait::No).unwrap();
    }

    /// The only entry that the played kernel has.
    fn only(&self) -> Entry {
        let pending = self.script.pending();
        assert_eq!(pending.len(), 1, "one entry is with the kernel: {pending:?}");
        pending[0].entry
    }

    /// Poll something that has to wait, and return the entry that this gave the kernel.
    fn submit<F: Future + Unpin>(&self, future: &mut F) -> Entry {
        assert!(poll(future).is_pending());
        self.turn();
        self.only()
    }

    /// Let the kernel answer, and the driver hear it.
    fn answer(&self, entry: Entry, result: i32, flags: u32) {
        self.script.complete_with(entry.user_data, result, flags);
        self.turn();
    }

    fn lease(&self, len: usize) -> ringmain::FixedBuf {
        let mut lease = self.driver.registry().try_lease(len).expect("the pages are free");
        lease.set_len(len);
        lease
    }
}

fn null() -> Fd {
    Fd::new(std::fs::File::options().write(true).open("/dev/null").unwrap().into())
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn ready<F: Future + Unpin>(future: &mut F) -> F::Output {
    match poll(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("this has to be ready"),
    }
}

/// A buffer that tells whether it is still somewhere.
#[derive(Debug)]
struct Marked {
    bytes: Vec<u8>,
    _token: Rc<()>,
}

impl Marked {
    fn new(len: usize, token: &Rc<()>) -> Self {
        Self { bytes: vec![7; len], _token: Rc::clone(token) }
    }
}

impl IoBuf for Marked {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
