//! The three processes of one transfer: started from this executable again, told their role by a hidden argument.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Relay;
use crate::load::{Kind, Load};
use crate::observe::Observed;

/// The hidden first argument; what follows are the role and what the role needs.
const ROLE: &str = "--in-role";

/// No transfer takes this long; one that does hangs, and is ended with an error.
const HANG: Duration = Duration::from_secs(120);

/// How long to wait for a process before looking at another.
const GLANCE: Duration = Duration::from_millis(20);

/// The two ends that belong together: what arrives from one goes to the other.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: TcpStream,
    pub(crate) upstream: TcpStream,
}

/// Bytes relayed, from the clients to upstream and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) forward: u64,
    pub(crate) backward: u64,
}

/// What a relay counts about itself.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    calls: u64,
    enters: u64,
    pipe_bytes: u64,
}

/// What is known about a transfer that has gone well.
pub(crate) struct Report {
    pub(crate) moved: Moved,
    /// Most threads that the relay had at any moment that was looked at.
    pub(crate) threads: u64,
    /// System calls that the relay made to move bytes, or 0 if it does not count them.
    pub(crate) calls: u64,
    /// Of those, the ones that entered a ring.
    pub(crate) enters: u64,
    /// The smallest pipe that bytes went through, or 0 if none did.
    pub(crate) pipe_bytes: u64,
    /// What the process that measured has seen, by name.
    seen: Value,
}

impl Meter {
    /// Counts system calls that move bytes or wait for them.
    pub(crate) fn note_calls(&mut self, count: u64) {
        self.calls += count;
    }

    /// Counts those of them that entered a ring.
    pub(crate) fn note_enters(&mut self, count: u64) {
        self.enters += count;
    }

    /// Notes the size of a pipe that bytes go through.
    pub(crate) fn note_pipe(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.pipe_bytes = if self.pipe_bytes == 0 { bytes } else { self.pipe_bytes.min(bytes) };
    }
}

impl Report {
    /// A number that was seen; not a number if there was nothing to see.
    pub(crate) fn seen(&self, name: &str) -> f64 {
        self.seen[name].as_f64().unwrap_or(f64::NAN)
    }
}

/// The role this process was started for, or none if a person or cargo started it.
pub(crate) fn role() -> Option<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next()? == ROLE).then(|| arguments.collect())
}

/// Plays a role to its end.
pub(crate) fn play(role: Vec<String>, variants: &[(&str, Relay)]) -> io::Result<()> {
    let report = match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["sink", ref load @ ..] => {
            let load = Load::from_arguments(load)?;
            load.sink(&announce(load.connections)?, || Ok(Observed::new(number(&told()?)?)))?
        }
        ["source", relay, pid, ref load @ ..] => {
            Load::from_arguments(load)?.source(address(relay)?, Observed::new(number(pid)?))?
        }
        ["relay", variant, sink, connections] => {
            let (_, relay) = variants
                .iter()
                .find(|(name, _)| *name == variant)
                .ok_or_else(|| io::Error::other(format!("there is no variant {variant}")))?;
            let pairs = accept_pairs(&announce(number(connections)?)?, address(sink)?, number(connections)?)?;
            let anonymous_bytes = Observed::new(std::process::id()).anonymous_bytes()?;
            let mut meter = Meter::default();
            let moved = relay(pairs, &mut meter)?;
            json!({
                "forward": moved.forward, "backward": moved.backward, "anonymous_bytes": anonymous_bytes,
                "calls": meter.calls, "enters": meter.enters, "pipe_bytes": meter.pipe_bytes,
            })
        }
        _ => return Err(io::Error::other(format!("{role:?} is not a role of this benchmark"))),
    };
    println!("{report}");
    Ok(())
}

/// Runs one transfer in three fresh processes.
pub(crate) fn transfer(variant: &str, load: Load) -> io::Result<Report> {
    let arguments = load.to_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut sink = Process::start(&[&["sink"], &arguments[..]].concat())?;
    let sink_address = sink.line()?;
    let mut relay = Process::start(&["relay", variant, &sink_address, &load.connections.to_string()])?;
    let (relay_address, relay_id) = (relay.line()?, relay.child.id());
    sink.tell(&relay_id.to_string())?;
    let mut source = Process::start(&[&["source", &relay_address, &relay_id.to_string()], &arguments[..]].concat())?;

    let observed = Observed::new(relay_id);
    let mut threads = 0;
    let report = relay.line_while(|| {
        threads = threads.max(observed.threads()?);
        Ok(())
    })?;
    let (report, from_source, from_sink) = (parse(&report)?, parse(&source.line()?)?, parse(&sink.line()?)?);
    for process in [source, relay, sink] {
        process.finish()?;
    }
    let moved = Moved { forward: field(&report, "forward")?, backward: field(&report, "backward")? };
    for (side, forward, backward) in [("source", "sent", "received"), ("sink", "received", "sent")] {
        let seen = if side == "source" { &from_source } else { &from_sink };
        let seen = Moved { forward: field(seen, forward)?, backward: field(seen, backward)? };
        if seen != moved {
            return Err(io::Error::other(format!("the relay counted {moved:?}, but the {side} {seen:?}")));
        }
    }
    let mut seen = if load.kind == Kind::Bulk { from_sink } else { from_source };
    seen["anonymous_bytes_before"] = report["anonymous_bytes"].clone();
    Ok(Report {
        moved,
        threads,
        calls: field(&report, "calls")?,
        enters: field(&report, "enters")?,
        pipe_bytes: field(&report, "pipe_bytes")?,
        seen,
    })
}

fn parse(report: &str) -> io::Result<Value> {
    serde_json::from_str(report).map_err(io::Error::other)
}

fn field(report: &Value, name: &str) -> io::Result<u64> {
    report[name].as_u64().ok_or_else(|| io::Error::other(format!("a report lacks {name}")))
}

/// What the process that started this one tells it: one line.
fn told() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Listens on a free port of loopback and prints the address for the process that started this one.
fn announce(connections: u64) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(i32::try_from(connections).map_err(io::Error::other)?)?;
    let listener = TcpListener::from(socket);
    println!("{}", listener.local_addr()?);
    Ok(listener)
}

fn accept_pairs(listener: &TcpListener, sink: SocketAddr, connections: u64) -> io::Result<Vec<Pair>> {
    let clients: Vec<TcpStream> = (0..connections).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?;
    let pair = |client: TcpStream| {
        let upstream = TcpStream::connect(sink)?;
        // Whatever the way of relaying, no message waits for the acknowledgement of the one before it.
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        Ok(Pair { client, upstream })
    };
    clients.into_iter().map(pair).collect()
}

/// A process of the transfer; it is killed if the transfer fails before it has ended by itself.
struct Process {
    role: String,
    child: Child,
    lines: mpsc::Receiver<io::Result<String>>,
}

impl Process {
    fn start(role: &[&str]) -> io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ROLE)
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("a child was started without its pipe"))?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || forward_lines(stdout, &sender));
        Ok(Process { role: role.join(" "), child, lines })
    }

    /// The next line that the process prints.
    fn line(&mut self) -> io::Result<String> {
        self.line_while(|| Ok(()))
    }

    /// The next line that the process prints; calls `glance` now and then until it comes.
    fn line_while(&mut self, mut glance: impl FnMut() -> io::Result<()>) -> io::Result<String> {
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(GLANCE) {
                Ok(line) => return line,
                Err(mpsc::RecvTimeoutError::Timeout) if begun.elapsed() < HANG => glance()?,
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.complaint("hangs; it is ended")),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(self.complaint("ended too soon; its error is above"));
                }
            }
        }
    }

    /// Writes a line to the process.
    fn tell(&mut self, line: &str) -> io::Result<()> {
        let stdin =
            self.child.stdin.as_mut().ok_or_else(|| io::Error::other("a child was started without its pipe"))?;
        writeln!(stdin, "{line}")
    }

    /// Waits for the process, which has said all it had to say.
    fn finish(mut self) -> io::Result<()> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => return Err(self.complaint(&format!("said more than it was asked: {}", line?))),
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.complaint("does not end; it is killed")),
            Err(mpsc::RecvTimeoutError::Disconnected) => {}
        }
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(self.complaint(&status.to_string())) }
    }

    fn complaint(&self, what: &str) -> io::Error {
        io::Error::other(format!("the process for `{}`: {what}", self.role))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and been waited for, which is what they are there to bring about.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn forward_lines(stdout: ChildStdout, sender: &mpsc::Sender<io::Result<String>>) {
    for line in BufReader::new(stdout).lines() {
        if sender.send(line).is_err() {
            // The transfer has failed, and nobody wants to know any more.
            return;
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::Error::other(format!("`{text}` is not a number")))
}

fn address(text: &str) -> io::Result<SocketAddr> {
    text.parse().map_err(|_| io::Error::other(format!("`{text}` is not an address")))
}
