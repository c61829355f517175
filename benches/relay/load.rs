//! The source and the sink: what stands before and behind the relay, a thread each, and as cheap as they can be.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use rustix::event::epoll;

/// The size of every write of the source and of every read of the sink, in bytes.
const CHUNK: usize = 256 * 1024;

/// Sends `each` bytes on every one of `connections`, then waits until the other side has closed them all.
pub(crate) fn source(relay: SocketAddr, connections: u64, each: u64) -> io::Result<()> {
    let chunk = vec![0x5a; CHUNK];
    let mut left = vec![each; connections as usize];
    let streams: Vec<TcpStream> = (0..connections).map(|_| TcpStream::connect(relay)).collect::<io::Result<_>>()?;
    until_closed(&streams, epoll::EventFlags::OUT, |index, mut stream| {
        let length = left[index].min(CHUNK as u64) as usize;
        left[index] -= stream.write(&chunk[..length])? as u64;
        if left[index] == 0 {
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(left[index] == 0)
    })?;
    let mut answer = [0; 1];
    for mut stream in &streams {
        stream.set_nonblocking(false)?;
        if stream.read(&mut answer)? != 0 {
            return Err(io::Error::other("the sink sends nothing, yet the relay answered something"));
        }
    }
    Ok(())
}

/// Reads every connection to its end, closes it, and returns how many bytes came in all.
pub(crate) fn sink(listener: &TcpListener, connections: u64) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut received = 0;
    let streams: Vec<TcpStream> = (0..connections).map(|_| Ok(listener.accept()?.0)).collect::<io::Result<_>>()?;
    until_closed(&streams, epoll::EventFlags::IN, |_, mut stream| {
        let count = stream.read(&mut chunk)?;
        received += count as u64;
        if count == 0 {
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(count == 0)
    })?;
    Ok(received)
}

/// Calls `advance` for each stream that is ready, once per event so that none starves, until it was true for all.
fn until_closed(
    streams: &[TcpStream],
    interest: epoll::EventFlags,
    mut advance: impl FnMut(usize, &TcpStream) -> io::Result<bool>,
) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true)?;
        epoll::add(&poll, stream, epoll::EventData::new_u64(index as u64), interest)?;
    }
    let mut open = streams.len();
    let mut events = Vec::with_capacity(streams.len());
    while open > 0 {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for event in &events {
            let index = event.data.u64() as usize;
            match advance(index, &streams[index]) {
                Ok(false) => {}
                Ok(true) => {
                    epoll::delete(&poll, &streams[index])?;
                    open -= 1;
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
