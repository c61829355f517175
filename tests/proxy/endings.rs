//! How connections end, and how the proxy does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use socket2::SockRef;

use crate::process::{HANG, Rig, until};

/// What comes until the stream ends, and how it ends.
fn drain(stream: &mut TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let outcome = stream.read_to_end(&mut bytes).map(drop);
    (bytes, outcome)
}

/// Sends a message each way, so that both are known to be relayed.
fn greet(client: &TcpStream, server: &TcpStream) {
    for (mut from, mut to) in [(client, server), (server, client)] {
        from.write_all(b"hello").expect("the peer is there");
        let mut greeting = [0; 5];
        to.read_exact(&mut greeting).expect("the greeting");
        assert_eq!(&greeting, b"hello");
    }
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a TCP stream lingers");
}

#[test]
fn a_reset_reaches_the_other_side_as_a_reset() {
    let rig = Rig::new(&[]);
    let before = rig.proxy.descriptors();
    for client_resets in [true, false] {
        let (client, server) = rig.pair();
        greet(&client, &server);
        let (leaves, mut stays) = if client_resets { (client, server) } else { (server, client) };
        reset(leaves);
        let (bytes, end) = drain(&mut stays);
        assert!(bytes.is_empty());
        assert_eq!(end.expect_err("a stream that was broken off has no end").kind(), ErrorKind::ConnectionReset);
    }
    until("both connections are closed", || rig.proxy.descriptors() <= before + 4);
}

/// A peer that goes while its answer is on the way: the upstream is not left to send into nothing.
#[test]
fn a_client_that_goes_while_it_is_sent_to_ends_the_upstream_too() {
    let rig = Rig::new(&[]);
    let (client, mut server) = rig.pair();
    let chunk = [1; 64 << 10];
    server.write_all(&chunk).expect("room for a chunk");
    reset(client);
    let error = loop {
        if let Err(error) = server.write_all(&chunk) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

/// The end of an idle connection is noticed at once, and waiting for the other side's costs nothing.
#[test]
fn t17_a_peer_that_closes_is_noticed_and_nothing_spins() {
    let rig = Rig::new(&[]);
    let before = rig.proxy.descriptors();
    let (client, mut server) = rig.pair();
    greet(&client, &server);
    drop(client);
    let (bytes, end) = drain(&mut server);
    assert!(bytes.is_empty() && end.is_ok(), "the upstream sees the end: {end:?}");
    // The upstream leaves its own direction open, with the client gone.
    let cpu = rig.proxy.cpu_during(Duration::from_secs(2));
    assert!(cpu < Duration::from_millis(100), "{cpu:?} of CPU time in 2 s for a connection that is half closed");
    drop(server);
    until("the connection is closed", || rig.proxy.descriptors() <= before + 4);
}

#[test]
fn a_peer_that_vanishes_is_ended_by_the_idle_timeout() {
    let mut rig = Rig::new(&["--idle-timeout", "0.5"]);
    let (mut client, mut server) = rig.pair();
    greet(&client, &server);
    let begun = Instant::now();
    // From here on neither side says anything, as if both cables were cut.
    for side in [&mut client, &mut server] {
        let (bytes, end) = drain(side);
        assert!(bytes.is_empty() && end.is_err(), "the idle connection is broken off: {end:?}");
    }
    assert!(begun.elapsed() > Duration::from_millis(400), "not before the limit: {:?}", begun.elapsed());
    rig.proxy.signal(Signal::TERM);
    let remains = rig.proxy.remains();
    assert!(remains.stdout.contains("1 ended by the idle timeout"), "{remains:?}");
}

#[test]
fn a_slow_connection_is_not_an_idle_one() {
    let rig = Rig::new(&["--idle-timeout", "2"]);
    let (mut client, mut server) = rig.pair();
    // Twice the limit in all, and never near it between two bytes.
    for number in 0..20u8 {
        thread::sleep(Duration::from_millis(200));
        client.write_all(&[number]).expect("the connection is open");
        let mut byte = [0];
        server.read_exact(&mut byte).expect("the byte arrives");
        assert_eq!(byte, [number]);
    }
}

#[test]
fn a_busy_connection_is_ended_by_the_total_timeout() {
    let mut rig = Rig::new(&["--total-timeout", "0.5"]);
    let (mut client, mut server) = rig.pair();
    let begun = Instant::now();
    while client.write_all(b"still here").is_ok() && server.read_exact(&mut [0; 10]).is_ok() {
        assert!(begun.elapsed() < HANG, "it goes on and on");
    }
    assert!(begun.elapsed() > Duration::from_millis(400), "not before the limit: {:?}", begun.elapsed());
    rig.proxy.signal(Signal::TERM);
    let remains = rig.proxy.remains();
    assert!(remains.stdout.contains("1 ended by the total timeout"), "{remains:?}");
}

#[test]
fn a_rate_is_kept_by_each_connection_and_its_routes_are_told() {
    let mut rig = Rig::new(&["--rate", "100K", "--metrics", "0.1"]);
    let (mut client, mut server) = rig.pair();
    let begun = Instant::now();
    let writer = thread::spawn(move || {
        client.write_all(&[1; 60 * 1024]).expect("the connection is open");
        client
    });
    server.read_exact(&mut vec![0; 60 * 1024]).expect("all of it arrives");
    // A tenth of a second's bytes may come at once.
    assert!(begun.elapsed() > Duration::from_millis(480), "60 KiB at 100 KiB/s in {:?}", begun.elapsed());
    let client = writer.join().expect("a writer that is done");
    let line = rig.proxy.line("1 connections");
    assert!(line.contains("MB/s") && line.contains("directions: ") && line.contains("splice inline"), "{line}");
    drop((client, server));
    rig.proxy.signal(Signal::TERM);
    let remains = rig.proxy.remains();
    assert!(remains.stdout.contains("changes of route"), "{remains:?}");
}

#[test]
fn sigterm_ends_it_with_zero_while_connections_are_open() {
    let mut rig = Rig::new(&["--drain", "0.3"]);
    let pairs: Vec<_> = (0..5).map(|_| rig.pair()).collect();
    for (client, server) in &pairs {
        greet(client, server);
    }
    rig.proxy.signal(Signal::TERM);
    let remains = rig.proxy.remains();
    assert_eq!(remains.status.code(), Some(0), "{remains:?}");
    assert!(remains.stderr.contains("SIGTERM: taking no more connections; 5 still open"), "{remains:?}");
    assert!(remains.stdout.contains("5 connections, 5 cut off at the end"), "{remains:?}");
    assert!(remains.stdout.contains("25 bytes to the upstream, 25 bytes back"), "{remains:?}");
    for (mut client, mut server) in pairs {
        assert!(drain(&mut client).1.is_err() && drain(&mut server).1.is_err(), "both sides see that it was cut off");
    }
}

#[test]
fn what_ends_in_time_is_not_cut_off() {
    let mut rig = Rig::new(&["--drain", "600"]);
    let (mut client, mut server) = rig.pair();
    greet(&client, &server);
    rig.proxy.signal(Signal::INT);
    rig.proxy.complaint("SIGINT: taking no more connections; 1 still open");
    let refused = || TcpStream::connect(rig.proxy.address()).is_err();
    until("new connections are refused", refused);
    greet(&client, &server);
    client.shutdown(Shutdown::Write).expect("an open stream");
    server.shutdown(Shutdown::Write).expect("an open stream");
    assert!(drain(&mut client).1.is_ok() && drain(&mut server).1.is_ok());
    // What came just before the listener was closed waits for an upstream that will not accept it.
    drop(rig.upstream);
    let remains = rig.proxy.remains();
    assert_eq!(remains.status.code(), Some(0), "{remains:?}");
    assert!(!remains.stdout.contains("cut off"), "{remains:?}");
    assert!(remains.stdout.contains("10 bytes to the upstream, 10 bytes back"), "{remains:?}");
}

#[test]
fn a_second_sigint_ends_it_at_once() {
    let mut rig = Rig::new(&["--drain", "600"]);
    let _open = rig.pair();
    rig.proxy.signal(Signal::INT);
    rig.proxy.complaint("SIGINT: taking no more connections");
    let begun = Instant::now();
    rig.proxy.signal(Signal::INT);
    let remains = rig.proxy.remains();
    assert_eq!(remains.status.code(), Some(130), "{remains:?}");
    assert!(begun.elapsed() < HANG);
}

#[test]
fn an_idle_proxy_ends_at_the_first_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut rig = Rig::new(&["--drain", "600", "--threads", "2"]);
        rig.proxy.signal(signal);
        let remains = rig.proxy.remains();
        assert_eq!(remains.status.code(), Some(0), "{remains:?}");
        assert!(remains.stdout.contains("0 connections"), "{remains:?}");
    }
}

/// `timeout(1)` sends its signal to the process and, at once, to the group that the process is in.
#[test]
fn two_signals_at_once_are_one() {
    let rig = Rig::new(&[]);
    let (client, upstream) = rig.pair();
    let mut proxy = rig.proxy;
    // Two that wait until it runs again arrive together, if they differ.
    proxy.signal(Signal::STOP);
    proxy.signal(Signal::INT);
    proxy.signal(Signal::TERM);
    proxy.signal(Signal::CONT);
    proxy.complaint("taking no more connections; 1 still open");
    drop((client, upstream));
    let remains = proxy.remains();
    assert_eq!(remains.status.code(), Some(0), "{remains:?}");
}
