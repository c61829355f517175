//! One round: every stream of the corpus through the relay at once, and its digest back.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::corpus::{Corpus, Stream, digest};

/// No step takes this long; one that does hangs, and is ended with an error.
const HANG: Duration = Duration::from_secs(15);

/// The size of each read of the upstream in bytes.
const CHUNK: usize = 256 * 1024;

/// Where the relays take their connections.
#[derive(Debug)]
pub(crate) struct Upstream {
    listener: TcpListener,
    address: SocketAddr,
}

/// A stream that has arrived, and the connection to answer on.
#[derive(Debug)]
struct Arrived {
    bytes: Vec<u8>,
    at: Instant,
    connection: TcpStream,
}

impl Upstream {
    pub(crate) fn listen() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // An accept that finds nobody ends too: `socket(7)`.
        socket2::SockRef::from(&listener).set_read_timeout(Some(HANG))?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Sends every stream, verifies every answer, and returns how long the streams were on their way.
pub(crate) fn round(relay: SocketAddr, upstream: &Upstream, corpus: &Corpus) -> io::Result<Duration> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let clients: Vec<_> = corpus.streams.iter().map(|stream| scope.spawn(move || send(relay, stream))).collect();
        let mut receivers = Vec::new();
        for stream in &corpus.streams {
            let (connection, _) = upstream.listener.accept()?;
            receivers.push(scope.spawn(move || receive(connection, stream.bytes.len())));
        }
        let arrived: Vec<Arrived> = receivers.into_iter().map(outcome).collect::<io::Result<_>>()?;
        let took = arrived.iter().map(|stream| stream.at).max().map_or(Duration::ZERO, |last| last - begun);

        // Hashing begins when the last stream has arrived, so that none of it is in the time.
        let answers: Vec<_> = arrived.into_iter().map(|stream| scope.spawn(move || answer(stream))).collect();
        for answered in answers.into_iter().chain(clients) {
            outcome(answered)?;
        }
        Ok(took)
    })
}

/// The client: sends, ends its direction, and compares what the upstream says with what it must say.
fn send(relay: SocketAddr, stream: &Stream) -> io::Result<()> {
    let mut connection = TcpStream::connect_timeout(&relay, HANG)?;
    connection.set_write_timeout(Some(HANG))?;
    connection.set_read_timeout(Some(HANG))?;
    connection.write_all(&stream.bytes)?;
    connection.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    if answer != stream.digest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the bytes that arrived are not those that were sent"));
    }
    Ok(())
}

fn receive(mut connection: TcpStream, length: usize) -> io::Result<Arrived> {
    connection.set_read_timeout(Some(HANG))?;
    connection.set_write_timeout(Some(HANG))?;
    let mut bytes = Vec::with_capacity(length);
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = connection.read(&mut chunk)?;
        if count == 0 {
            return Ok(Arrived { bytes, at: Instant::now(), connection });
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
}

fn answer(mut arrived: Arrived) -> io::Result<()> {
    arrived.connection.write_all(&digest(&arrived.bytes))
}

fn outcome<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_panic| Err(io::Error::other("a thread of the demonstration panicked")))
}
