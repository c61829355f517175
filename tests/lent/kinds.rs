//! Every kind of receive into lent memory brings what was sent, in order, and ends where it ends.

use std::io::Write;
use std::os::fd::OwnedFd;

use futures::stream::StreamExt;
use ringmain::{Driver, Fd, ops};

use crate::turns::{pipe, poll_once, sockets};
use crate::{all, all_free, each, feed, pattern, runtime};

const SIZES: &[(u32, u16)] = &[(4096, 8), (65_536, 2)];

#[test]
fn a_stream_of_receives_brings_every_byte_and_ends() {
    each(SIZES, 64, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let bytes = pattern(700_000);
            let (socket, peer) = sockets();
            let feeder = feed(peer, bytes.clone());
            assert!(all(ops::recv_multishot(&socket)).await == bytes);
            feeder.join().unwrap();
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

#[test]
fn a_stream_of_receives_into_large_or_incremental_buffers_or_bundles_brings_the_same() {
    each(SIZES, 96, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let bytes = pattern(700_000);
            for (incremental, bundled, size) in [
                (false, false, 5000),
                (true, false, 1),
                (true, false, 65_536),
                (false, true, 1),
                (false, true, 65_536),
                (true, true, 1),
                (true, true, 65_536),
            ] {
                println!("incremental: {incremental}, bundled: {bundled}, {size} bytes");
                let (socket, peer) = sockets();
                let feeder = feed(peer, bytes.clone());
                let mut stream = ops::recv_multishot(&socket).buffer_bytes(size);
                if incremental {
                    stream = stream.incremental();
                }
                if bundled {
                    stream = stream.bundled();
                }
                assert!(all(stream).await == bytes);
                feeder.join().unwrap();
            }
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

#[test]
fn a_stream_of_reads_of_a_pipe_brings_every_byte_and_ends() {
    each(SIZES, 96, |runtime| {
        let registry = runtime.driver().registry().clone();
        if !runtime.driver().setup().supports(ringmain::Opcode::ReadMultishot) {
            println!("SKIPPED: this kernel has no IORING_OP_READ_MULTISHOT");
            return;
        }
        runtime.block_on(async {
            let bytes = pattern(300_000);
            for incremental in [false, true] {
                let (reader, writer) = pipe();
                let feeder = feed(writer, bytes.clone());
                let mut stream = ops::read_multishot(&reader);
                if incremental {
                    stream = stream.incremental();
                }
                assert!(all(stream).await == bytes);
                feeder.join().unwrap();
            }
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

#[test]
fn single_receives_and_reads_hold_no_page_while_they_wait_and_end_with_none() {
    each(SIZES, 64, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            let (reader, mut writer) = pipe();
            let mut received = ops::recv_lent(&socket);
            let mut read = ops::read_lent(&reader);
            assert!(poll_once(&mut received).await.is_pending() && poll_once(&mut read).await.is_pending());
            ops::nop().await.unwrap();
            let group = Driver::current().buffer_group(1, false).unwrap();
            assert_eq!((group.available(), registry.snapshot().pages_lent), (8, 8), "nobody has a page of it");
            peer.write_all(b"socket").unwrap();
            writer.write_all(b"pipe").unwrap();
            let received = received.await.unwrap().expect("it has come");
            let read = read.await.unwrap().expect("it has come");
            assert_eq!((&received[..], &read[..]), (&b"socket"[..], &b"pipe"[..]));
            assert_eq!((group.available(), registry.snapshot().pages_leased), (8, 2), "what is taken is replaced");
            peer.write_all(&[7; 5000]).unwrap();
            let large = ops::recv_lent_sized(&socket, 5000).await.unwrap().unwrap();
            assert_eq!((&large[..], large.capacity()), (&[7; 5000][..], 65_536));
            drop((peer, writer));
            assert!(ops::recv_lent(&socket).await.unwrap().is_none());
            assert!(ops::read_lent(&reader).await.unwrap().is_none());
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// From a socket to a file: the page that came is written as it is, registered already.
#[test]
fn what_came_from_a_socket_is_written_to_a_file_without_a_copy() {
    let runtime = runtime(SIZES, 64);
    runtime.block_on(async {
        let bytes = pattern(100_000);
        let (socket, peer) = sockets();
        let feeder = feed(peer, bytes.clone());
        let file = tempfile::tempfile().unwrap();
        let copy = file.try_clone().unwrap();
        let file = Fd::new(OwnedFd::from(file));
        let mut pieces = ops::recv_multishot(&socket);
        let mut at = 0;
        while let Some(piece) = pieces.next().await {
            let piece = piece.unwrap();
            let len = piece.len();
            let (written, piece) = ops::write_fixed_at(&file, piece, at).await;
            assert_eq!(written.unwrap(), len);
            drop(piece);
            at += len as u64;
        }
        feeder.join().unwrap();
        let mut text = vec![0; bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&copy, &mut text, 0).unwrap();
        assert!(text == bytes);
    });
}
