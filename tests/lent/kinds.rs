//! Every kind of receive into lent memory brings what was sent, in order, and ends where it ends.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use futures::stream::StreamExt;
use ringmain::{Driver, Fd, ops};
use sha2::Digest;

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

/// From a socket to a file and from there to another socket, by the pages that the runtime began with: none is mapped or
/// registered on the way, and no other buffer is involved.
#[test]
fn from_a_socket_through_a_file_to_a_socket_no_page_is_mapped_or_registered() {
    through_a_file(8 << 20);
}

#[test]
#[ignore = "the long form, 1 GiB"]
fn from_a_socket_through_a_file_to_a_socket_no_page_is_mapped_or_registered_in_a_gibibyte() {
    through_a_file(1 << 30);
}

fn through_a_file(len: usize) {
    let runtime = runtime(&[(65_536, 8)], 1024);
    runtime.block_on(async {
        let registry = Driver::current().registry().clone();
        let (incoming, source) = tcp();
        let (outgoing, mut sink) = tcp();
        let sent = std::thread::spawn(move || {
            let (mut source, mut hash) = (source, sha2::Sha256::new());
            let mut left = len;
            let mut round = 0u64;
            while left > 0 {
                let piece: Vec<u8> = pattern(100_003).iter().map(|byte| byte ^ round as u8).collect();
                let piece = &piece[..left.min(piece.len())];
                hash.update(piece);
                source.write_all(piece).unwrap();
                left -= piece.len();
                round += 1;
            }
            hash.finalize()
        });
        let received = std::thread::spawn(move || {
            let mut hash = sha2::Sha256::new();
            let mut piece = vec![0; 1 << 16];
            loop {
                match sink.read(&mut piece).unwrap() {
                    0 => return hash.finalize(),
                    count => hash.update(&piece[..count]),
                }
            }
        });
        let file = Fd::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        // What there is to be set up is set up by the first piece.
        let mut pieces = ops::recv_multishot(&incoming).buffer_bytes(65_536);
        let mut at = 0;
        let mut before = None;
        while let Some(piece) = pieces.next().await {
            let counted = *before.get_or_insert_with(|| registry.snapshot());
            let piece = piece.unwrap();
            let len = piece.len();
            let (written, piece) = ops::write_fixed_at(&file, piece, at).await;
            assert_eq!(written.unwrap(), len);
            drop(piece);
            at += len as u64;
            let now = registry.snapshot();
            let mapped = |counts: ringmain::Snapshot| (counts.chunks_mapped, counts.registrations, counts.pages_total);
            assert_eq!(mapped(now), mapped(counted));
        }
        assert_eq!(at, len as u64);
        let counted = registry.snapshot();
        let mut from = 0;
        while from < at {
            let page = registry.lease(65_536).await.unwrap();
            let (read, page) = ops::read_fixed_at(&file, page, from).await;
            from += read.unwrap() as u64;
            let mut page = page;
            while !page.is_empty() {
                let (count, released) = ops::send_zc(&outgoing, page).await;
                page = released.await;
                drop(page.split_to(count.unwrap()));
            }
        }
        let now = registry.snapshot();
        assert_eq!((now.chunks_mapped, now.registrations), (counted.chunks_mapped, counted.registrations));
        drop(outgoing);
        assert!(sent.join().unwrap() == received.join().unwrap(), "the hashes differ");
    });
}

/// Two connected TCP sockets over loopback, the first one the runtime's.
fn tcp() -> (Fd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Fd::new(OwnedFd::from(listener.accept().unwrap().0)), theirs)
}
