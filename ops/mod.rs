//! The vocabulary: one operation, one file, all of them safe code.
//!
//! Each function makes a [`Submission`](crate::Submission) of the operation of the same name. Nothing happens before
//! it is polled; then the runtime owns the operation and all its memory until the kernel has let go of it, and hands
//! both the result and the buffers back.
//!
//! | operation | moves | returns | cancel-safe? | since Linux | file |
//! |---|---|---|---|---|---|
//! | [`nop()`] | nothing | `()` | yes | 5.1 | `nop.rs` |
//! | [`read()`], [`read_at`] | descriptor to buffer | [`BufResult`] | a stream's bytes go with a dropped buffer | 5.6 | `read.rs` |
//! | [`write()`], [`write_at`] | buffer to descriptor | [`BufResult`] | a dropped one may have written | 5.6 | `write.rs` |
//! | [`readv()`], [`readv_at`] | descriptor to buffers | [`BufResult`] of a `Vec` | as `read` | 5.1 | `readv.rs` |
//! | [`writev()`], [`writev_at`] | buffers to descriptor | [`BufResult`] of a `Vec` | as `write` | 5.1 | `writev.rs` |
//! | [`read_fixed()`], [`read_fixed_at`] | descriptor to registered pages | [`BufResult`] | as `read` | 5.1 | `read_fixed.rs` |
//! | [`write_fixed()`], [`write_fixed_at`] | registered pages to descriptor | [`BufResult`] | as `write` | 5.1 | `write_fixed.rs` |
//! | [`readv_fixed()`], [`readv_fixed_at`] | descriptor to registered pages | [`BufResult`] of a `Vec` | as `read` | 6.15, else `readv` | `readv_fixed.rs` |
//! | [`writev_fixed()`], [`writev_fixed_at`] | registered pages to descriptor | [`BufResult`] of a `Vec` | as `write` | 6.15, else `writev` | `writev_fixed.rs` |
//! | [`recv()`] | socket to buffer | [`BufResult`] | as `read` | 5.6 | `recv.rs` |
//! | [`recv_lent`], [`recv_lent_sized`] | socket to a lent page | the page, or `None` at the end | as `read` | 5.19 | `recv_lent.rs` |
//! | [`read_lent`], [`read_lent_sized`] | pipe to a lent page | as `recv_lent` | as `read` | 5.19 | `read_lent.rs` |
//! | [`recv_multishot()`] | socket to lent pages | a stream of pages | as `read`; `cancel()` loses nothing | 6.0 | `recv_multishot.rs` |
//! | [`read_multishot()`] | pipe to lent pages | a stream of pages | as `recv_multishot` | 6.7 | `read_multishot.rs` |
//! | [`recvmsg_multishot()`] | messages to lent pages | a stream of [`Message`]s | as `recv_multishot` | 6.0 | `recvmsg_multishot.rs` |
//! | [`send()`] | buffer to socket | [`BufResult`] | as `write` | 5.6 | `send.rs` |
//! | [`peek()`] | socket to buffer, and the bytes stay | [`BufResult`] | yes | 5.6 | `peek.rs` |
//! | [`peek_at_least`] | as `peek`, until so many are there | [`BufResult`] | yes | 5.13 | `peek.rs` |
//! | [`send_zc()`], [`send_vectored_zc`] | pages to socket | the count, then [`Released`] | as `write` | 6.0, else a plain send | `send_zc.rs` |
//! | [`poll()`], [`readable`], [`writable`] | nothing | the events | yes | 5.1 | `poll.rs` |
//! | [`accept()`] | a connection | a descriptor | yes: a connection taken for nobody is closed | 5.5 | `accept.rs` |
//! | [`accept_multishot`] | connections | a stream of descriptors | yes: those taken for nobody are closed | 5.19, else accepts | `accept_multishot.rs` |
//! | [`connect()`] | nothing | `()` | the socket is unusable after a dropped one | 5.5 | `connect.rs` |
//! | [`shutdown()`] | nothing | `()` | may have happened | 5.11 | `shutdown.rs` |
//! | [`open()`] | nothing | a descriptor | yes: what was opened for nobody is closed | 5.6 | `open.rs` |
//! | [`close()`] | nothing | `()` | it is closed in any case | 5.6 | `close.rs` |
//! | [`fsync()`] | nothing | `()` | yes | 5.1 | `fsync.rs` |
//! | [`read_exact`], [`recv_exact`] and kin | as `read`, to the end of the buffer | [`BufResult`] | no; `cancel()` tells the count | as its steps | `exact.rs` |
//! | [`write_all`], [`send_all`] and kin | as `write`, all of the buffer | [`BufResult`] | no; `cancel()` tells the count | as its steps | `exact.rs` |
//! | [`pipe`], [`pipe_sized`] | nothing | both ends | no future | system call | `pipe.rs` |
//! | [`splice()`] | pages between a pipe and anything | the count | inline yes; in the ring `cancel()` tells the count | 5.7 | `splice.rs` |
//! | [`splice_exact`] | as `splice`, to the last byte asked for | a result and the count | no; `cancel()` tells the count | as its steps | `splice_exact.rs` |
//! | [`tee()`] | nothing: pages are shared between two pipes | the count | as `splice` | 5.8 | `tee.rs` |
//! | [`relay()`], [`forward`] | a stream to a stream, both ways or one | both counts | `cancel()` hands back what is inside, to be resumed | as its steps | `relay/` |
//!
//! Versions are those of `io_uring_enter(2)`; the runtime asks the kernel itself and never compares versions.
//!
//! What is common to all of them:
//! * An error carries the kernel's errno unchanged, and the buffers come back with it.
//! * `EAGAIN` is no error here: the runtime waits until the descriptor is ready and tries again.
//! * A read into a buffer without capacity is `InvalidInput`, so that 0 always means the end.
//! * The descriptor stays open until the operation is over, whatever becomes of the handle.

#![forbid(unsafe_code)]

use std::io;

// Descriptors that hold memory's way in and out, then those that make and end descriptors, then what is built of them.
mod accept;
mod accept_multishot;
mod arrivals;
mod close;
mod connect;
mod exact;
pub mod fs;
mod fsync;
mod in_flight;
mod message;
pub mod net;
mod nop;
mod open;
mod peek;
mod pipe;
mod poll;
mod read;
mod read_fixed;
mod read_lent;
mod read_multishot;
mod readv;
mod readv_fixed;
mod recv;
mod recv_lent;
mod recv_multishot;
mod recvmsg_multishot;
mod relay;
mod route;
mod send;
mod send_zc;
mod shutdown;
mod splice;
mod splice_exact;
mod tee;
mod write;
mod write_fixed;
mod writev;
mod writev_fixed;

pub use accept::{Accept, accept};
pub use accept_multishot::{Incoming, accept_multishot};
pub use close::{Close, close};
pub use connect::{Connect, connect};
pub use exact::{
    Exact, ExactCancel, ReadExact, RecvExact, SendAll, Step, WriteAll, read_exact, read_exact_at, recv_exact, send_all,
    write_all, write_all_at,
};
pub use fsync::{Fsync, fsync};
pub use in_flight::InFlight;
pub use message::Message;
pub use nop::{Nop, nop};
pub use open::{Open, open};
pub use peek::{Peek, PeekAtLeast, peek, peek_at_least};
pub use pipe::{PipeReader, PipeWriter, pipe, pipe_sized};
pub use poll::{PollOnce, poll, readable, writable};
pub use read::{Read, read, read_at};
pub use read_fixed::{FixedBytes, FixedSource, ReadFixed, read_fixed, read_fixed_at};
pub use read_lent::{ReadLent, read_lent, read_lent_sized};
pub use read_multishot::{ReadMultishot, read_multishot};
pub use readv::{Readv, readv, readv_at};
pub use readv_fixed::{ReadvFixed, readv_fixed, readv_fixed_at};
pub use recv::{Recv, recv};
pub use recv_lent::{RecvLent, recv_lent, recv_lent_sized};
pub use recv_multishot::{RecvMultishot, recv_multishot};
pub use recvmsg_multishot::{RecvmsgMultishot, recvmsg_multishot};
pub use relay::{
    Flow, Forward, Forwarded, HalfClose, Limits, LiveFlow, Relay, RelayRoute, Relayed, Residue, RouteReason, Stopped,
    StoppedForward, forward, relay,
};
pub use route::{End, Route, Transfer};
pub use send::{Send, send};
pub use send_zc::{Parts, Payload, Released, SendZc, send_vectored_zc, send_zc};
pub use shutdown::{Shutdown, shutdown};
pub use splice::{Splice, splice};
pub use splice_exact::{SpliceExact, splice_exact};
pub use tee::{Tee, tee};
pub use write::{Write, write, write_at};
pub use write_fixed::{WriteFixed, write_fixed, write_fixed_at};
pub use writev::{Writev, writev, writev_at};
pub use writev_fixed::{WritevFixed, writev_fixed, writev_fixed_at};

/// `(result, buffer)`: what came of an operation, and the buffer that went with it, whatever came of it.
pub type BufResult<B, T = usize> = (io::Result<T>, B);
