//! The first message of a TLS client, as far as routing needs it.

use std::collections::BTreeSet;
use std::io;

use super::fields::Fields;
use super::{Family, Parsed, Stream};
use crate::ops::{peek_at_least, readable};

/// The room that a first look has; most clients need no other.
const FIRST_LOOK_LEN: usize = 2048;

/// Content type, version and length of a TLS record, before its bytes (RFC 8446, 5.1).
const RECORD_PREFIX_LEN: usize = 5;
const RECORD_LEN_MAX: usize = 1 << 14;
const HANDSHAKE: u8 = 22;

/// Type and length of a handshake message, before its bytes (RFC 8446, 4).
const MESSAGE_PREFIX_LEN: usize = 4;
const CLIENT_HELLO: u8 = 1;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const HOST_NAME: u8 = 0;

const CUT: &str = "a field of the TLS ClientHello ends outside of what it is a part of";

/// What a TLS client says first: which host it wants, and what it wants to speak with it.
///
/// Nothing in it is proven: it is what somebody claims to want.
///
/// # References
/// RFC 8446, 4.1.2; RFC 6066, 3 (server name); RFC 7301, 3.1 (protocols).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    server_name: Option<String>,
    alpn: Vec<Vec<u8>>,
}

impl ClientHello {
    /// The bytes of a message that [`Stream::peek_client_hello`] should allow, if there is no reason for another
    /// number: 16 KiB. Those of today's clients have 200 to 2,000.
    pub const LEN_MAX: usize = 16 * 1024;

    /// The host that the client wants (SNI), in ASCII, as it wrote it: compare it without regard to case.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocols that the client offers (ALPN), the one it likes best first: `h2`, `http/1.1`.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        self.alpn.iter().map(Vec::as_slice)
    }

    /// `parse(bytes)`: the ClientHello at the start of some bytes, in however many records.
    ///
    /// [`Parsed::Foreign`] is what no TLS client begins with; one byte may be enough to tell.
    ///
    /// # Errors
    /// `InvalidData`, with a sentence, for what begins like a ClientHello and is none: a field that ends outside its
    /// message, records of another type in the middle of it, two extensions of one type, a server name that is empty
    /// or not of ASCII.
    ///
    /// # Examples
    /// ```
    /// use ringmain::net::{ClientHello, Parsed};
    ///
    /// assert_eq!(ClientHello::parse(b"\x16\x03\x01")?, Parsed::Incomplete(5));
    /// assert_eq!(ClientHello::parse(b"SSH-2.0-OpenSSH")?, Parsed::Foreign);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> io::Result<Parsed<Self>> {
        parse(bytes).map_err(|sentence| io::Error::new(io::ErrorKind::InvalidData, sentence))
    }
}

impl<F: Family> Stream<F> {
    /// `peek_client_hello(limit)`: looks at the TLS ClientHello that a connection begins with, and takes nothing.
    ///
    /// `None` when it begins with something else, which one byte may tell. Waits until all of the message is there, in
    /// however many records and segments it comes, and holds no memory before the first byte. Put a
    /// [`timeout`](crate::timeout()) around it: a peer that sends nothing is waited for.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    ///
    /// # Errors
    /// * `InvalidData`, with a sentence: a malformed ClientHello, or one of more than `limit` bytes, records included.
    /// * `UnexpectedEof`: the peer's sending has ended before the message did, or before anything came.
    /// * Those of `recv(2)`.
    ///
    /// # Examples
    /// ```
    /// use ringmain::net::{ClientHello, UnixStream};
    ///
    /// ringmain::Runtime::new()?.block_on(async {
    ///     let (mut client, server) = UnixStream::pair()?;
    ///     client.send_all("GET / HTTP/1.1\r\n").await.0?;
    ///     assert_eq!(server.peek_client_hello(ClientHello::LEN_MAX).await?, None);
    ///     assert_eq!(server.recv(vec![0; 64]).await.0?, 16, "nothing was taken");
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn peek_client_hello(&self, limit: usize) -> io::Result<Option<ClientHello>> {
        readable(self).await?;
        let mut buffer = Vec::new();
        let mut least = 1;
        loop {
            buffer.reserve(least.max(FIRST_LOOK_LEN).min(limit.max(1)));
            let (seen, looked) = peek_at_least(self, buffer, least).await;
            let seen = seen?;
            buffer = looked;
            match ClientHello::parse(&buffer[..seen])? {
                Parsed::Complete(hello, len) if len <= limit => return Ok(Some(hello)),
                Parsed::Foreign => return Ok(None),
                Parsed::Incomplete(_) if seen < least => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the peer's sending has ended before its first message was complete",
                    ));
                }
                Parsed::Incomplete(wanted) if wanted <= limit => least = wanted,
                Parsed::Complete(..) | Parsed::Incomplete(_) => {
                    let sentence = format!("the TLS ClientHello is longer than the {limit} bytes that it may have");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, sentence));
                }
            }
            buffer.clear();
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Parsed<ClientHello>, &'static str> {
    // The bytes of the message, without the records around them.
    let mut message = Vec::new();
    let mut at = 0;
    loop {
        let record = &bytes[at..];
        if !begins_record(record) {
            return if at == 0 { Ok(Parsed::Foreign) } else { Err("the TLS ClientHello goes on in no TLS record") };
        }
        let Some([_, _, _, high, low]) = record.first_chunk::<RECORD_PREFIX_LEN>() else {
            return Ok(Parsed::Incomplete(at + RECORD_PREFIX_LEN));
        };
        let start = at + RECORD_PREFIX_LEN;
        let end = start + usize::from(u16::from_be_bytes([*high, *low]));
        message.extend(&bytes[start..end.min(bytes.len())]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Ok(Parsed::Foreign);
        }
        // What is missing: the rest of the message's own prefix until that has come.
        let whole = match message.first_chunk::<MESSAGE_PREFIX_LEN>() {
            Some([_, len @ ..]) => MESSAGE_PREFIX_LEN + len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)),
            None => MESSAGE_PREFIX_LEN,
        };
        if message.len() < whole && end <= bytes.len() {
            at = end;
            continue;
        }
        if message.len() < whole {
            let missing = whole - message.len();
            return Ok(Parsed::Incomplete(bytes.len() + missing.min(end - bytes.len())));
        }
        let len = end.min(bytes.len()) - (message.len() - whole);
        return Ok(Parsed::Complete(fields(&message[MESSAGE_PREFIX_LEN..whole])?, len));
    }
}

/// Whether these can be the first bytes of a record of a handshake, as far as they are there.
fn begins_record(bytes: &[u8]) -> bool {
    let len = match bytes {
        [_, _, _, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
        _ => 1,
    };
    let major = bytes.get(1).is_none_or(|major| *major == 3);
    let minor = bytes.get(2).is_none_or(|minor| *minor <= 4);
    bytes.first().is_none_or(|kind| *kind == HANDSHAKE) && major && minor && (1..=RECORD_LEN_MAX).contains(&len)
}

/// The fields of the message, in their order.
fn fields(message: &[u8]) -> Result<ClientHello, &'static str> {
    let mut fields = Fields::new(message);
    // Version, random, session, cipher suites, compression methods.
    fields.take(2 + 32).ok_or(CUT)?;
    fields.counted_by_u8().ok_or(CUT)?;
    fields.counted_by_u16().ok_or(CUT)?;
    fields.counted_by_u8().ok_or(CUT)?;
    let mut hello = ClientHello::default();
    if fields.is_empty() {
        // A client of TLS 1.2 or before may have no extensions.
        return Ok(hello);
    }
    let mut extensions = Fields::new(fields.counted_by_u16().ok_or(CUT)?);
    if !fields.is_empty() {
        return Err("the TLS ClientHello has bytes behind its extensions");
    }
    let mut seen = BTreeSet::new();
    while !extensions.is_empty() {
        let kind = extensions.u16().ok_or(CUT)?;
        let extension = extensions.counted_by_u16().ok_or(CUT)?;
        if !seen.insert(kind) {
            return Err("the TLS ClientHello has two extensions of one type");
        }
        match kind {
            SERVER_NAME => hello.server_name = server_name(extension)?,
            ALPN => hello.alpn = alpn(extension)?,
            _ => {}
        }
    }
    Ok(hello)
}

/// The one name in a list that may have several, each of another type.
fn server_name(extension: &[u8]) -> Result<Option<String>, &'static str> {
    let mut names = list(extension)?;
    let mut found = None;
    while !names.is_empty() {
        let kind = names.u8().ok_or(CUT)?;
        let name = names.counted_by_u16().ok_or(CUT)?;
        if kind != HOST_NAME {
            continue;
        }
        if found.is_some() {
            return Err("the TLS ClientHello names two hosts");
        }
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err("the server name in the TLS ClientHello is no name of a host");
        }
        found = Some(name.iter().copied().map(char::from).collect());
    }
    Ok(found)
}

fn alpn(extension: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    let mut names = list(extension)?;
    let mut protocols = Vec::new();
    while !names.is_empty() {
        let protocol = names.counted_by_u8().ok_or(CUT)?;
        if protocol.is_empty() {
            return Err("the TLS ClientHello offers a protocol without a name");
        }
        protocols.push(protocol.to_vec());
    }
    Ok(protocols)
}

/// The items of an extension that is one list.
fn list(extension: &[u8]) -> Result<Fields<'_>, &'static str> {
    let mut fields = Fields::new(extension);
    let items = fields.counted_by_u16().ok_or(CUT)?;
    if items.is_empty() || !fields.is_empty() {
        return Err("a list in the TLS ClientHello is empty, or does not fill its extension");
    }
    Ok(Fields::new(items))
}
