//! How relays end: the end of a source, a peer that has gone, and what the other side gets to see.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use ringmain::ops::{self, RelayRoute, net};
use ringmain::{Config, Runtime};

use crate::peers::{
    Random, is_gone, pattern, poll_once, read_to_end, reset, stays_pending, tcp_pair, tcp_pair_with_a_small_window,
    turn, turns, without_hanging, without_hanging_for, write_and_close,
};
use crate::rings;

const ROUTES: [RelayRoute; 4] = [RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Ring, RelayRoute::Copy];

#[test]
fn t12_what_a_dead_peer_did_not_take_is_told_apart_from_what_it_took() {
    without_hanging(|| {
        for route in ROUTES {
            let (mut source, from) = tcp_pair();
            let (to, sink) = tcp_pair();
            drop(sink);
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let runtime = Runtime::builder().config(Config::default().pipes(1)).build().unwrap();
            let ended = runtime.block_on(async {
                let mut forward = ops::forward(&from, &to).route(route);
                let mut chunks = 0;
                // The first one "succeeds": the peer's answer to it is what says that the peer has gone.
                loop {
                    chunks += 1;
                    assert!(chunks < 1_000, "a dead peer takes everything");
                    source.write_all(&[b'.'; 4096]).unwrap();
                    while forward.flow().bytes_in < chunks * 4096 {
                        if let Some(ended) = poll_once(&mut forward).await {
                            return ended;
                        }
                        turn().await;
                    }
                }
            });
            let error = ended.result.unwrap_err();
            assert!(is_gone(&error), "{error} by {route:?}");
            let flow = ended.flow;
            assert!(flow.bytes_out >= 4096, "the first chunk leaves: {flow:?}");
            assert!(flow.bytes_out < flow.bytes_in, "the chunk that failed is counted as given: {flow:?}");
            assert!(!flow.is_finished);

            // Its pipe is not the next one's.
            let (source, from) = tcp_pair();
            let (to, sink) = tcp_pair();
            let (writer, reader) = (write_and_close(source, pattern(12, 50_000)), read_to_end(sink));
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            runtime.block_on(ops::forward(&from, &to).route(route)).result.unwrap();
            drop(to);
            writer.join().unwrap();
            assert!(reader.join().unwrap() == pattern(12, 50_000));
        }
    });
}

#[test]
fn t15_a_shutdown_never_overtakes_bytes_in_the_pipe() {
    without_hanging(|| close_behind_the_last_byte(40));
}

#[test]
#[ignore = "the long form: 1,000 runs"]
fn t15_a_shutdown_never_overtakes_bytes_in_the_pipe_long() {
    without_hanging_for(Duration::from_secs(900), || close_behind_the_last_byte(1_000));
}

/// A server sends and closes at once, to a client that reads little by little.
fn close_behind_the_last_byte(runs: u64) {
    let rings = rings::table();
    let mut random = Random::new(15);
    for run in 0..runs {
        let (name, config) = &rings[run as usize % rings.len()];
        let route = ROUTES[run as usize / rings.len() % ROUTES.len()];
        let runtime = rings::build(name, config.clone().pipe_size(64 * 1024));
        let len = 1 + random.below(1 << 20) as usize;
        let (server, from) = tcp_pair();
        let (client, to) = tcp_pair_with_a_small_window();
        let server = write_and_close(server, pattern(run, len));
        let client = thread::spawn(move || read_after_the_end_was_sent(client, len));
        let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
        let ended = runtime.block_on(ops::forward(&from, &to).route(route));
        ended.result.unwrap();
        assert_eq!((ended.flow.bytes_in, ended.flow.bytes_out), (len as u64, len as u64));
        assert!(ended.flow.is_finished);
        // The end is to be seen although this end of the connection is still open.
        let received = client.join().unwrap();
        assert!(received == pattern(run, len), "{} of {len} bytes, with {name}, by {route:?}", received.len());
        server.join().unwrap();
    }
}

/// A client that leaves the bytes waiting for a moment, and then takes them in small pieces.
fn read_after_the_end_was_sent(mut stream: TcpStream, len: usize) -> Vec<u8> {
    let mut received = Vec::with_capacity(len);
    let mut piece = [0; 4096];
    loop {
        if received.len() < 16 * 1024 {
            thread::sleep(Duration::from_millis(2));
        }
        match stream.read(&mut piece).unwrap() {
            0 => return received,
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

#[test]
fn t17_a_peer_that_hangs_up_ends_an_idle_relay_and_nothing_spins() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                for resets in [false, true] {
                    hang_up(&runtime, route, resets);
                }
            }
        });
    });
}

fn hang_up(runtime: &Runtime, route: RelayRoute, resets: bool) {
    let ((client, a), (b, server)) = (tcp_pair(), tcp_pair());
    let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
    let metrics = runtime.driver().metrics();
    let tries = || metrics.attempts.get() + metrics.submissions.get();
    runtime.block_on(async {
        let mut relay = ops::relay(&a, &b).route(route);
        // Until both polls are with the kernel.
        stays_pending(&mut relay, "nobody has sent anything").await;
        let idle = tries();
        stays_pending(&mut relay, "nobody has sent anything").await;
        assert_eq!(tries(), idle, "an idle relay does something");

        if resets {
            reset(client);
            // The other stream is idle and open, and yet there is nothing to wait for.
            let error = relay.await.result.unwrap_err();
            assert!(is_gone(&error), "{error}");
            return;
        }
        client.shutdown(Shutdown::Write).unwrap();
        while !relay.flows().0.is_finished {
            stays_pending(&mut relay, "the server has not ended").await;
        }
        let half_closed = tries();
        stays_pending(&mut relay, "the server has not ended").await;
        assert_eq!(tries(), half_closed, "an end that was seen is seen again and again");

        drop(client);
        drop(server);
        let ended = relay.await;
        ended.result.unwrap();
        assert!(ended.a_to_b.is_finished && ended.b_to_a.is_finished);
    });
}

#[test]
fn n02_a_half_close_passes_in_both_orders_and_leaves_nothing_behind() {
    without_hanging(|| {
        for route in ROUTES {
            for server_first in [false, true] {
                half_close(route, server_first);
            }
        }
    });
}

/// One peer says all it has and half-closes; the other answers 1 MiB when it has seen that, and closes.
fn half_close(route: RelayRoute, server_first: bool) {
    let ((client, a), (b, server)) = (tcp_pair(), tcp_pair());
    let ports: Vec<_> = [&client, &a, &b, &server].map(|stream| stream.local_addr().unwrap().port()).to_vec();
    let (first, second) = if server_first { (server, client) } else { (client, server) };
    let first = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut stream = first;
        stream.write_all(&pattern(1, 100_000))?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    });
    let second = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut stream = second;
        let mut question = Vec::new();
        stream.read_to_end(&mut question)?;
        stream.write_all(&pattern(2, 1 << 20))?;
        Ok(question)
    });
    let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
    let runtime = Runtime::new().unwrap();
    let ended = runtime.block_on(ops::relay(&a, &b).route(route));
    ended.result.unwrap();
    let (question, answer) = if server_first { (ended.b_to_a, ended.a_to_b) } else { (ended.a_to_b, ended.b_to_a) };
    assert_eq!((question.bytes_out, answer.bytes_out), (100_000, 1 << 20), "{route:?}, server first: {server_first}");
    drop((a, b));
    assert!(first.join().unwrap().unwrap() == pattern(2, 1 << 20));
    assert!(second.join().unwrap().unwrap() == pattern(1, 100_000));
    assert_eq!(close_waits(&ports), 0, "a connection waits for a close that never comes");
}

/// How many connections between these ports are in CLOSE-WAIT, which is state 8 of `/proc/net/tcp`.
fn close_waits(ports: &[u16]) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).filter(|row| {
        let mut columns = row.split_whitespace().skip(1);
        let mut port = || {
            let address = columns.next().expect("an address");
            u16::from_str_radix(address.rsplit(':').next().expect("a port"), 16).expect("in hexadecimal")
        };
        let (local, remote) = (port(), port());
        ports.contains(&local) && ports.contains(&remote) && columns.next() == Some("08")
    });
    rows.count()
}

/// A half-closed relay that is cancelled says what it has moved.
#[test]
fn a_cancelled_relay_says_what_it_has_moved() {
    without_hanging(|| {
        for route in ROUTES {
            let ((mut client, a), (b, mut server)) = (tcp_pair(), tcp_pair());
            let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
            Runtime::new().unwrap().block_on(async {
                let mut relay = ops::relay(&a, &b).route(route);
                client.write_all(b"question").unwrap();
                while relay.flows().0.bytes_out < 8 {
                    assert!(poll_once(&mut relay).await.is_none());
                    turns(1).await;
                }
                let ended = relay.cancel().await;
                assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(125), "ECANCELED");
                assert_eq!((ended.a_to_b.bytes_in, ended.a_to_b.bytes_out, ended.b_to_a.bytes_in), (8, 8, 0));
            });
            let mut question = [0; 8];
            server.read_exact(&mut question).unwrap();
            assert_eq!(&question, b"question");
        }
    });
}

/// A server that has stopped to read and answers all the same: what it says is delivered, and the error is not hidden.
#[test]
fn an_answer_outlives_the_end_of_the_upload() {
    without_hanging(|| {
        for (name, config) in rings::table() {
            for route in ROUTES {
                let runtime = rings::build(&name, config.clone());
                let (mut client, a) = UnixStream::pair().unwrap();
                let (b, mut server) = UnixStream::pair().unwrap();
                server.shutdown(Shutdown::Read).unwrap();
                client.write_all(b"an upload that nobody wants").unwrap();
                let answer: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
                let expected = answer.clone();
                let serves = std::thread::spawn(move || {
                    server.write_all(&answer).unwrap();
                    server.shutdown(Shutdown::Both).unwrap();
                });
                let receives = std::thread::spawn(move || {
                    let mut got = Vec::new();
                    client.read_to_end(&mut got).unwrap();
                    got
                });
                let ended = runtime.block_on(async {
                    let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
                    let ended = ops::relay(&a, &b).route(route).await;
                    drop((a, b));
                    ended
                });
                serves.join().unwrap();
                assert!(receives.join().unwrap() == expected, "the whole answer arrives, with {name} by {route:?}");
                assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::BrokenPipe);
                assert_eq!((ended.b_to_a.bytes_out, ended.a_to_b.bytes_out), (1 << 20, 0));
            }
        }
    });
}
