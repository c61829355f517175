//! The seam: what an operation is.
//!
//! Everything below this trait (slots, ring, driver) knows no single operation; everything above it (`ops/`, and
//! operations written elsewhere) is safe code. An operation is a value that *owns* all that the kernel may touch,
//! and a pair of functions: [`encode`](Operation::encode) describes one submission by borrowing from that value,
//! [`decode`](Operation::decode) turns the completion into what the caller gets, buffer included.
//!
//! Why this is sound although both traits are safe to implement:
//! * the runtime picks `'op`, and [`Sqe`] is invariant in it, so `encode` can lend the kernel only what lives inside
//!   the operation, or for ever: no local, no borrowed slice, no guard of a lock;
//! * an `Sqe` is passed by value and each of its methods consumes it, so one `encode` makes one entry or none;
//! * the operation sits in its slot, untouched, from `encode` to the final completion;
//! * what a completion created (a descriptor) is owned by the [`Completion`], which closes it if nobody takes it.

use std::io;

use super::completion::Completion;
use super::sqe::{Encoded, EncodedMultishot, MultishotSqe, Sqe};

/// One operation with one result: a description that owns its buffers, and its two translations.
///
/// # Examples
/// An operation written outside the crate, in safe code: fill an array from a descriptor.
/// ```
/// use std::{io, os::fd::{AsFd, OwnedFd}};
/// use ringmain::{Completion, Encoded, Operation, Runtime, Sqe, Submission};
///
/// struct Take4 { from: OwnedFd, bytes: [u8; 4] }
///
/// impl Operation for Take4 {
///     type Output = io::Result<[u8; 4]>;
///     fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
///         sqe.read(self.from.as_fd(), &mut self.bytes[..], None)
///     }
///     fn decode(self, mut completion: Completion) -> Self::Output {
///         completion.result().map(|_| self.bytes)
///     }
/// }
///
/// let mut runtime = Runtime::new()?;
/// let (reader, mut writer) = std::io::pipe()?;
/// std::io::Write::write_all(&mut writer, b"ring")?;
/// let bytes = runtime.block_on(Submission::new(Take4 { from: reader.into(), bytes: [0; 4] }))?;
/// assert_eq!(&bytes, b"ring");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Operation: Sized + 'static {
    /// What the caller gets: by convention the result and every buffer that went in.
    type Output;

    /// Describe the one submission entry, lending the kernel what it may touch.
    ///
    /// Runs once, when the operation has reached its slot. An error here means that the kernel never saw the
    /// operation; the error comes back to [`decode`](Self::decode) as the completion's result.
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>>;

    /// Turn the final completion into the output.
    fn decode(self, completion: Completion) -> Self::Output;
}

/// One operation with many results, each an item of a stream.
///
/// Between items the kernel still holds the operation, so both functions see it by shared reference only: what it
/// lends is memory that the kernel reads, or none.
pub trait MultishotOperation: Sized + 'static {
    /// One result.
    type Item;

    /// Describe the one submission entry that answers many times.
    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>>;

    /// Turn one completion into an item.
    fn item(&self, completion: Completion) -> Self::Item;
}
