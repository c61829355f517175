//! Limits, time, half-close, counters, and the ways to stop and to go on.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringmain::ops::{self, HalfClose, Limits, LiveFlow, RelayRoute, Residue, RouteReason, net};
use ringmain::{Config, Runtime};

use crate::ROUTES;
use crate::peers::{
    fill, pattern, poll_once, read_to_end, stays_pending, tcp_pair, tcp_pair_with_a_small_window, turn,
    without_hanging, write_and_close,
};

fn runtime() -> Runtime {
    Runtime::builder().config(Config::default().pipe_size(64 * 1024)).build().unwrap()
}

#[test]
fn a_limit_in_bytes_is_exact_and_the_sink_is_told_of_no_end() {
    without_hanging(|| {
        for route in ROUTES {
            for limit in [0, 1, 4095, 100_000] {
                let ((mut source, from), (to, mut sink)) = (tcp_pair(), tcp_pair());
                source.write_all(&pattern(limit, 100_001)).unwrap();
                let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
                let runtime = runtime();
                let reader = std::thread::spawn(move || {
                    let mut bytes = vec![0; limit as usize];
                    sink.read_exact(&mut bytes).unwrap();
                    sink.set_nonblocking(true).unwrap();
                    assert_eq!(sink.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "more, or an end");
                    (bytes, sink)
                });
                let ended = runtime.block_on(ops::forward(&from, &to).route(route).limit(Limits::new().bytes(limit)));
                ended.result.unwrap();
                assert_eq!((ended.flow.bytes_in, ended.flow.bytes_out), (limit, limit), "by {route:?}");
                assert!(ended.flow.has_reached_limit && !ended.flow.is_finished && ended.stopped.is_none());
                assert!(reader.join().unwrap().0 == pattern(limit, 100_001)[..limit as usize]);
                // What was not to be taken is still there.
                let (count, rest) = runtime.block_on(ops::recv(&from, Vec::with_capacity(1)));
                assert_eq!(count.unwrap(), 1);
                assert_eq!(rest[0], pattern(limit, 100_001)[limit as usize]);
            }
        }
    });
}

#[test]
fn u04_a_rate_is_kept_without_being_busy() {
    without_hanging(|| {
        for route in ROUTES {
            let ((source, from), (to, sink)) = (tcp_pair(), tcp_pair());
            let (writer, reader) = (write_and_close(source, pattern(4, 60_000)), read_to_end(sink));
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let runtime = runtime();
            let begin = Instant::now();
            // A burst of 10,000, and then 100,000 in a second, in steps of 25 ms.
            let ended = runtime.block_on(ops::forward(&from, &to).route(route).limit(Limits::new().rate(100_000)));
            let took = begin.elapsed();
            ended.result.unwrap();
            drop(to);
            assert!(took >= Duration::from_millis(490), "60,000 bytes went in {took:?} by {route:?}");
            let metrics = runtime.driver().metrics();
            assert!(metrics.enters.get() < 400, "{} enters: it is busy waiting", metrics.enters.get());
            writer.join().unwrap();
            assert!(reader.join().unwrap() == pattern(4, 60_000));
        }
    });
}

#[test]
fn u04_what_a_rate_holds_back_is_not_taken_for_idleness() {
    without_hanging(|| {
        for route in ROUTES {
            let ((mut source, from), (to, _sink)) = (tcp_pair(), tcp_pair());
            source.write_all(b"few").unwrap();
            drop(source);
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            // A byte each 500 ms; a worker thread of a busy machine may take a while for it, too.
            let forward = ops::forward(&from, &to).route(route).limit(Limits::new().rate(2));
            let ended = runtime().block_on(forward.idle_timeout(Duration::from_millis(300)));
            assert!(ended.result.is_ok(), "{:?}, by {route:?}", ended);
            assert_eq!((ended.flow.bytes_out, ended.flow.hops), (3, 3), "by {route:?}");
        }
    });
}

#[test]
fn u04_an_idle_relay_ends_in_time_and_its_counts_are_exact() {
    without_hanging(|| {
        let ((mut client, a), (b, _server)) = (tcp_pair(), tcp_pair());
        client.write_all(b"hello").unwrap();
        let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
        let begin = Instant::now();
        let ended = runtime().block_on(ops::relay(&a, &b).idle_timeout(Duration::from_millis(100)));
        assert!(begin.elapsed() >= Duration::from_millis(100));
        assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!((ended.a_to_b.bytes_in, ended.a_to_b.bytes_out, ended.b_to_a.bytes_in), (5, 5, 0));
    });
}

#[test]
fn the_total_time_ends_a_relay_that_is_busy() {
    without_hanging(|| {
        let ((mut client, a), (b, mut server)) = (tcp_pair(), tcp_pair());
        let echo = std::thread::spawn(move || {
            let mut byte = [0];
            while server.read(&mut byte).is_ok_and(|count| count > 0) && server.write_all(&byte).is_ok() {}
        });
        let ping = std::thread::spawn(move || {
            let mut byte = [7];
            while client.write_all(&byte).is_ok() && client.read(&mut byte).is_ok_and(|count| count > 0) {}
        });
        let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
        let begin = Instant::now();
        let relay = ops::relay(&a, &b).idle_timeout(Duration::from_secs(60)).total_timeout(Duration::from_millis(100));
        let ended = runtime().block_on(relay);
        let error = ended.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("not done after"), "{error}");
        assert!(begin.elapsed() >= Duration::from_millis(100));
        assert!(ended.a_to_b.bytes_out > 0 && ended.stopped.is_some());
        drop((a, b));
        echo.join().unwrap();
        ping.join().unwrap();
    });
}

#[test]
fn a_half_close_can_end_both_directions_and_delivers_what_is_inside() {
    without_hanging(|| {
        for route in ROUTES {
            let ((mut client, a), (b, server)) = (tcp_pair(), tcp_pair());
            client.write_all(b"the last request").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let server = read_to_end(server);
            let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
            let ended = runtime().block_on(ops::relay(&a, &b).route(route).half_close(HalfClose::EndBoth));
            ended.result.unwrap();
            assert!(ended.a_to_b.is_finished && !ended.b_to_a.is_finished, "by {route:?}");
            assert_eq!(server.join().unwrap(), b"the last request");
        }
    });
}

#[test]
fn live_counters_are_seen_from_another_thread_and_stay_when_it_is_over() {
    without_hanging(|| {
        for route in ROUTES {
            let ((mut client, a), (b, mut server)) = (tcp_pair(), tcp_pair());
            let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
            let mut relay = ops::relay(&a, &b).route(route);
            let (up, down): (LiveFlow, LiveFlow) = relay.live();
            assert_eq!(up.flow().reason, RouteReason::Idle);
            let watched = up.clone();
            let client = std::thread::spawn(move || {
                client.write_all(&[1; 1000]).unwrap();
                let mut bytes = [0; 1000];
                server.read_exact(&mut bytes).unwrap();
                while watched.flow().bytes_out < 1000 {
                    std::thread::yield_now();
                }
                drop((client, server));
            });
            runtime().block_on(relay).result.unwrap();
            client.join().unwrap();
            let flow = up.flow();
            assert_eq!((flow.bytes_in, flow.bytes_out, flow.hops >= 1, down.flow().bytes_in), (1000, 1000, true, 0));
            let expected = match route {
                RelayRoute::Auto => (RelayRoute::Copy, RouteReason::SmallMessages),
                forced => (forced, RouteReason::Forced),
            };
            assert_eq!((flow.route, flow.reason), expected);
        }
    });
}

#[test]
fn a_relay_changes_its_route_with_its_bytes_and_says_so() {
    without_hanging(|| {
        let ((mut source, from), (to, mut sink)) = (tcp_pair(), tcp_pair());
        for stream in [&source, &from, &to, &sink] {
            stream.set_nodelay(true).unwrap();
        }
        let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
        let runtime = Runtime::new().unwrap();
        let mut forward = ops::forward(&from, &to);
        let mut exchange = |len: usize| {
            source.write_all(&vec![5; len]).unwrap();
            let mut left = len;
            let mut bytes = vec![0; 1 << 20];
            sink.set_nonblocking(true).unwrap();
            while left > 0 {
                runtime.block_on(async {
                    assert!(poll_once(&mut forward).await.is_none());
                    turn().await;
                });
                match sink.read(&mut bytes) {
                    Ok(count) => left -= count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            forward.flow()
        };
        for _ in 0..10 {
            exchange(100);
        }
        let flow = exchange(100);
        assert_eq!((flow.route, flow.reason, flow.hops_spliced), (RelayRoute::Copy, RouteReason::SmallMessages, 0));
        for _ in 0..20 {
            exchange(200_000);
        }
        let flow = exchange(200_000);
        assert_eq!((flow.route, flow.reason), (RelayRoute::Inline, RouteReason::Bulk), "{flow:?}");
        for _ in 0..30 {
            exchange(100);
        }
        let flow = exchange(100);
        assert_eq!((flow.route, flow.reason), (RelayRoute::Copy, RouteReason::SmallMessages), "{flow:?}");
        assert!((2..10).contains(&flow.switches), "{flow:?}");
    });
}

/// A relay whose sink is full, with bytes inside; and the two peers.
struct Stuck {
    a: net::TcpStream,
    b: net::TcpStream,
    relay: ops::Relay,
    client: std::thread::JoinHandle<()>,
    server: std::net::TcpStream,
}

const LEN: usize = 1 << 20;

async fn stuck(route: RelayRoute) -> Stuck {
    let (client, a) = tcp_pair();
    let (server, b) = tcp_pair_with_a_small_window();
    let client = write_and_close(client, pattern(33, LEN));
    let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
    let mut relay = ops::relay(&a, &b).route(route);
    let (mut seen, mut still) = (0, 0);
    while seen == 0 || still < 100 || relay.flows().0.inside() == 0 {
        assert!(poll_once(&mut relay).await.is_none());
        turn().await;
        let moved = relay.flows().0.bytes_in + relay.flows().0.bytes_out;
        still = if moved == seen { still + 1 } else { 0 };
        seen = moved;
    }
    Stuck { a, b, relay, client, server }
}

#[test]
fn a_cancelled_relay_hands_back_what_is_inside_and_goes_on_without_a_gap() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = runtime();
            runtime.block_on(async {
                let Stuck { a, b, relay, client, server } = stuck(route).await;
                let ended = relay.cancel().await;
                assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(125), "ECANCELED");
                assert!(ended.a_to_b.inside() > 0, "by {route:?}: {:?}", ended.a_to_b);
                // Nothing of it holds the streams.
                let (a, b) = (a.into_std().unwrap(), b.into_std().unwrap());
                let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
                let stopped = ended.stopped.expect("it has not come to its end");
                let mut relay = stopped.resume(&a, &b);
                assert_eq!(relay.flows().0, ended.a_to_b, "the counts go on");
                // Stopped again at once, it still loses nothing.
                let again = relay.cancel().await;
                assert_eq!(again.a_to_b.bytes_in, ended.a_to_b.bytes_in);
                relay = again.stopped.unwrap().resume(&a, &b);
                let reader = std::thread::spawn(move || {
                    let mut server = server;
                    let mut bytes = Vec::new();
                    server.read_to_end(&mut bytes).unwrap();
                    bytes
                });
                let ended = relay.await;
                ended.result.unwrap();
                assert_eq!((ended.a_to_b.bytes_in, ended.a_to_b.bytes_out), (LEN as u64, LEN as u64));
                client.join().unwrap();
                assert!(reader.join().unwrap() == pattern(33, LEN), "by {route:?}");
            });
        }
    });
}

#[test]
fn a_residue_is_what_was_taken_and_not_given() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = runtime();
            runtime.block_on(async {
                let Stuck { a, b, relay, client, server } = stuck(route).await;
                let ended = relay.cancel().await;
                let (up, down) = ended.stopped.unwrap().into_residues();
                assert!(down.is_none());
                let residue = up.expect("bytes are inside");
                assert_eq!(residue.len() as u64, ended.a_to_b.inside());
                let bytes = match residue {
                    Residue::Pipe(reader, count) => {
                        let (result, bytes) = ops::read_exact(&reader, vec![0; count]).await;
                        result.unwrap();
                        let (end, _) = ops::read(&reader, Vec::with_capacity(1)).await;
                        assert_eq!(end.unwrap(), 0, "and then it ends");
                        bytes
                    }
                    Residue::Bytes(bytes) => bytes,
                };
                drop(b);
                let mut server = server;
                let given = std::thread::spawn(move || {
                    let mut given = Vec::new();
                    server.read_to_end(&mut given).unwrap();
                    given
                });
                let given = given.join().unwrap();
                assert_eq!(given.len() as u64, ended.a_to_b.bytes_out);
                let whole = [given, bytes].concat();
                assert!(whole == pattern(33, LEN)[..whole.len()], "by {route:?}");
                let (result, rest) = ops::recv_exact(&a, vec![0; LEN - whole.len()]).await;
                result.unwrap();
                assert!(rest == pattern(33, LEN)[whole.len()..], "what was not taken is where it was");
                client.join().unwrap();
            });
        }
    });
}

#[test]
fn a_drained_relay_takes_no_more_and_delivers_the_rest() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = runtime();
            runtime.block_on(async {
                let Stuck { a, b, relay, client, server } = stuck(route).await;
                let before = relay.flows().0;
                let mut relay = relay.drain();
                stays_pending(&mut relay, "the sink is full").await;
                let mut server = server;
                let reader = std::thread::spawn(move || {
                    let mut bytes = Vec::new();
                    server.read_to_end(&mut bytes).unwrap();
                    bytes
                });
                let ended = relay.await;
                ended.result.unwrap();
                assert_eq!((ended.a_to_b.bytes_in, ended.a_to_b.inside()), (before.bytes_in, 0), "by {route:?}");
                assert!(!ended.a_to_b.is_finished, "the sink was told of no end");
                // And on from there.
                ended.stopped.unwrap().resume(&a, &b).await.result.unwrap();
                drop((a, b));
                client.join().unwrap();
                assert!(reader.join().unwrap() == pattern(33, LEN), "by {route:?}");
            });
        }
    });
}

#[test]
fn an_idle_relay_is_drained_at_once() {
    without_hanging(|| {
        let (_client, a) = UnixStream::pair().unwrap();
        let (b, _server) = UnixStream::pair().unwrap();
        let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
        Runtime::new().unwrap().block_on(async {
            let mut relay = ops::relay(&a, &b);
            stays_pending(&mut relay, "nobody has said anything").await;
            let ended = relay.drain().await;
            ended.result.unwrap();
            assert_eq!((ended.a_to_b.bytes_in, ended.b_to_a.bytes_in), (0, 0));
            let never_begun = ops::relay(&a, &b).drain().await;
            never_begun.result.unwrap();
        });
    });
}

#[test]
fn a_drain_that_takes_too_long_can_be_cancelled_and_limited() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = runtime();
            runtime.block_on(async {
                let Stuck { relay, client, server, a, b } = stuck(route).await;
                let mut relay = relay.drain();
                stays_pending(&mut relay, "the sink is full").await;
                let ended = relay.cancel().await;
                assert!(ended.result.is_err());
                let stopped = ended.stopped.unwrap();
                let mut relay = stopped.resume(&a, &b).total_timeout(Duration::from_millis(20)).drain();
                stays_pending(&mut relay, "the sink is full").await;
                let ended = relay.await;
                assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::TimedOut);
                assert!(ended.a_to_b.inside() > 0);
                drop((a, b, server));
                drop(ended.stopped);
                if client.join().is_err() {
                    println!("the client was cut off, as it had to be");
                }
            });
        }
    });
}

#[test]
fn a_failed_sink_leaves_what_it_did_not_take() {
    without_hanging(|| {
        for route in ROUTES {
            let (mut source, from) = UnixStream::pair().unwrap();
            let (to, sink) = UnixStream::pair().unwrap();
            sink.shutdown(Shutdown::Read).unwrap();
            source.write_all(b"unwanted").unwrap();
            let (from, to) = (net::UnixStream::from(from), net::UnixStream::from(to));
            let runtime = runtime();
            let ended = runtime.block_on(ops::forward(&from, &to).route(route));
            assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(ended.flow.inside(), 8);
            // It goes to somebody else.
            let (other, mut reader) = UnixStream::pair().unwrap();
            let other = net::UnixStream::from(other);
            drop(source);
            let ended = runtime.block_on(ended.stopped.unwrap().resume(&from, &other));
            ended.result.unwrap();
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text, "unwanted", "by {route:?}");
        }
    });
}

#[test]
fn a_relay_without_pipes_copies_all_the_same() {
    without_hanging(|| {
        let config = Config::default().pipes(1).pipe_size(64 * 1024);
        let runtime = Runtime::builder().config(config).build().unwrap();
        runtime.block_on(async {
            // The only pipe is held by somebody.
            let held = stuck(RelayRoute::Inline).await;
            let ((source, from), (to, sink)) = (tcp_pair(), tcp_pair());
            let (writer, reader) = (write_and_close(source, pattern(9, LEN)), read_to_end(sink));
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let ended = ops::forward(&from, &to).await;
            ended.result.unwrap();
            assert_eq!((ended.flow.hops_spliced, ended.flow.reason), (0, RouteReason::NoPipe));
            drop(to);
            writer.join().unwrap();
            assert!(reader.join().unwrap() == pattern(9, LEN));
            drop(held.relay);
            drop((held.a, held.b, held.server));
            if held.client.join().is_err() {
                println!("the client was cut off, as it had to be");
            }
        });
    });
}

#[test]
fn dropping_a_relay_gives_its_slots_and_its_page_back() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = runtime();
            runtime.block_on(async {
                let before = (runtime.driver().registry().snapshot().pages_free, runtime.driver().slots_used());
                for _ in 0..3 {
                    let Stuck { a, b, relay, client, server } = stuck(route).await;
                    drop(relay);
                    turn().await;
                    drop((a, b, server));
                    if client.join().is_err() {
                        println!("the client was cut off, as it had to be");
                    }
                }
                while runtime.driver().slots_used() > before.1 {
                    turn().await;
                }
                assert_eq!(runtime.driver().registry().snapshot().pages_free, before.0, "by {route:?}");
            });
        }
    });
}

#[test]
fn a_file_has_no_two_ways() {
    let file = ops::fs::File::from(tempfile::tempfile().unwrap());
    let (_client, a) = UnixStream::pair().unwrap();
    let a = net::UnixStream::from(a);
    let ended = Runtime::new().unwrap().block_on(ops::relay(&a, &file));
    let error = ended.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("use forward"), "{error}");
}

#[test]
fn a_sink_that_is_full_from_the_beginning_is_waited_for() {
    without_hanging(|| {
        for route in ROUTES {
            let (mut source, from) = UnixStream::pair().unwrap();
            let (to, mut sink) = UnixStream::pair().unwrap();
            let (from, to) = (net::UnixStream::from(from), net::UnixStream::from(to));
            let filled = fill(&to);
            source.write_all(b"at last").unwrap();
            drop(source);
            runtime().block_on(async {
                let mut forward = ops::forward(&from, &to).route(route);
                stays_pending(&mut forward, "the sink is full").await;
                sink.read_exact(&mut vec![0; filled]).unwrap();
                forward.await.result.unwrap();
            });
            let mut text = String::new();
            sink.read_to_string(&mut text).unwrap();
            assert_eq!(text, "at last", "by {route:?}");
        }
    });
}
