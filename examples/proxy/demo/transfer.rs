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
        // The relay's backlog takes them all at once. Where nobody gets to it, the upstream need not wait for anybody.
        let connections = corpus.streams.iter().map(|_| TcpStream::connect_timeout(&relay, HANG).map_err(told));
        let connections: Vec<_> = connections.collect::<io::Result<_>>()?;
        let pairs = connections.into_iter().zip(&corpus.streams);
        let clients: Vec<_> = pairs.map(|(to, stream)| scope.spawn(move || send(to, stream))).collect();
        let mut receivers = Vec::new();
        for stream in &corpus.streams {
            match upstream.listener.accept() {
                Ok((connection, _)) => receivers.push(scope.spawn(move || receive(connection, stream.bytes.len()))),
                Err(nobody) => {
                    // What a client met is the cause, where one met something.
                    clients.into_iter().try_for_each(outcome)?;
                    return Err(told(nobody));
                }
            }
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
fn send(mut connection: TcpStream, stream: &Stream) -> io::Result<()> {
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
    let ended = thread.join();
    ended.unwrap_or_else(|_panic| Err(io::Error::other("a thread of the demonstration panicked"))).map_err(told)
}

/// A socket whose time is over says only that it would have to wait, and one that finds no way says not to where.
fn told(error: io::Error) -> io::Error {
    let sentence = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!(
                "nothing has moved for {} s; see to what is said above, or try again on a less busy machine",
                HANG.as_secs()
            )
        }
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable | io::ErrorKind::AddrNotAvailable => {
            format!("loopback cannot be reached: {error}; bring it up with `ip link set lo up`")
        }
        _ => return error,
    };
    io::Error::new(error.kind(), sentence)
}
