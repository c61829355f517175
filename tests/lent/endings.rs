//! Futures and streams are dropped, cancelled, leaked, and their runtime ends: pages come back, and nothing is lost that
//! was not given up.

use std::io::Write;

use futures::stream::StreamExt;
use ringmain::{Driver, ops};

use crate::turns::{one_turn, pipe, poll_once, settled, sockets};
use crate::{all_free, each, runtime};

const SIZES: &[(u32, u16)] = &[(4096, 2)];

/// I1, I4: the kernel has the buffers of a group, whatever becomes of the futures that were described with it.
#[test]
fn a_dropped_lent_receive_keeps_its_page_with_the_kernel() {
    each(SIZES, 4, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            let mut receive = ops::recv_lent(&socket);
            assert!(poll_once(&mut receive).await.is_pending());
            one_turn().await;
            drop(receive);
            assert_eq!(registry.snapshot().pages_free, 2, "the group's buffers are not free");
            // What the program can lease is not what the kernel fills.
            let mut lease = registry.try_lease(8192).unwrap();
            lease.as_capacity_mut().fill(7);
            lease.set_len(8192);
            peer.write_all(&[9; 4096]).unwrap();
            settled().await;
            let mut receive = ops::recv_lent(&socket);
            peer.write_all(&[9; 4096]).unwrap();
            while poll_once(&mut receive).await.is_pending() {
                one_turn().await;
            }
            assert!(lease.iter().all(|byte| *byte == 7));
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

#[test]
fn cancelling_a_receive_loses_nothing() {
    each(SIZES, 4, |runtime| {
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            let mut receive = ops::recv_lent(&socket);
            assert!(poll_once(&mut receive).await.is_pending());
            one_turn().await;
            // It may have won already, and does not know it yet.
            peer.write_all(b"early").unwrap();
            let text = match receive.cancel().await {
                Ok(page) => page.expect("it is not the end").to_vec(),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::CANCELED.raw_os_error()));
                    ops::recv_lent(&socket).await.unwrap().unwrap().to_vec()
                }
            };
            assert_eq!(text, b"early");
            // Before it was ever polled, and when the kernel has it and nothing comes.
            assert!(ops::recv_lent(&socket).cancel().await.is_err());
            let mut receive = ops::recv_lent(&socket);
            assert!(poll_once(&mut receive).await.is_pending());
            one_turn().await;
            assert!(receive.cancel().await.is_err());
        });
    });
}

#[test]
fn cancelling_a_stream_yields_what_has_come_and_ends() {
    each(&[(4096, 4)], 16, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            for _ in 0..10 {
                let (socket, mut peer) = sockets();
                let mut stream = ops::recv_multishot(&socket);
                assert!(poll_once(&mut stream.next()).await.is_pending());
                one_turn().await;
                peer.write_all(b"come").unwrap();
                one_turn().await;
                stream.cancel();
                let mut text = Vec::new();
                let mut errors = Vec::new();
                while let Some(item) = stream.next().await {
                    match item {
                        Ok(piece) => text.extend_from_slice(&piece),
                        Err(error) => errors.push(error.raw_os_error()),
                    }
                }
                assert!(text == b"come" || text.is_empty(), "{text:?}");
                assert_eq!(errors, [Some(rustix::io::Errno::CANCELED.raw_os_error())]);
                if text.is_empty() {
                    assert_eq!(&ops::recv_lent(&socket).await.unwrap().unwrap()[..], b"come");
                }
            }
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// With the driver, with the stream leaked, and with items that nobody took.
#[test]
fn a_runtime_that_ends_takes_its_lent_pages_back() {
    each(&[(4096, 8)], 32, |runtime| {
        let registry = runtime.driver().registry().clone();
        let kept = runtime.block_on(async {
            let (socket, mut peer) = sockets();
            let (reader, writer) = pipe();
            let mut leaked = ops::recv_multishot(&socket);
            let mut kept = ops::read_multishot(&reader).incremental();
            let mut single = ops::read_lent(&reader);
            assert!(poll_once(&mut leaked.next()).await.is_pending());
            assert!(poll_once(&mut kept.next()).await.is_pending());
            assert!(poll_once(&mut single).await.is_pending());
            one_turn().await;
            peer.write_all(b"nobody takes it").unwrap();
            one_turn().await;
            one_turn().await;
            std::mem::forget(leaked);
            assert!(registry.snapshot().pages_free < 24);
            (kept, single, peer, writer)
        });
        drop(runtime);
        drop(kept);
        // What was leaked holds its item, and the page in it.
        let counts = registry.snapshot();
        assert!(counts.pages_total - counts.pages_free <= 1, "{counts:?}");
    });
}

#[test]
fn a_page_outlives_the_runtime_that_received_it() {
    let (page, registry) = {
        let runtime = runtime(SIZES, 4);
        let page = runtime.block_on(async {
            let (socket, mut peer) = sockets();
            peer.write_all(b"outlives").unwrap();
            ops::recv_lent(&socket).await.unwrap().unwrap()
        });
        (page, runtime.driver().registry().clone())
    };
    assert_eq!(&page[..], b"outlives");
    assert_eq!(registry.snapshot().pages_free, 3);
    drop(page);
    assert!(all_free(&registry));
}

/// When its last handle goes, a stream on a connection ends, though nobody polls it.
#[test]
fn a_stream_ends_with_the_last_handle_of_its_socket() {
    each(SIZES, 4, |runtime| {
        runtime.block_on(async {
            let (socket, peer) = sockets();
            let mut stream = ops::recv_multishot(&socket);
            assert!(poll_once(&mut stream.next()).await.is_pending());
            one_turn().await;
            drop(socket);
            while let Some(item) = stream.next().await {
                let errno = item.unwrap_err().raw_os_error();
                assert_eq!(errno, Some(rustix::io::Errno::CANCELED.raw_os_error()));
            }
            drop(stream);
            settled().await;
            assert_eq!(Driver::current().operations_active(), 0);
            drop(peer);
        });
    });
}
