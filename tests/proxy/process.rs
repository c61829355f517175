//! A proxy that runs, an upstream behind it, and what the system says about the process.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::example::executable;

/// Nothing here takes this long unless it hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// A running proxy. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    /// What it says it listens on.
    pub(crate) at: String,
}

/// What is left of a proxy that has ended.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Proxy {
    /// Starts one on a free port.
    pub(crate) fn start(to: &str, options: &[&str]) -> Self {
        Self::started(Command::new(executable()).args(["--listen", "127.0.0.1:0", "--to", to]).args(options))
    }

    /// Starts one that may have this many descriptors.
    pub(crate) fn with_descriptors(limit: u32, to: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]).arg(executable());
        Self::started(command.args(["--listen", "127.0.0.1:0", "--to", to]))
    }

    pub(crate) fn started(command: &mut Command) -> Self {
        let mut proxy = Self::spawned(command);
        let Ok(line) = proxy.stdout.recv_timeout(HANG) else {
            panic!("the proxy did not start: {:?}", proxy.remains());
        };
        proxy.at = line.strip_prefix("listening on ").expect("it says where it listens first").to_owned();
        proxy
    }

    /// Starts the example, as whatever the arguments make of it.
    pub(crate) fn spawned(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the proxy can be started");
        let stdout = lines(child.stdout.take().expect("it was given a pipe"));
        let stderr = lines(child.stderr.take().expect("it was given a pipe"));
        Self { child, stdout, stderr, at: String::new() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.at.parse().expect("it says an address")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(self.address()).expect("the proxy takes connections"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the proxy is there");
    }

    /// Waits until it says something on standard error that has `words` in it.
    pub(crate) fn complaint(&self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let line = self.stderr.recv_timeout(HANG.saturating_sub(begun.elapsed()));
            let line = line.unwrap_or_else(|_| panic!("the proxy should say something with `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits until it says something on standard output that has `words` in it.
    pub(crate) fn line(&self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let line = self.stdout.recv_timeout(HANG.saturating_sub(begun.elapsed()));
            let line = line.unwrap_or_else(|_| panic!("the proxy should print something with `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// What it has said on standard error, and nobody has read.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.stderr.try_iter().collect()
    }

    /// CPU time of all its threads so far, those that have ended included (`proc_pid_stat(5)`).
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the proxy is there");
        // The second field is the name, in brackets; utime and stime are the 14th and the 15th.
        let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
        let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("ticks")).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// CPU time that it takes during `span` of real time.
    pub(crate) fn cpu_during(&self, span: Duration) -> Duration {
        let before = self.cpu();
        thread::sleep(span);
        self.cpu() - before
    }

    pub(crate) fn threads(&self) -> usize {
        self.count("task")
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.count("fd")
    }

    fn count(&self, what: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{what}", self.child.id())).expect("the proxy is there").count()
    }

    /// The processes that it has started and that are not reaped yet.
    pub(crate) fn children(&self) -> Vec<u32> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it is there");
        children.split_whitespace().map(|id| id.parse().expect("a process number")).collect()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until it ends by itself.
    pub(crate) fn remains(&mut self) -> Remains {
        let stdout = rest(&self.stdout);
        let stderr = rest(&self.stderr);
        Remains { status: self.child.wait().expect("a child can be waited for"), stdout, stderr }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and been waited for.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs the example to its end. One that does not come to it is killed, and fails the test.
pub(crate) fn run(arguments: &[&str]) -> Remains {
    Proxy::spawned(Command::new(executable()).args(arguments)).remains()
}

/// A proxy, and an upstream that the test plays.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) proxy: Proxy,
    pub(crate) upstream: TcpListener,
}

impl Rig {
    pub(crate) fn new(options: &[&str]) -> Self {
        let upstream = listener();
        let proxy = Proxy::start(&upstream.local_addr().expect("an address").to_string(), options);
        Self { proxy, upstream }
    }

    /// A connection: the client's end, and the upstream's.
    pub(crate) fn pair(&self) -> (TcpStream, TcpStream) {
        let client = self.proxy.connect();
        (client, self.accept())
    }

    pub(crate) fn accept(&self) -> TcpStream {
        patient(self.upstream.accept().expect("the proxy connects to the upstream").0)
    }
}

/// A listener of loopback on a free port, whose accept ends when nobody comes.
pub(crate) fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket2::SockRef::from(&listener).set_read_timeout(Some(HANG)).expect("a listener has a timeout");
    listener
}

/// The stream, with limits to catch hangs.
pub(crate) fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(HANG)).expect("a stream has a timeout");
    stream.set_write_timeout(Some(HANG)).expect("a stream has a timeout");
    stream.set_nodelay(true).expect("a TCP stream has the option");
    stream
}

/// Waits until something about another process is so. There is nothing to block on, so it is looked at again.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < HANG, "not after {HANG:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let line = line.expect("the proxy writes text");
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn rest(lines: &Receiver<String>) -> String {
    let begun = Instant::now();
    let mut text = String::new();
    loop {
        match lines.recv_timeout(HANG.saturating_sub(begun.elapsed())) {
            Ok(line) => text = text + &line + "\n",
            Err(mpsc::RecvTimeoutError::Disconnected) => return text,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the proxy does not end; it has said: {text}"),
        }
    }
}
