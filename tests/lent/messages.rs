//! Messages with who sent them, and what they bring besides.

use std::io;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use futures::stream::StreamExt;
use ringmain::{Config, Fd, Runtime, ops};

use crate::{all_free, each, runtime};

const SIZES: &[(u32, u16)] = &[(4096, 8)];

#[test]
fn each_message_comes_with_its_senders_address() {
    each(SIZES, 64, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            for address in ["127.0.0.1:0", "[::1]:0"] {
                let Ok(ours) = UdpSocket::bind(address) else {
                    println!("SKIPPED: this machine has no {address}");
                    continue;
                };
                let senders: Vec<_> = (0..3).map(|_| UdpSocket::bind(address).unwrap()).collect();
                let to = ours.local_addr().unwrap();
                let mut messages = ops::recvmsg_multishot(&Fd::new(ours.into()));
                for round in 0..20u8 {
                    for (at, sender) in senders.iter().enumerate() {
                        sender.send_to(&[round; 100][..usize::from(round) + at], to).unwrap();
                    }
                    for (at, sender) in senders.iter().enumerate() {
                        let message = messages.next().await.unwrap().unwrap();
                        assert_eq!(message.payload(), &[round; 100][..usize::from(round) + at]);
                        assert_eq!(message.address(), Some(sender.local_addr().unwrap()));
                        assert!(message.unix_address().is_none() && message.control().is_empty());
                        assert!(!message.is_truncated() && !message.is_control_truncated());
                    }
                }
            }
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// The first of the messages above is empty, too: neither kind of stream takes one for the end.
#[test]
fn an_empty_datagram_is_not_the_end() {
    each(SIZES, 64, |runtime| {
        runtime.block_on(async {
            let (ours, theirs) = UnixDatagram::pair().unwrap();
            let socket = Fd::new(ours.into());
            let mut pieces = ops::recv_multishot(&socket);
            for message in [&b"one"[..], b"", b"", b"two"] {
                theirs.send(message).unwrap();
            }
            assert_eq!(&pieces.next().await.unwrap().unwrap()[..], b"one");
            assert_eq!(&pieces.next().await.unwrap().unwrap()[..], b"two");
            drop(pieces);
            crate::turns::settled().await;
            let mut messages = ops::recvmsg_multishot(&socket);
            for message in [&b"one"[..], b"", b"two"] {
                theirs.send(message).unwrap();
            }
            for message in [&b"one"[..], b"", b"two"] {
                assert_eq!(messages.next().await.unwrap().unwrap().payload(), message);
            }
        });
    });
}

#[test]
fn a_unix_socket_is_known_by_its_name() {
    let runtime = runtime(SIZES, 64);
    let dir = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let [path, sender] = ["receiver", "sender"].map(|name| dir.path().join(name));
        let ours = UnixDatagram::bind(&path).unwrap();
        let theirs = UnixDatagram::bind(&sender).unwrap();
        theirs.send_to(b"named", &path).unwrap();
        let mut messages = ops::recvmsg_multishot(&Fd::new(ours.into()));
        let message = messages.next().await.unwrap().unwrap();
        assert_eq!(message.unix_address().unwrap().as_pathname(), Some(&*sender));
        assert_eq!((message.payload(), message.address()), (&b"named"[..], None));
        let payload = message.into_payload();
        assert_eq!(&payload[..], b"named");
    });
}

#[test]
fn a_message_that_is_too_long_says_so() {
    let runtime = runtime(SIZES, 64);
    runtime.block_on(async {
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
        theirs.send_to(&[7; 5000], ours.local_addr().unwrap()).unwrap();
        theirs.send_to(&[8; 3952], ours.local_addr().unwrap()).unwrap();
        let mut messages = ops::recvmsg_multishot(&Fd::new(ours.into()));
        let cut = messages.next().await.unwrap().unwrap();
        assert!(cut.is_truncated() && cut.payload() == [7; 3952], "{cut:?}");
        let whole = messages.next().await.unwrap().unwrap();
        assert!(!whole.is_truncated() && whole.payload() == [8; 3952], "{whole:?}");
    });
}

#[test]
fn control_data_comes_where_there_is_room_for_it() {
    let runtime = runtime(SIZES, 64);
    runtime.block_on(async {
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        let theirs = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = ours.local_addr().unwrap();
        socket2::SockRef::from(&ours).set_recv_tos_v4(true).unwrap();
        let mut messages = ops::recvmsg_multishot(&Fd::new(ours.into())).control_bytes(64);
        theirs.send_to(b"with a type of service", to).unwrap();
        let message = messages.next().await.unwrap().unwrap();
        assert_eq!(message.payload(), b"with a type of service");
        assert!(message.control().len() > 16, "a header and a byte: {:?}", message.control());
        drop(messages);
    });
}

/// A descriptor that comes in control data would be nobody's: it is refused, and without room for it none arrives.
#[test]
fn descriptors_in_control_data_do_not_leak() {
    let runtime = runtime(SIZES, 64);
    runtime.block_on(async {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let socket = Fd::new(ours.into());
        let error = ops::recvmsg_multishot(&socket).control_bytes(64).next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("would be nobody's"), "{error}");

        let (reader, writer) = io::pipe().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let descriptors = [std::os::fd::AsFd::as_fd(&writer)];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors)));
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&theirs, &[io::IoSlice::new(b"take it")], &mut control, flags).unwrap();
        drop(writer);
        let message = ops::recvmsg_multishot(&socket).next().await.unwrap().unwrap();
        assert!(message.is_control_truncated(), "{message:?}");
        let mut rest = Vec::new();
        io::Read::read_to_end(&mut { reader }, &mut rest).unwrap();
        assert!(rest.is_empty(), "the descriptor was closed");
    });
}

#[test]
fn a_buffer_without_room_for_a_payload_is_refused() {
    let config = Config::default().pages(16).lent([(4096, 2)]);
    let runtime = Runtime::builder().config(config).build().unwrap();
    runtime.block_on(async {
        let socket = Fd::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
        let error = ops::recvmsg_multishot(&socket).control_bytes(4000).next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("leave no room"), "{error}");
        let error = ops::recvmsg_multishot(&socket).buffer_bytes(8192).next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("Config::lent"), "{error}");
    });
}
