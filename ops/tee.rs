//! `tee`: let a second pipe have the bytes of a first one, without consuming them and without a copy.

use std::io;
use std::os::fd::AsFd;

use super::pipe::{PipeReader, PipeWriter};
use super::route::{End, Transfer};
use crate::runtime::{Completion, Encoded, FdHold, Operation, SpliceFlags, Sqe};

/// `tee(from, to, len)`: let the pipe `to` share up to `len` bytes from the head of the pipe `from`.
///
/// Nothing is consumed: the same bytes are still to be read, or spliced on, from `from`, and a second tee starts at
/// the same head. It resolves with how many bytes are shared now, which is all that may then be taken from `from`
/// without losing some for `to`. 0 is the end of the input: it is empty and has no writer.
///
/// # Cancel safety
/// As for [`splice`](super::splice()): inline, nothing is shared unreported.
///
/// # Errors
/// * both ends are one pipe -> `InvalidInput`, saying so
/// * the reader of `to` has gone -> `EPIPE`
///
/// # Kernel
/// `IORING_OP_TEE` since 5.8, for the ring route only.
///
/// # Examples
/// ```
/// use ringmain::{Runtime, ops};
///
/// let runtime = Runtime::new()?;
/// let (source, feed) = ops::pipe()?;
/// let (branch, into_branch) = ops::pipe()?;
/// runtime.block_on(async {
///     ops::write(&feed, b"both".to_vec()).await.0?;
///     assert_eq!(ops::tee(&source, &into_branch, 64).await?, 4);
///     let (_, from_branch) = ops::read(&branch, Vec::with_capacity(8)).await;
///     let (_, from_source) = ops::read(&source, Vec::with_capacity(8)).await;
///     assert_eq!((&from_branch[..], &from_source[..]), (&b"both"[..], &b"both"[..]));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nothing but pipes can be teed, so nothing else is taken:
/// ```compile_fail,E0308
/// # use ringmain::ops;
/// let file = ops::fs::File::from(std::fs::File::open("Cargo.toml")?);
/// let (_reader, writer) = ops::pipe()?;
/// let transfer = ops::tee(&file, &writer, 64);
/// # Ok::<(), std::io::Error>(())
/// ```
/// ```compile_fail,E0308
/// # use ringmain::ops;
/// let (reader, _writer) = ops::pipe()?;
/// let (socket, _peer) = ops::net::UnixStream::pair()?;
/// let transfer = ops::tee(&reader, &socket, 64);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// `tee(2)`; `io_uring/splice.c`.
pub fn tee(from: &PipeReader, to: &PipeWriter, len: usize) -> Transfer<Tee> {
    let once = Tee { from: from.as_ref().hold(), to: to.as_ref().hold(), len };
    let transfer = Transfer::new(once, End::from(from), End::from(to));
    if from.is_same_pipe(to) {
        return transfer.refuse(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the input and the output of this tee are the two ends of one pipe; tee needs two pipes",
        ));
    }
    transfer
}

/// One tee as it goes to the kernel.
#[derive(Clone, Debug)]
pub struct Tee {
    from: FdHold,
    to: FdHold,
    len: usize,
}

impl Operation for Tee {
    type Output = io::Result<usize>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.tee(self.from.as_fd(), self.to.as_fd(), self.len, SpliceFlags::NONBLOCK)
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result().map(|count| count as usize)
    }
}
