//! What tests of life and limits do with a runtime: one poll, one turn, and ends of which the test keeps the other.

#![allow(dead_code, reason = "each test target takes from it what it needs")]

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Poll;

use ringmain::{Driver, Fd, ops};

/// Poll a future once, as the task that calls this.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// One turn of the ring: what was queued before it is with the kernel after it.
pub(crate) async fn one_turn() {
    ops::nop().await.expect("nothing can go wrong with nothing");
}

/// Turn until the kernel has let go of everything.
pub(crate) async fn settled() {
    while Driver::current().operations_active() > 0 {
        one_turn().await;
    }
}

/// A pipe whose reading end is the runtime's. It blocks, as a pipe that somebody else made does.
pub(crate) fn pipe() -> (Fd, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    (Fd::new(reader.into()), writer)
}

/// Two connected stream sockets, the first one the runtime's.
pub(crate) fn sockets() -> (Fd, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("there are descriptors");
    (Fd::new(OwnedFd::from(ours)), theirs)
}
