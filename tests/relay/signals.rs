//! What a socket says beside what it was asked: the end of a peer that still reads, urgent data.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ringmain::ops::{self, net};
use ringmain::{Fd, Runtime};
use rustix::net::SendFlags;

use crate::ROUTES;
use crate::peers::{
    fill, pattern, poll_once, read_to_end, stays_pending, tcp_pair, tcp_pair_with_a_small_window, turn, without_hanging,
};
use crate::rings;

/// What the runtime has asked of the kernel.
fn tries(runtime: &Runtime) -> u64 {
    let metrics = runtime.driver().metrics();
    metrics.attempts.get() + metrics.submissions.get()
}

/// A peer that has said all it has to say and reads nothing for now, and this end of its connection.
fn half_closed(is_tcp: bool) -> (std::fs::File, Fd) {
    let (peer, end): (OwnedFd, OwnedFd) = if is_tcp {
        let (peer, end) = tcp_pair_with_a_small_window();
        peer.shutdown(Shutdown::Write).unwrap();
        (peer.into(), end.into())
    } else {
        let (peer, end) = UnixStream::pair().unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        (peer.into(), end.into())
    };
    let flags = rustix::fs::fcntl_getfl(&end).unwrap();
    rustix::fs::fcntl_setfl(&end, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    (peer.into(), Fd::new(end))
}

/// Poll until as many turns have changed nothing as it takes a busy machine to bring what is on its way.
async fn settle<F: Future + Unpin>(runtime: &Runtime, future: &mut F) {
    let (mut seen, mut still) = (tries(runtime), 0);
    for _ in 0..1_000_000 {
        assert!(poll_once(future).await.is_none(), "its sink is full");
        turn().await;
        let now = tries(runtime);
        still = if now == seen { still + 1 } else { 0 };
        if still > 500 {
            return;
        }
        seen = now;
    }
    panic!("it asks the kernel again and again");
}

/// `RDHUP` ends a poll for room as well, at once and for as long as the connection lasts.
#[test]
fn t17_a_slow_reader_that_has_half_closed_costs_nothing() {
    const LEN: usize = 2 << 20;
    without_hanging(|| {
        for is_tcp in [true, false] {
            for route in ROUTES {
                let (client, a) = half_closed(is_tcp);
                let ((b, server), runtime) = (tcp_pair(), Runtime::new().unwrap());
                let b = net::TcpStream::from(b);
                let serves = std::thread::spawn(move || {
                    let mut server = server;
                    server.write_all(&pattern(17, LEN)).unwrap();
                });
                let (ended, got) = runtime.block_on(async {
                    let mut relay = ops::relay(&a, &b).route(route);
                    while !relay.flows().0.is_finished || relay.flows().1.inside() == 0 {
                        settle(&runtime, &mut relay).await;
                    }
                    // Cancelled there, it leaves nothing behind, and goes on when it is resumed.
                    let ended = relay.cancel().await;
                    while runtime.driver().operations_active() > 0 {
                        turn().await;
                    }
                    let mut relay = ended.stopped.unwrap().resume(&a, &b);
                    settle(&runtime, &mut relay).await;
                    let client = read_to_end(client);
                    let ended = relay.await;
                    drop((a, b));
                    (ended, client)
                });
                ended.result.unwrap();
                serves.join().unwrap();
                assert!(got.join().unwrap() == pattern(17, LEN), "by {route:?}");
            }
        }
    });
}

#[test]
fn t17_a_transfer_to_a_slow_reader_that_has_half_closed_costs_nothing() {
    without_hanging(|| {
        rings::each(|runtime| {
            for is_tcp in [true, false] {
                let (client, end) = half_closed(is_tcp);
                let filled = fill(&end);
                let (reader, writer) = ops::pipe().unwrap();
                rustix::io::write(&writer, b"behind it").unwrap();
                let got = runtime.block_on(async {
                    let mut transfer = ops::splice(&reader, &end, 9);
                    settle(&runtime, &mut transfer).await;
                    drop(transfer);
                    let mut forward = ops::forward(&reader, &end);
                    settle(&runtime, &mut forward).await;
                    let client = read_to_end(client);
                    while forward.flow().bytes_out < 9 {
                        assert!(poll_once(&mut forward).await.is_none(), "its source has not ended");
                        turn().await;
                    }
                    drop(forward);
                    drop(end);
                    client
                });
                let got = got.join().unwrap();
                assert!(got.len() == filled + 9 && got.ends_with(b"behind it"));
            }
        });
    });
}

/// A splice from TCP stops at urgent data, says that there is nothing, and behind the end of the stream that this is it.
/// A receive goes past it, as ever.
#[test]
fn bytes_behind_urgent_data_arrive_by_every_route() {
    without_hanging(|| {
        for route in ROUTES {
            for before in [0, 1, 70_000] {
                for ends in [false, true] {
                    let ((mut source, from), (to, mut sink)) = (tcp_pair(), tcp_pair());
                    let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
                    let runtime = Runtime::new().unwrap();
                    runtime.block_on(async {
                        let mut forward = ops::forward(&from, &to).route(route);
                        // Bytes in bulk first, so that it splices if it may choose.
                        source.write_all(&pattern(1, 200_000)).unwrap();
                        let reader = std::thread::spawn(move || {
                            let mut bytes = vec![0; 200_000 + before + 5];
                            sink.read_exact(&mut bytes).unwrap();
                            (bytes, sink)
                        });
                        while forward.flow().bytes_out < 200_000 {
                            assert!(poll_once(&mut forward).await.is_none());
                            turn().await;
                        }
                        source.write_all(&pattern(2, before)).unwrap();
                        rustix::net::send(source.as_fd(), b"!", SendFlags::OOB).unwrap();
                        source.write_all(b"after").unwrap();
                        if ends {
                            source.shutdown(Shutdown::Write).unwrap();
                            let ended = forward.await;
                            ended.result.unwrap();
                            assert_eq!(ended.flow.bytes_out, 200_000 + before as u64 + 5, "by {route:?}");
                        } else {
                            while forward.flow().bytes_out < 200_000 + before as u64 + 5 {
                                assert!(poll_once(&mut forward).await.is_none());
                                turn().await;
                            }
                            settle(&runtime, &mut forward).await;
                        }
                        let (bytes, mut sink) = reader.join().unwrap();
                        let expected = [pattern(1, 200_000), pattern(2, before), b"after".to_vec()].concat();
                        assert!(bytes == expected, "by {route:?}");
                        drop(to);
                        assert_eq!(sink.read(&mut [0]).unwrap(), 0);
                    });
                }
            }
        }
    });
}

/// Urgent data into a pipe, and behind the end of the stream.
#[test]
fn bytes_behind_urgent_data_reach_a_pipe() {
    without_hanging(|| {
        for route in ROUTES {
            for ends in [false, true] {
                let (mut source, from) = tcp_pair();
                let (reader, writer) = std::io::pipe().unwrap();
                let (from, writer) = (net::TcpStream::from(from), Fd::new(writer.into()));
                let runtime = Runtime::new().unwrap();
                rustix::net::send(source.as_fd(), b"!", SendFlags::OOB).unwrap();
                source.write_all(b"after").unwrap();
                if ends {
                    source.shutdown(Shutdown::Write).unwrap();
                }
                runtime.block_on(async {
                    let mut forward = ops::forward(&from, &writer).route(route);
                    if ends {
                        forward.await.result.unwrap();
                    } else {
                        while forward.flow().bytes_out < 5 {
                            assert!(poll_once(&mut forward).await.is_none());
                            turn().await;
                        }
                        stays_pending(&mut forward, "the source has not ended").await;
                        settle(&runtime, &mut forward).await;
                    }
                });
                drop(writer);
                assert_eq!(read_to_end(reader).join().unwrap(), b"after", "by {route:?}");
            }
        }
    });
}
