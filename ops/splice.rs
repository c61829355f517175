//! `splice`: move bytes between a pipe and another file without a copy in user space.

use std::io;
use std::os::fd::AsFd;

use super::route::{End, Transfer};
use crate::runtime::{Completion, Encoded, FdHold, Operation, SpliceFlags, Sqe};

/// `splice(from, to, len)`: move up to `len` bytes, of which one end at least is a pipe.
///
/// Whole pages move by reference where they can. It resolves with what one step moved, which is often less than
/// `len`: what the input has, what the output has room for (a pipe's room is counted in slots, not bytes), one batch
/// of pages. 0 is the end of the input. Pages that came from a file *are* the file's page cache: overwrite the file
/// before they have been read at the far end, and the new bytes are what arrives. Where a snapshot is needed, read and
/// write instead. TCP stops a splice at urgent data (`MSG_OOB`) and never goes past it, and answers 0 there once the stream
/// has ended behind it: a receive goes past it. A [`relay`](super::relay()) does that by itself.
///
/// A file end without an offset uses and moves the file's cursor; [`End::at`] gives it one.
///
/// # Cancel safety
/// On the inline route nothing moves unreported. On the ring route (a file end, or [`Route::Ring`](super::Route)), a
/// dropped future may have moved bytes that nobody counts: cancel it instead, and await the count.
///
/// # Errors
/// * an offset for a pipe or socket -> `InvalidInput`, naming the side
/// * no end is a pipe, both ends are one pipe, an append-mode output, a file system without splice -> `EINVAL`
/// * a blocking socket -> `InvalidInput`
/// * the reader of the output has gone -> `EPIPE`
///
/// # Kernel
/// `IORING_OP_SPLICE` since 5.7, for the ring route only.
///
/// # Examples
/// A file into a pipe, and out of it:
/// ```
/// use ringmain::{Runtime, ops::{self, End}};
///
/// let runtime = Runtime::new()?;
/// let file = ops::fs::File::from(std::fs::File::open("Cargo.toml")?);
/// let (reader, writer) = ops::pipe()?;
/// runtime.block_on(async {
///     let moved = ops::splice(End::at(&file, 0), &writer, 9).await?;
///     let (count, text) = ops::read(&reader, Vec::with_capacity(9)).await;
///     assert_eq!((moved, count?, &text[..]), (9, 9, &b"[package]"[..]));
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `splice(2)`; `io_uring/splice.c`, `fs/splice.c`.
pub fn splice(from: impl Into<End>, to: impl Into<End>, len: usize) -> Transfer<Splice> {
    let (from, to) = (from.into(), to.into());
    let once = Splice {
        from: from.hold.clone(),
        from_offset: from.offset,
        to: to.hold.clone(),
        to_offset: to.offset,
        len,
        flags: SpliceFlags::NONBLOCK,
    };
    Transfer::new(once, from, to)
}

/// One splice as it goes to the kernel.
#[derive(Clone, Debug)]
pub struct Splice {
    from: FdHold,
    from_offset: Option<u64>,
    to: FdHold,
    to_offset: Option<u64>,
    len: usize,
    flags: SpliceFlags,
}

impl Splice {
    pub(super) fn between(from: End, to: End, len: usize) -> Self {
        Self {
            from: from.hold,
            from_offset: from.offset,
            to: to.hold,
            to_offset: to.offset,
            len,
            flags: SpliceFlags::NONBLOCK,
        }
    }
}

impl Transfer<Splice> {
    /// Say that more bytes will follow at once, so that a socket may hold back a partial segment for them. Said of the
    /// last bytes it delays them by up to 200 ms: only for what is known to be followed.
    pub fn more(mut self, more: bool) -> Self {
        self.once_mut().flags.set(SpliceFlags::MORE, more);
        self
    }
}

impl Operation for Splice {
    type Output = io::Result<usize>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.splice(self.from.as_fd(), self.from_offset, self.to.as_fd(), self.to_offset, self.len, self.flags)
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result().map(|count| count as usize)
    }
}
