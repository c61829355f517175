//! What an entry needs beside the operation that it is of.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

use super::abi;
use super::body::Heading;
use super::buf::Ticket;
use super::completion::Creates;
use super::entry::Entry;
use super::registry::{Kind, RingPages, Span};
use super::zero_copy::ZeroCopy;

/// What an operation's entry needs beside the operation: the entry itself, and memory that the entry points to.
/// It lives in the slot, so it moves as little as the operation does.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) entry: Entry,
    pub(crate) ticket: Ticket,
    pub(crate) retry: Retry,
    /// Nothing has touched `beside` since it was cleared.
    is_plain: bool,
    /// The result is out, and the kernel keeps what the entry lends until its notification.
    pub(crate) is_notifying: bool,
    beside: Beside,
    pub(crate) pages: RingPages,
    /// Whether the kernel takes several vectors over registered memory in one entry.
    pub(crate) takes_fixed_vectors: bool,
    /// The header of a message, made once and used again.
    message: Option<Box<Message>>,
}

/// What there is to settle beside an entry, of the operations that have any.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) creates: Creates,
    /// The descriptor a CLOSE takes with it; closed here if the kernel never does.
    pub(crate) closing: Option<OwnedFd>,
    /// Regions of the registry that the entry lends.
    flights: Vec<Span>,
    pub(crate) vectors: Vec<libc::iovec>,
    /// Who learns from what the notification of a zero-copy send says.
    pub(crate) zero_copy: Option<Rc<ZeroCopy>>,
}

/// The kernel's `struct msghdr`, of a message that names no address and no control data of ours.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Message {
    name: u64,
    pub(crate) name_len: u32,
    pub(crate) vectors: u64,
    pub(crate) vectors_len: usize,
    control: u64,
    pub(crate) control_len: usize,
    flags: u32,
}

const _: () = assert!(size_of::<Message>() == size_of::<libc::msghdr>(), "a message is the kernel's record");
const _: () = assert!(
    std::mem::offset_of!(Message, vectors) == std::mem::offset_of!(libc::msghdr, msg_iov)
        && std::mem::offset_of!(Message, vectors_len) == std::mem::offset_of!(libc::msghdr, msg_iovlen)
        && std::mem::offset_of!(Message, name_len) == std::mem::offset_of!(libc::msghdr, msg_namelen)
        && std::mem::offset_of!(Message, control_len) == std::mem::offset_of!(libc::msghdr, msg_controllen),
    "vectors and lengths stand where the kernel reads them"
);

impl Frame {
    /// A frame for operations on this ring.
    pub(crate) fn new(ring: u32, pages: RingPages, takes_fixed_vectors: bool) -> Self {
        Self {
            entry: Entry::default(),
            ticket: Ticket { ring, ..Ticket::NONE },
            retry: Retry::Never,
            is_plain: true,
            is_notifying: false,
            beside: Beside::default(),
            pages,
            takes_fixed_vectors,
            message: None,
        }
    }

    /// Another operation is about to be described, over the entry of the last.
    #[inline]
    pub(crate) fn begin(&mut self, sequence: u64, user_data: u64) {
        self.entry.user_data = user_data;
        self.ticket.sequence = sequence;
        self.retry = Retry::Never;
        if !self.is_plain {
            self.clear();
        }
    }

    /// Forget what the last operation had beside its entry; keep its allocations.
    #[inline(never)]
    fn clear(&mut self) {
        let Beside { creates, closing, flights, vectors, zero_copy } = &mut self.beside;
        debug_assert!(closing.is_none(), "the descriptor to close has gone with its operation");
        *creates = Creates::Nothing;
        flights.clear();
        vectors.clear();
        *zero_copy = None;
        self.is_plain = true;
    }

    /// Whether there is nothing to settle beside the entry. The plain version looks at each thing that there might be.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// What there is beside the entry, to be changed.
    #[inline]
    pub(crate) fn beside(&mut self) -> &mut Beside {
        self.is_plain = false;
        &mut self.beside
    }

    pub(crate) fn creates(&self) -> Creates {
        self.beside.creates
    }

    pub(crate) fn vectors(&self) -> &[libc::iovec] {
        &self.beside.vectors
    }

    /// How many regions of the registry the entry lends.
    pub(crate) fn flights(&self) -> usize {
        self.beside.flights.len()
    }

    /// The descriptor to be closed, if the kernel has not closed it.
    pub(crate) fn take_closing(&mut self) -> Option<OwnedFd> {
        self.beside.closing.take()
    }

    pub(crate) fn take_zero_copy(&mut self) -> Option<Rc<ZeroCopy>> {
        self.beside.zero_copy.take()
    }

    /// What the driver has to know of the entry described.
    #[inline]
    pub(crate) fn heading(&self) -> Heading {
        Heading { opcode: self.entry.opcode, is_linked: self.entry.flags & abi::LINK != 0 }
    }

    /// The header of a message, which names nothing yet, in a place that stays as long as the slot does.
    pub(crate) fn empty_message(&mut self) -> &mut Message {
        let message = self.message.get_or_insert_default();
        **message = Message::default();
        message
    }

    /// The kernel has answered: a descriptor it closed is no longer ours. `CLOSE` releases the number whatever it answers
    /// (`close(2)`, "Dealing with error returns"), unless it was cancelled before it ran.
    #[inline]
    pub(crate) fn settle_closing(&mut self, never_ran: bool) {
        if !never_ran && let Some(closed) = self.beside.closing.take() {
            let _number_already_released = closed.into_raw_fd();
        }
    }

    /// The kernel gets the regions.
    #[inline]
    pub(crate) fn begin_flights(&mut self) {
        if !self.beside.flights.is_empty() {
            self.begin_each();
        }
    }

    /// The kernel has given its result, and keeps the regions until its notification.
    pub(crate) fn await_notification(&mut self) {
        self.is_notifying = true;
        let kind = Kind::of(self.entry.opcode);
        for span in &self.beside.flights {
            self.pages.await_notification(kind, span);
        }
    }

    /// The kernel has let go of the regions.
    #[inline]
    pub(crate) fn end_flights(&mut self) {
        if !self.beside.flights.is_empty() {
            self.end_each();
        }
        self.is_notifying = false;
    }

    #[inline(never)]
    fn begin_each(&mut self) {
        let kind = Kind::of(self.entry.opcode);
        for span in &self.beside.flights {
            self.pages.begin_flight(kind, span);
        }
    }

    #[inline(never)]
    fn end_each(&mut self) {
        let kind = Kind::of(self.entry.opcode);
        for span in &self.beside.flights {
            if self.is_notifying {
                self.pages.end_notification(span);
            } else {
                self.pages.end_flight(kind, span);
            }
        }
    }

    #[inline]
    pub(crate) fn lends(&mut self, region: NonNull<u8>, len: usize) {
        if let Some(span) = self.pages.find(region.addr().get(), len) {
            self.lends_pages(span);
        }
    }

    /// Pages of the registry that are found already.
    #[inline]
    pub(crate) fn lends_pages(&mut self, span: Span) {
        self.beside().flights.push(span);
    }

    /// The one registered buffer that all memory this entry lends lies in, if this ring can name it.
    pub(crate) fn common_buffer(&self) -> Option<u16> {
        let regions = self.beside.vectors.len().max(1);
        let (first, rest) = self.beside.flights.split_first().filter(|_| self.beside.flights.len() == regions)?;
        let index = first.index()?;
        rest.iter().all(|span| span.index() == Some(index)).then_some(index)
    }
}

/// What to do when the kernel answers `EAGAIN`, or a signal got in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The answer is the answer.
    Never,
    /// Only a signal is a reason to try again.
    Signal,
    /// Wait until the descriptor is readable, then try again.
    Readable,
    /// Wait until the descriptor is writable, then try again.
    Writable,
}
