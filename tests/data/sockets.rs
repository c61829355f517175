//! Sockets: what a peer sees of a handle that goes, and what a caller never sees.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use futures::future::{join, join_all};
use ringmain::ops::{self, RelayRoute, Route, net};
use ringmain::{IoBuf, Runtime};

use crate::peers::{
    drain, fill, is_gone, poll_once, stays_pending, tcp_pair, tcp_pair_with_a_small_window, turns, without_hanging,
    without_hanging_for,
};
use crate::rings;

/// How a pending operation ends whose connection the program has dropped: as the end of the stream, or as cancelled.
fn assert_ended(outcome: std::io::Result<usize>, what: &str) {
    match outcome {
        Ok(count) => assert_eq!(count, 0, "{what} has brought bytes that nobody sent"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(125), "{what}: {error}, not ECANCELED"),
    }
}

#[test]
fn n01_dropping_a_socket_with_a_receive_pending_tells_the_peer() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (mut peer, socket) = tcp_pair();
            let socket = net::TcpStream::from(socket);
            runtime.block_on(async {
                let mut receive = socket.recv(vec![0; 100]);
                stays_pending(&mut receive, "the peer has sent nothing").await;
                drop(socket);
                // Blocks until the end comes; nothing else could end it.
                assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "the peer has got bytes");
                assert_ended(receive.await.0, "the receive");
            });
        });
    });
}

#[test]
fn n01_dropping_a_socket_with_a_splice_pending_tells_the_peer() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in [Route::Auto, Route::Inline, Route::Ring] {
                let (mut peer, socket) = tcp_pair();
                let socket = net::TcpStream::from(socket);
                let (_reader, writer) = ops::pipe().unwrap();
                runtime.block_on(async {
                    let mut splice = ops::splice(&socket, &writer, 100).route(route);
                    stays_pending(&mut splice, "the peer has sent nothing").await;
                    drop(socket);
                    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "the peer has got bytes");
                    assert_ended(splice.await, "the splice");
                });
            }
        });
    });
}

/// A full socket's splice hangs on the other end of it.
#[test]
fn n01_dropping_a_full_socket_ends_the_splice_into_it() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in [Route::Auto, Route::Inline, Route::Ring] {
                let (mut peer, socket) = tcp_pair_with_a_small_window();
                let socket = net::TcpStream::from(socket);
                let queued = fill(&socket);
                let (reader, writer) = ops::pipe().unwrap();
                rustix::io::write(&writer, b"too late").unwrap();
                runtime.block_on(async {
                    let mut splice = ops::splice(&reader, &socket, 8).route(route);
                    stays_pending(&mut splice, "the socket is full").await;
                    drop(socket);
                    let error = splice.await.unwrap_err();
                    let errno = error.raw_os_error();
                    assert!(is_gone(&error) || errno == Some(125), "{error} by {route:?}");
                });
                let mut received = Vec::new();
                peer.read_to_end(&mut received).unwrap();
                assert_eq!(received.len(), queued, "what was queued before is still delivered, and nothing else");
            }
        });
    });
}

/// A pipe has no connection to shut down: what waits on its end is cancelled.
#[test]
fn n01_dropping_a_pipe_end_ends_what_waits_on_it() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in [Route::Auto, Route::Inline, Route::Ring] {
                let (reader, writer) = ops::pipe().unwrap();
                let (_branch, into_branch) = ops::pipe().unwrap();
                runtime.block_on(async {
                    let mut read = ops::read(&reader, vec![0; 100]);
                    let mut splice = ops::splice(&reader, &into_branch, 100).route(route);
                    stays_pending(&mut read, "nothing was written").await;
                    stays_pending(&mut splice, "nothing was written").await;
                    drop(reader);
                    assert_ended(read.await.0, "the read");
                    assert_ended(splice.await, "the splice");
                });
                let error = rustix::io::write(&writer, b"?").unwrap_err();
                assert_eq!(error, rustix::io::Errno::PIPE, "the pipe still has a reader");
            }
        });
    });
}

/// The handle goes after one step has ended and before the next has begun.
#[test]
fn n01_dropping_a_pipe_end_between_two_steps_ends_the_transfer() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (reader, writer) = ops::pipe().unwrap();
            runtime.block_on(async {
                let mut read = ops::read_exact(&reader, vec![0; 100]);
                stays_pending(&mut read, "nothing was written").await;
                rustix::io::write(&writer, b"part").unwrap();
                turns(20).await;
                drop(reader);
                let (result, buffer) = (&mut read).await;
                assert_eq!((result.unwrap_err().raw_os_error(), read.count()), (Some(125), 4));
                assert_eq!(&buffer[..4], b"part");
            });
            for route in [Route::Auto, Route::Inline, Route::Ring] {
                let (reader, writer) = ops::pipe().unwrap();
                let (branch, into_branch) = ops::pipe().unwrap();
                runtime.block_on(async {
                    let mut splice = ops::splice_exact(&reader, &into_branch, 100).route(route);
                    stays_pending(&mut splice, "nothing was written").await;
                    rustix::io::write(&writer, b"stolen").unwrap();
                    turns(20).await;
                    let stolen = drain(&reader).len() as u64;
                    drop(reader);
                    let (result, moved) = splice.await;
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(125), "by {route:?}");
                    // By the ring a worker of the kernel waits for the bytes, and may be the first to take them.
                    assert!(moved == 0 || route == Route::Ring, "{moved} bytes moved by {route:?}");
                    assert_eq!((moved + stolen, drain(&branch).len() as u64), (6, moved), "by {route:?}");
                });
            }
            for route in [RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Ring, RelayRoute::Copy] {
                let (reader, writer) = ops::pipe().unwrap();
                let (_peer, sink) = net::UnixStream::pair().unwrap();
                runtime.block_on(async {
                    let mut forward = ops::forward(&reader, &sink).route(route);
                    stays_pending(&mut forward, "nothing was written").await;
                    rustix::io::write(&writer, b"stolen").unwrap();
                    turns(20).await;
                    drain(&reader);
                    drop(reader);
                    let ended = forward.await;
                    assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(125), "by {route:?}");
                });
            }
        });
    });
}

#[test]
fn n08_two_senders_on_one_full_socket_see_no_eagain() {
    without_hanging(|| two_senders(100));
}

#[test]
#[ignore = "the long form: 10,000 sends of each"]
fn n08_two_senders_on_one_full_socket_see_no_eagain_long() {
    without_hanging_for(Duration::from_secs(600), || two_senders(10_000));
}

fn two_senders(sends: u64) {
    for (name, config) in rings::table() {
        let (peer, socket) = tcp_pair_with_a_small_window();
        let reader = thread::spawn(move || read_in_bursts(peer));
        let socket = net::TcpStream::from(socket);
        let runtime = rings::build(&name, config);
        let sent = runtime.block_on(async {
            let sender = async |byte: u8| {
                let mut sent = 0;
                for _ in 0..sends {
                    // One socket, and nothing that keeps the two apart.
                    let (count, _) = ops::send(&socket, vec![byte; 8192]).await;
                    sent += count.unwrap_or_else(|error| panic!("sender {byte} got {error}, with {name}")) as u64;
                }
                sent
            };
            let (first, second) = join(sender(1), sender(2)).await;
            [first, second]
        });
        drop(socket);
        assert_eq!(reader.join().unwrap(), sent, "with {name}");
    }
}

/// Read to the end with pauses, so that the socket fills up again and again; how many ones and twos came.
fn read_in_bursts(mut stream: TcpStream) -> [u64; 2] {
    let mut received = [0, 0];
    let mut piece = [0; 8192];
    for burst in 0_u64.. {
        if burst < 20 {
            thread::sleep(Duration::from_millis(1));
        }
        let count = stream.read(&mut piece).unwrap();
        if count == 0 {
            break;
        }
        for byte in &piece[..count] {
            received[usize::from(*byte) - 1] += 1;
        }
    }
    received
}

#[test]
fn n08_receivers_that_race_for_one_byte_see_no_eagain() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (mut peer, socket) = tcp_pair();
            let socket = net::TcpStream::from(socket);
            runtime.block_on(async {
                let mut receivers: Vec<_> = (0..4).map(|_| socket.recv(Vec::with_capacity(1))).collect();
                for receiver in &mut receivers {
                    stays_pending(receiver, "the peer has sent nothing").await;
                }
                // Each byte wakes all that wait, and is there for one of them.
                for byte in 0..4 {
                    peer.write_all(&[byte]).unwrap();
                    turns(20).await;
                }
                let mut bytes: Vec<u8> = join_all(receivers)
                    .await
                    .into_iter()
                    .map(|(count, byte)| {
                        assert_eq!(count.unwrap(), 1);
                        byte.bytes()[0]
                    })
                    .collect();
                bytes.sort_unstable();
                assert_eq!(bytes, [0, 1, 2, 3]);
            });
        });
    });
}

/// The same, with a reader beside the ring that is faster than it.
#[test]
fn n08_a_byte_that_another_reader_took_is_waited_for_again() {
    without_hanging(|| {
        rings::each(|runtime: Runtime| {
            let (mut peer, socket) = tcp_pair();
            let mut thief = socket.try_clone().unwrap();
            let socket = net::TcpStream::from(socket);
            runtime.block_on(async {
                let mut receive = socket.recv(Vec::with_capacity(8));
                stays_pending(&mut receive, "the peer has sent nothing").await;
                let mut lost = 0;
                for _ in 0..50 {
                    peer.write_all(b"?").unwrap();
                    match thief.read(&mut [0; 8]) {
                        Ok(_) => lost += 1,
                        // The ring was faster.
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                    if let Some((count, byte)) = poll_once(&mut receive).await {
                        assert_eq!((count.unwrap(), byte.bytes()), (1, &b"?"[..]));
                        receive = socket.recv(Vec::with_capacity(8));
                    }
                }
                drop(peer);
                if lost < 50 {
                    return;
                }
                assert_eq!(receive.await.0.unwrap(), 0, "all bytes were stolen; what is left is the end");
            });
        });
    });
}
