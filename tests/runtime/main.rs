//! The runtime on the kernel's own ring: what went wrong for others, by the names of the reports, under every ring
//! configuration of the table where the configuration can matter.

#[path = "../parked/mod.rs"]
mod parked;
#[path = "../rings/mod.rs"]
mod rings;

mod cancellation;
mod descriptors;
mod embedding;
mod limits;
mod pressure;
mod shutdown;

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Poll;

use ringmain::{Driver, Fd, ops};

/// Poll a future once, as the task that calls this.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// One turn of the ring: what was queued before it is with the kernel after it.
async fn one_turn() {
    ops::nop().await.expect("nothing can go wrong with nothing");
}

/// Turn until the kernel has let go of everything.
async fn settled() {
    while Driver::current().operations_active() > 0 {
        one_turn().await;
    }
}

/// A pipe whose reading end is the runtime's. It blocks, as a pipe that somebody else made does.
fn pipe() -> (Fd, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    (Fd::new(reader.into()), writer)
}

/// Two connected stream sockets, the first one the runtime's.
fn sockets() -> (Fd, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("there are descriptors");
    (Fd::new(OwnedFd::from(ours)), theirs)
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&result.expect_err("it should have failed")).expect("the kernel's errno is there")
}
