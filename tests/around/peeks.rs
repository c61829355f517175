//! A look takes nothing, and waiting for more to look at costs nothing.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::task::Poll;

use ringmain::net::{Family, Stream, UnixStream};
use ringmain::{Config, Driver, Fd, IoBuf, Runtime, ops};

use crate::turns::{one_turn, poll_once, settled};
use crate::{patiently, rings, tcp_pair};

/// One arrival is one look and its poll; a spinning wait makes more in a turn or two.
const SUBMISSIONS_PER_ARRIVAL: u64 = 6;

async fn take_all<F: Family>(stream: &Stream<F>, count: usize) -> Vec<u8> {
    let (result, bytes) = stream.recv_exact(Vec::with_capacity(count).slice(..count)).await;
    assert_eq!(result.unwrap(), count);
    bytes.into_inner()
}

#[test]
fn a_peek_describes_a_receive_that_leaves_the_bytes() {
    let (driver, script) = Driver::scripted(&Config::default()).unwrap();
    let entered = driver.enter();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&ours);
    let fd = Fd::new(ours.into());
    let mut peek = ops::peek(&fd, vec![0; 100].into_boxed_slice());
    let waker = std::task::Waker::noop();
    assert!(std::pin::Pin::new(&mut peek).poll(&mut std::task::Context::from_waker(waker)).is_pending());
    driver.turn(ringmain::Wait::No).unwrap();
    let entry = script.pending().iter().map(|pending| pending.entry).find(|entry| entry.opcode == 27).unwrap();
    assert_eq!((entry.fd, entry.len, entry.op_flags, entry.off, entry.flags, entry.ioprio), (number, 100, 2, 0, 0, 0));
    assert_eq!((entry.buf_index, entry.file_index), (0, 0));
    drop((peek, entered));
}

#[test]
fn a_peek_leaves_every_byte_for_the_receive() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = tcp_pair().await;
            client.send_all("abcdefgh").await.0.unwrap();
            for _ in 0..3 {
                let (count, first) = ops::peek(&server, vec![0; 4].into_boxed_slice()).await;
                assert_eq!((count.unwrap(), &first[..]), (4, &b"abcd"[..]));
            }
            assert_eq!(take_all(&server, 8).await, b"abcdefgh");
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(ops::peek(&server, vec![0; 4]).await.0.unwrap(), 0, "the end can be seen too");
        });
    });
}

#[test]
fn a_peek_waits_and_a_dropped_one_loses_nothing() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = UnixStream::pair().unwrap();
            let mut early = ops::peek(&server, vec![0; 8]);
            assert!(poll_once(&mut early).await.is_pending());
            one_turn().await;
            client.send_all("one").await.0.unwrap();
            let mut late = ops::peek(&server, vec![0; 8]);
            assert!(poll_once(&mut late).await.is_pending());
            drop((early, late));
            settled().await;
            let (count, seen) = ops::peek(&server, vec![0; 8]).await;
            assert_eq!((count.unwrap(), &seen[..]), (3, &b"one"[..]));
            let (cancelled, buffer) = ops::peek(&server, vec![7; 8]).cancel().await;
            assert_eq!(cancelled.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert_eq!(buffer, [7; 8], "the buffer comes back as it was");
            assert_eq!(take_all(&server, 3).await, b"one");
        });
    });
}

#[test]
fn a_peek_without_room_is_refused() {
    Runtime::new().unwrap().block_on(async {
        let (_client, server) = UnixStream::pair().unwrap();
        let (result, _) = ops::peek(&server, Vec::new()).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        let (result, buffer) = ops::peek_at_least(&server, vec![1; 4].into_boxed_slice(), 5).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(&buffer[..], [1; 4]);
    });
}

/// Send in pieces, with a look at how little the wait costs after each.
async fn wait_for_ten<F: Family>(mut client: Stream<F>, server: Stream<F>) {
    let driver = Driver::current();
    let submissions = &driver.metrics().submissions;
    let mut look = ops::peek_at_least(&server, Vec::with_capacity(64), 10);
    for piece in ["a", "bc", "def"] {
        client.send_all(piece).await.0.unwrap();
        let before = submissions.get();
        for _ in 0..50 {
            assert!(poll_once(&mut look).await.is_pending(), "ten bytes are not there yet");
            one_turn().await;
        }
        let made = submissions.get() - before - 50;
        assert!(made <= SUBMISSIONS_PER_ARRIVAL, "it spins: {made} submissions for {piece:?}");
    }
    client.send_all("ghijkl").await.0.unwrap();
    let (count, seen) = patiently("the look", look).await;
    assert_eq!((count.unwrap(), &seen[..]), (12, &b"abcdefghijkl"[..]));
    let server: F::StdStream = server.into_std().expect("nothing holds the socket");
    drop(server);
}

#[test]
fn waiting_for_more_to_peek_at_does_not_spin() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (client, server) = tcp_pair().await;
            wait_for_ten(client, server).await;
            let (client, server) = UnixStream::pair().unwrap();
            wait_for_ten(client, server).await;
        });
    });
}

#[test]
fn waiting_for_more_ends_with_the_peers_sending() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = tcp_pair().await;
            client.send_all("short").await.0.unwrap();
            let mut look = ops::peek_at_least(&server, Vec::with_capacity(64), 10);
            for _ in 0..5 {
                assert!(poll_once(&mut look).await.is_pending());
                one_turn().await;
            }
            client.shutdown(Shutdown::Write).unwrap();
            let (count, seen) = patiently("the look", look).await;
            assert_eq!((count.unwrap(), &seen[..]), (5, &b"short"[..]), "all that will ever be there");
            // And when the end is there from the start.
            let (count, seen) = patiently("the look", ops::peek_at_least(&server, seen, 10)).await;
            assert_eq!((count.unwrap(), &seen[..]), (5, &b"short"[..]));
            assert_eq!(take_all(&server, 5).await, b"short");
            assert_eq!(patiently("the look", ops::peek_at_least(&server, vec![0; 10], 10)).await.0.unwrap(), 0);
        });
    });
}

#[test]
fn a_reset_ends_the_wait_and_its_error_comes_behind_the_bytes() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = tcp_pair().await;
            client.send_all("short").await.0.unwrap();
            let mut look = ops::peek_at_least(&server, Vec::with_capacity(64), 10);
            for _ in 0..5 {
                assert!(poll_once(&mut look).await.is_pending());
                one_turn().await;
            }
            client.set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop(client);
            let (count, seen) = patiently("the look", look).await;
            assert_eq!((count.unwrap(), &seen[..]), (5, &b"short"[..]));
            assert_eq!(take_all(&server, 5).await, b"short");
            let (result, _) = patiently("the look", ops::peek_at_least(&server, seen, 10)).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        });
    });
}

#[test]
fn a_cancelled_wait_gives_the_buffer_back_and_takes_nothing() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = UnixStream::pair().unwrap();
            let buffer: Vec<u8> = Vec::with_capacity(64);
            let address = buffer.as_ptr().addr();
            let (result, buffer) = ops::peek_at_least(&server, buffer, 10).cancel().await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED), "one that was never polled");
            client.send_all("some").await.0.unwrap();
            for turns in 0..6 {
                let fresh: Vec<u8> = Vec::with_capacity(64);
                let mut look = ops::peek_at_least(&server, fresh, 10);
                for _ in 0..turns {
                    assert!(poll_once(&mut look).await.is_pending());
                    one_turn().await;
                }
                let (result, _) = patiently("the cancel", look.cancel()).await;
                match result {
                    Ok(count) => assert_eq!((count, turns), (4, 0), "success wins only a race"),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
                }
                let mut look = ops::peek_at_least(&server, Vec::with_capacity(64), 10);
                for _ in 0..turns {
                    assert!(matches!(poll_once(&mut look).await, Poll::Pending));
                    one_turn().await;
                }
                drop(look);
                settled().await;
            }
            assert_eq!(buffer.as_ptr().addr(), address);
            assert_eq!(take_all(&server, 4).await, b"some");
        });
    });
}

#[test]
fn dropping_the_last_handle_ends_a_waiting_peek() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = tcp_pair().await;
            client.send_all("some").await.0.unwrap();
            let mut look = ops::peek_at_least(&server, vec![0; 64], 10);
            for _ in 0..5 {
                assert!(poll_once(&mut look).await.is_pending());
                one_turn().await;
            }
            drop(server);
            let (result, _) = patiently("the look", look).await;
            // What the shutdown shows and what the cancel says race.
            if let Err(error) = result {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            }
        });
    });
}
