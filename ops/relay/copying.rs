//! The copy route: bytes through a page, by system calls that do not wait, or in the ring where there are none.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;

use super::carrier::Buffer;
use crate::ops::route::{End, Kind};
use crate::ops::{BufResult, Read, Recv, Send, Write};
use crate::runtime::{Driver, FdHold, FixedBuf, IoBuf, IoBufMut, Slice, Submission};

/// A read or write of a page that is with the kernel: of a file that a disk can block, or of a device that knows no
/// way not to wait.
#[derive(Debug)]
pub(super) enum RingCopy {
    ReadPage(Submission<Read<Slice<FixedBuf>>>),
    ReadHeap(Submission<Read<Slice<Vec<u8>>>>),
    WritePage(Submission<Write<Slice<FixedBuf>>>),
    WriteHeap(Submission<Write<Slice<Vec<u8>>>>),
}

impl RingCopy {
    /// Read up to `most` bytes.
    pub(super) fn read(from: &End, buffer: Buffer, most: usize) -> Self {
        let (hold, offset) = (from.hold.clone(), from.offset);
        match buffer {
            Buffer::Leased(page) => Self::ReadPage(Submission::new(Read::new(hold, page.slice(..most), offset))),
            Buffer::Heap(bytes) => Self::ReadHeap(Submission::new(Read::new(hold, bytes.slice(..most), offset))),
        }
    }

    /// Write what is in the buffer from `at` on.
    pub(super) fn write(to: &End, buffer: Buffer, at: usize) -> Self {
        let (hold, offset) = (to.hold.clone(), to.offset);
        match buffer {
            Buffer::Leased(page) => Self::WritePage(Submission::new(Write::new(hold, page.slice(at..), offset))),
            Buffer::Heap(bytes) => Self::WriteHeap(Submission::new(Write::new(hold, bytes.slice(at..), offset))),
        }
    }

    pub(super) fn request_cancel(&mut self) {
        match self {
            Self::ReadPage(read) => read.request_cancel(),
            Self::ReadHeap(read) => read.request_cancel(),
            Self::WritePage(write) => write.request_cancel(),
            Self::WriteHeap(write) => write.request_cancel(),
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Buffer)> {
        fn page((outcome, slice): BufResult<Slice<FixedBuf>>) -> (io::Result<usize>, Buffer) {
            (outcome, Buffer::Leased(slice.into_inner()))
        }
        fn heap((outcome, slice): BufResult<Slice<Vec<u8>>>) -> (io::Result<usize>, Buffer) {
            (outcome, Buffer::Heap(slice.into_inner()))
        }
        match self {
            Self::ReadPage(read) => Pin::new(read).poll(cx).map(page),
            Self::ReadHeap(read) => Pin::new(read).poll(cx).map(heap),
            Self::WritePage(write) => Pin::new(write).poll(cx).map(page),
            Self::WriteHeap(write) => Pin::new(write).poll(cx).map(heap),
        }
    }
}

/// Take up to `most` bytes of what the source has into this buffer, if it has something.
pub(super) fn take_now(
    driver: &Driver,
    from: &End,
    kind: Kind,
    buffer: Buffer,
    most: usize,
) -> (io::Result<usize>, Buffer) {
    match buffer {
        Buffer::Leased(page) => {
            let (outcome, page) = take_into(driver, &from.hold, kind, page.slice(..most));
            (outcome, Buffer::Leased(page.into_inner()))
        }
        Buffer::Heap(bytes) => {
            let (outcome, bytes) = take_into(driver, &from.hold, kind, bytes.slice(..most));
            (outcome, Buffer::Heap(bytes.into_inner()))
        }
    }
}

/// Give the sink what is in this buffer from `at` on, as much as it takes now.
pub(super) fn give_now(
    driver: &Driver,
    to: &End,
    kind: Kind,
    buffer: Buffer,
    at: usize,
) -> (io::Result<usize>, Buffer) {
    match buffer {
        Buffer::Leased(page) => {
            let (outcome, page) = give_from(driver, &to.hold, kind, page.slice(at..));
            (outcome, Buffer::Leased(page.into_inner()))
        }
        Buffer::Heap(bytes) => {
            let (outcome, bytes) = give_from(driver, &to.hold, kind, bytes.slice(at..));
            (outcome, Buffer::Heap(bytes.into_inner()))
        }
    }
}

/// Whether this is the kernel saying that it cannot do this without waiting, whether or not there is something to wait
/// for: a terminal, a pipe in blocking mode.
pub(super) fn only_waits(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

fn take_into<B: IoBufMut>(driver: &Driver, from: &FdHold, kind: Kind, buffer: B) -> BufResult<B> {
    // A socket is received from, because that never waits, whatever its flags; a pipe's own flags see to it.
    if kind == Kind::Socket {
        return driver.attempt(Recv::new(from.clone(), buffer)).unwrap_or_else(|recv| would_block(recv.into_buffer()));
    }
    driver.attempt(Read::new(from.clone(), buffer, None)).unwrap_or_else(|read| would_block(read.into_buffer()))
}

fn give_from<B: IoBuf>(driver: &Driver, to: &FdHold, kind: Kind, buffer: B) -> BufResult<B> {
    if kind == Kind::Socket {
        driver.attempt(Send::new(to.clone(), buffer)).unwrap_or_else(|send| would_block(send.into_buffer()))
    } else {
        driver.attempt(Write::new(to.clone(), buffer, None)).unwrap_or_else(|write| would_block(write.into_buffer()))
    }
}

fn would_block<B>(buffer: B) -> BufResult<B> {
    (Err(io::Error::from(io::ErrorKind::WouldBlock)), buffer)
}
