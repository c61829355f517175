//! All of it together: a proxy that learns from another one who the client is, routes by the name that the client wants,
//! tells the server whose connection it is, and relays. Not a byte is lost between the steps.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use ringmain::net::proxy_protocol::{self, Header, Tlv};
use ringmain::net::{ClientHello, TcpListener, TcpStream};
use ringmain::ops;

use crate::{PATIENCE, patiently, rings};

#[test]
fn a_proxy_reads_looks_and_relays_every_byte() {
    let hello = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/client_hello/openssl")).unwrap();
    let behind: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    let client_bytes = [&hello[..], &behind].concat();
    let who = Header::v2("192.0.2.7:4000".parse().unwrap(), "192.0.2.1:443".parse().unwrap()).checksum(true);
    rings::each(|runtime| {
        let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream_at = upstream.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = upstream.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(b"answer").unwrap();
            all
        });
        let front = TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let front_at = front.local_addr().unwrap();
        let first = who.to_bytes().unwrap();
        let sent = client_bytes.clone();
        let client = thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(front_at).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            // The header's end and the message's lie in the middle of what is sent at once.
            for part in [&first, &sent].map(|bytes| &bytes[..]).concat().chunks(37_000) {
                stream.write_all(part).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let told = runtime.block_on(async {
            let client = front.accept().await.unwrap();
            let read = proxy_protocol::read_header(&client, 536);
            let header = patiently("the header", read).await.unwrap();
            assert_eq!(header, who);
            let look = client.peek_client_hello(ClientHello::LEN_MAX);
            let hello = patiently("the look", look).await.unwrap().expect("it is TLS");
            let mut server = TcpStream::connect(upstream_at).await.unwrap();
            let told = Header::v2(header.source().unwrap(), header.destination().unwrap());
            let told = told.tlv(Tlv::AUTHORITY, hello.server_name().expect("it wants a host"));
            proxy_protocol::send_header(&mut server, &told).await.unwrap();
            let relayed = patiently("the relay", ops::relay(&client, &server)).await;
            relayed.result.unwrap();
            assert_eq!(relayed.a_to_b.bytes_out as usize, client_bytes.len());
            told
        });
        assert_eq!(client.join().unwrap(), "answer");
        let arrived = server.join().unwrap();
        let expected = [told.to_bytes().unwrap(), client_bytes.clone()].concat();
        assert!(arrived == expected, "{} bytes of {} arrived", arrived.len(), expected.len());
    });
}
