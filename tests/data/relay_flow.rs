//! Relays and files on their way: nothing is lost, nothing is late, nothing spins.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join;
use ringmain::ops::{self, End, RelayRoute, net};
use ringmain::{Config, Fd, Runtime};

use crate::peers::{
    pattern, read_to_end, tcp_pair, tcp_pair_with_a_small_window, without_hanging, without_hanging_for, write_and_close,
};

const ROUTES: [RelayRoute; 4] = [RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Ring, RelayRoute::Copy];

fn small_pipes() -> Runtime {
    Runtime::builder().config(Config::default().pipe_size(64 * 1024)).build().unwrap()
}

#[test]
fn t07_a_full_socket_is_waited_for_without_spinning() {
    without_hanging(|| send_file_to_a_slow_client(4 << 20));
}

#[test]
#[ignore = "the long form: 64 MiB"]
fn t07_a_full_socket_is_waited_for_without_spinning_long() {
    without_hanging_for(Duration::from_secs(600), || send_file_to_a_slow_client(64 << 20));
}

fn send_file_to_a_slow_client(len: usize) {
    let content = pattern(7, len);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content).unwrap();
    let file = ops::fs::File::from(file);
    let (client, socket) = tcp_pair_with_a_small_window();
    let client = thread::spawn(move || read_slowly(client, 20, Duration::from_millis(20)));
    let socket = net::TcpStream::from(socket);
    let (reader, writer) = ops::pipe().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let into = ops::splice_exact(End::at(&file, 0), &writer, len as u64);
        let (into, out) = join(into, ops::splice_exact(&reader, &socket, len as u64)).await;
        into.0.unwrap();
        out.0.unwrap();
    });
    let metrics = runtime.driver().metrics();
    let tries = metrics.attempts.get() + metrics.enters.get();
    let pages = len as u64 / 4096;
    assert!(tries < 20 * pages, "{tries} tries for {pages} pages: it has spun while the client was slow");
    drop(socket);
    assert!(client.join().unwrap() == content);
}

#[test]
fn t07_a_relay_waits_for_a_full_socket_without_spinning() {
    const LEN: usize = 2 << 20;
    without_hanging(|| {
        for route in ROUTES {
            let (source, from) = tcp_pair();
            let (client, to) = tcp_pair_with_a_small_window();
            let writer = write_and_close(source, pattern(7, LEN));
            let client = thread::spawn(move || read_slowly(client, 20, Duration::from_millis(20)));
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let runtime = small_pipes();
            let ended = runtime.block_on(ops::forward(&from, &to).route(route));
            ended.result.unwrap();
            drop(to);
            let metrics = runtime.driver().metrics();
            let tries = metrics.attempts.get() + metrics.enters.get() + metrics.submissions.get();
            let pages = LEN as u64 / 4096;
            assert!(tries < 20 * pages, "{tries} tries for {pages} pages by {route:?}: it has spun");
            writer.join().unwrap();
            assert!(client.join().unwrap() == pattern(7, LEN));
        }
    });
}

/// Read some pieces with a pause after each, as a slow client does, and then all the rest.
fn read_slowly(mut stream: TcpStream, pauses: u32, pause: Duration) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut read = 0;
    for _ in 0..pauses {
        bytes.resize(read + 4096, 0);
        read += stream.read(&mut bytes[read..]).unwrap();
        thread::sleep(pause);
    }
    bytes.truncate(read);
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn t08_small_segments_that_fill_a_pipe_by_slots_are_all_delivered() {
    without_hanging(|| {
        for (segments, len) in [(10_000, 100), (1_000, 1_460)] {
            for route in ROUTES {
                relay_segments(route, segments, len);
            }
        }
    });
}

fn relay_segments(route: RelayRoute, segments: usize, len: usize) {
    let content = pattern(len as u64, segments * len);
    let (mut backend, from) = tcp_pair();
    let (client, to) = tcp_pair_with_a_small_window();
    backend.set_nodelay(true).unwrap();
    let (start, started) = mpsc::channel();
    let sent = content.clone();
    let backend = thread::spawn(move || {
        for (number, segment) in sent.chunks(len).enumerate() {
            // The client has read nothing yet, and its window and the pipe are much smaller than this.
            if number == 100_000 / len {
                start.send(()).unwrap();
            }
            backend.write_all(segment).unwrap();
        }
    });
    let client = thread::spawn(move || {
        started.recv().unwrap();
        let mut client = client;
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
    let ended = small_pipes().block_on(ops::forward(&from, &to).route(route));
    ended.result.unwrap();
    assert_eq!((ended.flow.bytes_in, ended.flow.bytes_out), (content.len() as u64, content.len() as u64));
    backend.join().unwrap();
    drop(to);
    assert!(client.join().unwrap() == content, "{segments} segments of {len} bytes by {route:?}");
}

#[test]
fn t14_small_messages_are_not_held_back() {
    without_hanging(|| {
        for route in ROUTES {
            let (client, a) = tcp_pair();
            let (b, server) = tcp_pair();
            for stream in [&client, &a, &b, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let server = thread::spawn(move || echo(server));
            let client = thread::spawn(move || ping(client, 200));
            let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
            let ended = Runtime::new().unwrap().block_on(ops::relay(&a, &b).route(route));
            ended.result.unwrap();
            drop((a, b));
            let mut times = client.join().unwrap();
            server.join().unwrap();
            times.sort();
            // A corked message waits 200 ms, each of them; a busy machine makes some of them late, not most.
            let median = times[times.len() / 2];
            assert!(median < Duration::from_millis(100), "half of all messages took {median:?} by {route:?}");
            assert_eq!((ended.a_to_b.bytes_out, ended.b_to_a.bytes_out), (20_000, 20_000));
        }
    });
}

fn echo(mut stream: TcpStream) {
    let mut message = [0; 100];
    loop {
        match stream.read(&mut message).unwrap() {
            0 => return,
            count => stream.write_all(&message[..count]).unwrap(),
        }
    }
}

/// Exchange messages of 100 bytes, then close; how long each took.
fn ping(mut stream: TcpStream, messages: u64) -> Vec<Duration> {
    (0..messages)
        .map(|number| {
            let message = pattern(number, 100);
            let mut answer = [0; 100];
            let begin = Instant::now();
            stream.write_all(&message).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, message[..]);
            begin.elapsed()
        })
        .collect()
}

#[test]
fn t21_blocking_and_non_blocking_sockets_both_carry_a_lot() {
    without_hanging(|| carry(32 << 20));
}

#[test]
#[ignore = "the long form: 1 GiB"]
fn t21_blocking_and_non_blocking_sockets_both_carry_a_lot_long() {
    without_hanging_for(Duration::from_secs(900), || carry(1 << 30));
}

fn carry(len: usize) {
    for blocking in [true, false] {
        let content = pattern(21, len);
        let (source, from) = tcp_pair();
        let (to, sink) = tcp_pair();
        let (writer, reader) = (write_and_close(source, content.clone()), read_to_end(sink));
        to.set_nonblocking(!blocking).unwrap();
        from.set_nonblocking(!blocking).unwrap();
        let (from, to) = (Fd::new(from.into()), Fd::new(to.into()));
        let runtime = Runtime::new().unwrap();
        let ended = runtime.block_on(async {
            for route in [RelayRoute::Inline, RelayRoute::Ring] {
                if blocking {
                    let ended = ops::forward(&from, &to).route(route).await;
                    let error = ended.result.unwrap_err();
                    assert!(error.to_string().contains("is a blocking socket"), "by {route:?}: {error}");
                }
            }
            ops::forward(&from, &to).await
        });
        ended.result.unwrap();
        assert_eq!(ended.flow.bytes_out, len as u64);
        assert_eq!(ended.flow.hops_spliced == 0, blocking, "a blocking socket is not spliced: {:?}", ended.flow);
        writer.join().unwrap();
        drop((from, to));
        assert!(reader.join().unwrap() == content, "blocking: {blocking}");
    }
}
