//! Pages run out, for a moment or for long: nothing ends by it, nothing spins, and what waits goes on when one returns.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

use futures::stream::StreamExt;
use ringmain::{Driver, Fd, ops};

use crate::turns::{one_turn, poll_once, settled, sockets};
use crate::{all_free, each, rings, runtime};

fn submissions() -> u64 {
    Driver::current().metrics().submissions.get()
}

/// A group of one page, and a consumer that keeps it: a hundred writes wait in the socket.
#[test]
fn p02_a_stream_survives_that_its_only_page_is_held() {
    each(&[(4096, 1)], 1, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            let mut stream = ops::recv_multishot(&socket);
            peer.write_all(b"first").unwrap();
            let held = stream.next().await.unwrap().unwrap();
            let before = submissions();
            let mut sent = Vec::new();
            for at in 0..100u8 {
                peer.write_all(&[at; 16]).unwrap();
                sent.extend_from_slice(&[at; 16]);
                assert!(poll_once(&mut stream.next()).await.is_pending(), "there is no page for it");
            }
            assert_eq!(&held[..], b"first");
            drop(held);
            let mut received = Vec::new();
            while received.len() < sent.len() {
                received.extend_from_slice(&stream.next().await.unwrap().unwrap());
            }
            assert_eq!(received, sent);
            let used = submissions() - before;
            assert!(used < 20, "{used} entries for a hundred messages");
            drop(peer);
            assert!(stream.next().await.is_none());
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// Datagrams, each in a page of its own: all pages are held, and return together.
#[test]
fn p02_a_hundred_datagrams_after_exhaustion_take_less_than_twenty_entries() {
    each(&[(4096, 8)], 8, |runtime| {
        runtime.block_on(async {
            let (ours, theirs) = UnixDatagram::pair().unwrap();
            let socket = Fd::new(ours.into());
            let mut stream = ops::recv_multishot(&socket);
            let mut held = Vec::new();
            for at in 0..8u8 {
                theirs.send(&[at]).unwrap();
                held.push(stream.next().await.unwrap().unwrap());
            }
            theirs.send(&[8]).unwrap();
            assert!(poll_once(&mut stream.next()).await.is_pending());
            one_turn().await;
            let before = submissions();
            let mut expected = 8u8;
            let sender = std::thread::spawn(move || {
                for at in 9..108u8 {
                    theirs.send(&[at]).unwrap();
                }
                theirs
            });
            // The consumer is slow: it gives pages back when it has as many as there are.
            while expected < 108 {
                held.clear();
                while held.len() < 8 && expected < 108 {
                    let item = stream.next().await.unwrap().unwrap();
                    assert_eq!(&item[..], [expected]);
                    expected += 1;
                    held.push(item);
                }
            }
            let used = submissions() - before;
            println!("{used} entries for a hundred datagrams");
            assert!(used < 20, "{used} entries for a hundred datagrams");
            drop(sender.join().unwrap());
        });
    });
}

/// While all pages are gone the driver sleeps; a page that another thread drops wakes it.
#[test]
fn p02_a_page_that_another_thread_returns_wakes_a_driver_that_sleeps() {
    each(&[(4096, 1)], 1, |runtime| {
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            peer.write_all(b"first").unwrap();
            let held = ops::recv_lent(&socket).await.unwrap().unwrap();
            peer.write_all(b"second").unwrap();
            let mut second = ops::recv_lent(&socket);
            assert!(poll_once(&mut second).await.is_pending());
            one_turn().await;
            one_turn().await;
            let enters = Driver::current().metrics().enters.get();
            let (asleep, wake) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                wake.recv().unwrap();
                // The more often it sleeps first the better is what follows tested; it holds in any case.
                std::thread::yield_now();
                drop(held);
            });
            asleep.send(()).unwrap();
            let second = second.await.unwrap().unwrap();
            assert_eq!(&second[..], b"second");
            let entered = Driver::current().metrics().enters.get() - enters;
            assert!(entered < 10, "{entered} enters to wait for one page: it does not spin");
            other.join().unwrap();
        });
    });
}

/// Many that wait, few pages: each gets its turn, and none is lost though some of them go.
#[test]
fn many_receives_share_few_pages() {
    each(&[(4096, 2)], 2, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let pairs: Vec<_> = (0..32).map(|_| sockets()).collect();
            let mut receives: Vec<_> = pairs.iter().map(|(socket, _)| ops::recv_lent(socket)).collect();
            for receive in &mut receives {
                assert!(poll_once(receive).await.is_pending());
            }
            one_turn().await;
            let held: Vec<_> = {
                for (at, (_, peer)) in pairs.iter().enumerate() {
                    (&*peer).write_all(&[at as u8; 8]).unwrap();
                }
                let mut held = Vec::new();
                while held.len() < 2 {
                    let (done, at, _) = futures::future::select_all(receives.iter_mut()).await;
                    drop(receives.remove(at));
                    held.push(done.unwrap().unwrap());
                }
                held
            };
            // A third of those that wait go.
            let mut count = 0;
            receives.retain(|_| {
                count += 1;
                count % 3 != 0
            });
            let left = receives.len();
            drop(held);
            let mut got = 0;
            while !receives.is_empty() {
                let (done, at, _) = futures::future::select_all(receives.iter_mut()).await;
                drop(receives.remove(at));
                let page = done.unwrap().unwrap();
                assert_eq!(page.len(), 8);
                got += 1;
            }
            assert_eq!(got, left);
            drop(receives);
            settled().await;
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// The pages are somebody else's when the group is made: it begins without any, and waits for them.
#[test]
fn a_group_that_finds_no_page_when_it_is_made_waits_for_one() {
    let runtime = runtime(&[(4096, 2)], 2);
    runtime.block_on(async {
        let registry = Driver::current().registry().clone();
        let all = registry.try_lease(8192).unwrap();
        let (socket, mut peer) = sockets();
        peer.write_all(b"waits").unwrap();
        let mut receive = ops::recv_lent(&socket);
        assert!(poll_once(&mut receive).await.is_pending());
        one_turn().await;
        assert!(poll_once(&mut receive).await.is_pending());
        drop(all);
        assert_eq!(&receive.await.unwrap().unwrap()[..], b"waits");
    });
}

/// What waits for pages is first come, first served, also between the program and a group.
#[test]
fn a_program_that_waits_for_pages_is_not_passed_by_a_group() {
    let runtime = runtime(&[(4096, 1)], 1);
    runtime.block_on(async {
        let registry = Driver::current().registry().clone();
        let (socket, mut peer) = sockets();
        peer.write_all(b"first").unwrap();
        let held = ops::recv_lent(&socket).await.unwrap().unwrap();
        let mut lease = registry.lease(4096);
        assert!(poll_once(&mut lease).await.is_pending());
        peer.write_all(b"second").unwrap();
        let mut receive = ops::recv_lent(&socket);
        assert!(poll_once(&mut receive).await.is_pending());
        one_turn().await;
        drop(held);
        let page = lease.await.unwrap();
        one_turn().await;
        assert!(poll_once(&mut receive).await.is_pending());
        drop(page);
        assert_eq!(&receive.await.unwrap().unwrap()[..], b"second");
    });
}

/// A read that fails can have used a buffer up: all pages of the registry, one after the other, and more than once.
#[test]
fn p01_reads_that_fail_with_a_page_in_hand_cost_none() {
    for (count, pages) in [(2, 2), (1, 1), (1, 3), (3, 5)] {
        rings::each_with(
            |config| config.pages(pages).lent([(4096, count)]),
            |runtime| {
                let registry = runtime.driver().registry().clone();
                runtime.block_on(async {
                    // Nothing is mapped at address 0, so that reading there fails, when the buffer has been chosen.
                    let memory = Fd::new(std::fs::File::open("/proc/self/mem").unwrap().into());
                    let (socket, mut peer) = sockets();
                    for _ in 0..20 {
                        let error = ops::read_lent(&memory).await.unwrap_err();
                        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
                    }
                    peer.write_all(b"still").unwrap();
                    assert_eq!(&ops::recv_lent(&socket).await.unwrap().unwrap()[..], b"still");
                    settled().await;
                    let now = registry.snapshot();
                    assert!(now.pages_free + now.pages_lent == now.pages_total, "{now:?}");
                    assert!(now.pages_lent <= usize::from(count), "{now:?}");
                });
                drop(runtime);
                assert!(all_free(&registry), "{registry:?}");
            },
        );
    }
}
