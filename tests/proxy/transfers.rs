//! Bytes: that they arrive, and when.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::example::executable;
use crate::process::{Proxy, Rig, until};

fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random)).expect("random bytes");
    random
}

fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the stream comes to its end");
    bytes
}

fn write_and_finish(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("the stream takes all");
    stream.shutdown(Shutdown::Write).expect("the stream is open");
}

/// Random bytes both ways at once through a proxy with these options: both sides get what the other sent.
fn exchange(options: &[&str], bytes: usize) {
    let rig = Rig::new(options);
    let (client, server) = rig.pair();
    let (question, answer) = (random(bytes), random(bytes));
    thread::scope(|scope| {
        scope.spawn(|| write_and_finish(&client, &question));
        scope.spawn(|| write_and_finish(&server, &answer));
        let received = scope.spawn(|| read_all(&server));
        let answered = read_all(&client);
        let received = received.join().expect("the upstream reads to the end");
        for (sent, got) in [(&question, received), (&answer, answered)] {
            assert_eq!(got.len(), sent.len(), "with {options:?}");
            assert_eq!(Sha256::digest(&got), Sha256::digest(sent), "with {options:?}");
        }
    });
}

#[test]
fn both_directions_at_once_arrive_whole() {
    exchange(&[], 64 << 20);
}

#[test]
fn every_route_carries_both_directions_whole() {
    for route in ["inline", "ring", "copy"] {
        exchange(&["--route", route], 12 << 20);
    }
    exchange(&["--pipe-size", "4K"], 1 << 20);
}

#[test]
fn every_thread_takes_connections_and_relays_them() {
    let mut rig = Rig::new(&["--threads", "2"]);
    // The system spreads connections over the listeners by a hash; 40 of 40 on one side is out of the question.
    for number in 0..40u8 {
        let (client, server) = rig.pair();
        write_and_finish(&client, &[number; 1000]);
        write_and_finish(&server, &[!number; 1000]);
        assert_eq!((read_all(&server), read_all(&client)), (vec![number; 1000], vec![!number; 1000]));
    }
    rig.proxy.signal(rustix::process::Signal::TERM);
    let remains = rig.proxy.remains();
    assert!(remains.status.success(), "{remains:?}");
    assert!(remains.stdout.contains("40 connections\n40000 bytes to the upstream, 40000 bytes back"), "{remains:?}");
}

#[test]
fn unix_sockets_do_on_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let (front, back) = (folder.path().join("front"), folder.path().join("back"));
    let upstream = std::os::unix::net::UnixListener::bind(&back).expect("a free path");
    let mut proxy = Proxy::started(Command::new(executable()).args([
        "--listen",
        &format!("unix:{}", front.display()),
        "--to",
        &format!("unix:{}", back.display()),
    ]));
    assert_eq!(proxy.at, format!("unix:{}", front.display()));
    let mut client = std::os::unix::net::UnixStream::connect(&front).expect("the proxy takes connections");
    let mut server = upstream.accept().expect("the proxy connects to the upstream").0;
    client.write_all(b"a question").expect("room for it");
    client.shutdown(Shutdown::Write).expect("an open stream");
    let mut received = String::new();
    server.read_to_string(&mut received).expect("an end");
    server.write_all(b"an answer").expect("room for it");
    drop(server);
    let mut answered = String::new();
    client.read_to_string(&mut answered).expect("an end");
    assert_eq!((received.as_str(), answered.as_str()), ("a question", "an answer"));
    proxy.signal(rustix::process::Signal::TERM);
    assert!(proxy.remains().status.success());
    assert!(!front.exists(), "a proxy that has ended takes its socket with it");
}

/// A client that ends its direction gets its answer, however late; so does an upstream that ends first. Afterwards
/// neither connection is left.
#[test]
fn n02_a_half_close_is_passed_on_in_both_orders() {
    let rig = Rig::new(&[]);
    let before = rig.proxy.descriptors();
    let answer = random(1 << 20);
    for client_first in [true, false] {
        let (client, server) = rig.pair();
        let (first, second) = if client_first { (&client, &server) } else { (&server, &client) };
        write_and_finish(first, b"that is all");
        assert_eq!(read_all(second), b"that is all");
        // The relay of the other direction is alone now; some time is to pass over it.
        thread::sleep(Duration::from_millis(200));
        thread::scope(|scope| {
            scope.spawn(|| write_and_finish(second, &answer));
            assert!(read_all(first) == answer, "the answer is whole");
        });
        // Both ends are still open here: that the proxy closes its own is its own doing.
        until("a pair of connections is closed, but for a pipe for each direction", || {
            rig.proxy.descriptors() <= before + 4
        });
    }
}

/// A client that reads slowly stops the proxy; it does not make it turn in circles, and all arrives in the end.
#[test]
fn t07_a_slow_reader_costs_no_cpu() {
    let rig = Rig::new(&[]);
    let (mut client, server) = rig.pair();
    let sent = random(64 << 20);
    thread::scope(|scope| {
        scope.spawn(|| write_and_finish(&server, &sent));
        let mut received = vec![0; 64 << 10];
        client.read_exact(&mut received).expect("the first bytes");
        // By now every buffer on the way is filling up; that is work, and is not counted.
        thread::sleep(Duration::from_millis(500));
        let before = rig.proxy.cpu();
        for _ in 0..3 {
            thread::sleep(Duration::from_secs(1));
            let mut slow = vec![0; 64 << 10];
            client.read_exact(&mut slow).expect("more bytes");
            received.extend(slow);
        }
        let cpu = rig.proxy.cpu() - before;
        assert!(cpu < Duration::from_millis(150), "{cpu:?} of CPU time in 3 s in which nearly nothing moves");
        client.read_to_end(&mut received).expect("the end");
        assert!(received == sent, "all arrives, and as it was");
    });
}

/// Small messages are not held back for more to come. A machine that is busy with other things can delay some of them,
/// so that one good run of several is asked for; a message that is held back waits 40 ms or 200 ms in all of them.
#[test]
fn t14_small_messages_are_not_held_back() {
    let rig = Rig::new(&[]);
    let (mut client, mut server) = rig.pair();
    let echo = thread::spawn(move || {
        let mut message = [0; 100];
        while server.read_exact(&mut message).is_ok() {
            server.write_all(&message).expect("the client is there");
        }
    });
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut times: Vec<Duration> = (0..200u8)
            .map(|number| {
                let begun = Instant::now();
                client.write_all(&[number; 100]).expect("room for a message");
                let mut answer = [0; 100];
                client.read_exact(&mut answer).expect("an answer");
                assert_eq!(answer, [number; 100]);
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        best = best.min(times[197]);
        if best < Duration::from_millis(20) {
            break;
        }
    }
    assert!(best < Duration::from_millis(20), "the 99th percentile of 200 round trips was {best:?} at best");
    drop(client);
    echo.join().expect("the echo ends with its client");
}

/// One connection that does not move has no part in another's way.
#[test]
fn a_stalled_peer_holds_nobody_up() {
    let rig = Rig::new(&[]);
    let (stalled, flood) = rig.pair();
    let (full, filled) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            flood.set_nonblocking(true).expect("an open stream");
            let chunk = [7; 64 << 10];
            let mut refused = 0;
            // What is refused ten times over 200 ms is full to the other end.
            while refused < 10 {
                match (&flood).write(&chunk) {
                    Ok(_) => refused = 0,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        refused += 1;
                        thread::sleep(Duration::from_millis(20));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            full.send(flood).expect("the test waits for it");
        });
        let flood = filled.recv().expect("the stream fills up");
        for number in 0..20u8 {
            let (client, server) = rig.pair();
            write_and_finish(&client, &[number; 100_000]);
            write_and_finish(&server, &[number; 100_000]);
            assert_eq!((read_all(&server), read_all(&client)), (vec![number; 100_000], vec![number; 100_000]));
        }
        drop((stalled, flood));
    });
}
