//! Two ends and one `EAGAIN`: which of them is waited for, and that waiting costs nothing.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ringmain::ops::{self, Route, Transfer};
use ringmain::{Fd, Operation, Runtime};

use crate::peers::{drain, fill, stays_pending, without_hanging};
use crate::rings;

const ROUTES: [Route; 3] = [Route::Auto, Route::Inline, Route::Ring];

/// What a transfer may try, look at and wait for while it waits for one of its ends; a spinning one does so in each turn.
const TRIES_MAX: u64 = 12;

#[test]
fn t19_a_sink_that_is_always_ready_is_not_waited_for() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                let (reader, writer) = ops::pipe().unwrap();
                let sink = Fd::new(std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into());
                let metrics = runtime.driver().metrics();
                runtime.block_on(async {
                    let before = metrics.attempts.get() + metrics.submissions.get();
                    let mut transfer = ops::splice(&reader, &sink, 100).route(route);
                    stays_pending(&mut transfer, "the pipe is empty").await;
                    // Another reader is faster each time: the poll has seen bytes that the splice does not find.
                    for _ in 0..3 {
                        rustix::io::write(&writer, b"stolen").unwrap();
                        let stolen = drain(&reader);
                        if stolen.is_empty() {
                            // By the ring a worker of the kernel waits for the bytes, and was faster.
                            assert_eq!((route, transfer.await.unwrap()), (Route::Ring, 6));
                            return;
                        }
                        assert_eq!(stolen, b"stolen");
                        stays_pending(&mut transfer, "the pipe is empty again").await;
                    }
                    let tries = metrics.attempts.get() + metrics.submissions.get() - before;
                    assert!(tries <= 2 * TRIES_MAX, "it has spun: {tries} tries by {route:?}");
                    rustix::io::write(&writer, b"kept").unwrap();
                    assert_eq!(transfer.await.unwrap(), 4, "by {route:?}");
                });
            }
        });
    });
}

/// Which end is ready at first, and which becomes ready first if neither is.
#[derive(Clone, Copy, Debug)]
struct Case {
    source_ready: bool,
    sink_ready: bool,
    source_first: bool,
}

/// How the test makes an end ready: bytes into `feed`, or all bytes out of `out`, which come from `sink`.
struct Levers<'fd> {
    feed: BorrowedFd<'fd>,
    sink: BorrowedFd<'fd>,
    out: BorrowedFd<'fd>,
}

#[test]
fn t20_each_end_that_is_not_ready_is_waited_for_whichever_it_is() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                for bits in 0..8 {
                    let [source_ready, sink_ready, source_first] = [1, 2, 4].map(|bit| bits & bit != 0);
                    matrix(&runtime, route, Case { source_ready, sink_ready, source_first });
                }
            }
        });
    });
}

/// One case for each pair of kinds: pipe and pipe, socket and pipe, pipe and socket, and a tee.
fn matrix(runtime: &Runtime, route: Route, case: Case) {
    let (source, feed) = ops::pipe().unwrap();
    let (out, sink) = ops::pipe().unwrap();
    let (socket, peer) = ops::net::UnixStream::pair().unwrap();
    let from_pipe = Levers { feed: feed.as_fd(), sink: sink.as_fd(), out: out.as_fd() };
    case.play(runtime, &from_pipe, ops::splice(&source, &sink, 4).route(route), "pipe to pipe");
    drain(&out);
    case.play(runtime, &from_pipe, ops::tee(&source, &sink, 4).route(route), "tee");
    drain(&out);
    drain(&source);

    let from_socket = Levers { feed: peer.as_fd(), ..from_pipe };
    case.play(runtime, &from_socket, ops::splice(&socket, &sink, 4).route(route), "socket to pipe");

    let to_socket = Levers { feed: feed.as_fd(), sink: socket.as_fd(), out: peer.as_fd() };
    case.play(runtime, &to_socket, ops::splice(&source, &socket, 4).route(route), "pipe to socket");
}

impl Case {
    fn play<O>(self, runtime: &Runtime, levers: &Levers<'_>, mut transfer: Transfer<O>, name: &str)
    where
        O: Operation<Output = io::Result<usize>> + Clone + Unpin,
    {
        let feed = || assert_eq!(rustix::io::write(levers.feed, b"four"), Ok(4));
        // A worker that is late may put its bytes behind the others while those are taken out.
        let out = RefCell::new(Vec::new());
        let make_room = || out.borrow_mut().extend(drain(levers.out));
        let filling = if self.sink_ready { 0 } else { fill(levers.sink) };
        if self.source_ready {
            feed();
        }
        let metrics = runtime.driver().metrics();
        let tries = || metrics.attempts.get() + metrics.submissions.get();
        let before = tries();
        runtime.block_on(async {
            if !self.source_ready || !self.sink_ready {
                stays_pending(&mut transfer, name).await;
            }
            match (self.source_ready, self.sink_ready) {
                (true, true) => {}
                (true, false) => make_room(),
                (false, true) => feed(),
                (false, false) => {
                    let (first, second): (&dyn Fn(), &dyn Fn()) =
                        if self.source_first { (&feed, &make_room) } else { (&make_room, &feed) };
                    first();
                    stays_pending(&mut transfer, name).await;
                    second();
                }
            }
            assert_eq!(transfer.await.unwrap(), 4, "{name}, {self:?}");
        });
        assert!(tries() - before <= TRIES_MAX, "{name}, {self:?}: {} tries", tries() - before);
        make_room();
        assert_eq!(out.borrow()[filling..], b"four"[..], "{name}, {self:?}");
    }
}
