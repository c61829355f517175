//! The operations of the scripts: registered pages filled, written and sent, one or several at a time.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ringmain::ops::{RecvLent, Released, SendZc, recv_lent, send_zc};
use ringmain::{Completion, Encoded, Entry, Fd, Fill, FixedBuf, IoBuf, Operation, Sqe, Submission};
use rustix::io::Errno;

use super::tenants::{Claim, Memory};

// `include/uapi/linux/io_uring.h`.
const READV: u8 = 1;
const WRITEV: u8 = 2;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const READ: u8 = 22;
const WRITE: u8 = 23;
const SEND: u8 = 26;
const RECV: u8 = 27;
const SEND_ZC: u8 = 47;
const READV_FIXED: u8 = 60;
const WRITEV_FIXED: u8 = 61;
const SEND_FIXED: u16 = 1 << 2;

/// Where an operation is, by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Fresh,
    Queued,
    /// The kernel may touch its memory.
    Pushed,
    /// The notification came first, and the result is to come.
    Notified,
    /// A result is out, and the notification to come.
    Answered(i32),
    /// A receive that found no lent page, and is queued again when there is one.
    Starved,
    Done(i32),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Readv,
    Write,
    Writev,
    Send,
    /// Into lent memory, of which it has none of its own.
    Receive,
}

pub(super) struct Flight {
    pub(super) what: What,
    /// Whose operation it is.
    pub(super) ring: usize,
    /// Each tenant whose bytes it has, and which of them.
    pub(super) regions: Vec<(usize, Range<usize>)>,
    pub(super) phase: Phase,
    pub(super) future: Option<Pending>,
    pub(super) cancelled: bool,
    /// A send whose result has been had, and whose memory has not come back.
    pub(super) told: bool,
    /// A send that shares no pages any more.
    pub(super) plain: bool,
    pub(super) user_data: Option<u64>,
    /// The chunk that it has to name by its index in the ring's table.
    pub(super) named: Option<usize>,
    /// What the played kernel wrote: this byte, so often.
    pub(super) brought: Option<(u8, usize)>,
    /// Each operation has a descriptor of its own, because a socket remembers what sends on it came to.
    pub(super) fd: Option<Fd>,
}

pub(super) enum Pending {
    Transfer(Submission<Transfer>),
    Send(SendZc<Memory>),
    Release(Released<Memory>),
    Receive(Submission<RecvLent>),
}

/// What a poll brings.
#[derive(Debug)]
pub(super) enum Came {
    Nothing,
    Told(io::Result<usize>),
    Ended(io::Result<usize>, Vec<Memory>),
    Back(Memory),
    Received(io::Result<Option<FixedBuf>>),
}

impl Flight {
    pub(super) fn new(
        what: What,
        ring: usize,
        fd: Fd,
        memory: Vec<Memory>,
        regions: Vec<(usize, Range<usize>)>,
    ) -> Self {
        let future = match what {
            What::Send => {
                let [one] = <[Memory; 1]>::try_from(memory).expect("a send is of one buffer");
                Pending::Send(send_zc(&fd, one))
            }
            What::Receive => Pending::Receive(recv_lent(&fd)),
            _ => Pending::Transfer(Submission::new(Transfer::new(what, &fd, memory))),
        };
        Self {
            what,
            ring,
            regions,
            phase: Phase::Fresh,
            future: Some(future),
            cancelled: false,
            told: false,
            plain: false,
            user_data: None,
            named: None,
            brought: None,
            fd: Some(fd),
        }
    }

    /// What its pages count as now, if the kernel has them.
    pub(super) fn claim(&self) -> Option<Claim> {
        match (self.phase, self.what) {
            (Phase::Answered(_), _) => Some(Claim::Notifying),
            (Phase::Pushed, What::Read | What::Readv) => Some(Claim::Read),
            (Phase::Pushed, What::Write | What::Writev) => Some(Claim::Write),
            (Phase::Pushed | Phase::Notified, What::Send) => Some(Claim::Send),
            _ => None,
        }
    }

    /// A receive that has brought a page which nobody has seen yet.
    pub(super) fn has_unseen(&self) -> bool {
        self.what == What::Receive && matches!(self.phase, Phase::Done(1..))
    }

    pub(super) fn bytes(&self) -> usize {
        self.regions.iter().map(|(_, region)| region.len()).sum()
    }

    /// A send that is refused for want of memory is made once more, as a plain one.
    pub(super) fn is_refused(&self, result: i32) -> bool {
        self.what == What::Send && !self.plain && !self.told && result == -Errno::NOMEM.raw_os_error()
    }

    /// A receive for which there is no lent page waits for one.
    pub(super) fn is_starved(&self, result: i32) -> bool {
        self.what == What::Receive && result == -Errno::NOBUFS.raw_os_error()
    }

    /// The opcode without and with the name of a registered buffer.
    pub(super) fn opcodes(&self) -> [u8; 2] {
        match self.what {
            What::Read => [READ, READ_FIXED],
            What::Readv => [READV, READV_FIXED],
            What::Write => [WRITE, WRITE_FIXED],
            What::Writev => [WRITEV, WRITEV_FIXED],
            What::Send if self.plain => [SEND, SEND],
            What::Send => [SEND_ZC, SEND_ZC],
            What::Receive => [RECV, RECV],
        }
    }

    /// Whether an entry names its memory by a registered buffer.
    pub(super) fn names_buffer(entry: &Entry) -> bool {
        match entry.opcode {
            SEND_ZC => entry.ioprio & SEND_FIXED != 0,
            opcode => [READ_FIXED, WRITE_FIXED, READV_FIXED, WRITEV_FIXED].contains(&opcode),
        }
    }

    pub(super) fn poll(&mut self) -> Came {
        let mut cx = Context::from_waker(Waker::noop());
        match self.future.as_mut().expect("only what exists is polled") {
            Pending::Transfer(transfer) => match Pin::new(transfer).poll(&mut cx) {
                Poll::Pending => Came::Nothing,
                Poll::Ready((result, memory)) => {
                    self.future = None;
                    Came::Ended(result, memory)
                }
            },
            Pending::Send(send) => match Pin::new(send).poll(&mut cx) {
                Poll::Pending => Came::Nothing,
                Poll::Ready((result, released)) => {
                    self.future = Some(Pending::Release(released));
                    Came::Told(result)
                }
            },
            Pending::Release(released) => match Pin::new(released).poll(&mut cx) {
                Poll::Pending => Came::Nothing,
                Poll::Ready(memory) => {
                    self.future = None;
                    Came::Back(memory)
                }
            },
            Pending::Receive(receive) => match Pin::new(receive).poll(&mut cx) {
                Poll::Pending => Came::Nothing,
                Poll::Ready(result) => {
                    self.future = None;
                    Came::Received(result)
                }
            },
        }
    }

    /// False: there is nothing left to cancel.
    pub(super) fn request_cancel(&mut self) -> bool {
        match self.future.as_mut().expect("only what exists is cancelled") {
            Pending::Transfer(transfer) => transfer.request_cancel(),
            Pending::Send(send) => send.request_cancel(),
            Pending::Receive(receive) => receive.request_cancel(),
            Pending::Release(_) => return false,
        }
        true
    }
}

/// A transfer of registered pages, whole.
pub(super) struct Transfer {
    fd: ringmain::FdHold,
    pages: Pages,
}

enum Pages {
    Fill(Fill<FixedBuf>),
    Fills(Vec<Fill<FixedBuf>>),
    Source(Memory),
    Sources(Vec<Memory>),
}

impl Transfer {
    fn new(what: What, fd: &Fd, mut memory: Vec<Memory>) -> Self {
        let fill = |memory: Memory| match memory {
            Memory::Lease(lease) => Fill::new(lease),
            Memory::Shared(_) => panic!("what is shared is not written to"),
        };
        let pages = match what {
            What::Read => Pages::Fill(fill(memory.remove(0))),
            What::Readv => Pages::Fills(memory.into_iter().map(fill).collect()),
            What::Write => Pages::Source(memory.remove(0)),
            _ => Pages::Sources(memory),
        };
        Self { fd: fd.hold(), pages }
    }
}

impl Operation for Transfer {
    type Output = (io::Result<usize>, Vec<Memory>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let fd = self.fd.as_fd();
        match &mut self.pages {
            Pages::Fill(fill) => sqe.read_fixed(fd, fill, None),
            Pages::Fills(fills) => sqe.readv_fixed(fd, fills.iter_mut(), None),
            Pages::Source(source) => sqe.write_fixed(fd, source.bytes(), None),
            Pages::Sources(sources) => sqe.writev_fixed(fd, sources.iter().map(IoBuf::bytes), None),
        }
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        match self.pages {
            Pages::Fill(fill) => {
                let (result, lease) = fill.finish(completion);
                (result, vec![Memory::Lease(lease)])
            }
            Pages::Fills(fills) => {
                let (result, leases) = Fill::finish_all(fills, completion);
                (result, leases.into_iter().map(Memory::Lease).collect())
            }
            Pages::Source(source) => (completion.result().map(|count| count as usize), vec![source]),
            Pages::Sources(sources) => (completion.result().map(|count| count as usize), sources),
        }
    }
}
