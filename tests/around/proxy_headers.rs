//! The PROXY protocol: what is sent can be read, what is not of its form is refused, and not a byte behind it is taken.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddrV4, SocketAddrV6};

use proptest::collection::vec;
use proptest::prelude::*;
use ringmain::net::proxy_protocol::{self, Addresses, Header, Origin, Tlv, Transport, Version};
use ringmain::net::{Parsed, UnixStream};
use ringmain::{Runtime, ops};

use crate::first_bytes::check_proxy_header;
use crate::turns::{one_turn, poll_once};
use crate::{patiently, replay, rings, tcp_pair};

fn parse(bytes: &[u8]) -> Header {
    match Header::parse(bytes) {
        Ok(Parsed::Complete(header, len)) if len == bytes.len() => header,
        other => panic!("{bytes:?} is {other:?}"),
    }
}

fn refusal(bytes: &[u8]) -> String {
    let error = Header::parse(bytes).expect_err("this is no header");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    error.to_string()
}

fn example() -> Header {
    Header::v2("192.0.2.7:4000".parse().unwrap(), "192.0.2.1:443".parse().unwrap())
}

/// A binary header by hand.
fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &len, body].concat()
}

#[test]
fn lines_are_read_as_they_are_written() {
    let lines: [(&[u8], Header); 4] = [
        (
            b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            Header::v1("255.255.255.255:65535".parse().unwrap(), "255.255.255.255:65535".parse().unwrap()),
        ),
        (
            b"PROXY TCP6 2001:db8::7 ::1 0 443\r\n",
            Header::v1("[2001:db8::7]:0".parse().unwrap(), "[::1]:443".parse().unwrap()),
        ),
        (
            b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4000 443\r\n",
            Header::v1("192.0.2.7:4000".parse().unwrap(), "[::1]:443".parse().unwrap()),
        ),
        (b"PROXY UNKNOWN\r\n", Header::new(Version::V1, Origin::Unknown)),
    ];
    for (line, header) in lines {
        assert_eq!(parse(line), header);
        assert_eq!(header.to_bytes().unwrap(), line);
    }
    let header = parse(b"PROXY UNKNOWN whatever\tit says \xff\r\n");
    assert_eq!((header.origin(), header.source()), (&Origin::Unknown, None));
}

#[test]
fn lines_that_are_not_of_the_form_are_refused() {
    let lines = [
        "PROXY \r\n",
        "PROXY  TCP4 192.0.2.7 192.0.2.1 4000 443\r\n",
        "PROXY tcp4 192.0.2.7 192.0.2.1 4000 443\r\n",
        "PROXY TCP5 192.0.2.7 192.0.2.1 4000 443\r\n",
        "PROXY TCP4\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443 \r\n",
        "PROXY TCP4 192.0.2.7  192.0.2.1 4000 443\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 65536\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 0443\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 +4000 443\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 \r\n",
        "PROXY TCP4 192.0.2.07 192.0.2.1 4000 443\r\n",
        "PROXY TCP4 ::1 192.0.2.1 4000 443\r\n",
        "PROXY TCP6 192.0.2.7 ::1 4000 443\r\n",
        "PROXY TCP6 fe80::1%eth0 ::1 4000 443\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\nGET / HTTP/1.1\r\n",
    ];
    for line in lines {
        refusal(line.as_bytes());
    }
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 16));
    assert_eq!(parse(longest.as_bytes()).origin(), &Origin::Unknown);
    let longer = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 15));
    assert!(refusal(longer.as_bytes()).contains("107"));
    assert_eq!(Header::parse(&longest.as_bytes()[..106]).unwrap(), Parsed::Incomplete(107));
}

#[test]
fn binary_headers_are_byte_for_byte_those_of_the_protocol() {
    let body = [192, 0, 2, 7, 192, 0, 2, 1, 0x0f, 0xa0, 1, 0xbb];
    assert_eq!(example().to_bytes().unwrap(), v2(0x21, 0x11, &body));
    let with_tlvs = [&body[..], b"\x02\x00\x0bexample.org", b"\x05\x00\x02id"].concat();
    let header = example().tlv(Tlv::AUTHORITY, "example.org").tlv(Tlv::UNIQUE_ID, "id");
    assert_eq!(header.to_bytes().unwrap(), v2(0x21, 0x11, &with_tlvs));
    let header = parse(&v2(0x21, 0x11, &with_tlvs));
    assert_eq!((header.authority(), header.unique_id()), (Some(&b"example.org"[..]), Some(&b"id"[..])));
    assert_eq!(header.find(Tlv::ALPN), None);
    assert_eq!(header.destination().unwrap().to_string(), "192.0.2.1:443");

    assert_eq!(Header::new(Version::V2, Origin::Local).to_bytes().unwrap(), v2(0x20, 0, b""));
    assert_eq!(parse(&v2(0x20, 0xff, b"skipped")).origin(), &Origin::Local, "whatever it says");
    assert_eq!(parse(&v2(0x21, 0, b"\x04\0\x01x")).tlvs().len(), 1, "no addresses, but a TLV");
}

#[test]
fn binary_headers_that_are_not_of_the_form_are_refused() {
    let body = [192, 0, 2, 7, 192, 0, 2, 1, 0x0f, 0xa0, 1, 0xbb];
    for (command, family) in [(0x11, 0x11), (0x31, 0x11), (0x22, 0x11), (0x2f, 0x11)] {
        refusal(&v2(command, family, &body));
    }
    // What is wrong with the first 16 bytes is said without waiting for the others.
    for family in [0x10, 0x01, 0x02, 0x13, 0x30, 0x41, 0xff] {
        refusal(&v2(0x21, family, &body)[..16]);
    }
    assert!(refusal(&v2(0x21, 0x11, &body[..11])).contains("too short"));
    refusal(&v2(0x21, 0x21, &body));
    refusal(&v2(0x21, 0x31, &[0; 215]));
    for tlvs in [&b"\x02"[..], b"\x02\0", b"\x02\0\x01", b"\x02\xff\xff12345", b"\x02\0\x01x\x02"] {
        assert!(refusal(&v2(0x21, 0x11, &[&body, tlvs].concat())).contains("outside"));
    }
    let id = [&body[..], b"\x05\0\x81", &[7; 129]].concat();
    assert!(refusal(&v2(0x21, 0x11, &id)).contains("128"));
}

#[test]
fn a_checksum_is_checked_and_every_flipped_bit_is_seen() {
    let header = example().tlv(Tlv::AUTHORITY, "example.org").checksum(true);
    let bytes = header.to_bytes().unwrap();
    assert_eq!(parse(&bytes), header);
    assert_eq!(parse(&bytes).tlvs().len(), 1, "it is not among the TLVs");
    for bit in 16 * 8..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        match Header::parse(&flipped) {
            Err(_) => {}
            // The type of the checksum itself may become another one.
            Ok(Parsed::Complete(found, _)) => assert!(!found.has_checksum(), "bit {bit}"),
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    let mut twice = bytes[16..].to_vec();
    twice.extend(&bytes[bytes.len() - 7..]);
    refusal(&v2(0x21, 0x11, &twice));
}

#[test]
fn what_has_no_form_is_not_sent() {
    let unix = || Addresses::Unix { source: Box::new([1; 108]), destination: Box::new([2; 108]) };
    let inet = || Addresses::inet("192.0.2.7:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap());
    let v1 = |origin| Header::new(Version::V1, origin);
    let refused = [
        v1(Origin::Local),
        v1(Origin::Proxied(Transport::Stream, unix())),
        v1(Origin::Proxied(Transport::Datagram, inet())),
        v1(Origin::Unknown).tlv(Tlv::ALPN, "h2"),
        v1(Origin::Unknown).checksum(true),
        Header::new(Version::V2, Origin::Local).checksum(true),
        Header::new(Version::V2, Origin::Local).tlv(Tlv::ALPN, "h2"),
        example().tlv(3, [0; 4]),
        example().tlv(Tlv::UNIQUE_ID, [0; 129]),
        example().tlv(Tlv::NOOP, vec![0; 65_536]),
        example().tlv(Tlv::NOOP, vec![0; 65_535 - 12 - 3 + 1]),
    ];
    for header in refused {
        assert_eq!(header.to_bytes().unwrap_err().kind(), ErrorKind::InvalidInput, "{header:?}");
    }
    let longest = example().tlv(Tlv::NOOP, vec![0; 65_535 - 12 - 3]);
    assert_eq!(longest.to_bytes().unwrap().len(), Header::V2_LEN_MAX);
}

#[test]
fn other_protocols_are_foreign_by_their_first_different_byte() {
    for bytes in ["GET / HTTP/1.1\r\n", "PROXX", "PROXY\t", "\r\n\r\n\0\r\nQUIT\r", "\r\r", "\x16\x03\x01"] {
        assert_eq!(Header::parse(bytes.as_bytes()).unwrap(), Parsed::Foreign, "{bytes:?}");
    }
    assert!(matches!(Header::parse(b"").unwrap(), Parsed::Incomplete(_)));
}

fn headers() -> impl Strategy<Value = Header> {
    let v4 = || (any::<u32>(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from(ip), port));
    let v6 = || (any::<u128>(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0));
    let path = || vec(any::<u8>(), 108).prop_map(|path| Box::new(path.try_into().unwrap()));
    let addresses = prop_oneof![
        (v4(), v4()).prop_map(|(source, destination)| Addresses::V4 { source, destination }),
        (v6(), v6()).prop_map(|(source, destination)| Addresses::V6 { source, destination }),
        (path(), path()).prop_map(|(source, destination)| Addresses::Unix { source, destination }),
    ];
    let transport = prop_oneof![Just(Transport::Stream), Just(Transport::Datagram)];
    let origin = prop_oneof![
        Just(Origin::Local),
        Just(Origin::Unknown),
        (transport, addresses).prop_map(|(transport, addresses)| Origin::Proxied(transport, addresses)),
    ];
    let version = prop_oneof![Just(Version::V1), Just(Version::V2), Just(Version::V2)];
    let tlvs = vec((any::<u8>(), vec(any::<u8>(), 0..200)), 0..5);
    (version, origin, tlvs, any::<bool>()).prop_map(|(version, origin, tlvs, checksum)| {
        let header = Header::new(version, origin).checksum(checksum);
        tlvs.into_iter().fold(header, |header, (kind, value)| header.tlv(kind, value))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_can_be_sent_is_read_as_it_was(header in headers(), behind in vec(any::<u8>(), 0..20)) {
        if let Ok(mut bytes) = header.to_bytes() {
            let len = bytes.len();
            bytes.extend(behind);
            prop_assert_eq!(Header::parse(&bytes).unwrap(), Parsed::Complete(header, len));
            check_proxy_header(&bytes);
        }
    }

    #[test]
    fn a_damaged_header_is_understood_whole_or_refused(header in headers(), at in any::<usize>(), byte in any::<u8>()) {
        if let Ok(mut bytes) = header.to_bytes() {
            let at = at % bytes.len();
            bytes[at] = byte;
            check_proxy_header(&bytes);
        }
    }

    #[test]
    fn anything_behind_a_signature_is_understood_whole_or_refused(behind in vec(any::<u8>(), 0..300)) {
        check_proxy_header(&[b"PROXY ", &behind[..]].concat());
        check_proxy_header(&[b"PROXY TCP6 ", &behind[..]].concat());
        check_proxy_header(&[b"\r\n\r\n\0\r\nQUIT\n", &behind[..]].concat());
        check_proxy_header(&v2(0x21, 0x11, &behind));
    }
}

#[test]
fn the_corpus_of_headers_replays() {
    replay("proxy_header", check_proxy_header);
}

#[test]
fn a_header_is_read_and_not_a_byte_behind_it() {
    let headers = [
        Header::v1("192.0.2.7:4000".parse().unwrap(), "[::1]:443".parse().unwrap()),
        example(),
        Header::new(Version::V2, Origin::Local),
        example().tlv(Tlv::AUTHORITY, "example.org").checksum(true),
        // More than a peer may send before the receiver has taken something.
        example().tlv(Tlv::NOOP, vec![7; 65_000]),
    ];
    rings::each(|runtime| {
        runtime.block_on(async {
            for header in headers.clone() {
                let (mut proxy, server) = tcp_pair().await;
                let sent = header.clone();
                let sender = ringmain::spawn(async move {
                    proxy_protocol::send_header(&mut proxy, &sent).await.unwrap();
                    proxy.send_all("what the client says").await.0.unwrap();
                });
                let read = proxy_protocol::read_header(&server, Header::V2_LEN_MAX);
                assert_eq!(patiently("the header", read).await.unwrap(), header);
                let (count, behind) = server.recv_exact(vec![0; 20]).await;
                assert_eq!((count.unwrap(), &behind[..]), (20, &b"what the client says"[..]));
                sender.await.unwrap();
            }
        });
    });
}

#[test]
fn a_header_that_comes_byte_by_byte_is_read_without_spinning() {
    Runtime::new().unwrap().block_on(async {
        for header in [example().tlv(Tlv::UNIQUE_ID, "id"), Header::new(Version::V1, Origin::Unknown)] {
            let (mut proxy, server) = UnixStream::pair().unwrap();
            let mut read = Box::pin(proxy_protocol::read_header(&server, 107));
            let bytes = header.to_bytes().unwrap();
            let driver = ringmain::Driver::current();
            let mut found = None;
            for byte in &bytes {
                assert!(found.is_none(), "it is not whole");
                proxy.send_all([*byte]).await.0.unwrap();
                let before = driver.metrics().submissions.get();
                for _ in 0..20 {
                    if let std::task::Poll::Ready(header) = poll_once(&mut read).await {
                        found = Some(header.unwrap());
                        break;
                    }
                    one_turn().await;
                }
                assert!(driver.metrics().submissions.get() - before < 20 + 10, "it spins");
            }
            assert_eq!(found, Some(header));
        }
    });
}

#[test]
fn a_connection_without_a_header_is_left_whole() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (mut client, server) = tcp_pair().await;
            client.send_all("GET / HTTP/1.1\r\n\r\n").await.0.unwrap();
            let error = proxy_protocol::read_header(&server, 536).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert_eq!(server.recv(vec![0; 64]).await.0.unwrap(), 18);
        });
    });
}

#[test]
fn a_header_that_is_cut_or_too_long_is_said_to_be_so() {
    Runtime::new().unwrap().block_on(async {
        for header in [example(), Header::v1("192.0.2.7:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap())] {
            let bytes = header.to_bytes().unwrap();
            for cut in 0..bytes.len() {
                let (mut proxy, server) = UnixStream::pair().unwrap();
                proxy.send_all(bytes[..cut].to_vec()).await.0.unwrap();
                proxy.shutdown(Shutdown::Write).unwrap();
                let error = proxy_protocol::read_header(&server, 536).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{cut} bytes: {error}");
            }
            for limit in [0, 1, 15, bytes.len() - 1] {
                let (mut proxy, server) = UnixStream::pair().unwrap();
                proxy.send_all(bytes.clone()).await.0.unwrap();
                let error = proxy_protocol::read_header(&server, limit).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                assert!(error.to_string().contains(&limit.to_string()), "{error}");
                let seen = ops::peek(&server, vec![0; 100]).await.0.unwrap();
                assert_eq!(seen, bytes.len(), "and nothing of it was taken");
            }
            let (mut proxy, server) = UnixStream::pair().unwrap();
            proxy.send_all(bytes.clone()).await.0.unwrap();
            assert_eq!(proxy_protocol::read_header(&server, bytes.len()).await.unwrap(), header);
        }
    });
}
