//! Version 1: `PROXY TCP4 192.0.2.7 192.0.2.1 4000 443`, and the end of a line.

use std::fmt::Display;
use std::net::SocketAddrV4;
use std::str::FromStr;

use super::{Addresses, Header, Origin, Transport, Version, v6};
use crate::ops::net::Parsed;

pub(super) const SIGNATURE: &[u8] = b"PROXY ";

/// The shortest line there is.
const LEN_MIN: usize = b"PROXY UNKNOWN\r\n".len();

/// `bytes` are the beginning of the signature, or begin with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed<Header>, &'static str> {
    let line = &bytes[..bytes.len().min(Header::V1_LEN_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        if line.len() == Header::V1_LEN_MAX {
            return Err("the line of a PROXY header does not end within its first 107 bytes");
        }
        return Ok(Parsed::Incomplete(LEN_MIN.max(bytes.len() + 1)));
    };
    let text = line.get(SIGNATURE.len()..end).ok_or("the line of a PROXY header ends before its protocol")?;
    // Bytes that are no text are nothing that a field could be.
    let text = &*String::from_utf8_lossy(text);
    let origin = match text.split_once(' ').unwrap_or((text, "")) {
        // Whatever follows it, up to the end of the line, says nothing.
        ("UNKNOWN", _) => Origin::Unknown,
        ("TCP4", fields) => {
            let [(source, source_port), (destination, destination_port)] = ends(fields)?;
            let source = SocketAddrV4::new(source, source_port);
            proxied(Addresses::V4 { source, destination: SocketAddrV4::new(destination, destination_port) })
        }
        ("TCP6", fields) => {
            let [(source, source_port), (destination, destination_port)] = ends(fields)?;
            let source = v6(source, source_port);
            proxied(Addresses::V6 { source, destination: v6(destination, destination_port) })
        }
        _ => return Err("the protocol in the line of a PROXY header is none of TCP4, TCP6 and UNKNOWN"),
    };
    Ok(Parsed::Complete(Header::new(Version::V1, origin), end + 2))
}

pub(super) fn to_bytes(header: &Header) -> Result<Vec<u8>, &'static str> {
    if !header.tlvs.is_empty() || header.has_checksum {
        return Err("a PROXY header of version 1 has neither TLVs nor a checksum; send version 2");
    }
    match &header.origin {
        Origin::Local => Err("a PROXY header of version 1 cannot say that a connection is local; send version 2"),
        Origin::Unknown => Ok(b"PROXY UNKNOWN\r\n".to_vec()),
        Origin::Proxied(Transport::Datagram, _) => Err("a PROXY header of version 1 is of TCP alone; send version 2"),
        Origin::Proxied(Transport::Stream, Addresses::V4 { source, destination }) => {
            Ok(line("TCP4", source.ip(), destination.ip(), [source.port(), destination.port()]))
        }
        Origin::Proxied(Transport::Stream, Addresses::V6 { source, destination }) => {
            Ok(line("TCP6", source.ip(), destination.ip(), [source.port(), destination.port()]))
        }
        Origin::Proxied(Transport::Stream, Addresses::Unix { .. }) => {
            Err("a PROXY header of version 1 has no Unix addresses; send version 2")
        }
    }
}

fn proxied(addresses: Addresses) -> Origin {
    Origin::Proxied(Transport::Stream, addresses)
}

fn line(protocol: &str, source: impl Display, destination: impl Display, ports: [u16; 2]) -> Vec<u8> {
    let [source_port, destination_port] = ports;
    format!("PROXY {protocol} {source} {destination} {source_port} {destination_port}\r\n").into_bytes()
}

/// Two addresses and two ports, one space between each.
fn ends<T: FromStr>(fields: &str) -> Result<[(T, u16); 2], &'static str> {
    let fields: Vec<&str> = fields.split(' ').collect();
    let [source, destination, source_port, destination_port] = fields[..] else {
        return Err("the line of a PROXY header has not two addresses and two ports, one space between each");
    };
    let address = |text: &str| text.parse().map_err(|_| "an address in a PROXY header is not of its protocol");
    Ok([(address(source)?, port(source_port)?), (address(destination)?, port(destination_port)?)])
}

/// Decimal digits and nothing else; no zero before another digit.
fn port(text: &str) -> Result<u16, &'static str> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let port = if is_plain { text.parse().ok() } else { None };
    port.ok_or("a port in a PROXY header is no number from 0 to 65535")
}
