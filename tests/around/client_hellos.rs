//! The first message of a TLS client: understood in however many pieces it comes, and left where it is.

use std::io::ErrorKind;
use std::net::Shutdown;

use proptest::collection::vec;
use proptest::prelude::*;
use ringmain::net::{ClientHello, Parsed, UnixStream};
use ringmain::{Runtime, spawn};

use crate::first_bytes::{check_client_hello, in_records};
use crate::{patiently, replay, rings, tcp_pair};

fn counted_by_u8(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn counted_by_u16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted_by_u16(content)].concat()
}

fn server_name(name: &str) -> Vec<u8> {
    extension(0, &counted_by_u16(&[&[0], &counted_by_u16(name.as_bytes())[..]].concat()))
}

fn alpn(protocols: &[&str]) -> Vec<u8> {
    let names: Vec<u8> = protocols.iter().flat_map(|name| counted_by_u8(name.as_bytes())).collect();
    extension(16, &counted_by_u16(&names))
}

/// The message, without a record around it.
fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    let body = [
        b"\x03\x03",
        &[9; 32][..],
        &counted_by_u8(&[1; 32]),
        &counted_by_u16(b"\x13\x01\x13\x02"),
        &counted_by_u8(b"\0"),
        &counted_by_u16(&extensions.concat()),
    ]
    .concat();
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1, len[1], len[2], len[3]], &body[..]].concat()
}

fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    in_records(&message(extensions), 1 << 14)
}

fn parse(bytes: &[u8]) -> ClientHello {
    match ClientHello::parse(bytes) {
        Ok(Parsed::Complete(hello, len)) if len == bytes.len() => hello,
        other => panic!("{bytes:?} is {other:?}"),
    }
}

fn protocols(hello: &ClientHello) -> Vec<&[u8]> {
    hello.alpn().collect()
}

/// As `openssl s_client -servername www.example.org -alpn h2,http/1.1` sends it.
fn of_openssl() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/client_hello/openssl")).unwrap()
}

#[test]
fn a_real_clients_wishes_are_understood() {
    let hello = parse(&of_openssl());
    assert_eq!(hello.server_name(), Some("www.example.org"));
    assert_eq!(protocols(&hello), [&b"h2"[..], b"http/1.1"]);
}

#[test]
fn what_a_client_leaves_out_is_none() {
    let bare = parse(&hello(&[]));
    assert_eq!((bare.server_name(), protocols(&bare)), (None, vec![]));
    let with_other = parse(&hello(&[extension(0x0a0a, b""), alpn(&["h3"]), extension(43, b"\x02\x03\x04")]));
    assert_eq!((with_other.server_name(), protocols(&with_other)), (None, vec![&b"h3"[..]]));
    // A name of another type than a host's says nothing.
    let other_name = extension(0, &counted_by_u16(&[&[7], &counted_by_u16(b"what")[..]].concat()));
    assert_eq!(parse(&hello(&[other_name])).server_name(), None);
}

#[test]
fn malformed_messages_are_refused() {
    let cut_list = extension(0, b"\0\x20\0\0\x01a");
    let two_hosts = [&[0], &counted_by_u16(b"a")[..], &[0], &counted_by_u16(b"b")[..]].concat();
    let wrong = [
        hello(&[server_name("")]),
        hello(&[server_name("with space")]),
        hello(&[server_name("z\u{fc}rich.example")]),
        hello(&[server_name("a"), server_name("b")]),
        hello(&[extension(0, &counted_by_u16(&two_hosts))]),
        hello(&[cut_list]),
        hello(&[extension(0, b"")]),
        hello(&[extension(16, b"\0\0")]),
        hello(&[alpn(&[""])]),
        hello(&[extension(16, &[counted_by_u16(b"\x02h2"), b"x".to_vec()].concat())]),
        hello(&[vec![0, 0, 0]]),
        // A message that is shorter than its own fields, and one that is longer.
        in_records(b"\x01\0\0\x10aaaaaaaaaaaaaaaa", 100),
        {
            let mut longer = message(&[]);
            longer[3] += 1;
            longer.push(0);
            in_records(&longer, 1 << 14)
        },
        // A record of another type in the middle of the message.
        [&in_records(&message(&[])[..20], 100)[..], b"\x17\x03\x03\0\x01x"].concat(),
        [&in_records(&message(&[])[..20], 100)[..], b"\x16\x03\x03\0\0"].concat(),
    ];
    for bytes in wrong {
        let error = ClientHello::parse(&bytes).expect_err("this is no ClientHello");
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}");
        check_client_hello(&bytes);
    }
}

#[test]
fn what_is_not_tls_is_known_by_its_first_bytes() {
    let others: [&[u8]; 9] = [
        b"G",
        b"SSH-2.0",
        b"PROXY TCP4",
        b"\x15\x03\x01\0\x02\x02\x28",
        b"\x16\x02",
        b"\x16\x03\x05",
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\0\x04\x02",
    ];
    for bytes in others {
        assert_eq!(ClientHello::parse(bytes).unwrap(), Parsed::Foreign, "{bytes:?}");
    }
    assert_eq!(ClientHello::parse(b"").unwrap(), Parsed::Incomplete(5));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_and_protocols_are_read_as_written(
        name in "[a-z0-9.-]{1,200}",
        offers in vec("[!-~]{1,30}", 1..5),
        other in vec(any::<u8>(), 0..500),
        record_len in 1usize..600,
        behind in vec(any::<u8>(), 0..20),
    ) {
        let offers: Vec<&str> = offers.iter().map(String::as_str).collect();
        let message = message(&[extension(21, &other), server_name(&name), alpn(&offers)]);
        let mut bytes = in_records(&message, record_len);
        let len = bytes.len();
        bytes.extend(behind);
        check_client_hello(&bytes);
        let Parsed::Complete(hello, took) = ClientHello::parse(&bytes).unwrap() else { panic!("it is whole") };
        prop_assert_eq!((took, hello.server_name()), (len, Some(&name[..])));
        prop_assert_eq!(protocols(&hello), offers.iter().map(|offer| offer.as_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn a_damaged_message_is_understood_whole_or_refused(changes in vec((any::<usize>(), any::<u8>()), 1..4)) {
        let mut bytes = of_openssl();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        check_client_hello(&bytes);
    }
}

#[test]
fn the_corpus_of_client_hellos_replays() {
    replay("client_hello", check_client_hello);
}

#[test]
fn a_client_hello_is_seen_in_pieces_and_nothing_is_taken() {
    let bytes = of_openssl();
    let fragmented = in_records(&bytes[5..], 50);
    rings::each(|runtime| {
        runtime.block_on(async {
            for whole in [bytes.clone(), fragmented.clone()] {
                let (mut client, server) = tcp_pair().await;
                client.set_nodelay(true).unwrap();
                let sent = whole.clone();
                let sender = spawn(async move {
                    for segment in sent.chunks(101) {
                        client.send_all(segment.to_vec()).await.0.unwrap();
                        crate::turns::one_turn().await;
                    }
                    client
                });
                let look = server.peek_client_hello(ClientHello::LEN_MAX);
                let hello = patiently("the look", look).await.unwrap().expect("it is TLS");
                assert_eq!(hello.server_name(), Some("www.example.org"));
                let (count, taken) = server.recv_exact(vec![0; whole.len()]).await;
                assert_eq!(count.unwrap(), whole.len());
                assert_eq!(taken, whole);
                drop(sender.await.unwrap());
            }
        });
    });
}

#[test]
fn a_large_client_hello_is_seen_up_to_the_limit() {
    let bytes = hello(&[extension(21, &[0; 9000]), server_name("far.example")]);
    Runtime::new().unwrap().block_on(async {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.send_all(bytes.clone()).await.0.unwrap();
        for limit in [bytes.len(), ClientHello::LEN_MAX] {
            let hello = server.peek_client_hello(limit).await.unwrap().expect("it is TLS");
            assert_eq!(hello.server_name(), Some("far.example"));
        }
        for limit in [0, 4, 5, 100, bytes.len() - 1] {
            let error = server.peek_client_hello(limit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(&format!("{limit} bytes")), "{error}");
        }
        assert_eq!(server.recv_exact(vec![0; bytes.len()]).await.1, bytes);
    });
}

#[test]
fn a_client_that_ends_in_the_middle_is_said_to() {
    let bytes = of_openssl();
    Runtime::new().unwrap().block_on(async {
        for cut in [0, 1, 4, 5, 8, 100, bytes.len() - 1] {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.send_all(bytes[..cut].to_vec()).await.0.unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let look = patiently("the look", server.peek_client_hello(ClientHello::LEN_MAX)).await;
            assert_eq!(look.unwrap_err().kind(), ErrorKind::UnexpectedEof, "{cut} bytes");
        }
        let (mut client, server) = UnixStream::pair().unwrap();
        client.send_all("S").await.0.unwrap();
        assert_eq!(server.peek_client_hello(ClientHello::LEN_MAX).await.unwrap(), None, "one byte is enough");
    });
}
