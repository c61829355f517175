//! A lease of registered bytes, as a buffer.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Registry;
use super::ledger::Hold;
use super::segment::Segment;
use super::shared_buf::SharedBuf;

/// `FixedBuf` - a lease of bytes of a [`Registry`]: a buffer that the kernel knows already.
///
/// It derefs to its visible bytes, the first `len()` ones. A fresh lease has length 0, and a capacity of
/// exactly the bytes asked for: the rest of its last page belongs to it and is not used, so that an operation can never
/// run past what was asked for. An operation that fills it sets the length to the bytes that arrived.
///
/// It is exclusive: nobody else, neither the program nor an operation, can reach its bytes, and there is no way to
/// grow, move or replace the memory. It can be sent to another thread. Dropping it returns its pages and wakes whoever
/// is next in the queue for them. It stays valid memory when the registry's handles and the runtime are gone; it then
/// merely is not registered any more.
///
/// **Old bytes.** The memory is zeroed once, when it is mapped, and not again between leases. What a former lease left
/// behind can be seen with [`as_capacity_mut`](Self::as_capacity_mut) and [`set_len`](Self::set_len), and in no other
/// way: where that matters, overwrite a lease before dropping it.
///
/// # Examples
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let registry = ringmain::Registry::new(1)?;
/// let mut lease = registry.try_lease(100).expect("the page is free");
/// assert_eq!((lease.len(), lease.capacity()), (0, 100));
///
/// lease.as_capacity_mut()[..5].copy_from_slice(b"hello");
/// lease.set_len(5);
/// assert_eq!(&lease[..], b"hello");
/// # Ok(())
/// # }
/// ```
///
/// Registered memory cannot grow, be replaced, or be had twice:
///
/// ```compile_fail,E0599
/// # fn attempt(mut lease: ringmain::FixedBuf) {
/// lease.push(1);
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # fn attempt(mut lease: ringmain::FixedBuf) {
/// std::mem::take(&mut lease);
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn attempt(lease: ringmain::FixedBuf) {
/// let twin = lease.clone();
/// # }
/// ```
///
/// Nor can borrowed memory pass for registered:
///
/// ```compile_fail,E0277
/// let mut bytes = [0_u8; 64];
/// let lease = ringmain::FixedBuf::from(&mut bytes[..]);
/// ```
pub struct FixedBuf {
    segment: Segment,
    /// Never more than the segment's length.
    len: usize,
}

impl FixedBuf {
    pub(super) fn new(segment: Segment) -> Self {
        Self { segment, len: 0 }
    }

    /// `capacity()` - all bytes of the lease, visible or not.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.segment.len()
    }

    /// `set_len(len)` - makes the first `len` bytes visible, whatever they are.
    ///
    /// Safe, as there is no uninitialised byte in a registry; but they may be an earlier lease's.
    ///
    /// # Panics
    ///
    /// If `len` is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "cannot show {len} bytes of a lease of {}", self.capacity());
        self.len = len;
    }

    /// `clear()` - shows no byte; the capacity stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// `truncate(len)` - shows at most the first `len` bytes; the capacity stays.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// `as_capacity_mut()` - all bytes of the lease, to be written to before [`set_len`](Self::set_len).
    ///
    /// Those that this lease did not write may be an earlier lease's.
    #[inline]
    pub fn as_capacity_mut(&mut self) -> &mut [u8] {
        self.segment.bytes_mut()
    }

    /// `split_off(at)` - cuts the lease in two: this one keeps the first `at` bytes of the *capacity*, the other has
    /// the rest.
    ///
    /// Nothing is copied. `at` can be any byte; a page that is cut is free again when both parts are gone. Visible
    /// bytes stay visible in the part where they are. [`unsplit`](Self::unsplit) joins the parts again.
    ///
    /// # Panics
    ///
    /// If `at` is more than the capacity.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(1)?;
    /// let mut front = registry.try_lease(100).expect("the page is free");
    /// front.as_capacity_mut()[..5].copy_from_slice(b"hello");
    /// front.set_len(5);
    ///
    /// let back = front.split_off(3);
    /// assert_eq!((&front[..], front.capacity()), (&b"hel"[..], 3));
    /// assert_eq!((&back[..], back.capacity()), (&b"lo"[..], 97));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the bytes behind the cut are released when the returned lease is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let segment = self.segment.split_off(at);
        let rest = Self { segment, len: self.len.saturating_sub(at) };
        self.len = self.len.min(at);
        rest
    }

    /// `split_to(at)` - cuts the lease in two: the other has the first `at` bytes of the *capacity*, this one keeps the
    /// rest.
    ///
    /// As [`split_off`](Self::split_off), the other way round.
    ///
    /// # Panics
    ///
    /// If `at` is more than the capacity.
    #[must_use = "the bytes before the cut are released when the returned lease is dropped"]
    pub fn split_to(&mut self, at: usize) -> Self {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// `unsplit(next)` - joins the lease that begins where this one ends, in the same registry.
    ///
    /// Nothing is copied. The visible bytes of both are visible in the whole.
    ///
    /// # Errors
    ///
    /// Both come back as they were if `next` does not begin where this one ends (two leases that were never one may
    /// happen to be neighbours, and then can be joined), or if bytes that are not visible would come to lie before
    /// some that are: that is, if this one is not filled up to its capacity and `next` shows any.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let registry = ringmain::Registry::new(1)?;
    /// let mut front = registry.try_lease(100).expect("the page is free");
    /// let back = front.split_off(60);
    /// let whole = front.unsplit(back).expect("they are neighbours");
    /// assert_eq!(whole.capacity(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unsplit(mut self, next: Self) -> Result<Self, (Self, Self)> {
        if self.len < self.capacity() && next.len > 0 {
            return Err((self, next));
        }
        let Self { segment, len } = next;
        match self.segment.unsplit(segment) {
            Ok(()) => {
                self.len += len;
                Ok(self)
            }
            Err(segment) => Err((self, Self { segment, len })),
        }
    }

    /// `freeze()` - makes the visible bytes read-only, to be held and read by several.
    ///
    /// Nothing is copied. The rest of the capacity stays with it and is there again after
    /// [`try_into_exclusive`](SharedBuf::try_into_exclusive). One small allocation counts the holders.
    #[must_use = "the bytes are released when the last holder is dropped"]
    pub fn freeze(self) -> SharedBuf {
        SharedBuf::freeze(self.segment, self.len)
    }

    /// Counts its pages as lent from now on: it lies in a ring of provided buffers, and whoever keeps it there must not
    /// touch its bytes. Parts that are split off are lent as well.
    pub(crate) fn lend(&mut self) {
        self.segment.set_hold(Hold::Lent);
    }

    /// Counts its pages as leased again.
    pub(crate) fn unlend(&mut self) {
        self.segment.set_hold(Hold::Exclusive);
    }

    /// `alignment()` - the largest power of two, in bytes, that the address is a multiple of; 2 MiB at most.
    ///
    /// A fresh lease begins at a page: 4096 at least, which is enough for O_DIRECT on every common device. A part that
    /// was split off can begin at any byte.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.segment.alignment()
    }

    /// `registry()` - a handle of the registry that the pages belong to.
    #[must_use]
    pub fn registry(&self) -> Registry {
        Registry::of(Arc::clone(self.segment.anchor().arena()))
    }

    /// `is_registered()` - whether a living ring has these bytes registered.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.segment.is_registered()
    }
}

impl Deref for FixedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.segment.bytes()[..self.len]
    }
}

impl DerefMut for FixedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.segment.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for FixedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for FixedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for FixedBuf {
    /// The lengths, not the bytes: they may be somebody's secret, and are many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedBuf").field("len", &self.len).field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}
