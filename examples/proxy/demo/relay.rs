//! A relay in a process of its own: this executable, started again.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::say;

/// A way of relaying, and how to start it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// The proxy, with a route.
    Proxy(&'static str),
    /// The hand-written loop.
    EpollTwin,
}

/// Every way of relaying that is measured.
pub(crate) const ALL: [(&str, Kind); 5] = [
    ("ringmain auto", Kind::Proxy("auto")),
    ("ringmain inline", Kind::Proxy("inline")),
    ("ringmain ring", Kind::Proxy("ring")),
    ("ringmain copy", Kind::Proxy("copy")),
    ("epoll read/write", Kind::EpollTwin),
];

/// A running relay. It is killed if it is dropped before it has finished.
///
/// It ends by itself when its standard input does, so that none outlives this process, whatever ends that.
#[derive(Debug)]
pub(crate) struct Relay {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

/// What a relay says of itself at its end.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) bytes: u64,
    pub(crate) cpu_ns: u64,
    /// Takings from a source; each carried `bytes / hops` bytes on average.
    pub(crate) hops: u64,
    pub(crate) hops_spliced: u64,
    /// Entries into the ring, of a relay that has one.
    pub(crate) enters: Option<u64>,
    /// All system calls that waited for or moved bytes.
    pub(crate) calls: u64,
    /// What one hop can carry at most, where it is spliced.
    pub(crate) pipe_bytes: u64,
}

impl Relay {
    pub(crate) fn start(kind: Kind, upstream: SocketAddr) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        match kind {
            Kind::Proxy(route) => command.args(["--json", "--listen", "127.0.0.1:0", "--route", route, "--to"]),
            Kind::EpollTwin => command.arg("--epoll-twin"),
        };
        let mut child = command.arg(upstream.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("a relay was started without its pipe"))?;
        let mut relay = Self { child, stdout: BufReader::new(stdout), address: upstream };
        let line = relay.line()?;
        relay.address = line
            .strip_prefix("listening on ")
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| io::Error::other(format!("a relay said `{line}` instead of where it listens")))?;
        Ok(relay)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks it to end, and reads its report.
    pub(crate) fn finish(mut self) -> io::Result<Report> {
        drop(self.child.stdin.take());
        let report: Value = serde_json::from_str(&self.line()?).map_err(io::Error::other)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("a relay ended with {status}")));
        }
        Report::parse(&report)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::other("a relay ended too soon; its complaint is above"));
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Prints a line of a relay, to the demonstration that started it.
///
/// # Errors
/// Those of writing, unless the demonstration was ended itself: it needs no line then, and nobody a complaint.
pub(crate) fn tell(line: &str) -> io::Result<()> {
    match say(line) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Both fail for a process that has ended and been waited for, which is what they are to bring about.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Report {
    fn parse(report: &Value) -> io::Result<Self> {
        let field = |name: &str| {
            report[name].as_u64().ok_or_else(|| io::Error::other(format!("the report of a relay lacks `{name}`")))
        };
        let enters = report["enters"].as_u64();
        let calls = match enters {
            Some(enters) => enters + field("attempts")?,
            None => field("calls")?,
        };
        Ok(Self {
            bytes: field("bytes")?,
            cpu_ns: field("cpu_ns")?,
            hops: field("hops")?,
            hops_spliced: field("hops_spliced")?,
            enters,
            calls,
            pipe_bytes: field("pipe_bytes")?,
        })
    }
}
