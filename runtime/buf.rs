//! Owned buffers: memory that an operation can take along, and what a completion may claim about it.
//!
//! An operation owns its buffer until its final completion (I1), so a buffer is a type that owns its bytes. Reading
//! from one is safe. Writing needs a promise that no compiler checks, which is [`IoBufMut`]: that its address stays,
//! and that the bytes counted as filled have been written. The second half is kept here as well: a [`Fill`] ties one
//! buffer to one operation, and lets nothing else say how many of its bytes are initialised (I3).
#![allow(unsafe_code, reason = "marks bytes that the kernel has written as initialised; nothing else does")]

#[cfg(test)]
mod tests;

use std::io;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::completion::Completion;
use super::registry::{FixedBuf, SharedBuf};

/// `IoBuf` - an owned buffer whose bytes an operation can send or write.
///
/// What moves is [`bytes`](Self::bytes), as it is when the operation starts. The operation owns the buffer until its
/// final completion and then gives it back, whatever the outcome.
///
/// # Examples
///
/// A type of one's own, in safe code:
///
/// ```
/// use ringmain::IoBuf;
///
/// struct Frame {
///     encoded: Vec<u8>,
/// }
///
/// impl IoBuf for Frame {
///     fn bytes(&self) -> &[u8] {
///         &self.encoded
///     }
/// }
///
/// let payload = Frame { encoded: b"\x05hello".to_vec() }.slice(1..);
/// assert_eq!(payload.bytes(), b"hello");
/// ```
pub trait IoBuf: 'static {
    /// `bytes()` - the bytes that are there to be sent: initialised, and no more than that.
    fn bytes(&self) -> &[u8];

    /// `slice(range)` - narrows the buffer to a range of it, for one operation.
    ///
    /// Bounds that lie behind the end are clamped to it: for what is sent, that is the end of
    /// [`bytes`](Self::bytes); for what is filled, the end of the capacity. See [`Slice`].
    ///
    /// With this trait in scope, `bytes.slice(range)` on a value of the `bytes` crate means this method, which keeps
    /// the whole; `Bytes::slice(&bytes, range)` means the other.
    ///
    /// # Panics
    ///
    /// If the range begins after its end, or ends or begins beyond what a `usize` can express.
    ///
    /// # Examples
    ///
    /// ```
    /// use ringmain::IoBuf;
    ///
    /// let slice = b"hello world".to_vec().slice(6..);
    /// assert_eq!(slice.bytes(), b"world");
    /// assert_eq!(slice.into_inner(), b"hello world");
    /// assert_eq!("short".slice(2..100).bytes(), b"ort");
    /// ```
    fn slice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.checked_add(1).expect("a slice begins at most at usize::MAX"),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.checked_add(1).expect("a slice ends at most at usize::MAX"),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => usize::MAX,
        };
        assert!(start <= end, "a slice begins at {start} but ends at {end}");
        Slice { inner: self, start, end }
    }
}

/// `IoBufMut` - an owned buffer that an operation can fill.
///
/// An operation fills it from the start of its [`region`](Self::region), up to the whole capacity, and sets the length
/// to what arrived. [`slice`](IoBuf::slice) narrows that.
///
/// # Safety
///
/// The kernel writes to the region without the type's knowledge. An implementation promises, for every value:
///
/// * The region is memory of that many bytes that may be written to, initialised or not. It stays so, and nothing
///   else reads or writes it, from the return of `region` for as long as the value is neither moved, used nor dropped -
///   however long that takes, and even if the value is leaked there. So it must not be shared with another value,
///   another thread or a global that could reach it.
/// * Calling `region` again before anything else is done to the value gives the same region, also when the value has
///   been moved between the calls; unless the value holds the bytes in itself, in which case the length is the same.
/// * `region` changes neither the bytes nor what [`bytes`](IoBuf::bytes) gives, and as many bytes as `bytes` has are
///   initialised at the start of the region, unless the region is shorter.
/// * `set_filled` makes no byte count as initialised that is neither named by its own contract nor initialised before.
pub unsafe trait IoBufMut: IoBuf {
    /// `region()` - the address of the first byte to fill and the number of bytes that may be filled.
    fn region(&mut self) -> (NonNull<u8>, usize);

    /// `set_filled(len)` - sets the length to the first `len` bytes of the region, which have been filled.
    ///
    /// A buffer whose length cannot change, such as `Box<[u8]>`, ignores it: there, only the result of the operation
    /// says how many bytes arrived.
    ///
    /// # Safety
    ///
    /// `len` is at most the length of the [`region`](Self::region), and its first `len` bytes are initialised.
    unsafe fn set_filled(&mut self, len: usize);
}

macro_rules! sends {
    ($($buffer:ty),* $(,)?) => {
        $(impl IoBuf for $buffer {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }
        })*
    };
}

sends!(Vec<u8>, Box<[u8]>, Arc<[u8]>, Rc<[u8]>, &'static [u8], &'static str, String, FixedBuf, SharedBuf);

impl<const N: usize> IoBuf for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: I1: a vector owns its allocation alone and touches it only when it is used; `capacity` bytes of it may be
// written. Tested by `a_filled_vector_shows_what_arrived_and_nothing_else`.
unsafe impl IoBufMut for Vec<u8> {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        let capacity = self.capacity();
        let start = NonNull::new(self.as_mut_ptr()).expect("a vector's pointer is never null");
        (start, capacity)
    }

    unsafe fn set_filled(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit a vector's capacity of {}", self.capacity());
        // SAFETY: I3: the caller promises that the first `len` bytes are initialised, and they fit, as asserted. Tested
        // by `a_filled_vector_shows_what_arrived_and_nothing_else`.
        unsafe { self.set_len(len) }
    }
}

// SAFETY: I1: a box owns its bytes alone, and all of them are initialised from the start. Tested by
// `a_filled_box_keeps_its_length`.
unsafe impl IoBufMut for Box<[u8]> {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }

    /// Does nothing: a boxed slice cannot shrink, and all its bytes are initialised.
    unsafe fn set_filled(&mut self, _len: usize) {}
}

// SAFETY: I4: a lease is the only way to its bytes, which stay where they are and mapped, and all of which are
// initialised. Tested by `f12_a_lease_fills_up_to_its_capacity_and_shows_the_last_count`.
unsafe impl IoBufMut for FixedBuf {
    #[inline]
    fn region(&mut self) -> (NonNull<u8>, usize) {
        let whole = self.as_capacity_mut();
        let capacity = whole.len();
        (NonNull::from(whole).cast(), capacity)
    }

    #[inline]
    unsafe fn set_filled(&mut self, len: usize) {
        self.set_len(len);
    }
}

#[cfg(feature = "bytes")]
sends!(bytes::Bytes, bytes::BytesMut);

// SAFETY: I1: a `BytesMut` shares its allocation, but never its range of it: others cannot reach its bytes or its
// spare capacity. Tested by `a_filled_bytes_mut_shows_what_arrived`.
#[cfg(feature = "bytes")]
unsafe impl IoBufMut for bytes::BytesMut {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        // The pointer to its bytes ends at its length. The spare capacity of an empty one is all of it.
        let len = self.len();
        self.clear();
        let whole = self.spare_capacity_mut();
        let capacity = whole.len();
        let start = NonNull::from(whole).cast();
        // SAFETY: I3: these bytes were initialised on entry and have not been touched since. Tested by
        // `a_filled_bytes_mut_shows_what_arrived`.
        unsafe { self.set_len(len) };
        (start, capacity)
    }

    unsafe fn set_filled(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes do not fit a capacity of {}", self.capacity());
        // SAFETY: I3: the caller promises that the first `len` bytes are initialised, and they fit, as asserted. Tested
        // by `a_filled_bytes_mut_shows_what_arrived`.
        unsafe { self.set_len(len) }
    }
}

/// `Slice` - a buffer narrowed to a range of it, by [`IoBuf::slice`].
///
/// *Sent*, it is the part of the range that lies within the buffer's bytes. *Filled*, it is the part that lies within
/// the buffer's capacity, and the buffer's length becomes the range's start plus the bytes that arrived: as always, the
/// length ends with what the last operation brought. If the buffer was shorter than the start of the range, the gap is
/// filled with zeros first, so that nothing uninitialised and nothing of an earlier user shows. An operation that fails
/// changes neither.
///
/// A slice of a slice is a range of that range, and cannot leave it.
///
/// # Examples
///
/// Continuing a partly filled buffer:
///
/// ```
/// use ringmain::IoBuf;
///
/// let head = b"GET / HT".to_vec();
/// let have = head.len();
/// let rest = head.slice(have..);
/// assert_eq!(rest.bytes(), b"", "nothing to send; a read continues behind what is there");
/// assert_eq!(rest.get_ref(), b"GET / HT");
/// ```
#[derive(Clone, Debug)]
pub struct Slice<B> {
    inner: B,
    /// As asked for: never after `end`, but maybe behind what the buffer has.
    start: usize,
    end: usize,
}

impl<B> Slice<B> {
    /// `into_inner()` - the whole buffer.
    pub fn into_inner(self) -> B {
        self.inner
    }

    /// `get_ref()` - the whole buffer, to look at.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// `start()` - where the range begins in the buffer, as asked for.
    pub fn start(&self) -> usize {
        self.start
    }

    /// `end()` - where the range ends in the buffer, as asked for; `usize::MAX` if it was left open.
    pub fn end(&self) -> usize {
        self.end
    }
}

impl<B: IoBuf> IoBuf for Slice<B> {
    fn bytes(&self) -> &[u8] {
        let all = self.inner.bytes();
        &all[self.start.min(all.len())..self.end.min(all.len())]
    }
}

// SAFETY: I1: the region is a part of the inner buffer's region, so its promise covers it. Tested by
// `f12_a_slice_fills_its_range_and_zeroes_the_gap_before_it`.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        let (base, capacity) = self.inner.region();
        let start = self.start.min(capacity);
        let end = self.end.min(capacity);
        // SAFETY: I1: `start` is clamped to the region, in which the offset stays. Tested by
        // `f07_a_slice_of_a_slice_cannot_leave_it`.
        let first = unsafe { base.add(start) };
        (first, end - start)
    }

    unsafe fn set_filled(&mut self, len: usize) {
        let known = self.inner.bytes().len();
        let (base, capacity) = self.inner.region();
        let start = self.start.min(capacity);
        let room = self.end.min(capacity) - start;
        assert!(len <= room, "{len} bytes do not fit a slice of {room}");
        if known < start {
            // SAFETY: I1: `known` is less than `start`, which is clamped to the region. Tested by
            // `f12_a_slice_fills_its_range_and_zeroes_the_gap_before_it`.
            let gap = unsafe { base.add(known) };
            // SAFETY: I1: the bytes from `known` to `start` lie in the region, which may be written to. Tested by
            // `f12_a_slice_fills_its_range_and_zeroes_the_gap_before_it`.
            unsafe { gap.write_bytes(0, start - known) };
        }
        // SAFETY: I3: the inner buffer is initialised up to `known`, with zeros from there to `start`, and the caller
        // promises the `len` bytes from there on, which lie in its region. Tested by
        // `f12_a_slice_fills_its_range_and_zeroes_the_gap_before_it`.
        unsafe { self.inner.set_filled(start + len) }
    }
}

/// Names one submission among all of the process: the ring, and its place among that ring's submissions (I3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) ring: u32,
    pub(crate) sequence: u64,
}

impl Ticket {
    /// Names no submission: for an operation that was refused before it got one.
    pub(crate) const NONE: Self = Self { ring: 0, sequence: 0 };
}

/// `Fill` - a buffer that one operation fills.
///
/// Operations of one's own keep the buffer to be filled in this. It lets bytes count as initialised only by the
/// completion of the very submission that was given its address; no count from elsewhere can do that, so that an
/// operation can be written in safe code.
///
/// # Examples
///
/// ```
/// use ringmain::Fill;
///
/// let mut fill = Fill::new(Vec::with_capacity(4096));
/// assert!(fill.capacity() >= 4096);
/// assert!(fill.into_inner().is_empty(), "nothing was read");
/// ```
#[derive(Debug)]
pub struct Fill<B> {
    buf: B,
    armed: Option<Armed>,
}

/// What the kernel was given: for which submission, how many bytes, and how many it fills elsewhere before these.
#[derive(Clone, Copy, Debug)]
struct Armed {
    ticket: Ticket,
    before: usize,
    len: usize,
}

impl<B: IoBufMut> Fill<B> {
    /// `new(buf)` - wraps the buffer.
    pub fn new(buf: B) -> Self {
        Self { buf, armed: None }
    }

    /// `capacity()` - the bytes that an operation may fill.
    pub fn capacity(&mut self) -> usize {
        self.buf.region().1
    }

    /// `into_inner()` - the buffer as it was, for an operation that did not take place.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// `finish(completion)` - the result, and the buffer with its length set to what arrived.
    ///
    /// An error leaves the buffer as it was.
    ///
    /// # Panics
    ///
    /// If the completion is of another submission than the one that was given this buffer.
    pub fn finish(self, mut completion: Completion) -> (io::Result<usize>, B) {
        let result = completion.result().map(|count| count as usize);
        let ticket = completion.ticket();
        self.finish_with(ticket, result)
    }

    /// `finish_all(fills, completion)` - the result of a vectored read, and its buffers, each with its share.
    ///
    /// # Panics
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_all(
        fills: impl IntoIterator<Item = Self>,
        mut completion: Completion,
    ) -> (io::Result<usize>, Vec<B>) {
        let result = completion.result().map(|count| count as usize);
        let ticket = completion.ticket();
        let count = *result.as_ref().unwrap_or(&0);
        let share = |fill: Self| {
            // What went to the buffers before this one and to it; those after it have the rest.
            let so_far = fill.armed.map_or(count, |armed| count.min(armed.before + armed.len));
            if result.is_ok() { fill.finish_with(ticket, Ok(so_far)).1 } else { fill.into_inner() }
        };
        let buffers = fills.into_iter().map(share).collect();
        (result, buffers)
    }

    /// Gives the address and length of the region to the submission that `ticket` names, which fills `before` bytes
    /// elsewhere before it comes to these.
    ///
    /// The region is valid until this value is next moved or used: until then the slot keeps it where it is (I1, I2).
    /// A buffer without room is refused, so that a count of 0 always means the end of the file.
    #[inline]
    pub(crate) fn arm(&mut self, ticket: Ticket, before: usize) -> io::Result<(NonNull<u8>, usize)> {
        let (start, len) = self.buf.region();
        if len == 0 {
            self.armed = None;
            let sentence = "the buffer has no room to read into; give it a capacity of at least one byte";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        }
        self.armed = Some(Armed { ticket, before, len });
        Ok((start, len))
    }

    /// Takes the result of the final completion of the submission that `ticket` names, and sets the buffer's length to
    /// its share of it.
    ///
    /// # Panics
    ///
    /// If another submission, or none, was given this buffer, or if its share is more than it was given (I3).
    pub(crate) fn finish_with(mut self, ticket: Ticket, result: io::Result<usize>) -> (io::Result<usize>, B) {
        let Ok(count) = result else {
            return (result, self.buf);
        };
        let Some(armed) = self.armed.take() else {
            panic!("the completion of {ticket:?} comes to a buffer that no submission was given");
        };
        assert!(armed.ticket == ticket, "the completion of {ticket:?} comes to the buffer of {:?}", armed.ticket);
        let share = count.saturating_sub(armed.before);
        assert!(share <= armed.len, "the kernel claims {share} bytes in a buffer of {}", armed.len);
        // SAFETY: I3: this completion is of the submission that was given this region, and the kernel reports `count`
        // bytes written, of which the first `before` went elsewhere and the rest to the start of this region, where
        // they fit, as asserted. Tested by `a_fill_believes_only_the_submission_that_it_was_given_to`.
        unsafe { self.buf.set_filled(share) };
        (Ok(count), self.buf)
    }
}
