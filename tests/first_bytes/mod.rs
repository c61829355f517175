//! What must hold of every input of the two parsers of first bytes, whatever it is: the oracles of the fuzz targets,
//! of their corpora and of the property tests.

#![allow(dead_code, reason = "each fuzz target takes one of them")]

use std::fmt::Debug;
use std::io::{self, ErrorKind};

use ringmain::net::proxy_protocol::{Header, Version};
use ringmain::net::{ClientHello, Parsed};

/// The beginnings of one input that are looked at.
const CUTS: usize = 300;

/// A TLS record, and what comes before its bytes.
const RECORD: [u8; 3] = [22, 3, 1];

/// A header that is understood takes no more than it needs, can be told from each of its beginnings, and can be sent
/// again.
pub(crate) fn check_proxy_header(bytes: &[u8]) {
    let Some((header, len)) = check(bytes, Header::parse) else {
        return;
    };
    let longest = match header.version() {
        Version::V1 => Header::V1_LEN_MAX,
        Version::V2 => Header::V2_LEN_MAX,
    };
    assert!(len <= longest, "a header of {len} bytes");
    let again = header.to_bytes().expect("what was received can be sent");
    assert_eq!(Header::parse(&again).unwrap(), Parsed::Complete(header, again.len()));
}

/// A message that is understood takes no more than it needs, can be told from each of its beginnings, and does not depend
/// on its records.
pub(crate) fn check_client_hello(bytes: &[u8]) {
    let Some((hello, len)) = check(bytes, ClientHello::parse) else {
        return;
    };
    let message = message_of(&bytes[..len]);
    for record_len in [1, 7, 1 << 14] {
        let records = in_records(&message, record_len);
        assert_eq!(ClientHello::parse(&records).unwrap(), Parsed::Complete(hello.clone(), records.len()));
    }
}

/// A message as records of so many bytes.
pub(crate) fn in_records(message: &[u8], record_len: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&RECORD[..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(record_len).flat_map(record).collect()
}

/// The first message in these records, which are whole but for the last one.
fn message_of(records: &[u8]) -> Vec<u8> {
    let (mut message, mut rest) = (Vec::new(), records);
    while let [_, _, _, high, low, behind @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        message.extend(&behind[..len]);
        rest = &behind[len..];
    }
    let len = 4 + u32::from_be_bytes([0, message[1], message[2], message[3]]) as usize;
    message.truncate(len);
    message
}

/// What a parser finds, after a look at how it speaks of the beginnings of it.
fn check<T: Debug + PartialEq>(bytes: &[u8], parse: fn(&[u8]) -> io::Result<Parsed<T>>) -> Option<(T, usize)> {
    match parse(bytes) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().len() > 30, "a sentence says what is wrong: {error}");
            None
        }
        Ok(Parsed::Foreign) => None,
        Ok(Parsed::Incomplete(least)) => {
            assert!(least > bytes.len(), "{} bytes are there, and {least} are asked for", bytes.len());
            None
        }
        Ok(Parsed::Complete(found, len)) => {
            assert!(len <= bytes.len());
            let whole = parse(&bytes[..len]).unwrap();
            assert_eq!(whole, Parsed::Complete(found, len), "what follows does not matter");
            for cut in (0..len).step_by(len / CUTS + 1) {
                match parse(&bytes[..cut]).unwrap() {
                    Parsed::Incomplete(least) => assert!(cut < least && least <= len, "{cut} of {len}: {least}"),
                    other => panic!("the first {cut} of {len} bytes are {other:?}"),
                }
            }
            let Parsed::Complete(found, len) = whole else { unreachable!("as asserted") };
            Some((found, len))
        }
    }
}
