//! What a relay costs, seen from outside: the process is read through /proc by the load that it works for, so that
//! the count of what was moved and the clocks are of one moment, and the relay spends nothing on being measured.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A process that is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Observed {
    pid: u32,
}

/// The part of a transfer that is measured: it opens when all is warm, and closes before anything ends.
pub(crate) struct Window {
    relay: Observed,
    warm_up: Duration,
    length: Duration,
    opens: Option<Instant>,
    begin: Option<Moment>,
    end: Option<Moment>,
}

/// What happened while a window was open.
pub(crate) struct Seen {
    wall: Duration,
    /// CPU time of all the relay's threads.
    cpu: Duration,
    /// How far the count went that the window was told.
    count: u64,
}

struct Moment {
    at: Instant,
    cpu: Duration,
    count: u64,
}

impl Seen {
    /// As fields of a report.
    pub(crate) fn report(&self, report: &mut Value) {
        report["seen_bytes"] = self.count.into();
        report["seen_wall_ns"] = (self.wall.as_nanos() as u64).into();
        report["seen_cpu_ns"] = (self.cpu.as_nanos() as u64).into();
    }
}

impl Observed {
    pub(crate) fn new(pid: u32) -> Self {
        Observed { pid }
    }

    /// CPU time of all threads so far, the kernel's workers for the process (io-wq) among them: they are its threads.
    ///
    /// A thread that has ended is no longer counted. Workers outlive their work by seconds, more than a window takes.
    pub(crate) fn cpu(&self) -> io::Result<Duration> {
        let mut nanoseconds = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            match fs::read_to_string(thread?.path().join("schedstat")) {
                Ok(text) => nanoseconds += first_number(&text)?,
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    pub(crate) fn threads(&self) -> io::Result<u64> {
        Ok(fs::read_dir(format!("/proc/{}/task", self.pid))?.count() as u64)
    }

    /// Memory in use that is the process's own and no file's, in bytes.
    pub(crate) fn anonymous_bytes(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        Ok(first_number(line.ok_or_else(|| io::Error::other("/proc/PID/status has no RssAnon"))?)? * 1024)
    }

    /// Pipes that the process has both ends of.
    pub(crate) fn pipes(&self) -> io::Result<u64> {
        let mut ends: HashMap<String, u32> = HashMap::new();
        for descriptor in fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let target = fs::read_link(descriptor?.path())?.to_string_lossy().into_owned();
            if target.starts_with("pipe:") {
                *ends.entry(target).or_default() += 1;
            }
        }
        Ok(ends.values().filter(|count| **count > 1).count() as u64)
    }
}

impl Window {
    /// One that opens when the warm-up after the first tick is over, and stays open for `length`.
    pub(crate) fn new(relay: Observed, warm_up: Duration, length: Duration) -> Self {
        Window { relay, warm_up, length, opens: None, begin: None, end: None }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.begin.is_some() && self.end.is_none()
    }

    pub(crate) fn has_closed(&self) -> bool {
        self.end.is_some()
    }

    /// Opens or closes if it is time; to be called often once bytes have come through the relay, with what has been
    /// counted so far. Not before that: to connect a thousand streams can take longer than a warm-up.
    pub(crate) fn tick(&mut self, count: u64) -> io::Result<()> {
        let now = Instant::now();
        let opens = *self.opens.get_or_insert(now + self.warm_up);
        match (&self.begin, &self.end) {
            (None, _) if now >= opens => self.begin = Some(self.moment(count)?),
            (Some(begin), None) if now >= begin.at + self.length => self.end = Some(self.moment(count)?),
            _ => {}
        }
        Ok(())
    }

    /// What was seen; a transfer that ended too soon closes it.
    pub(crate) fn finish(mut self, count: u64) -> io::Result<Seen> {
        if self.is_open() {
            self.end = Some(self.moment(count)?);
        }
        match (self.begin, self.end) {
            (Some(begin), Some(end)) => Ok(Seen {
                wall: end.at - begin.at,
                cpu: end.cpu.saturating_sub(begin.cpu),
                count: end.count - begin.count,
            }),
            _ => Err(io::Error::other("the transfer ended before it was warm, so nothing of it was measured")),
        }
    }

    fn moment(&self, count: u64) -> io::Result<Moment> {
        Ok(Moment { cpu: self.relay.cpu()?, at: Instant::now(), count })
    }
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn first_number(text: &str) -> io::Result<u64> {
    let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("`{}` does not begin with a number", text.trim())))
}
