//! The poll that stays armed while small messages are copied from a TCP socket: what it must not miss, and its end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use ringmain::ops::{self, Relay, RelayRoute, net};
use ringmain::{Config, Driver, Opcode, Runtime};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use crate::peers::{pattern, poll_once, reset, stays_pending, tcp_pair, turn, turns, without_hanging};

// `include/uapi/linux/io_uring.h`.
const POLL_ADD: u8 = 6;
const POLL_ADD_MULTI: u32 = 1;
const SPLICE: u8 = 30;
const CQE_F_MORE: u32 = 2;

/// A relay whose polls stay armed, its streams, and the two peers.
struct Armed {
    a: net::TcpStream,
    b: net::TcpStream,
    relay: Relay,
    client: TcpStream,
    server: TcpStream,
}

fn polls() -> u64 {
    Driver::current().metrics().submissions_of(Opcode::PollAdd)
}

fn prepare(relay: impl FnOnce(&net::TcpStream, &net::TcpStream) -> Relay) -> Armed {
    let (client, a) = tcp_pair();
    let (server, b) = tcp_pair();
    for stream in [&client, &server] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    for stream in [&a, &b] {
        stream.set_nonblocking(true).unwrap();
    }
    let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
    let relay = relay(&a, &b);
    Armed { a, b, relay, client, server }
}

async fn armed() -> Armed {
    let mut armed = prepare(ops::relay);
    for _ in 0..10 {
        armed.carry(b"there").await;
        armed.carry_back(b"and back").await;
    }
    armed
}

/// Read so many bytes while the relay goes on, which must not end meanwhile.
async fn expect(relay: &mut Relay, mut peer: impl Read, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        assert!(poll_once(relay).await.is_none(), "it ended after {filled} bytes of {len}");
        turn().await;
        match peer.read(&mut bytes[filled..]) {
            Ok(0) => panic!("the end came after {filled} bytes of {len}"),
            Ok(count) => filled += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    bytes
}

impl Armed {
    async fn carry(&mut self, bytes: &[u8]) {
        self.client.write_all(bytes).unwrap();
        assert_eq!(expect(&mut self.relay, &self.server, bytes.len()).await, bytes);
    }

    async fn carry_back(&mut self, bytes: &[u8]) {
        self.server.write_all(bytes).unwrap();
        assert_eq!(expect(&mut self.relay, &self.client, bytes.len()).await, bytes);
    }

    /// Send more than the sinks take, in both directions and by small messages, then take it out.
    async fn fill_up(&mut self) {
        let bytes = pattern(3, 1000);
        let mut written = [0; 2];
        for _ in 0..1000 {
            for (mut peer, written) in [&self.client, &self.server].into_iter().zip(&mut written) {
                *written += peer.write(&bytes).unwrap();
            }
            assert!(poll_once(&mut self.relay).await.is_none());
            turn().await;
        }
        // From both at once: a peer that takes nothing soon hears nothing either.
        let mut read = [0; 2];
        let mut room = [0; 4000];
        while read != written {
            assert!(poll_once(&mut self.relay).await.is_none());
            turn().await;
            for (mut peer, read) in [&self.server, &self.client].into_iter().zip(&mut read) {
                *read += peer.read(&mut room).unwrap_or(0);
            }
        }
    }
}

/// A runtime's body, which ends with no operation left.
fn run<F: Future<Output = ()>>(body: impl FnOnce() -> F + Send + 'static) {
    without_hanging(|| {
        Runtime::new().unwrap().block_on(async {
            body().await;
            while Driver::current().operations_active() > 0 || Driver::current().slots_used() > 0 {
                turn().await;
            }
        });
    });
}

#[test]
fn one_poll_waits_for_many_messages() {
    run(async || {
        let mut armed = armed().await;
        let before = polls();
        for len in 1..50 {
            armed.carry(&pattern(1, len)).await;
            armed.carry_back(&pattern(2, len * 100)).await;
        }
        assert!(polls() - before <= 2, "a poll each would be 98: {}", polls() - before);
    });
}

#[test]
fn a_unix_socket_is_waited_for_by_a_poll_each() {
    run(async || {
        let (mut client, a) = UnixStream::pair().unwrap();
        let (b, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
        let mut relay = ops::relay(&a, &b);
        for _ in 0..20 {
            let before = polls();
            // A receive never joins what two senders have written, and so stops short of what is there.
            let passed = rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            client.write_all(b"before").unwrap();
            send_with_descriptor(&client, b"with", &passed);
            client.write_all(b"behind").unwrap();
            assert_eq!(expect(&mut relay, &server, 16).await, b"beforewithbehind");
            assert!(polls() > before);
        }
    });
}

fn send_with_descriptor(socket: &UnixStream, bytes: &[u8], passed: &impl std::os::fd::AsFd) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let passed = [passed.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&passed)));
    let vectors = [std::io::IoSlice::new(bytes)];
    assert_eq!(rustix::net::sendmsg(socket, &vectors, &mut control, SendFlags::empty()).unwrap(), bytes.len());
}

#[test]
fn what_is_behind_urgent_data_arrives() {
    run(async || {
        let mut armed = armed().await;
        for round in 0..3 {
            // A receive stops short at the urgent byte, which is out of the stream, with no event for what is behind.
            armed.client.write_all(b"before").unwrap();
            rustix::net::send(&armed.client, b"!", SendFlags::OOB).unwrap();
            armed.client.write_all(b"behind").unwrap();
            assert_eq!(expect(&mut armed.relay, &armed.server, 12).await, b"beforebehind", "in round {round}");
        }
        let before = polls();
        for _ in 0..30 {
            armed.carry(b"no rule is believed twice").await;
        }
        assert!(polls() - before >= 30, "a poll each: {}", polls() - before);
    });
}

#[test]
fn a_message_as_large_as_the_room_is_no_proof_of_an_empty_source() {
    run(async || {
        for len in [65_535, 65_536, 65_537, 131_072] {
            let mut armed = armed().await;
            let bytes = pattern(len as u64, len);
            let mut written = 0;
            // All of it is there before the relay looks, as far as the socket has room.
            while let Ok(count) = armed.client.write(&bytes[written..]) {
                written += count;
                if written == len {
                    break;
                }
            }
            assert!(expect(&mut armed.relay, &armed.server, written).await == bytes[..written], "{len} bytes");
            for _ in 0..30 {
                armed.carry(b"small again").await;
            }
        }
    });
}

#[test]
fn a_splice_in_the_ring_is_no_proof_of_an_empty_source() {
    without_hanging(|| {
        let (runtime, script) = Runtime::builder().build_scripted().unwrap();
        let ((_source, from), (to, _sink)) = (tcp_pair(), tcp_pair());
        for stream in [&from, &to] {
            stream.set_nonblocking(true).unwrap();
        }
        let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
        runtime.block_on(async {
            let mut forward = ops::forward(&from, &to).route(RelayRoute::Ring);
            // A hop that fills the pipe, a source that is empty then, and small hops, each of which may have left something
            // behind urgent data, or because the pipe was full of small pieces.
            let again = -Errno::AGAIN.raw_os_error();
            for (round, taken) in [1 << 16, again].into_iter().chain([5; 40]).enumerate() {
                let hops = if taken > 0 { &[taken, taken][..] } else { &[taken] };
                for &count in hops {
                    loop {
                        assert!(poll_once(&mut forward).await.is_none());
                        turn().await;
                        let Some(pending) = script.pending().into_iter().next() else { continue };
                        let (key, entry) = (pending.entry.user_data, pending.entry);
                        if entry.opcode == SPLICE {
                            script.complete(key, count);
                            break;
                        }
                        assert_eq!(
                            (entry.opcode, entry.len),
                            (POLL_ADD, 0),
                            "asked whether there is something, in {round}"
                        );
                        script.complete(key, 1);
                    }
                }
            }
        });
    });
}

#[test]
fn a_poll_that_stays_armed_keeps_no_slot_from_its_own_direction() {
    without_hanging(|| {
        let config = Config::default().operations(2).ring_splices(1);
        Runtime::builder().config(config).build().unwrap().block_on(async {
            let mut armed = armed().await;
            for (stream, peer) in [(armed.a.as_fd(), &armed.client), (armed.b.as_fd(), &armed.server)] {
                sockopt::set_socket_send_buffer_size(stream, 32 * 1024).unwrap();
                sockopt::set_socket_recv_buffer_size(peer, 64 * 1024).unwrap();
            }
            for _ in 0..3 {
                assert_eq!(Driver::current().operations_active(), 2, "each direction waits by the poll that is armed");
                armed.fill_up().await;
                for _ in 0..60 {
                    armed.carry(b"small").await;
                    armed.carry_back(b"small").await;
                }
            }
        });
    });
}

#[test]
fn the_end_that_comes_with_the_last_bytes_is_not_missed() {
    run(async || {
        let Armed { a: _a, b: _b, mut relay, mut client, server } = armed().await;
        client.write_all(b"the last").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(expect(&mut relay, &server, 8).await, b"the last");
        while !matches!((&server).read(&mut [0]), Ok(0)) {
            assert!(poll_once(&mut relay).await.is_none(), "the other direction has not ended");
            turn().await;
        }
        (&server).write_all(b"answer").unwrap();
        assert_eq!(expect(&mut relay, &client, 6).await, b"answer");
        server.shutdown(Shutdown::Write).unwrap();
        let ended = relay.await;
        ended.result.unwrap();
        assert!(ended.a_to_b.is_finished && ended.b_to_a.is_finished && ended.stopped.is_none());
    });
}

#[test]
fn a_reset_ends_a_relay_that_waits() {
    run(async || {
        let Armed { a, b, mut relay, client, server: _server } = armed().await;
        stays_pending(&mut relay, "nothing has come").await;
        reset(client);
        let ended = relay.await;
        assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(a.into_std().is_ok() && b.into_std().is_ok(), "nothing of it holds the streams");
    });
}

#[test]
fn a_relay_that_waits_is_cancelled_and_resumed() {
    run(async || {
        let Armed { a, b, relay, client, server } = armed().await;
        let ended = relay.cancel().await;
        assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(Errno::CANCELED.raw_os_error()));
        // Nothing of it holds the streams.
        let (a, b) = (a.into_std().unwrap(), b.into_std().unwrap());
        let (a, b) = (net::TcpStream::from(a), net::TcpStream::from(b));
        let relay = ended.stopped.unwrap().resume(&a, &b);
        let mut armed = Armed { a, b, relay, client, server };
        for _ in 0..10 {
            armed.carry(b"goes on").await;
            armed.carry_back(b"both ways").await;
        }
    });
}

#[test]
fn a_relay_that_waits_is_drained() {
    run(async || {
        let Armed { a, b, mut relay, client: _client, server: _server } = armed().await;
        stays_pending(&mut relay, "nothing has come").await;
        relay.drain().await.result.unwrap();
        assert!(a.into_std().is_ok() && b.into_std().is_ok(), "nothing of it holds the streams");
    });
}

#[test]
fn dropping_a_relay_that_waits_loses_nothing_of_what_comes_then() {
    run(async || {
        let Armed { a, b: _b, mut relay, mut client, server: _server } = armed().await;
        stays_pending(&mut relay, "nothing has come").await;
        client.write_all(b"for whoever is next").unwrap();
        turns(3).await;
        drop(relay);
        let (count, bytes) = ops::recv(&a, Vec::with_capacity(64)).await;
        assert_eq!((count.unwrap(), &bytes[..]), (19, &b"for whoever is next"[..]));
    });
}

#[test]
fn a_relay_that_waits_ends_with_the_last_handle() {
    run(async || {
        let Armed { a, b: _b, mut relay, client: _client, server: _server } = armed().await;
        stays_pending(&mut relay, "nothing has come").await;
        drop(a);
        let ended = relay.await;
        assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(Errno::CANCELED.raw_os_error()));
    });
}

#[test]
fn both_directions_move_in_one_wake() {
    run(async || {
        let mut armed = armed().await;
        for _ in 0..20 {
            armed.client.write_all(b"up").unwrap();
            armed.server.write_all(b"down").unwrap();
            turn().await;
            assert_eq!(expect(&mut armed.relay, &armed.server, 2).await, b"up");
            assert_eq!(expect(&mut armed.relay, &armed.client, 4).await, b"down");
        }
    });
}

#[test]
fn a_sink_that_is_full_is_waited_for_while_more_comes() {
    run(async || {
        let mut armed = armed().await;
        let bytes = pattern(7, 64);
        let mut written = 0;
        // Small messages, until neither the relay nor the sockets take more.
        for _ in 0..200_000 {
            let Ok(count) = armed.client.write(&bytes[written % 64..]) else { break };
            written += count;
            if written.is_multiple_of(4096) {
                assert!(poll_once(&mut armed.relay).await.is_none());
                turn().await;
            }
        }
        let received = expect(&mut armed.relay, &armed.server, written).await;
        assert!(received.iter().enumerate().all(|(at, byte)| *byte == bytes[at % 64]), "{written} bytes");
        armed.carry_back(b"the other way").await;
    });
}

#[test]
fn a_source_that_was_silent_is_heard_again() {
    run(async || {
        let mut armed = armed().await;
        for _ in 0..2 {
            let before = polls();
            while polls() == before {
                assert!(poll_once(&mut armed.relay).await.is_none());
                ringmain::sleep(std::time::Duration::from_millis(1)).await;
            }
            for _ in 0..40 {
                armed.carry(b"after a silence").await;
                armed.carry_back(b"on both sides").await;
            }
            let before = polls();
            armed.carry(b"armed again").await;
            assert_eq!(polls(), before);
        }
    });
}

#[test]
fn polls_that_a_full_completion_queue_has_ended_are_armed_again() {
    without_hanging(|| {
        let runtime = Runtime::builder().config(Config::default().entries(8).completions(16)).build().unwrap();
        runtime.block_on(async {
            let mut all = Vec::new();
            for _ in 0..60 {
                all.push(armed().await);
            }
            for round in 0..20_u8 {
                for Armed { client, server, .. } in &mut all {
                    client.write_all(&[round; 100]).unwrap();
                    server.write_all(&[round; 50]).unwrap();
                }
                turn().await;
                for Armed { relay, client, server, .. } in &mut all {
                    assert_eq!(expect(relay, &*server, 100).await, [round; 100]);
                    assert_eq!(expect(relay, &*client, 50).await, [round; 50]);
                }
            }
        });
    });
}

#[test]
fn a_poll_that_the_kernel_ends_is_armed_again() {
    let (runtime, script) = Runtime::builder().build_scripted().unwrap();
    let (_source, from) = tcp_pair();
    let (to, _sink) = tcp_pair();
    let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
    runtime.block_on(async {
        let mut forward = ops::forward(&from, &to);
        let mut expected = 0;
        let mut armed = 0;
        for round in 0..20 {
            assert!(poll_once(&mut forward).await.is_none());
            turn().await;
            let poll = script.pending().into_iter().find(|pending| pending.entry.opcode == POLL_ADD).unwrap();
            let flags = if poll.entry.len == POLL_ADD_MULTI && round % 3 > 0 { CQE_F_MORE } else { 0 };
            armed += u32::from(poll.entry.len == POLL_ADD_MULTI);
            script.answer_attempt(10);
            script.answer_attempt(10);
            script.complete_with(poll.entry.user_data, 1, flags);
            expected += 10;
            turn().await;
            assert!(poll_once(&mut forward).await.is_none());
            assert_eq!(forward.flow().bytes_out, expected, "in round {round}");
        }
        assert!(armed > 10, "{armed}");
        let ended = {
            let mut forward = forward.cancel();
            assert!(poll_once(&mut forward).await.is_none(), "the kernel has its poll");
            turn().await;
            for pending in script.pending() {
                let result = if pending.entry.opcode == POLL_ADD { -Errno::CANCELED.raw_os_error() } else { 0 };
                script.complete(pending.entry.user_data, result);
            }
            forward.await
        };
        assert_eq!((ended.flow.bytes_in, ended.flow.inside()), (expected, 0));
    });
}
