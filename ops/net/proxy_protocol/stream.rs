//! The header at the start of a stream: taken out exactly, and put there.

use std::io;

use super::{Header, v2};
use crate::ops::net::{Family, Parsed, Stream};
use crate::ops::{peek_at_least, recv_exact, send_all};
use crate::runtime::{Fd, IoBuf};

/// `read_header(stream, limit)`: receives the PROXY header at the start of a stream, and not one byte behind it.
///
/// Waits until all of the header is there, at most `limit` bytes of it. Put a [`timeout`](crate::timeout()) around it:
/// a peer that sends nothing is waited for. The header is looked at before it is taken: what begins as something else
/// is still there, whole, after the error.
///
/// # Cancel safety
/// Dropping it while the peer has not yet sent the first 16 bytes (version 2) or the whole line (version 1) loses
/// nothing. After that, a part of the header may be gone with it.
///
/// # Errors
/// * `InvalidData`, with a sentence: no PROXY header, nothing taken; or one that is malformed or longer than the limit.
/// * `UnexpectedEof`: the peer's sending has ended before the header did.
/// * Those of `recv(2)`.
///
/// # Examples
/// ```
/// use ringmain::net::UnixStream;
/// use ringmain::net::proxy_protocol::{self, Header, Tlv};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let (mut proxy, server) = UnixStream::pair()?;
///     let header = Header::v2("192.0.2.7:4000".parse().unwrap(), "192.0.2.1:443".parse().unwrap());
///     let header = header.tlv(Tlv::UNIQUE_ID, "a7").checksum(true);
///     proxy_protocol::send_header(&mut proxy, &header).await?;
///     proxy.send_all("hello").await.0?;
///
///     let read = proxy_protocol::read_header(&server, 536).await?;
///     assert_eq!((read.unique_id(), read.source()), (Some(&b"a7"[..]), header.source()));
///     assert_eq!(server.recv(Vec::with_capacity(64)).await.1, b"hello");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn read_header(stream: &impl AsRef<Fd>, limit: usize) -> io::Result<Header> {
    // A line is looked at to its end, and a binary header as far as its length: the longest one need not fit the
    // socket's receive buffer, where a peer may not send what would complete it.
    let mut buffer = Vec::with_capacity(Header::V1_LEN_MAX);
    let mut least = 1;
    let len = loop {
        let (seen, looked) = peek_at_least(stream, buffer, least).await;
        let seen = seen?;
        buffer = looked;
        match Header::parse(&buffer[..seen])? {
            Parsed::Complete(_, len) => break len,
            Parsed::Incomplete(len) if seen >= v2::PREFIX_LEN && buffer.starts_with(&v2::SIGNATURE) => break len,
            Parsed::Incomplete(_) if seen < least => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the peer's sending has ended before its PROXY header was complete",
                ));
            }
            Parsed::Incomplete(wanted) if wanted > limit => return Err(too_long(limit)),
            Parsed::Incomplete(wanted) => least = wanted,
            Parsed::Foreign => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the connection does not begin with a PROXY header; see that the peer is a proxy that sends one",
                ));
            }
        }
    };
    if len > limit {
        return Err(too_long(limit));
    }
    let (taken, header) = recv_exact(stream, Vec::with_capacity(len).slice(..len)).await;
    taken?;
    match Header::parse(header.bytes())? {
        Parsed::Complete(header, took) if took == len => Ok(header),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "another receive has taken bytes of the PROXY header; read the header before anything else",
        )),
    }
}

/// `send_header(stream, header)`: sends a PROXY header. Nothing may have been sent before it.
///
/// # Cancel safety
/// Not: a dropped one may have sent any part.
///
/// # Errors
/// As [`Header::to_bytes`]; those of `send(2)`.
pub async fn send_header<F: Family>(stream: &mut Stream<F>, header: &Header) -> io::Result<()> {
    send_all(stream, header.to_bytes()?).await.0.map(drop)
}

fn too_long(limit: usize) -> io::Error {
    let sentence = format!("the PROXY header is longer than the {limit} bytes that it may have");
    io::Error::new(io::ErrorKind::InvalidData, sentence)
}
