//! Where an operation lies while the kernel may touch it.
//!
//! A [`Body`] is one stable allocation, made once and used again: room for an operation of any type up to
//! [`INLINE_BYTES`] (a larger one is boxed), and the [`Frame`] of its entry. It never moves (I2), and it knows
//! whether the kernel holds it (I1): between [`lend`](Body::lend) and [`release`](Body::release) no function here
//! touches the operation by anything but shared reference, and dropping the body aborts the process rather than free
//! memory that the kernel may still write. So all that could go wrong with memory goes wrong in this file or not at
//! all: the slots above it are plain state.
//!
//! The plain version is `Box<dyn Any>` per operation. It costs an allocation for each; the measured difference is the
//! `nop` benchmark's.
#![allow(unsafe_code, reason = "stores operations of any type in one stable allocation")]

use std::any::TypeId;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::rc::Rc;

use super::abi;
use super::completion::{Completion, Creates};
use super::entry::Entry;
use super::frame::{Frame, Retry};
use super::operation::{MultishotOperation, Operation};
use super::registry::RingPages;
use super::sqe::{MultishotSqe, Sqe};
use super::zero_copy::ZeroCopy;

/// The largest operation that needs no box, in bytes.
pub(crate) const INLINE_BYTES: usize = 256;

#[repr(C, align(16))]
struct Storage(MaybeUninit<[u8; INLINE_BYTES]>);

/// A stable place for one operation and its entry.
pub(crate) struct Body {
    occupant: Cell<Option<&'static Occupant>>,
    held: Cell<bool>,
    /// The frame has nothing to settle beside its entry: no memory of the registry, no descriptor, nobody who learns. So
    /// for most operations it is not looked at again.
    is_plain: Cell<bool>,
    frame: RefCell<Frame>,
    storage: UnsafeCell<Storage>,
}

/// What the driver has to know of an entry that has just been described.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heading {
    pub(crate) opcode: u8,
    /// The kernel shall take the next entry together with this one.
    pub(crate) is_linked: bool,
}

/// What is known of the operation that lies in a body.
struct Occupant {
    type_id: TypeId,
    drop: unsafe fn(*mut Storage),
}

impl Occupant {
    #[inline]
    fn of<O: 'static>() -> &'static Self {
        const { &Self { type_id: TypeId::of::<O>(), drop: drop_at::<O> } }
    }
}

/// An entry whose memory a body now holds for the kernel: the only thing that a ring takes.
#[derive(Debug)]
pub(crate) struct Lent<'a>(&'a Entry);

impl<'a> Lent<'a> {
    /// An entry that names no memory: nothing has to be held for it.
    pub(crate) fn nothing(entry: &'a Entry) -> Self {
        assert!(
            entry.opcode == abi::ASYNC_CANCEL || entry.opcode == abi::POLL_ADD,
            "opcode {} may name memory, so a body has to lend it",
            entry.opcode
        );
        Self(entry)
    }

    pub(crate) fn entry(&self) -> &Entry {
        self.0
    }
}

impl Body {
    pub(crate) fn new(ring: u32, pages: RingPages, takes_fixed_vectors: bool) -> Self {
        Self {
            occupant: Cell::new(None),
            held: Cell::new(false),
            is_plain: Cell::new(true),
            frame: RefCell::new(Frame::new(ring, pages, takes_fixed_vectors)),
            storage: UnsafeCell::new(Storage(MaybeUninit::uninit())),
        }
    }

    /// Take an operation in.
    #[inline]
    pub(crate) fn put<O: 'static>(&self, operation: O) {
        assert!(self.occupant.get().is_none() && !self.held.get(), "a body takes one operation at a time");
        if fits::<O>() {
            let place: *mut O = self.storage.get().cast();
            // SAFETY: I1, I2. The storage is vacant (asserted), large and aligned enough (`fits`), and stays where
            // it is. Guarded by `a_body_gives_back_what_it_took`.
            unsafe { place.write(operation) };
        } else {
            let place: *mut *mut O = self.storage.get().cast();
            let boxed = Box::into_raw(Box::new(operation));
            // SAFETY: I1, I2. As above; a pointer always fits. The box stays a raw pointer while it lies here, so
            // that moving the pointer says nothing about the memory behind it. Guarded by
            // `a_large_operation_is_boxed`.
            unsafe { place.write(boxed) };
        }
        self.occupant.set(Some(Occupant::of::<O>()));
    }

    /// Let the operation describe its entry, on behalf of the submission that its ring counts as this one.
    #[inline]
    pub(crate) fn encode<O: Operation>(&self, sequence: u64, user_data: u64) -> io::Result<Heading> {
        let operation = self.operation::<O>();
        let mut frame = self.frame.borrow_mut();
        frame.begin(sequence, user_data);
        // SAFETY: I1. An `O` lies there (checked by `operation`), the kernel does not hold it (asserted by it), and
        // nobody else can reach this body before `encode` returns: its key has been given to no one. Guarded by
        // `a_panic_in_encode_leaves_the_slot_vacant`.
        let operation = unsafe { &mut *operation };
        let encoded = operation.encode(Sqe::new(&mut frame)).map(|_encoded| ());
        self.is_plain.set(frame.is_plain());
        encoded.map(|()| frame.heading())
    }

    /// Let a multishot operation describe its entry.
    pub(crate) fn encode_multishot<O: MultishotOperation>(&self, sequence: u64, user_data: u64) -> io::Result<Heading> {
        let operation = self.operation::<O>();
        let mut frame = self.frame.borrow_mut();
        frame.begin(sequence, user_data);
        self.is_plain.set(false);
        // SAFETY: I1. As in `encode`, and by shared reference only. Guarded by `a_multishot_delivers_every_item`.
        let operation = unsafe { &*operation };
        operation.encode(MultishotSqe::new(&mut frame)).map(|_encoded| ())?;
        Ok(frame.heading())
    }

    /// Let a multishot operation translate one completion, while the kernel may still hold what it lent to be read.
    pub(crate) fn item<O: MultishotOperation>(&self, completion: Completion) -> O::Item {
        let operation = self.place::<O>();
        // SAFETY: I1. An `O` lies there (checked by `place`) and is only ever seen by shared reference until it is
        // taken; the kernel writes no memory of a multishot operation. Guarded by `a_multishot_delivers_every_item`.
        let operation = unsafe { &*operation };
        operation.item(completion)
    }

    /// Have the entry pushed, and hold the operation until [`release`](Self::release).
    ///
    /// The entry is pushed from where it lies, as it was described: a field set now, or a copy on the way, would be
    /// loaded in other widths than it was just stored, for which a processor waits until the stores are done.
    #[inline]
    pub(crate) fn lend(&self, push: impl FnOnce(Lent<'_>)) {
        assert!(!self.held.replace(true), "the kernel holds this operation already");
        // To borrow it alone takes a step less.
        let mut frame = self.frame.borrow_mut();
        if !self.is_plain.get() {
            frame.begin_flights();
        }
        push(Lent(&frame.entry));
    }

    /// The kernel has given its last completion for the entry lent: the memory is ours again. `never_ran`: a cancel
    /// came before it began. What the entry says of retries and of success is the answer, from the same borrow.
    pub(crate) fn release(&self, never_ran: bool) -> (Retry, Creates) {
        assert!(self.held.replace(false), "the kernel does not hold this operation");
        let mut frame = self.frame.borrow_mut();
        frame.end_flights();
        frame.settle_closing(never_ran);
        (frame.retry, frame.creates())
    }

    /// As [`release`](Self::release), for an operation that has succeeded.
    #[inline(always)]
    pub(crate) fn release_success(&self) -> Creates {
        if !self.is_plain.get() {
            return self.release(false).1;
        }
        assert!(self.held.replace(false), "the kernel does not hold this operation");
        Creates::Nothing
    }

    /// The result of a zero-copy send is out: the kernel holds its memory still, until the notification.
    pub(crate) fn await_notification(&self) {
        assert!(self.held.get(), "the kernel does not hold this operation");
        self.frame.borrow_mut().await_notification();
    }

    /// Whether the kernel holds it for its notification alone.
    pub(crate) fn is_notifying(&self) -> bool {
        self.held.get() && self.frame.borrow().is_notifying
    }

    /// Move the operation out. A descriptor that was to be closed and never was is closed here, not when the body is
    /// next used.
    #[inline]
    pub(crate) fn take<O: 'static>(&self) -> O {
        let place = self.operation::<O>();
        if !self.is_plain.get() {
            self.close();
        }
        self.occupant.set(None);
        if fits::<O>() {
            // SAFETY: I1. An `O` lies there (checked by `operation`), the kernel does not hold it (asserted by it),
            // and the occupant was cleared, so it is read out once. Guarded by `a_body_gives_back_what_it_took`.
            unsafe { place.read() }
        } else {
            // SAFETY: I1. As above, and the pointer came from `Box::into_raw` in `put`. Guarded by
            // `a_large_operation_is_boxed`.
            *unsafe { Box::from_raw(place) }
        }
    }

    /// Drop the operation, if there is one, and whatever its frame still owns.
    pub(crate) fn dispose(&self) {
        assert!(!self.held.get(), "the kernel still holds this operation");
        // First, because the operation's drop may panic, and the body is vacant all the same then.
        self.close();
        if let Some(occupant) = self.occupant.take() {
            // SAFETY: I1. `drop` belongs to the type that lies there, the kernel does not hold it (asserted), and
            // the occupant was taken, so it is dropped once. Guarded by `disposing_drops_the_operation_once`.
            unsafe { (occupant.drop)(self.storage.get()) };
        }
    }

    /// Close a descriptor that was to be closed and never was.
    #[inline(never)]
    fn close(&self) {
        let closing = self.frame.borrow_mut().take_closing();
        drop(closing);
    }

    /// Whether its completion brings nothing but numbers.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.get()
    }

    /// Whether no operation lies here.
    pub(crate) fn is_vacant(&self) -> bool {
        self.occupant.get().is_none() && !self.held.get()
    }

    /// Whose experience the notification of this zero-copy send is, taken out of its frame.
    pub(crate) fn take_zero_copy(&self) -> Option<Rc<ZeroCopy>> {
        self.frame.borrow_mut().take_zero_copy()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    pub(crate) fn creates(&self) -> Creates {
        self.frame.borrow().creates()
    }

    pub(crate) fn retry(&self) -> Retry {
        self.frame.borrow().retry
    }

    pub(crate) fn entry(&self) -> Entry {
        self.frame.borrow().entry
    }

    /// Whether the kernel shall take the next entry together with this one.
    #[inline]
    pub(crate) fn is_linked(&self) -> bool {
        self.frame.borrow().entry.flags & abi::LINK != 0
    }

    /// Where the operation lies, when the kernel does not hold it.
    #[inline]
    fn operation<O: 'static>(&self) -> *mut O {
        assert!(!self.held.get(), "the kernel still holds this operation");
        self.place::<O>()
    }

    #[inline]
    fn place<O: 'static>(&self) -> *mut O {
        let occupant = self.occupant.get().expect("an operation lies in this body");
        // Nearly always it is the very record that a look at its address tells.
        assert!(
            ptr::eq(occupant, Occupant::of::<O>()) || occupant.type_id == TypeId::of::<O>(),
            "the operation in this body is of another type"
        );
        address_of::<O>(self.storage.get())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.held.get() {
            // Freeing this memory would let the kernel write into somebody else's. Shutdown leaks what the kernel
            // does not let go of, so this is a bug of ours that must not go on.
            eprintln!("ringmain: an operation that the kernel still holds was about to be freed; aborting");
            std::process::abort();
        }
        self.dispose();
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("held", &self.held.get())
            .field("occupied", &self.occupant.get().is_some())
            .finish()
    }
}

/// Whether an operation lies in the storage itself, and not in a box of its own.
const fn fits<O>() -> bool {
    size_of::<O>() <= INLINE_BYTES && align_of::<O>() <= align_of::<Storage>()
}

/// Where the `O` lies whose place is this storage.
#[inline]
fn address_of<O>(storage: *mut Storage) -> *mut O {
    if fits::<O>() {
        return storage.cast();
    }
    let place: *mut *mut O = storage.cast();
    // SAFETY: I1. Called only for an occupied storage (by `place`, which checks the type, and by `drop_at`), and an
    // `O` that does not fit has its pointer there. Guarded by `a_large_operation_is_boxed`.
    unsafe { place.read() }
}

/// Drop the `O` of this storage in place.
///
/// # Safety
/// An `O` lies there, nobody else holds it, and it is not used again.
unsafe fn drop_at<O>(storage: *mut Storage) {
    let place = address_of::<O>(storage);
    if fits::<O>() {
        // SAFETY: I1. The caller's contract: an `O` lies there and is dropped once. Guarded by
        // `disposing_drops_the_operation_once`.
        unsafe { place.drop_in_place() };
    } else {
        // SAFETY: I1. As above; the pointer came from `Box::into_raw` in `put`. Guarded by
        // `a_large_operation_is_boxed`.
        drop(unsafe { Box::from_raw(place) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Body {
        Body::new(1, crate::Registry::new(1).unwrap().attach(false), true)
    }

    struct Nop<T>(T);

    impl<T: 'static> Operation for Nop<T> {
        type Output = T;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<super::super::sqe::Encoded<'op>> {
            sqe.nop()
        }
        fn decode(self, _: Completion) -> T {
            self.0
        }
    }

    #[test]
    fn a_body_gives_back_what_it_took() {
        let body = body();
        body.put(Nop(String::from("kept")));
        body.encode::<Nop<String>>(1, 77).unwrap();
        let mut pushed = 0;
        body.lend(|lent| pushed = lent.entry().user_data);
        assert_eq!(pushed, 77);
        body.release(false);
        assert_eq!(body.take::<Nop<String>>().0, "kept");
    }

    #[test]
    fn a_large_operation_is_boxed() {
        let body = body();
        let token = Rc::new(());
        body.put(Nop(([9u8; 4096], Rc::clone(&token))));
        assert_eq!(body.take::<Nop<([u8; 4096], Rc<()>)>>().0.0, [9; 4096]);
        body.put(Nop(([9u8; 4096], Rc::clone(&token))));
        body.dispose();
        assert_eq!(Rc::strong_count(&token), 1);
    }

    #[test]
    fn disposing_drops_the_operation_once() {
        let body = body();
        let token = Rc::new(());
        body.put(Nop(Rc::clone(&token)));
        assert_eq!(Rc::strong_count(&token), 2);
        body.dispose();
        assert_eq!(Rc::strong_count(&token), 1);
        body.dispose();
        assert_eq!(Rc::strong_count(&token), 1);
    }

    #[test]
    #[should_panic(expected = "of another type")]
    fn an_operation_of_another_type_is_never_taken() {
        let body = body();
        body.put(Nop(1u32));
        body.take::<Nop<u64>>();
    }

    #[test]
    fn a_held_operation_cannot_be_taken() {
        let body = body();
        body.put(Nop(1u32));
        body.lend(|_lent| {});
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body.take::<Nop<u32>>()));
        assert!(taken.is_err(), "taking an operation that the kernel holds must panic");
        body.release(false);
    }
}
