//! The restart example as a real process: a server that newer ones replace, with clients that connect throughout.

#![forbid(unsafe_code)]

mod example;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use example::executable;

/// A hang is a failure, not an endless run; nothing here takes a tenth of this.
const PATIENCE: Duration = Duration::from_secs(60);

const CLIENTS: usize = 4;
/// What each generation serves at least, with nobody and with somebody taking over.
const ROUNDS: usize = 50;

/// A process of the example; killed when it is dropped.
struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    at: SocketAddr,
}

impl Server {
    fn start(control: &Path) -> Self {
        Self::started(Command::new(executable()).args(["--listen", "127.0.0.1:0"]), control)
    }

    fn started(command: &mut Command, control: &Path) -> Self {
        let mut child = command.arg("--control").arg(control).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let said = line(&mut lines);
        let at = said.strip_prefix("listening on ").unwrap_or_else(|| panic!("it says {said:?}")).parse().unwrap();
        Self { child, lines, at }
    }

    /// It has been taken over from, and ends when nobody is connected to it any more.
    fn assert_taken_over(&mut self) {
        assert_eq!(line(&mut self.lines), "handed over");
    }

    fn assert_ends(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only for a process that has ended and been waited for.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// One connection from its beginning to its end.
fn round(at: SocketAddr, what: &[u8]) {
    let mut stream = connect(at);
    stream.write_all(what).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("nobody resets it");
    assert!(back == what, "{} bytes of {} came back", back.len(), what.len());
}

fn ask(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).unwrap();
    let mut back = vec![0; what.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, what);
}

#[test]
fn a_restart_drops_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let mut old = Server::start(&control);
    let at = old.at;
    let over = Arc::new(AtomicBool::new(false));
    let (served, rounds) = mpsc::channel();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (over, served) = (over.clone(), served.clone());
            thread::spawn(move || {
                let what = vec![number as u8; 1 + 20_000 * number];
                while !over.load(Ordering::Relaxed) {
                    round(at, &what);
                    served.send(()).unwrap();
                }
            })
        })
        .collect();
    let some_rounds = || (0..ROUNDS).for_each(|_| rounds.recv_timeout(PATIENCE).expect("clients are served"));
    for _generation in 0..4 {
        some_rounds();
        let mut held = connect(at);
        ask(&mut held, b"before");
        let new = Server::start(&control);
        assert_eq!(new.at, at, "it has the same socket");
        old.assert_taken_over();
        some_rounds();
        // The old one serves whom it has, and only then ends.
        ask(&mut held, b"after");
        assert!(old.child.try_wait().unwrap().is_none());
        drop(held);
        old.assert_ends();
        old = new;
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().expect("no client has seen anything of it");
    }
}

#[test]
fn somebody_who_only_knocks_does_not_take_over() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let mut old = Server::start(&control);
    for _ in 0..3 {
        drop(std::os::unix::net::UnixStream::connect(&control).unwrap());
        round(old.at, b"still here");
    }
    let new = Server::start(&control);
    old.assert_taken_over();
    old.assert_ends();
    round(new.at, b"here");
}

#[test]
fn a_server_takes_the_socket_that_it_was_started_with() {
    let folder = tempfile::tempdir().unwrap();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(executable()).stdin(OwnedFd::from(socket));
    let mut server = Server::started(&mut command, &folder.path().join("control"));
    // What the command holds of the socket is the test's.
    drop(command);
    assert_eq!(server.at, at);
    round(at, b"hello");
    let new = Server::start(&folder.path().join("control"));
    server.assert_taken_over();
    server.assert_ends();
    round(new.at, b"hello again");
}

/// Runs one that is to be refused, and returns its sentence.
fn refused(arguments: &[&str]) -> String {
    let output = Command::new(executable()).args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?} is refused before it listens");
    said
}

/// A connect to a file says what one to a socket says on which nobody listens any more.
#[test]
fn a_file_is_not_replaced_by_the_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    std::fs::write(&file, "bytes").unwrap();
    let said = refused(&["--listen", "127.0.0.1:0", "--control", file.to_str().unwrap()]);
    assert!(said.contains("precious is there, and no socket; choose another --control"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_is_wrong_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(&folder.path().join("control"));
    let at = server.at.to_string();
    let (other, nowhere) = (folder.path().join("other"), folder.path().join("no/control"));
    let said = refused(&["--listen", &at, "--control", other.to_str().unwrap()]);
    assert!(said.contains(&format!("cannot listen on {at}: ")) && said.contains("choose another --listen"), "{said}");
    let said = refused(&["--listen", &taken.to_string(), "--control", nowhere.to_str().unwrap()]);
    assert!(said.contains("no/control: ") && said.contains("make its directory first"), "{said}");
}

#[test]
fn what_a_killed_server_left_behind_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    drop(Server::start(&control));
    assert!(control.exists());
    let server = Server::start(&control);
    round(server.at, b"hello");
}

/// Nobody reads any more, and clients are served and succeeded all the same.
#[test]
fn a_server_goes_on_when_nobody_reads_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let mut server = Server::start(&control);
    server.lines = BufReader::new(Command::new("true").stdout(Stdio::piped()).spawn().unwrap().stdout.take().unwrap());
    let new = Server::start(&control);
    server.assert_ends();
    round(new.at, b"hello");
}
