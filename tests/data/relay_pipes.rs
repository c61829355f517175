//! The pipes of relays: none is used twice for two transfers' bytes, and none freezes the thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use ringmain::ops::{self, RelayRoute, Route, net};
use ringmain::{Config, Fd, Runtime};

use crate::peers::{
    fill, is_gone, poll_once, read_to_end, reset, stays_pending, tcp_pair, tcp_pair_with_a_small_window, turn,
    without_hanging, write_and_close,
};
use crate::rings;

const ROUTES: [RelayRoute; 4] = [RelayRoute::Auto, RelayRoute::Inline, RelayRoute::Ring, RelayRoute::Copy];

/// A peer that may be cut off: it writes until all is written or the connection has gone.
fn write_until_cut_off(mut stream: TcpStream, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    thread::spawn(move || match stream.write_all(&bytes) {
        Ok(()) => {}
        Err(error) => assert!(is_gone(&error), "{error}"),
    })
}

#[test]
fn t10_a_transfer_never_sees_the_bytes_of_the_one_before() {
    without_hanging(|| {
        for route in ROUTES {
            // One pipe in the pool: the second transfer would get the first one's.
            let config = Config::default().pipes(1).pipe_size(64 * 1024);
            let runtime = Runtime::builder().config(config).build().unwrap();
            let (source, from) = tcp_pair();
            let (mut client, to) = tcp_pair_with_a_small_window();
            let writer = write_until_cut_off(source, vec![b'1'; 1 << 20]);
            let client = thread::spawn(move || {
                client.read_exact(&mut vec![0; 100 * 1024]).unwrap();
                reset(client);
            });
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let ended = runtime.block_on(ops::forward(&from, &to).route(route));
            client.join().unwrap();
            let error = ended.result.unwrap_err();
            assert!(is_gone(&error), "{error}");
            assert!(ended.flow.bytes_in > ended.flow.bytes_out, "nothing was left behind: {:?}", ended.flow);
            // What is left of the first one has the pool's only pipe, with its bytes in it.
            let stopped = ended.stopped.expect("it has not come to its end");
            assert_eq!(stopped.into_residue().unwrap().len() as u64, ended.flow.inside());
            drop((from, to));
            writer.join().unwrap();

            let (source, from) = tcp_pair();
            let (client, to) = tcp_pair();
            let (writer, client) = (write_and_close(source, vec![b'2'; 1 << 20]), read_to_end(client));
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            let ended = runtime.block_on(ops::forward(&from, &to).route(route));
            ended.result.unwrap();
            let copied = match route {
                RelayRoute::Copy => ended.flow.hops,
                // Until it knows that bytes come in bulk.
                RelayRoute::Auto => 1,
                _ => 0,
            };
            assert_eq!(ended.flow.hops - ended.flow.hops_spliced, copied, "the pool has lost its only pipe");
            drop(to);
            writer.join().unwrap();
            assert!(client.join().unwrap() == vec![b'2'; 1 << 20], "by {route:?}");
        }
    });
}

#[test]
fn t33_a_blocking_stream_whose_peer_stops_reading_freezes_nothing() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (source, from) = tcp_pair();
            let (_stuck, to) = tcp_pair_with_a_small_window();
            let writer = write_until_cut_off(source, vec![b'-'; 8 << 20]);
            let (from, to) = (Fd::new(from.into()), Fd::new(to.into()));
            runtime.block_on(async {
                let mut relay = ops::relay(&from, &to);
                let mut still = 0;
                let mut seen = 0;
                // The peer reads nothing: what fits has moved when nothing moves any more.
                while seen == 0 || still < 200 {
                    assert!(poll_once(&mut relay).await.is_none(), "the peer has not read anything");
                    turn().await;
                    let moved = relay.flows().0.bytes_in + relay.flows().0.bytes_out;
                    still = if moved == seen { still + 1 } else { 0 };
                    seen = moved;
                }
                let metrics = runtime.driver().metrics();
                let tries = metrics.attempts.get() + metrics.submissions.get();
                stays_pending(&mut relay, "the peer has not read anything").await;
                assert_eq!(metrics.attempts.get() + metrics.submissions.get(), tries, "it spins");
                // A task beside it runs; its numbers can be asked for; it can be stopped, and dropped.
                assert_eq!(ringmain::spawn(async { 6 * 7 }).await.unwrap(), 42);
                assert!(relay.flows().0.bytes_in >= relay.flows().0.bytes_out);
                let ended = relay.cancel().await;
                assert_eq!(ended.a_to_b.hops_spliced, 0, "a blocking socket was spliced");
            });
            drop((from, to));
            writer.join().unwrap();
        });
    });
}

#[test]
fn t33_a_pipe_whose_splice_waits_can_be_asked_sized_and_closed() {
    without_hanging(|| {
        for (name, config) in rings::table() {
            for route in [Route::Auto, Route::Inline, Route::Ring] {
                let runtime = rings::build(&name, config.clone());
                let (_stuck, full) = tcp_pair_with_a_small_window();
                let (_silent, idle) = tcp_pair();
                let (full, idle) = (net::TcpStream::from(full), net::TcpStream::from(idle));
                fill(&full);
                let (reader, writer) = ops::pipe().unwrap();
                let (other_reader, other_writer) = ops::pipe().unwrap();
                rustix::io::write(&writer, b"waiting").unwrap();
                let mut into = ops::splice(&idle, &other_writer, 7).route(route);
                runtime.block_on(async {
                    let mut out = ops::splice(&reader, &full, 7).route(route);
                    stays_pending(&mut out, "the socket is full").await;
                    stays_pending(&mut into, "the socket is silent").await;
                    assert_eq!(rustix::io::ioctl_fionread(&reader).unwrap(), 7);
                    assert_eq!(writer.grow(128 * 1024).unwrap(), reader.size().unwrap());
                    rustix::io::write(&writer, b", and more").unwrap();
                    drop((reader, writer, other_reader, other_writer));
                    drop(out);
                    turn().await;
                });
                // The other one is in flight when the runtime ends.
                drop(runtime);
                drop(into);
            }
        }
    });
}

/// The same with a relay that splices, dropped at the moment in which its pipe is full.
#[test]
fn t33_a_relay_that_is_dropped_with_a_full_pipe_takes_no_time() {
    without_hanging(|| {
        for route in ROUTES {
            let runtime = Runtime::builder().config(Config::default().pipe_size(64 * 1024)).build().unwrap();
            let (mut source, from) = tcp_pair();
            let (_stuck, to) = tcp_pair_with_a_small_window();
            source.set_nonblocking(true).unwrap();
            let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
            runtime.block_on(async {
                let mut relay = ops::relay(&from, &to).route(route);
                while relay.flows().0.bytes_in < 1 + relay.flows().0.bytes_out {
                    // A full queue is as good: all that matters is that the sink is full in the end.
                    match source.write(&[b'-'; 4096]) {
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                    assert!(poll_once(&mut relay).await.is_none());
                    turn().await;
                }
                drop(relay);
                turn().await;
            });
            drop((from, to, runtime));
        }
    });
}
