//! Descriptors over a Unix socket: those that arrive are owned, those that do not are closed, and the sender keeps its
//! own.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use ringmain::net::{
    Inherited, InheritedSocket, TcpListener, TcpStream, UnixListener, UnixStream, inherited_listeners,
};
use ringmain::{Driver, OFlags, Runtime, ops};
use rustix::event::{PollFd, PollFlags};
use rustix::io::FdFlags;

use crate::turns::{one_turn, poll_once};
use crate::{patiently, rings};

/// The most that one message carries.
const MANY: usize = 253;

fn is_close_on_exec(fd: impl AsFd) -> bool {
    rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)
}

/// Pipes whose readers are to be sent.
fn pipes(count: usize) -> (Vec<OwnedFd>, Vec<io::PipeWriter>) {
    (0..count).map(|_| io::pipe().unwrap()).map(|(reader, writer)| (OwnedFd::from(reader), writer)).unzip()
}

fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// Whether every reader of a pipe has gone.
fn is_orphaned(writer: &io::PipeWriter) -> bool {
    is_orphaned_within(writer, Duration::ZERO)
}

/// The same, with the patience that a process started by another test needs to let go of what it was born with.
fn becomes_orphaned(writer: &io::PipeWriter) -> bool {
    is_orphaned_within(writer, Duration::from_secs(30))
}

fn is_orphaned_within(writer: &io::PipeWriter, limit: Duration) -> bool {
    let mut fds = [PollFd::new(writer, PollFlags::empty())];
    rustix::event::poll(&mut fds, Some(&limit.try_into().unwrap())).unwrap();
    fds[0].revents().contains(PollFlags::ERR)
}

#[test]
fn descriptors_arrive_owned_with_their_bytes() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            for count in [0, 1, 2, 17, MANY] {
                let (readers, writers) = pipes(count);
                ours.send_descriptors(b"some bytes", &borrowed(&readers)).await.unwrap();
                drop(readers);
                let mut bytes = [0; 64];
                let received = patiently("it", theirs.recv_descriptors(&mut bytes, MANY)).await.unwrap();
                assert_eq!((received.count, &bytes[..10]), (10, &b"some bytes"[..]));
                assert_eq!((received.descriptors.len(), received.is_truncated), (count, false));
                for (number, (reader, mut writer)) in received.descriptors.into_iter().zip(writers).enumerate() {
                    assert!(is_close_on_exec(&reader));
                    writer.write_all(&[number as u8]).unwrap();
                    let mut byte = [0];
                    io::PipeReader::from(reader).read_exact(&mut byte).unwrap();
                    assert_eq!(byte, [number as u8], "they come in their order");
                    assert!(becomes_orphaned(&writer), "nobody has another one");
                }
            }
        });
    });
}

#[test]
fn what_nobody_has_room_for_is_closed_and_said() {
    Runtime::new().unwrap().block_on(async {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        for (sent, room) in [(1, 0), (2, 1), (3, 2), (MANY, 5)] {
            let (readers, writers) = pipes(sent);
            ours.send_descriptors(b"x", &borrowed(&readers)).await.unwrap();
            drop(readers);
            let received = theirs.recv_descriptors(&mut [0; 8], room).await.unwrap();
            assert_eq!((received.descriptors.len(), received.is_truncated), (room, true));
            for (number, writer) in writers.iter().enumerate() {
                let has_gone = if number < room { is_orphaned(writer) } else { becomes_orphaned(writer) };
                assert_eq!(has_gone, number >= room, "descriptor {number} of {sent}, with room for {room}");
            }
        }
        // A plain receive takes the bytes, and closes what came with them.
        let (readers, writers) = pipes(1);
        ours.send_descriptors(b"x", &borrowed(&readers)).await.unwrap();
        drop(readers);
        assert_eq!(theirs.recv(vec![0; 8]).await.0.unwrap(), 1);
        assert!(becomes_orphaned(&writers[0]));
        // So does the end of the connection, for what nobody has received.
        let (readers, writers) = pipes(1);
        ours.send_descriptors(b"x", &borrowed(&readers)).await.unwrap();
        drop((readers, ours, theirs));
        assert!(becomes_orphaned(&writers[0]));
    });
}

#[test]
fn a_receive_does_not_mix_what_came_with_different_bytes() {
    Runtime::new().unwrap().block_on(async {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (readers, _writers) = pipes(3);
        let readers = borrowed(&readers);
        ours.send_descriptors(b"one", &readers[..1]).await.unwrap();
        ours.send_descriptors(b"two", &readers[1..]).await.unwrap();
        ours.send_all("end").await.0.unwrap();
        drop(ours);
        let mut seen = Vec::new();
        loop {
            let mut bytes = [0; 64];
            let received = theirs.recv_descriptors(&mut bytes, MANY).await.unwrap();
            if received.count == 0 {
                break;
            }
            seen.push((bytes[..received.count].to_vec(), received.descriptors.len()));
        }
        let numbers: Vec<usize> = seen.iter().map(|(_, number)| *number).filter(|number| *number > 0).collect();
        assert_eq!(numbers, [1, 2], "{seen:?}");
        assert_eq!(seen.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<u8>>(), b"onetwoend");
    });
}

#[test]
fn n08_descriptors_wait_for_room_and_for_bytes_without_eagain() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut bytes = [0; 8];
            let mut receive = Box::pin(theirs.recv_descriptors(&mut bytes, 1));
            for _ in 0..5 {
                assert!(poll_once(&mut receive).await.is_pending());
                one_turn().await;
            }
            // Another one is faster: the poll has seen bytes that the receive does not find.
            ours.send_all("stolen").await.0.unwrap();
            assert_eq!(rustix::io::read(&theirs, &mut [0; 8]).unwrap(), 6);
            for _ in 0..5 {
                assert!(poll_once(&mut receive).await.is_pending());
                one_turn().await;
            }
            let (readers, writers) = pipes(1);
            ours.send_descriptors(b"kept", &borrowed(&readers)).await.unwrap();
            let received = patiently("the receive", receive).await.unwrap();
            assert_eq!((received.count, received.descriptors.len()), (4, 1));
            drop(received);

            // And a socket that has no room.
            while rustix::net::send(&ours, &[0; 4096], rustix::net::SendFlags::DONTWAIT).is_ok() {}
            let readers = borrowed(&readers);
            let mut send = Box::pin(ours.send_descriptors(b"late", &readers));
            let driver = Driver::current();
            let submissions = &driver.metrics().submissions;
            let before = submissions.get();
            for _ in 0..20 {
                assert!(poll_once(&mut send).await.is_pending());
                one_turn().await;
            }
            assert!(submissions.get() - before < 20 + 5, "it spins");
            let drain = async {
                let mut bytes = vec![0; 1 << 16];
                loop {
                    let received = theirs.recv_descriptors(&mut bytes, 1).await.unwrap();
                    if let Some(fd) = received.descriptors.into_iter().next() {
                        return fd;
                    }
                }
            };
            let (sent, arrived) = patiently("the send", futures::future::join(send, drain)).await;
            assert_eq!(sent.unwrap(), 4);
            let inode = |fd: &dyn AsRawFd| fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().ino();
            assert_eq!(inode(&arrived), inode(&writers[0]));
        });
    });
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    Runtime::new().unwrap().block_on(async {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (readers, _writers) = pipes(1);
        let too_many = vec![readers[0].as_fd(); MANY + 1];
        for (bytes, fds) in [(&b""[..], &too_many[..1]), (b"x", &too_many)] {
            let error = ours.send_descriptors(bytes, fds).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(theirs.recv_descriptors(&mut [], 1).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(theirs);
        let error = ours.send_descriptors(b"x", &too_many[..1]).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE), "and no signal");
    });
}

#[test]
fn a_listener_goes_over_and_both_take_from_its_backlog() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let old = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let unix = UnixListener::bind(folder.path().join("socket")).unwrap();
            let at = old.local_addr().unwrap();
            let _waiting = TcpStream::connect(at).await.unwrap();
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let stream: &UnixStream = &theirs;
            ours.send_descriptors(b"x", &[old.as_fd(), unix.as_fd(), stream.as_fd()]).await.unwrap();
            let received = theirs.recv_descriptors(&mut [0; 1], 3).await.unwrap();
            let mut sockets = received.descriptors.into_iter().map(|fd| InheritedSocket::new(fd).unwrap());
            let Some(InheritedSocket::Tcp(new)) = sockets.next() else { panic!("it is a TCP listener") };
            assert!(matches!(sockets.next(), Some(InheritedSocket::Unix(_))));
            assert!(matches!(sockets.next(), Some(InheritedSocket::Other(_))), "a stream is no listener");
            assert_eq!(new.local_addr().unwrap(), at);
            drop(old);
            drop(new.accept().await.expect("what waited at the old one is accepted at the new one"));
        });
    });
}

const CHILD: &str = "RINGMAIN_TEST_INHERITS";

/// Run this test again, in a process that `script` starts with a TCP listener as its standard input and a Unix listener
/// as its standard output.
fn start(name: &str, script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, tcp.local_addr().unwrap().to_string())
        .stdin(OwnedFd::from(tcp))
        .stdout(OwnedFd::from(unix))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("1 passed"), "the child has run no test: {stderr}");
}

/// The variables as systemd sets them; the output of the child goes where its complaints go.
fn variables(fds: &str, names: &str) -> String {
    let passed = "3<&0 4>&1 </dev/null >&2";
    format!("exec {passed}; export LISTEN_PID=$$ LISTEN_FDS='{fds}' LISTEN_FDNAMES='{names}'; exec \"$@\"")
}

#[test]
fn inherited_listeners_are_taken_once_with_their_names() {
    let Ok(at) = std::env::var(CHILD) else {
        return start(
            "descriptors::inherited_listeners_are_taken_once_with_their_names",
            &variables("2", "web:control"),
        );
    };
    let given: [Inherited; 2] = inherited_listeners().unwrap().try_into().unwrap();
    let names: Vec<_> = given.iter().map(|inherited| inherited.name.as_deref()).collect();
    assert_eq!(names, [Some("web"), Some("control")]);
    let [Inherited { socket: InheritedSocket::Tcp(tcp), .. }, Inherited { socket: InheritedSocket::Unix(unix), .. }] =
        given
    else {
        panic!("a TCP listener and a Unix one were given");
    };
    assert!(is_close_on_exec(&tcp) && is_close_on_exec(&unix));
    assert!(rustix::fs::fcntl_getfl(&tcp).unwrap().contains(OFlags::NONBLOCK));
    assert_eq!((tcp.as_fd().as_raw_fd(), unix.as_fd().as_raw_fd()), (3, 4), "they are the numbers themselves");
    let again = inherited_listeners().unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    Runtime::new().unwrap().block_on(async {
        let client = TcpStream::connect(at.parse().unwrap()).await.unwrap();
        assert_eq!(tcp.accept().await.unwrap().peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(ops::readable(&client).await.is_ok());
    });
}

#[test]
fn promises_that_are_not_kept_are_told_and_nothing_is_taken() {
    if std::env::var_os(CHILD).is_none() {
        start("descriptors::promises_that_are_not_kept_are_told_and_nothing_is_taken", &variables("4000000000", ""));
        start("descriptors::promises_that_are_not_kept_are_told_and_nothing_is_taken", &variables("two", ""));
        return;
    }
    for _ in 0..2 {
        let error = inherited_listeners().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("LISTEN_FDS"), "{error}");
    }
    assert!(fs::symlink_metadata("/proc/self/fd/3").is_ok() && fs::symlink_metadata("/proc/self/fd/4").is_ok());
}

#[test]
fn promises_to_another_process_are_none() {
    if std::env::var_os(CHILD).is_none() {
        let to_the_shell = variables("2", "").replace("exec \"$@\"", "\"$@\"");
        return start("descriptors::promises_to_another_process_are_none", &to_the_shell);
    }
    assert!(inherited_listeners().unwrap().is_empty());
}

#[test]
fn a_listener_dropped_while_it_accepts_goes_on_listening_for_those_who_share_it() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let at = listener.local_addr().unwrap();
            let shared = std::net::TcpListener::from(listener.as_fd().try_clone_to_owned().unwrap());
            let mut accept = listener.accept();
            assert!(poll_once(&mut accept).await.is_pending());
            one_turn().await;
            drop((accept, listener));
            while Driver::current().operations_active() > 0 {
                one_turn().await;
            }
            let client = std::net::TcpStream::connect(at).expect("the socket still listens");
            shared.set_nonblocking(false).unwrap();
            let (_served, from) = shared.accept().unwrap();
            assert_eq!(from, client.local_addr().unwrap());
        });
    });
}
