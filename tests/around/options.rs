//! Options of streams and listeners, read back from the kernel.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ringmain::Runtime;
use ringmain::net::{ListenOptions, TcpKeepalive, TcpListener, TcpOptions, TcpStream};

use crate::tcp_pair;

const SECOND: Duration = Duration::from_secs(1);

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(60 * SECOND).with_interval(7 * SECOND).with_retries(4)
}

/// What both options below ask for.
fn assert_options(stream: &TcpStream) {
    assert!(stream.nodelay().unwrap());
    assert_eq!(stream.keepalive().unwrap(), Some(60 * SECOND));
    assert_eq!(stream.keepalive_interval().unwrap(), 7 * SECOND);
    assert_eq!(stream.keepalive_retries().unwrap(), 4);
    assert_eq!(stream.user_timeout().unwrap(), Some(25 * SECOND));
}

#[test]
fn a_stream_has_its_own_options_and_an_accepted_one_its_listeners() {
    Runtime::new().unwrap().block_on(async {
        let listen = ListenOptions::new().nodelay(true).keepalive(keepalive()).user_timeout(25 * SECOND);
        for address in [anywhere(), (Ipv6Addr::LOCALHOST, 0).into()] {
            let listener = match TcpListener::bind_with(address, &listen) {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    eprintln!("SKIPPED {address}: this machine has no such address");
                    continue;
                }
                listener => listener.unwrap(),
            };
            let options = TcpOptions::new().nodelay(true).keepalive(keepalive()).user_timeout(25 * SECOND);
            let client = TcpStream::connect_with(listener.local_addr().unwrap(), options).await.unwrap();
            assert_options(&client);
            assert_options(&listener.accept().await.unwrap());
        }
    });
}

#[test]
fn options_can_be_changed_and_taken_back() {
    Runtime::new().unwrap().block_on(async {
        let (client, _server) = tcp_pair().await;
        assert_eq!((client.user_timeout().unwrap(), client.keepalive().unwrap()), (None, None));
        let times =
            [(SECOND, 1000), (Duration::from_nanos(1), 1), (Duration::ZERO, 1), (Duration::from_micros(1001), 2)];
        for (time, millis) in times {
            client.set_user_timeout(Some(time)).unwrap();
            assert_eq!(client.user_timeout().unwrap(), Some(Duration::from_millis(millis)), "{time:?}");
        }
        let error = client.set_user_timeout(Some(Duration::MAX)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "it is not cut to something else");
        client.set_user_timeout(None).unwrap();
        assert_eq!(client.user_timeout().unwrap(), None);
        client.set_keepalive(Some(&keepalive())).unwrap();
        assert_eq!(client.keepalive().unwrap(), Some(60 * SECOND));
        client.set_keepalive(None).unwrap();
        assert_eq!(client.keepalive().unwrap(), None);
    });
}

#[test]
fn a_connection_that_nobody_redirected_has_no_other_destination() {
    Runtime::new().unwrap().block_on(async {
        let (_client, server) = tcp_pair().await;
        match server.original_destination() {
            // Where connections are tracked, this one went where it wanted to.
            Ok(address) => assert_eq!(address, server.local_addr().unwrap()),
            Err(error) => {
                let errno = error.raw_os_error();
                assert!(matches!(errno, Some(libc::ENOENT | libc::ENOPROTOOPT)), "{error}");
            }
        }
        // A listener on all addresses sees IPv4 connections as IPv6 ones.
        if let Ok(both) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0).into()) {
            let port = both.local_addr().unwrap().port();
            let _client = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await.unwrap();
            let server = both.accept().await.unwrap();
            let errno = server.original_destination().map_err(|error| error.raw_os_error());
            assert!(matches!(errno, Ok(_) | Err(Some(libc::ENOENT | libc::ENOPROTOOPT))), "{errno:?}");
        }
    });
}

#[test]
fn a_transparent_socket_may_have_a_foreign_address() {
    let foreign: IpAddr = [192, 0, 2, 7].into();
    let options = ListenOptions::new().transparent(true);
    match TcpListener::bind_with((foreign, 0).into(), &options) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            eprintln!("SKIPPED a_transparent_socket_may_have_a_foreign_address: CAP_NET_ADMIN is needed: {error}");
            return;
        }
        listener => assert_eq!(listener.unwrap().local_addr().unwrap().ip(), foreign),
    }
    TcpListener::bind((foreign, 0).into()).expect_err("the address is not this machine's");
    Runtime::new().unwrap().block_on(async {
        let listener = TcpListener::bind(anywhere()).unwrap();
        let source = SocketAddr::from(([127, 9, 9, 9], 0));
        let options = TcpOptions::new().transparent(true).bind(source);
        let _client = TcpStream::connect_with(listener.local_addr().unwrap(), options).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().peer_addr().unwrap().ip(), source.ip());
    });
}
