//! What the twins carry bytes in: a pipe that they are spliced through, or a buffer that they are copied through.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::process::Meter;
use crate::{BUFFER_BYTES, PIPE_BYTES};

/// What carries bytes from one socket to the other.
pub(crate) trait Carrier: Sized {
    /// Makes an empty one.
    fn new(meter: &mut Meter) -> io::Result<Self>;

    /// Takes bytes from a socket, as many as fit.
    fn fill(&mut self, from: &TcpStream, meter: &mut Meter) -> io::Result<Filled>;

    /// Hands bytes to a socket; `None` means that the socket takes none now.
    fn drain(&mut self, to: &TcpStream, meter: &mut Meter) -> io::Result<Option<usize>>;

    /// Bytes that were taken and not handed on.
    fn pending(&self) -> usize;
}

/// What came of taking bytes from a socket.
pub(crate) enum Filled {
    /// As many came as there was room for, or there may be more.
    Some(usize),
    /// This many came, and they were the last there were.
    All(usize),
    /// None will come any more.
    End,
    /// The socket had none.
    SocketEmpty,
    /// The carrier is full, or the socket had none: it cannot be told which.
    FullOrEmpty,
}

/// A pipe that pages of a socket are spliced into and out of, uncopied.
pub(crate) struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    capacity: usize,
    pending: usize,
}

impl Carrier for Pipe {
    fn new(meter: &mut Meter) -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Past the user's share of pipe pages the kernel refuses; what the pipe has then must do, and is reported.
        let capacity = match rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES) {
            Err(Errno::PERM) => rustix::pipe::fcntl_getpipe_size(&writer)?,
            other => other?,
        };
        meter.note_calls(2);
        meter.note_pipe(capacity);
        Ok(Pipe { reader, writer, capacity, pending: 0 })
    }

    fn fill(&mut self, from: &TcpStream, meter: &mut Meter) -> io::Result<Filled> {
        let room = self.capacity - self.pending;
        if room == 0 {
            return Ok(Filled::FullOrEmpty);
        }
        match splice(from, &self.writer, room, meter)? {
            Some(0) => Ok(Filled::End),
            // A short splice tells nothing: one call takes only so many pieces from each of the socket's buffers.
            Some(count) => {
                self.pending += count;
                Ok(Filled::Some(count))
            }
            // Its slots can be used up before its bytes are, so only an empty pipe tells on the socket.
            None if self.pending == 0 => Ok(Filled::SocketEmpty),
            None => Ok(Filled::FullOrEmpty),
        }
    }

    fn drain(&mut self, to: &TcpStream, meter: &mut Meter) -> io::Result<Option<usize>> {
        let count = splice(&self.reader, to, self.pending, meter)?;
        self.pending -= count.unwrap_or(0);
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.pending
    }
}

fn splice(from: impl AsFd, to: impl AsFd, length: usize, meter: &mut Meter) -> io::Result<Option<usize>> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    retry(meter, || rustix::pipe::splice(&from, None, &to, None, length, flags))
}

/// A buffer that bytes are received into and sent from.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Carrier for Buffer {
    fn new(_: &mut Meter) -> io::Result<Self> {
        Ok(Buffer { bytes: vec![0; BUFFER_BYTES].into_boxed_slice(), start: 0, end: 0 })
    }

    fn fill(&mut self, from: &TcpStream, meter: &mut Meter) -> io::Result<Filled> {
        let room = self.bytes.len() - self.end;
        if room == 0 {
            return Ok(Filled::FullOrEmpty);
        }
        let target = &mut self.bytes[self.end..];
        match retry(meter, || rustix::net::recv(from, &mut *target, RecvFlags::DONTWAIT).map(|(count, _)| count))? {
            Some(0) => Ok(Filled::End),
            Some(count) => {
                self.end += count;
                // A receive ends short only when the socket is empty, so there is no need to be told EAGAIN.
                Ok(if count < room { Filled::All(count) } else { Filled::Some(count) })
            }
            None => Ok(Filled::SocketEmpty),
        }
    }

    fn drain(&mut self, to: &TcpStream, meter: &mut Meter) -> io::Result<Option<usize>> {
        let source = &self.bytes[self.start..self.end];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let count = retry(meter, || rustix::net::send(to, source, flags))?;
        self.start += count.unwrap_or(0);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(count)
    }

    fn pending(&self) -> usize {
        self.end - self.start
    }
}

/// Calls until it is not interrupted; `None` means that it would have waited.
fn retry(meter: &mut Meter, mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        meter.note_calls(1);
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
