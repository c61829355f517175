//! The low-water trick: while bytes flow in bulk, have a socket wake its reader only when many have gathered.
//!
//! A direction that has moved [`BULK_BYTES`] without a pause has its source's `SO_RCVLOWAT` raised, and then every hop
//! moves more for the same calls. The last bytes before a pause would wait below the mark for ever, so each wait under
//! a raised mark has a deadline; at that the mark is lowered, and what there is gets read.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes moved without a pause from which a direction counts as bulk.
const BULK_BYTES: u64 = 4 << 20;

/// The mark in bulk flow, in bytes: a quarter of the largest pipe, and less than a receive buffer grows to.
const MARK_BYTES: i32 = 256 << 10;

/// The longest that bytes wait below a raised mark; a source that has nothing for longer has paused.
const HOLD: Duration = Duration::from_micros(500);

/// What one direction knows of its flow.
#[derive(Default)]
pub(super) struct Flow {
    since_pause: u64,
    dry_since: Option<Instant>,
    is_raised: bool,
    /// Which wait this is, so that the deadline of an earlier one is not believed.
    wait: u64,
}

/// A deadline of a wait under a raised mark: of which connection, direction and wait.
#[derive(Clone, Copy)]
pub(super) struct Held {
    deadline: Instant,
    pub(super) connection: usize,
    pub(super) direction: usize,
    wait: u64,
}

/// The deadlines in the order in which they come: each is the same time after its beginning.
#[derive(Default)]
pub(super) struct Deadlines(VecDeque<Held>);

impl Flow {
    /// The source gave bytes.
    pub(super) fn took(&mut self, count: usize) {
        if self.dry_since.take().is_some_and(|since| since.elapsed() > HOLD) {
            self.since_pause = 0;
        }
        self.since_pause += count as u64;
        self.wait += 1;
    }

    /// The source has nothing now. Says whether a mark had to be set, which is a system call, and what to be reminded
    /// of.
    pub(super) fn ran_dry(
        &mut self,
        source: &TcpStream,
        connection: usize,
        direction: usize,
    ) -> io::Result<(bool, Option<Held>)> {
        if self.dry_since.is_some() || self.since_pause == 0 {
            return Ok((false, None));
        }
        let now = Instant::now();
        self.dry_since = Some(now);
        let raises = !self.is_raised && self.since_pause >= BULK_BYTES;
        if raises {
            set_mark(source, MARK_BYTES)?;
            self.is_raised = true;
        }
        let held = Held { deadline: now + HOLD, connection, direction, wait: self.wait };
        Ok((raises, self.is_raised.then_some(held)))
    }

    /// Lowers the mark if this wait is still the one that was meant; whether it was.
    pub(super) fn expire(&mut self, held: &Held, source: &TcpStream) -> io::Result<bool> {
        if !self.is_raised || self.wait != held.wait {
            return Ok(false);
        }
        set_mark(source, 1)?;
        *self = Flow { wait: self.wait + 1, ..Flow::default() };
        Ok(true)
    }

    fn is_meant_by(&self, held: &Held) -> bool {
        self.is_raised && self.wait == held.wait
    }
}

impl Deadlines {
    pub(super) fn push(&mut self, held: Held) {
        self.0.push_back(held);
    }

    /// How long until the first wait that is still going on has its deadline.
    pub(super) fn next<'a>(&mut self, flow_of: impl Fn(&Held) -> &'a Flow) -> Option<Duration> {
        while let Some(first) = self.0.front() {
            if flow_of(first).is_meant_by(first) {
                return Some(first.deadline.saturating_duration_since(Instant::now()));
            }
            self.0.pop_front();
        }
        None
    }

    /// The first wait, if its deadline has come.
    pub(super) fn pop_due(&mut self) -> Option<Held> {
        let first = *self.0.front()?;
        if first.deadline > Instant::now() {
            return None;
        }
        self.0.pop_front()
    }
}

#[allow(unsafe_code, reason = "no crate of the tree has this option in safe form")]
fn set_mark(socket: &TcpStream, bytes: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let length = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the kernel only reads `bytes`, only during the call, and `length` is its size; the descriptor is borrowed
    // for as long. A socket whose mark cannot be set is an error of the run.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), length)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
