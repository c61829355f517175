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
    pub(crate) creates: Creates,
    pub(crate) retry: Retry,
    /// The descriptor a CLOSE takes with it; closed here if the kernel never does.
    pub(crate) closing: Option<OwnedFd>,
    /// Regions of the registry that the entry lends.
    pub(crate) flights: Vec<Span>,
    /// The result is out, and the kernel keeps what the entry lends until its notification.
    pub(crate) is_notifying: bool,
    pub(crate) pages: RingPages,
    pub(crate) vectors: Vec<libc::iovec>,
    /// Whether the kernel takes several vectors over registered memory in one entry.
    pub(crate) takes_fixed_vectors: bool,
    /// The header of a message, made once and used again.
    message: Option<Box<Message>>,
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
    pub(crate) fn new(pages: RingPages, takes_fixed_vectors: bool) -> Self {
        Self {
            entry: Entry::default(),
            ticket: Ticket::NONE,
            creates: Creates::Nothing,
            retry: Retry::Never,
            closing: None,
            flights: Vec::new(),
            is_notifying: false,
            pages,
            vectors: Vec::new(),
            takes_fixed_vectors,
            message: None,
            zero_copy: None,
        }
    }

    /// Another operation is about to be described, over the entry of the last.
    #[inline]
    pub(crate) fn begin(&mut self, ticket: Ticket, user_data: u64) {
        self.entry.user_data = user_data;
        self.ticket = ticket;
        self.retry = Retry::Never;
    }

    /// Forget what the last operation had beside its entry; keep its allocations.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.closing.is_none(), "the descriptor to close has gone with its operation");
        self.creates = Creates::Nothing;
        self.flights.clear();
        self.vectors.clear();
        self.zero_copy = None;
    }

    /// Whether there is nothing that [`reset`](Self::reset) would forget.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let has_memory = !(self.flights.is_empty() && self.vectors.is_empty());
        !has_memory && self.creates == Creates::Nothing && self.closing.is_none() && self.zero_copy.is_none()
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
        if !never_ran && let Some(closed) = self.closing.take() {
            let _number_already_released = closed.into_raw_fd();
        }
    }

    /// The kernel gets the regions.
    #[inline]
    pub(crate) fn begin_flights(&mut self) {
        // Of the operation before this, or of an earlier try.
        self.is_notifying = false;
        if !self.flights.is_empty() {
            self.begin_each();
        }
    }

    /// The kernel has given its result, and keeps the regions until its notification.
    pub(crate) fn await_notification(&mut self) {
        self.is_notifying = true;
        let kind = Kind::of(self.entry.opcode);
        for span in &self.flights {
            self.pages.await_notification(kind, span);
        }
    }

    /// The kernel has let go of the regions.
    #[inline]
    pub(crate) fn end_flights(&mut self) {
        if !self.flights.is_empty() {
            self.end_each();
        }
    }

    #[inline(never)]
    fn begin_each(&mut self) {
        let kind = Kind::of(self.entry.opcode);
        for span in &self.flights {
            self.pages.begin_flight(kind, span);
        }
    }

    #[inline(never)]
    fn end_each(&mut self) {
        let kind = Kind::of(self.entry.opcode);
        for span in &self.flights {
            if self.is_notifying {
                self.pages.end_notification(span);
            } else {
                self.pages.end_flight(kind, span);
            }
        }
    }

    #[inline]
    pub(crate) fn lends(&mut self, region: NonNull<u8>, len: usize) {
        self.flights.extend(self.pages.find(region.addr().get(), len));
    }

    /// The one registered buffer that all memory this entry lends lies in, if this ring can name it.
    pub(crate) fn common_buffer(&self) -> Option<u16> {
        let regions = self.vectors.len().max(1);
        let (first, rest) = self.flights.split_first().filter(|_| self.flights.len() == regions)?;
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
