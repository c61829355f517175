//! A server that a newer one replaces, while clients connect all the time and none of them is turned away.
//!
//! ```sh
//! cargo run --release --example restart -- --listen 127.0.0.1:8080 --control /tmp/restart.sock
//! ```
//!
//! Run it once more, with the same options, in another terminal: the new process takes the listening socket over from
//! the old one, which serves the connections that it has to their end, and ends. Under systemd, the first one takes the
//! socket that it was started with (`LISTEN_FDS`), and binds none.
//!
//! The kernel keeps the connections that nobody has accepted at the socket, not at a process. So it does not matter who
//! accepts them, nor when, as long as somebody has the socket. The service is an echo.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::{Either, select};
use ringmain::net::{InheritedSocket, TcpListener, TcpStream, UnixListener, UnixStream, inherited_listeners};
use ringmain::{Runtime, spawn};

/// How long the old process waits for the new one to say that it has taken over. Meanwhile, it accepts nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long nothing is accepted after an accept has failed, for want of descriptors mostly.
const PAUSE: Duration = Duration::from_millis(200);

/// How often who was here before is asked again, after a [`PAUSE`] each, when it is just ending.
const ASKED_MAX: u32 = 20;

/// What to do when the process before this one has ended, or gone on, while it was being replaced.
const TOO_LATE: &str = "start this again";

/// An echo server that a newer one replaces, while clients connect all the time and none of them is turned away.
///
/// Run it a second time with the same --control: the new process takes the listening socket over, whatever its --listen
/// says, and prints `listening on ADDR`. The old one prints `handed over`, serves the connections that it has to their
/// end, and exits with 0. Under systemd, the first one takes the socket that it was started with (LISTEN_FDS).
///
/// A signal ends it at once. What it leaves at --control then is replaced by the next one.
#[derive(Debug, Parser)]
#[command(name = "restart", version)]
struct Options {
    /// Where to listen, if nobody gives a socket to this process: IP:PORT (port 0 lets the system choose)
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The path of the Unix socket over which a newer process takes over from this one
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = Runtime::new().map_err(io::Error::other).and_then(|runtime| runtime.block_on(run(&options)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> io::Result<()> {
    let (listener, old) = socket(options, 0).await?;
    let control = bind_over(&options.control)?;
    say(&format!("listening on {}", listener.local_addr()?));
    if let Some(mut old) = old {
        // From here on, the old process may go.
        old.send_all("taken")
            .await
            .0
            .map_err(|error| told("tell the process before this one to go", &error, TOO_LATE))?;
    }
    let (open, mut all_closed) = mpsc::channel(0);
    serve(listener, control, &open).await;
    say("handed over");
    drop(open);
    // Ends when the last connection has dropped its sender.
    while all_closed.next().await.is_some() {}
    Ok(())
}

/// The listener: from the process before this one, or from who started this one, or a new one. So often it has been
/// `asked` for already.
async fn socket(options: &Options, asked: u32) -> io::Result<(TcpListener, Option<UnixStream>)> {
    match UnixStream::connect(&options.control).await {
        Ok(old) => {
            // It may have to lose its patience with another one first.
            let received = match ringmain::timeout(2 * PATIENCE, old.recv_descriptors(&mut [0; 1], 1)).await {
                Ok(received) => received,
                Err(_) => {
                    Err(io::Error::new(ErrorKind::TimedOut, format!("it gave nothing within {:?}", 2 * PATIENCE)))
                }
            };
            let received = match received {
                // The one before was killed, and the kernel was about to close what its ring still had: ask again.
                Err(error) if error.kind() == ErrorKind::ConnectionReset && asked < ASKED_MAX => {
                    ringmain::sleep(PAUSE).await;
                    return Box::pin(socket(options, asked + 1)).await;
                }
                received => {
                    received.map_err(|error| told("take over from the process before this one", &error, TOO_LATE))?
                }
            };
            let socket = received.descriptors.into_iter().next().map(InheritedSocket::new).transpose()?;
            return match socket {
                Some(InheritedSocket::Tcp(listener)) => Ok((listener, Some(old))),
                _ => Err(io::Error::other(format!(
                    "what listens on {} gave no listener; choose another --control, or end that",
                    options.control.display()
                ))),
            };
        }
        // Nobody is there, or somebody was, and left the path behind.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
        Err(error) => {
            let what = format!("ask at {} who was here before", options.control.display());
            return Err(told(&what, &error, "choose another --control"));
        }
    }
    for inherited in inherited_listeners()? {
        if let InheritedSocket::Tcp(listener) = inherited.socket {
            return Ok((listener, None));
        }
    }
    let listener = TcpListener::bind(options.listen).map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => "choose another --listen, or take over from what listens there, with its --control",
            _ => "choose another --listen",
        };
        told(&format!("listen on {}", options.listen), &error, advice)
    })?;
    Ok((listener, None))
}

/// Listens on a path in one step, so that there is no moment in which a newer process finds nobody.
fn bind_over(path: &Path) -> io::Result<UnixListener> {
    // A rename would replace anything, and a connect says of a file what it says of a socket that nobody listens on.
    if let Ok(found) = std::fs::symlink_metadata(path)
        && !found.file_type().is_socket()
    {
        let sentence = format!("{} is there, and no socket; choose another --control", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, sentence));
    }
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let bound = UnixListener::bind(&beside).and_then(|control| {
        std::fs::rename(&beside, path).inspect_err(|_| {
            // It is of no use, and the rename has said what is wrong.
            let _removed = std::fs::remove_file(&beside);
        })?;
        Ok(control)
    });
    bound.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::NotFound => "make its directory first",
            _ => "choose another --control, in a directory that you may write",
        };
        told(&format!("listen on {}", path.display()), &error, advice)
    })
}

/// The error, in a sentence that says what was being done and what to do now.
fn told(what: &str, error: &io::Error, advice: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what}: {error}; {advice}"))
}

/// Serves until a newer process has taken over.
async fn serve(listener: TcpListener, control: UnixListener, open: &mpsc::Sender<()>) {
    let mut accept = listener.accept();
    let mut successor = control.accept();
    loop {
        match select(accept, successor).await {
            Either::Left((accepted, still)) => {
                match accepted {
                    Ok(stream) => {
                        spawn(echo(stream, open.clone()));
                    }
                    Err(error) => {
                        complain(&format!("no connection can be taken: {error}"));
                        ringmain::sleep(PAUSE).await;
                    }
                }
                (accept, successor) = (listener.accept(), still);
            }
            Either::Right((Ok(new), still)) => {
                match ringmain::timeout(PATIENCE, hand_over(new, &listener)).await {
                    Ok(Ok(())) => {
                        // It may have taken a connection already, which a drop would close. And while it is pending,
                        // dropping the listener would shut the socket down, for the new process as well.
                        if let Ok(stream) = still.cancel().await {
                            spawn(echo(stream, open.clone()));
                        }
                        return;
                    }
                    Ok(Err(error)) => complain(&format!("nobody has taken over: {error}")),
                    Err(_) => complain(&format!("nobody has taken over within {PATIENCE:?}")),
                }
                (accept, successor) = (still, control.accept());
            }
            Either::Right((Err(error), still)) => {
                complain(&format!("no successor can be taken: {error}"));
                ringmain::sleep(PAUSE).await;
                (accept, successor) = (still, control.accept());
            }
        }
    }
}

/// Gives the socket to a process, and waits until that says that it has it and is ready.
async fn hand_over(mut new: UnixStream, listener: &TcpListener) -> io::Result<()> {
    new.send_descriptors(b"L", &[listener.as_fd()]).await?;
    new.recv_exact(vec![0; b"taken".len()]).await.0.map(drop)
}

/// What arrives goes back, until the client has ended its sending.
async fn echo(mut stream: TcpStream, _open: mpsc::Sender<()>) {
    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        let (received, arrived) = stream.recv(buffer).await;
        let (sent, back) = match received {
            Ok(0) => return,
            Ok(_) => stream.send_all(arrived).await,
            Err(error) => (Err(error), arrived),
        };
        if let Err(error) = sent {
            complain(&format!("a connection has failed: {error}"));
            return;
        }
        buffer = back;
    }
}

/// Prints a line where results go.
///
/// A server whose reader has gone goes on: it has clients, and perhaps a successor that waits.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        complain(&format!("cannot write `{line}` to standard output: {error}"));
    }
}

/// Prints a sentence where complaints go.
///
/// Not `eprintln!`, which panics when the reader of a pipe has gone.
fn complain(sentence: &str) {
    // When standard error itself is gone, nobody is left to be told.
    let _unheard = writeln!(io::stderr().lock(), "restart: {sentence}");
}
