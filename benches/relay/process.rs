//! The three processes of one transfer: started from this executable again, told their role by a hidden argument.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Relay, load};

/// The hidden first argument; what follows are the role and what the role needs.
const ROLE: &str = "--in-role";

/// No transfer takes this long; one that does hangs, and is ended with an error.
const HANG: Duration = Duration::from_secs(180);

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

/// The clocks of the relaying process.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    started: Option<(Duration, Instant)>,
    cpu: Duration,
    wall: Duration,
    threads: u64,
    pipe_bytes: u64,
}

/// What the relay reports about a transfer.
pub(crate) struct Report {
    pub(crate) moved: Moved,
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    /// Threads of the relay when it had finished; workers of the kernel linger for seconds, so they are among them.
    pub(crate) threads: u64,
    /// The smallest pipe that bytes went through, or 0 if none did.
    pub(crate) pipe_bytes: u64,
}

impl Meter {
    /// To be called when everything is ready to relay, after the variant's own set-up.
    pub(crate) fn start(&mut self) {
        self.started = Some((process_cpu(), Instant::now()));
    }

    /// To be called when every connection has ended, before the variant's own tear-down.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        let (cpu, wall) =
            self.started.ok_or_else(|| io::Error::other("a variant stopped a meter it had not started"))?;
        self.cpu = process_cpu() - cpu;
        self.wall = wall.elapsed();
        self.threads = std::fs::read_dir("/proc/self/task")?.count() as u64;
        Ok(())
    }

    /// Notes the size of a pipe that bytes go through.
    pub(crate) fn note_pipe(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.pipe_bytes = if self.pipe_bytes == 0 { bytes } else { self.pipe_bytes.min(bytes) };
    }
}

/// CPU time of all threads of this process, io-wq workers among them: they are its threads.
fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The role this process was started for, or none if a person or cargo started it.
pub(crate) fn role() -> Option<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next()? == ROLE).then(|| arguments.collect())
}

/// Plays a role to its end.
pub(crate) fn play(role: Vec<String>, variants: &[(&str, Relay)]) -> io::Result<()> {
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["sink", connections] => {
            let listener = announce(number(connections)?)?;
            let received = load::sink(&listener, number(connections)?)?;
            println!("{received}");
            Ok(())
        }
        ["source", relay, connections, each] => load::source(address(relay)?, number(connections)?, number(each)?),
        ["relay", variant, sink, connections] => {
            let (_, relay) = variants
                .iter()
                .find(|(name, _)| *name == variant)
                .ok_or_else(|| io::Error::other(format!("there is no variant {variant}")))?;
            let pairs = accept_pairs(&announce(number(connections)?)?, address(sink)?, number(connections)?)?;
            let mut meter = Meter::default();
            let moved = relay(pairs, &mut meter)?;
            println!(
                "{}",
                json!({
                    "forward": moved.forward, "backward": moved.backward, "cpu_ns": meter.cpu.as_nanos() as u64,
                    "wall_ns": meter.wall.as_nanos() as u64, "threads": meter.threads, "pipe_bytes": meter.pipe_bytes,
                })
            );
            Ok(())
        }
        _ => Err(io::Error::other(format!("{role:?} is not a role of this benchmark"))),
    }
}

/// Runs one transfer in three fresh processes: `each` bytes on every one of `connections`.
pub(crate) fn transfer(variant: &str, connections: u64, each: u64) -> io::Result<Report> {
    let connections = connections.to_string();
    let mut sink = Process::start(&["sink", &connections])?;
    let sink_address = sink.line()?;
    let mut relay = Process::start(&["relay", variant, &sink_address, &connections])?;
    let relay_address = relay.line()?;
    let source = Process::start(&["source", &relay_address, &connections, &each.to_string()])?;

    let report = relay.line()?;
    let received: u64 = number(&sink.line()?)?;
    for process in [source, relay, sink] {
        process.finish()?;
    }
    let report: Value = serde_json::from_str(&report).map_err(io::Error::other)?;
    let field = |name: &str| report[name].as_u64().ok_or_else(|| io::Error::other(format!("the report lacks {name}")));
    let moved = Moved { forward: field("forward")?, backward: field("backward")? };
    if received != moved.forward {
        return Err(io::Error::other(format!("the relay counted {moved:?} but the sink got {received} bytes")));
    }
    Ok(Report {
        moved,
        cpu: Duration::from_nanos(field("cpu_ns")?),
        wall: Duration::from_nanos(field("wall_ns")?),
        threads: field("threads")?,
        pipe_bytes: field("pipe_bytes")?,
    })
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
    clients.into_iter().map(|client| Ok(Pair { client, upstream: TcpStream::connect(sink)? })).collect()
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
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("a child was started without its pipe"))?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || forward_lines(stdout, &sender));
        Ok(Process { role: role.join(" "), child, lines })
    }

    /// The next line that the process prints.
    fn line(&mut self) -> io::Result<String> {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.complaint("hangs; it is ended")),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.complaint("ended too soon; its error is above")),
        }
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
