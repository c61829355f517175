//! Registered bytes that several holders read.

use std::fmt;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::sync::Arc;

use super::fixed_buf::FixedBuf;
use super::ledger::Hold;
use super::segment::Segment;

/// `SharedBuf` - frozen bytes of a [`Registry`](super::Registry): read-only, with any number of holders.
///
/// Made by [`FixedBuf::freeze`]. It derefs to its bytes. Cloning, [slicing](Self::slice) and splitting copy nothing and
/// can be done on any thread; one received page can so be written to many descriptors at once, each write with a
/// clone of its own.
///
/// All parts of what was one lease hold all pages of that lease, however small they are: its pages are free when the
/// last part is gone. [Split](FixedBuf::split_to) a lease before freezing it where the parts live for different times.
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let registry = ringmain::Registry::new(1)?;
/// let mut lease = registry.try_lease(100).expect("the page is free");
/// lease.as_capacity_mut()[..11].copy_from_slice(b"hello world");
/// lease.set_len(11);
///
/// let whole = lease.freeze();
/// let world = whole.clone().slice(6..);
/// assert_eq!((&whole[..], &world[..]), (&b"hello world"[..], &b"world"[..]));
///
/// let whole = whole.try_into_exclusive().expect_err("there are two holders");
/// drop(world);
/// let lease = whole.try_into_exclusive().expect("there is one");
/// assert_eq!((&lease[..], lease.capacity()), (&b"hello world"[..], 100));
/// # Ok(())
/// # }
/// ```
///
/// Nobody can write to it:
///
/// ```compile_fail,E0596
/// # fn attempt(mut shared: ringmain::SharedBuf) {
/// shared[0] = 1;
/// # }
/// ```
#[derive(Clone)]
pub struct SharedBuf {
    owner: Owner,
    /// Within what the owner has.
    bytes: Range<usize>,
}

/// What keeps the bytes where they are, and from being written to.
#[derive(Clone)]
enum Owner {
    Lease(Arc<Segment>),
    /// Bytes that lie in a registry, and whose own owner is a lease of it.
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

impl SharedBuf {
    /// Freezes a lease of which the first `len` bytes are visible.
    pub(super) fn freeze(mut segment: Segment, len: usize) -> Self {
        segment.set_hold(Hold::Frozen);
        Self { owner: Owner::Lease(Arc::new(segment)), bytes: 0..len }
    }

    /// `slice(range)` - narrows it to a range of its bytes, and takes it along; [clone](Clone::clone) it first to keep
    /// the whole as well.
    ///
    /// # Panics
    ///
    /// If the range begins after its end or ends beyond the last byte.
    #[must_use = "a slice is the only holder of what it was taken from, unless that was cloned"]
    pub fn slice(mut self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.checked_add(1).expect("a slice begins at most at usize::MAX"),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.checked_add(1).expect("a slice ends at most at usize::MAX"),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "the range {start}..{end} leaves a buffer of {} bytes", self.len());
        self.bytes = self.bytes.start + start..self.bytes.start + end;
        self
    }

    /// `split_off(at)` - cuts it in two: this one keeps the first `at` bytes, the other has the rest.
    ///
    /// Both then hold the pages of the whole.
    ///
    /// # Panics
    ///
    /// If `at` is more than the length.
    #[must_use = "the bytes behind the cut are let go when the returned part is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let rest = self.clone().slice(at..);
        self.bytes.end = self.bytes.start + at;
        rest
    }

    /// `split_to(at)` - cuts it in two: the other has the first `at` bytes, this one keeps the rest.
    ///
    /// # Panics
    ///
    /// If `at` is more than the length.
    #[must_use = "the bytes before the cut are let go when the returned part is dropped"]
    pub fn split_to(&mut self, at: usize) -> Self {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// `unsplit(next)` - joins what follows this one in the same lease to it.
    ///
    /// # Errors
    ///
    /// Both come back as they were if they are not parts of one frozen lease, or `next` does not begin where this one
    /// ends.
    pub fn unsplit(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.bytes.end != next.bytes.start || !self.owner.is_same(&next.owner) {
            return Err((self, next));
        }
        Ok(Self { bytes: self.bytes.start..next.bytes.end, owner: self.owner })
    }

    /// `try_into_exclusive()` - the lease again, if this is its only holder.
    ///
    /// Its visible bytes are these; its capacity reaches to the end of what was frozen. What lay before these bytes is
    /// given back.
    ///
    /// # Errors
    ///
    /// It comes back if there are other holders, or if it was made from a `bytes::Bytes`, whose holders are not known.
    pub fn try_into_exclusive(self) -> Result<FixedBuf, Self> {
        let Self { owner, bytes } = self;
        #[cfg_attr(
            not(feature = "bytes"),
            expect(clippy::infallible_destructuring_match, reason = "only with bytes are there two")
        )]
        let lease = match owner {
            Owner::Lease(lease) => lease,
            #[cfg(feature = "bytes")]
            Owner::Bytes(_) => return Err(Self { owner, bytes }),
        };
        match Arc::try_unwrap(lease) {
            Ok(mut segment) => {
                segment.set_hold(Hold::Exclusive);
                let mut lease = FixedBuf::new(segment);
                drop(lease.split_to(bytes.start));
                lease.set_len(bytes.len());
                Ok(lease)
            }
            Err(lease) => Err(Self { owner: Owner::Lease(lease), bytes }),
        }
    }

    fn as_slice(&self) -> &[u8] {
        &self.owner.bytes()[self.bytes.clone()]
    }
}

impl Owner {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lease(lease) => lease.bytes(),
            #[cfg(feature = "bytes")]
            Self::Bytes(bytes) => bytes,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Lease(one), Self::Lease(other)) => Arc::ptr_eq(one, other),
            #[cfg(feature = "bytes")]
            _ => false,
        }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<FixedBuf> for SharedBuf {
    fn from(lease: FixedBuf) -> Self {
        lease.freeze()
    }
}

#[cfg(feature = "bytes")]
impl From<SharedBuf> for bytes::Bytes {
    /// Nothing is copied; the pages are free when the last part of the `Bytes` is gone.
    fn from(shared: SharedBuf) -> Self {
        match shared {
            SharedBuf { owner: Owner::Bytes(owner), bytes } => owner.slice(bytes),
            shared => Self::from_owner(shared),
        }
    }
}

#[cfg(feature = "bytes")]
impl super::Registry {
    /// `share(bytes)` - a `bytes::Bytes` that lies in this registry as what it is, so that the fixed operations take it.
    ///
    /// For what went through an interface that speaks `Bytes` and comes back. Nothing is copied. The `Bytes` is kept as
    /// the owner, so that its other holders are none of the registry's business and
    /// [`try_into_exclusive`](SharedBuf::try_into_exclusive) is refused.
    ///
    /// # Errors
    ///
    /// It comes back if it lies elsewhere.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use bytes::Bytes;
    ///
    /// let registry = ringmain::Registry::new(1)?;
    /// let mut lease = registry.try_lease(5).expect("the page is free");
    /// lease.set_len(5);
    /// let bytes = Bytes::from(lease.freeze()).slice(1..3);
    /// let shared = registry.share(bytes).expect("it lies in this registry");
    /// assert_eq!(shared.len(), 2);
    /// assert!(registry.share(Bytes::from_static(b"elsewhere")).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn share(&self, bytes: bytes::Bytes) -> Result<SharedBuf, bytes::Bytes> {
        // Whoever has bytes of the arena to look at has them through a lease that is kept for as long: the address says
        // enough.
        if bytes.is_empty() || !self.contains(bytes.as_ptr().addr(), bytes.len()) {
            return Err(bytes);
        }
        let whole = 0..bytes.len();
        Ok(SharedBuf { owner: Owner::Bytes(bytes), bytes: whole })
    }
}

impl fmt::Debug for SharedBuf {
    /// The length, not the bytes: they may be somebody's secret, and are many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}
