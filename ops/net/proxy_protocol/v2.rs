//! Version 2: twelve bytes that no other protocol begins with, command, family, length, addresses, TLVs.

use std::net::SocketAddrV4;

use super::crc32c::crc32c;
use super::{Addresses, Header, Origin, Tlv, Transport, UNIX_PATH_LEN, Version, v6};
use crate::ops::net::Parsed;
use crate::ops::net::fields::Fields;

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The signature, version and command, family and transport, and the length of the rest.
pub(super) const PREFIX_LEN: usize = 16;

/// The version, which shares its byte with the command.
const VERSION: u8 = 0x20;
const LOCAL: u8 = 0x0;
const PROXY: u8 = 0x1;

const UNSPEC: u8 = 0x0;
const INET: u8 = 0x1;
const INET6: u8 = 0x2;
const UNIX: u8 = 0x3;
const STREAM: u8 = 0x1;
const DGRAM: u8 = 0x2;

const CHECKSUM_LEN: usize = 4;

const TLV_OUTSIDE: &str = "a TLV of a PROXY header ends outside the header";
const TOO_MUCH: &str = "the addresses and TLVs of a PROXY header are more than 65535 bytes";

/// `bytes` are the beginning of the signature, or begin with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed<Header>, &'static str> {
    let Some(prefix) = bytes.first_chunk::<PREFIX_LEN>() else {
        return Ok(Parsed::Incomplete(PREFIX_LEN));
    };
    let [.., command, family, high, low] = *prefix;
    if command & 0xf0 != VERSION {
        return Err("the version in a binary PROXY header is not 2");
    }
    let command = command & 0x0f;
    if command != LOCAL && command != PROXY {
        return Err("the command in a PROXY header is neither LOCAL nor PROXY");
    }
    let transport = if command == PROXY { transport(family)? } else { Transport::Stream };
    let len = PREFIX_LEN + usize::from(u16::from_be_bytes([high, low]));
    let Some(header) = bytes.get(..len) else {
        return Ok(Parsed::Incomplete(len));
    };
    if command == LOCAL {
        return Ok(Parsed::Complete(Header::new(Version::V2, Origin::Local), len));
    }
    let mut fields = Fields::new(&header[PREFIX_LEN..]);
    let addresses = addresses(family >> 4, &mut fields);
    let origin = match addresses.ok_or("a PROXY header is too short for the addresses of its family")? {
        Some(addresses) => Origin::Proxied(transport, addresses),
        None => Origin::Unknown,
    };
    let (tlvs, has_checksum) = tlvs(header, fields)?;
    Ok(Parsed::Complete(Header { version: Version::V2, origin, tlvs, has_checksum }, len))
}

pub(super) fn to_bytes(header: &Header) -> Result<Vec<u8>, &'static str> {
    if header.origin == Origin::Local && (!header.tlvs.is_empty() || header.has_checksum) {
        return Err("nobody looks at the TLVs and the checksum of a local PROXY header; leave them out");
    }
    let (command, family) = match &header.origin {
        Origin::Local => (LOCAL, UNSPEC << 4),
        Origin::Unknown => (PROXY, UNSPEC << 4),
        Origin::Proxied(transport, addresses) => {
            let family = match addresses {
                Addresses::V4 { .. } => INET,
                Addresses::V6 { .. } => INET6,
                Addresses::Unix { .. } => UNIX,
            };
            (PROXY, family << 4 | if *transport == Transport::Stream { STREAM } else { DGRAM })
        }
    };
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([VERSION | command, family, 0, 0]);
    if let Origin::Proxied(_, addresses) = &header.origin {
        put_addresses(&mut bytes, addresses);
    }
    for tlv in &header.tlvs {
        tlv.check()?;
        let len = u16::try_from(tlv.value.len()).map_err(|_| TOO_MUCH)?;
        bytes.push(tlv.kind);
        bytes.extend(len.to_be_bytes());
        bytes.extend(&tlv.value);
    }
    if header.has_checksum {
        bytes.extend([Tlv::CRC32C, 0, CHECKSUM_LEN as u8]);
        bytes.extend([0; CHECKSUM_LEN]);
    }
    let len = u16::try_from(bytes.len() - PREFIX_LEN).map_err(|_| TOO_MUCH)?;
    bytes[PREFIX_LEN - 2..PREFIX_LEN].copy_from_slice(&len.to_be_bytes());
    if header.has_checksum {
        // It is of the header in which it is 0.
        let sum = crc32c([&bytes[..]]);
        let at = bytes.len() - CHECKSUM_LEN;
        bytes[at..].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(bytes)
}

/// What a family with addresses is spoken over. Without addresses, it says nothing.
fn transport(family: u8) -> Result<Transport, &'static str> {
    match (family >> 4, family & 0x0f) {
        (INET | INET6 | UNIX, STREAM) => Ok(Transport::Stream),
        (INET | INET6 | UNIX, DGRAM) => Ok(Transport::Datagram),
        (UNSPEC, UNSPEC) => Ok(Transport::Stream),
        _ => Err("the family and transport in a PROXY header are not assigned"),
    }
}

/// The addresses of a family that is known; `Some(None)` for the one that has none.
fn addresses(family: u8, fields: &mut Fields<'_>) -> Option<Option<Addresses>> {
    Some(match family {
        INET => {
            let (source, destination) = (fields.array::<4>()?, fields.array::<4>()?);
            let source = SocketAddrV4::new(source.into(), fields.u16()?);
            Some(Addresses::V4 { source, destination: SocketAddrV4::new(destination.into(), fields.u16()?) })
        }
        INET6 => {
            let (source, destination) = (fields.array::<16>()?, fields.array::<16>()?);
            let source = v6(source.into(), fields.u16()?);
            Some(Addresses::V6 { source, destination: v6(destination.into(), fields.u16()?) })
        }
        UNIX => {
            let source = Box::new(fields.array::<UNIX_PATH_LEN>()?);
            Some(Addresses::Unix { source, destination: Box::new(fields.array::<UNIX_PATH_LEN>()?) })
        }
        _ => None,
    })
}

fn put_addresses(bytes: &mut Vec<u8>, addresses: &Addresses) {
    let mut put_inet = |source: &[u8], destination: &[u8], ports: [u16; 2]| {
        bytes.extend(source);
        bytes.extend(destination);
        bytes.extend(ports.map(u16::to_be_bytes).as_flattened());
    };
    match addresses {
        Addresses::V4 { source, destination } => {
            put_inet(&source.ip().octets(), &destination.ip().octets(), [source.port(), destination.port()]);
        }
        Addresses::V6 { source, destination } => {
            put_inet(&source.ip().octets(), &destination.ip().octets(), [source.port(), destination.port()]);
        }
        Addresses::Unix { source, destination } => {
            bytes.extend(source.as_slice());
            bytes.extend(destination.as_slice());
        }
    }
}

/// The TLVs that `fields`, the end of `header`, has left, without the checksum; and whether there was one, which is then
/// right.
fn tlvs(header: &[u8], mut fields: Fields<'_>) -> Result<(Vec<Tlv>, bool), &'static str> {
    let (mut tlvs, mut has_checksum) = (Vec::new(), false);
    while !fields.is_empty() {
        let kind = fields.u8().ok_or(TLV_OUTSIDE)?;
        let value = fields.counted_by_u16().ok_or(TLV_OUTSIDE)?;
        if kind != Tlv::CRC32C {
            let tlv = Tlv { kind, value: value.to_vec() };
            tlv.check()?;
            tlvs.push(tlv);
            continue;
        }
        if has_checksum {
            return Err("a PROXY header has more than one checksum");
        }
        has_checksum = true;
        let said = value.try_into().map_err(|_| "the checksum of a PROXY header has not four bytes")?;
        let behind = fields.len();
        let before = header.len() - behind - CHECKSUM_LEN;
        if crc32c([&header[..before], &[0; CHECKSUM_LEN], &header[before + CHECKSUM_LEN..]]) != u32::from_be_bytes(said)
        {
            return Err("the checksum of a PROXY header is wrong");
        }
    }
    Ok((tlvs, has_checksum))
}
