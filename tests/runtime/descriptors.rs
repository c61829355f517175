//! Numbers of descriptors: an operation never meets another file than the one it was given.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};

use futures::future::join_all;
use ringmain::ops;
use rustix::io::Errno;

use crate::turns::{one_turn, pipe, poll_once, settled, sockets};
use crate::{errno, rings};

#[test]
fn c13_a_queued_read_never_meets_the_next_file_of_its_number() {
    rings::each(|runtime| {
        let (fd, writer) = pipe();
        let number = fd.as_fd().as_raw_fd();
        runtime.block_on(async {
            let mut read = ops::read(&fd, Vec::with_capacity(16));
            assert!(poll_once(&mut read).await.is_pending());
            // Queued, and not with the kernel: the last handle goes, and others are opened at once.
            drop(fd);
            let others: Vec<_> = (0..8).map(|_| std::io::pipe().unwrap()).collect();
            for (reader, mut writer) in others {
                assert_ne!(reader.as_raw_fd(), number, "an operation still has that number");
                writer.write_all(b"another's").unwrap();
            }
            let (result, buffer) = read.await;
            assert_eq!((errno(result), buffer.len()), (Errno::CANCELED, 0));
        });
        drop(writer);
    });
}

#[test]
fn c13_the_last_handle_ends_what_is_pending_on_it() {
    rings::each(|runtime| {
        let (fd, mut peer) = sockets();
        let number = fd.as_fd().as_raw_fd();
        runtime.block_on(async {
            let mut reads: Vec<_> = (0..3).map(|_| ops::recv(&fd, Vec::with_capacity(16))).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            one_turn().await;
            let twin = fd.clone();
            drop(fd);
            assert!(poll_once(&mut reads[0]).await.is_pending(), "there is another handle");
            drop(twin);
            // The peer sees the end now, not when the kernel has let go.
            assert_eq!(std::io::Read::read(&mut peer, &mut [0]).unwrap(), 0);
            let (other, mut bait) = pipe();
            assert_ne!(other.as_fd().as_raw_fd(), number, "operations still have that number");
            bait.write_all(b"another's").unwrap();
            for (result, buffer) in join_all(reads).await {
                assert!(buffer.is_empty(), "bytes of another file");
                // Shut down before the cancel, a receive sees the end of the stream.
                assert!(matches!(result, Ok(0)) || errno(result) == Errno::CANCELED);
            }
            settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn c13_an_operation_that_was_never_polled_keeps_its_number() {
    rings::each(|runtime| {
        let (fd, mut writer) = pipe();
        let number = fd.as_fd().as_raw_fd();
        let read = ops::read(&fd, Vec::with_capacity(16));
        drop(fd);
        let (other, _bait) = pipe();
        assert_ne!(other.as_fd().as_raw_fd(), number);
        writer.write_all(b"its own").unwrap();
        let (result, buffer) = runtime.block_on(read);
        assert_eq!((result.unwrap(), &buffer[..]), (7, &b"its own"[..]));
    });
}
