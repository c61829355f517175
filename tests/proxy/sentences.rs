//! What it says when something is wrong: a sentence, and never a panic.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

use crate::example::executable;
use crate::process::{Proxy, Remains, listener, patient, run};

fn refused(arguments: &[&str]) -> Remains {
    let remains = run(arguments);
    assert!(!remains.status.success(), "{arguments:?} is refused: {remains:?}");
    assert!(remains.status.code().is_some_and(|code| code != 101), "{arguments:?} does not panic: {remains:?}");
    assert!(!remains.stderr.contains("panicked"), "{remains:?}");
    assert!(!remains.stdout.contains("listening on"), "{remains:?}");
    remains
}

#[test]
fn a_bad_address_is_told_with_a_good_one() {
    for bad in ["nonsense", ":80", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1", "unix:", "[::1:80", "256.1.1.1:80"]
    {
        for arguments in [["--listen", bad, "--to", "127.0.0.1:1"], ["--listen", "127.0.0.1:0", "--to", bad]] {
            let remains = refused(&arguments);
            assert!(remains.stderr.contains(bad), "{remains:?}");
            assert!(remains.stderr.contains("unix:PATH") || bad == "unix:", "{remains:?}");
        }
    }
}

#[test]
fn bad_options_are_told_with_their_bounds() {
    for (bad, words) in [
        (["--pipe-size", "5000"], "power of two"),
        (["--pipe-size", "9999M"], "more than a pipe can have"),
        (["--route", "teleport"], "inline"),
        (["--threads", "0"], "1..=1024"),
        (["--idle-timeout", "-1"], "0 or more"),
        (["--total-timeout", "-1"], "0 or more"),
        (["--rate", "fast"], "64K"),
        (["--rate", "99999999999G"], "more than anything can move"),
        (["--metrics", "often"], "not a number of seconds"),
        (["--drain", "soon"], "not a number of seconds"),
        (["--max-connections", "0"], "1..=1000000"),
    ] {
        let option = format!("{}={}", bad[0], bad[1]);
        let remains = refused(&["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", &option]);
        assert!(remains.stderr.contains(words), "{bad:?}: {remains:?}");
    }
    let remains =
        refused(&["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--threads", "4", "--max-connections", "3"]);
    assert!(remains.stderr.contains("--max-connections 3 is fewer than --threads 4"), "{remains:?}");
}

#[test]
fn half_a_proxy_is_refused() {
    assert!(refused(&["--listen", "127.0.0.1:0"]).stderr.contains("--to"));
    assert!(refused(&["--to", "127.0.0.1:1"]).stderr.contains("--listen"));
}

#[test]
fn an_option_of_a_proxy_is_not_ignored_without_one() {
    for option in ["--threads=2", "--route=copy", "--rate=1M", "--drain=1", "--max-connections=9", "--verbose"] {
        let remains = refused(&[option]);
        assert!(remains.stderr.contains("--listen <ADDR>"), "{remains:?}");
    }
}

#[test]
fn what_a_killed_proxy_left_of_its_path_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("door");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a path that is free"));
    for (path, advice) in [
        (path, "remove the path if nothing does"),
        (folder.path().to_owned(), "choose another path, as that is no socket"),
        (folder.path().join("no/door"), "make its directory first"),
    ] {
        let listen = format!("unix:{}", path.display());
        let remains = refused(&["--listen", &listen, "--to", "127.0.0.1:1"]);
        assert_eq!(remains.status.code(), Some(1), "{remains:?}");
        assert!(remains.stderr.contains(&listen) && remains.stderr.contains(advice), "{remains:?}");
    }
}

#[test]
fn a_connect_timeout_of_zero_is_none() {
    let upstream = listener();
    let to = upstream.local_addr().expect("an address").to_string();
    let proxy = Proxy::start(&to, &["--connect-timeout", "0"]);
    proxy.connect().write_all(b"word").expect("the proxy is there");
    let mut word = [0; 4];
    patient(upstream.accept().expect("a connection").0).read_exact(&mut word).expect("the client's word");
    assert_eq!(&word, b"word");
}

/// With several threads too, which share a port on purpose: with each other, and not with another proxy.
#[test]
fn a_port_in_use_is_told_and_never_shared() {
    let proxy = Proxy::start("127.0.0.1:1", &["--threads", "2"]);
    for threads in ["1", "2"] {
        let remains = refused(&["--listen", &proxy.at, "--to", "127.0.0.1:1", "--threads", threads]);
        assert_eq!(remains.status.code(), Some(1), "{remains:?}");
        assert!(remains.stderr.contains(&format!("cannot listen on {}", proxy.at)), "{remains:?}");
        assert!(remains.stderr.contains("choose another address"), "{remains:?}");
    }
}

#[test]
fn an_address_of_another_machine_is_told() {
    // 203.0.113.0/24 is for documentation, and nobody's (RFC 5737).
    let remains = refused(&["--listen", "203.0.113.1:0", "--to", "127.0.0.1:1"]);
    assert!(remains.stderr.contains("choose an address of this machine"), "{remains:?}");
}

#[test]
fn an_upstream_that_is_down_is_told_and_used_when_it_is_up() {
    let reserved = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    reserved.set_reuse_address(true).expect("a socket has the option");
    reserved.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    let address = reserved.local_addr().expect("an address").as_socket().expect("of IPv4");
    let proxy = Proxy::start(&address.to_string(), &[]);

    let mut client = proxy.connect();
    let complaint = proxy.complaint("cannot be reached");
    assert!(complaint.contains(&address.to_string()) && complaint.contains("refused"), "{complaint}");
    let error = client.read(&mut [0; 1]).expect_err("the client is not told of an empty answer");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    reserved.listen(16).expect("a bound socket");
    let upstream = TcpListener::from(reserved);
    proxy.connect().write_all(b"now?").expect("the proxy is there");
    let mut word = [0; 4];
    patient(upstream.accept().expect("a connection").0).read_exact(&mut word).expect("the client's word");
    assert_eq!(&word, b"now?");
}

#[test]
fn an_upstream_that_does_not_answer_is_given_up() {
    // A listener that accepts nothing: when its backlog is full the kernel drops what comes, as a dead host does.
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    silent.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    silent.listen(0).expect("a bound socket");
    let address = silent.local_addr().expect("an address");
    let waiting: Vec<Socket> = (0..8)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).expect("a socket");
            // Some of these connect, and the others wait for an answer: both is right.
            drop(socket.connect(&address));
            socket
        })
        .collect();
    let to = address.as_socket().expect("of IPv4").to_string();
    let proxy = Proxy::start(&to, &["--connect-timeout", "0.3"]);
    let mut client = proxy.connect();
    let complaint = proxy.complaint("cannot be reached");
    assert!(complaint.contains("no answer within 0.3 s"), "{complaint}");
    assert!(client.read(&mut [0; 1]).is_err(), "the client is told");
    drop(waiting);
}

#[test]
fn an_upstream_that_no_route_leads_to_is_told() {
    // No TCP connection leads to a multicast group, whatever the routes are (`tcp_v4_connect` in Linux).
    let proxy = Proxy::start("224.0.0.1:9", &[]);
    let mut client = proxy.connect();
    let complaint = proxy.complaint("the upstream 224.0.0.1:9 cannot be reached");
    assert!(complaint.contains("unreachable"), "{complaint}");
    assert!(client.read(&mut [0; 1]).is_err(), "the client is told");
}

/// Many of the same kind are one sentence in ten seconds, and not a flood.
#[test]
fn the_same_complaint_is_not_made_for_each_connection() {
    let address = listener().local_addr().expect("an address").to_string();
    let proxy = Proxy::start(&address, &[]);
    for _ in 0..50 {
        // Whether the end is seen as one or as a reset, the connection is over.
        drop(proxy.connect().read(&mut [0; 1]));
    }
    let complaints = proxy.complaints().len();
    assert!((1..25).contains(&complaints), "{complaints} complaints for 50 connections");
}

/// Printing into a pipe that nobody reads is an error, and errors of printing must not take connections down.
#[test]
fn it_goes_on_when_nobody_reads_what_it_says() {
    let mut child = Command::new(executable())
        .args(["--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("where it listens");
    drop(child.stderr.take());
    let address: SocketAddr = line.trim().strip_prefix("listening on ").expect("an address").parse().expect("one");
    for _ in 0..3 {
        // Each is a complaint to nobody, from the thread that serves the next one.
        let mut client = patient(TcpStream::connect(address).expect("it listens"));
        let error = client.read(&mut [0; 1]).expect_err("there is no upstream");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it is there");
    let status = child.wait().expect("a child can be waited for");
    assert_eq!(status.code(), Some(1), "the totals could not be told");
}

#[test]
fn the_help_names_every_option() {
    let remains = run(&["--help"]);
    assert!(remains.status.success());
    for option in [
        "--listen",
        "--to",
        "--route",
        "--threads",
        "--pipe-size",
        "--idle-timeout",
        "--total-timeout",
        "--rate",
        "--metrics",
        "--connect-timeout",
        "--max-connections",
        "--drain",
        "--verbose",
        "SIGTERM",
    ] {
        assert!(remains.stdout.contains(option), "{option} is missing in {}", remains.stdout);
    }
    for default in ["auto", "1M", "300", "10000"] {
        assert!(remains.stdout.contains(&format!("[default: {default}]")), "{default}: {}", remains.stdout);
    }
}
