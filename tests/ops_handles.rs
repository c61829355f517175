//! The handles: what they are made of, what they become, and what happens to the connection when they go.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::time::Duration;

use futures::FutureExt;
use ringmain::fs::{File, OpenOptions};
use ringmain::net::{Family, Stream, TcpKeepalive, TcpOptions};
use ringmain::net::{ListenOptions, TcpListener, TcpStream, UnixListener, UnixStream};
use ringmain::{OFlags, Runtime, ops, spawn};
use rustix::io::FdFlags;

fn runtime() -> Runtime {
    Runtime::new().unwrap()
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(anywhere()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap())
}

fn is_nonblocking(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}

/// All that a socket handed out by this crate promises about its flags.
fn assert_flags(fd: impl AsFd) {
    assert!(is_nonblocking(&fd));
    assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
}

async fn talk<F: Family>(mut client: Stream<F>, mut server: Stream<F>) {
    assert_flags(&client);
    assert_flags(&server);
    client.send_all("question").await.0.unwrap();
    let (count, question) = server.recv_exact(vec![0; 8]).await;
    assert_eq!((count.unwrap(), &question[..]), (8, &b"question"[..]));
    assert_eq!(server.send("answer").await.0.unwrap(), 6);
    let (count, answer) = client.recv(Vec::with_capacity(64)).await;
    assert_eq!((count.unwrap(), &answer[..]), (6, &b"answer"[..]));
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.recv(vec![0; 8]).await.0.unwrap(), 0, "half-closed");
    assert_eq!(server.send("still here").await.0.unwrap(), 10);
    assert_eq!(client.recv(vec![0; 64]).await.0.unwrap(), 10);
}

#[test]
fn tcp_streams_talk_over_both_versions() {
    runtime().block_on(async {
        for address in [anywhere(), (Ipv6Addr::LOCALHOST, 0).into()] {
            let listener = match TcpListener::bind(address) {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => continue,
                listener => listener.unwrap(),
            };
            assert_flags(&listener);
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let server = listener.accept().await.unwrap();
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
            talk(client, server).await;
        }
    });
}

#[test]
fn unix_streams_talk_over_paths_names_and_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let name = format!("ringmain-test-{}", std::process::id());
    let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    runtime().block_on(async {
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).await.unwrap();
        let server = listener.accept().await.unwrap();
        assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
        assert!(server.peer_addr().unwrap().is_unnamed());
        talk(client, server).await;

        let listener = UnixListener::bind_with(&name, &ListenOptions::new()).unwrap();
        let client = UnixStream::connect_to(&name).await.unwrap();
        assert_eq!(client.peer_addr().unwrap().as_abstract_name(), name.as_abstract_name());
        talk(client, listener.accept().await.unwrap()).await;

        let (client, server) = UnixStream::pair().unwrap();
        talk(client, server).await;
    });
}

#[test]
fn a_full_unix_backlog_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let runtime = runtime();
    runtime.block_on(async {
        let address = std::os::unix::net::SocketAddr::from_pathname(&path).unwrap();
        let listener = UnixListener::bind_with(&address, &ListenOptions::new().backlog(0)).unwrap();
        let first = UnixStream::connect(&path).await.unwrap();
        let second = spawn(UnixStream::connect(&path));
        let third = ringmain::timeout(Duration::from_millis(20), UnixStream::connect(&path)).await;
        assert!(third.is_err(), "a backlog of 0 holds one connection");
        let cancelled = UnixStream::connect(&path).cancel().await.unwrap_err();
        assert_eq!(cancelled.raw_os_error(), Some(libc::ECANCELED));
        assert!(!second.is_finished());
        let accepted = listener.accept().await.unwrap();
        let second = second.await.unwrap().unwrap();
        talk(first, accepted).await;
        talk(second, listener.accept().await.unwrap()).await;
    });
}

#[test]
fn what_is_wrong_with_an_address_is_said_when_it_is_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind(anywhere()).unwrap();
    let address = taken.local_addr().unwrap();
    assert_eq!(TcpListener::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(taken);
    runtime().block_on(async {
        assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let missing = UnixStream::connect(folder.path().join("nobody")).await;
        assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
        let long = UnixStream::connect("x".repeat(200)).await;
        assert_eq!(long.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn options_reach_the_socket() {
    let shared = ListenOptions::new().reuse_port(true).backlog(7);
    let listener = TcpListener::bind_with(anywhere(), &shared).unwrap();
    let address = listener.local_addr().unwrap();
    let twin = TcpListener::bind_with(address, &shared).expect("the port is shared");
    drop(twin);
    runtime().block_on(async {
        let options = TcpOptions::new()
            .nodelay(true)
            .keepalive(TcpKeepalive::new().with_time(Duration::from_secs(90)))
            .linger(Duration::ZERO)
            .recv_buffer_size(50_000)
            .send_buffer_size(60_000)
            .bind(([127, 0, 0, 2], 0).into());
        let stream = TcpStream::connect_with(address, options).await.unwrap();
        assert!(stream.nodelay().unwrap());
        assert_eq!(stream.keepalive().unwrap(), Some(Duration::from_secs(90)));
        assert_eq!(stream.linger().unwrap(), Some(Duration::ZERO));
        assert_eq!(stream.recv_buffer_size().unwrap(), 100_000, "the kernel doubles it");
        assert_eq!(stream.send_buffer_size().unwrap(), 120_000, "the kernel doubles it");
        assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::from([127, 0, 0, 2]));
        stream.set_nodelay(false).unwrap();
        stream.set_keepalive(None).unwrap();
        stream.set_linger(None).unwrap();
        stream.set_recv_buffer_size(40_000).unwrap();
        stream.set_send_buffer_size(40_000).unwrap();
        assert_eq!((stream.nodelay().unwrap(), stream.keepalive().unwrap()), (false, None));
        assert_eq!(stream.linger().unwrap(), None);
        assert_eq!((stream.recv_buffer_size().unwrap(), stream.send_buffer_size().unwrap()), (80_000, 80_000));
    });
}

#[test]
fn dropping_the_write_half_ends_the_sending_direction() {
    runtime().block_on(async {
        let (client, mut server) = tcp_pair().await;
        let (read, mut write) = client.split();
        write.send_all("all of it").await.0.unwrap();
        drop(write);
        assert_eq!(server.recv_exact(vec![0; 9]).await.0.unwrap(), 9);
        assert_eq!(server.recv(vec![0; 9]).await.0.unwrap(), 0);
        server.send_all("answer").await.0.unwrap();
        assert_eq!(read.recv(vec![0; 9]).await.0.unwrap(), 6);
    });
}

#[test]
fn halves_of_one_stream_are_one_again() {
    runtime().block_on(async {
        let (left, right) = UnixStream::pair().unwrap();
        let ((left_read, left_write), (right_read, right_write)) = (left.split(), right.split());
        let mixed = left_read.reunite(right_write).unwrap_err();
        let left = mixed.0.reunite(left_write).unwrap();
        let right = right_read.reunite(mixed.1).unwrap();
        talk(left, right).await;

        let (left, right) = UnixStream::pair().unwrap();
        let (read, write) = left.split();
        write.forget();
        assert!(right.recv(vec![0; 1]).now_or_never().is_none(), "the direction is still open");
        drop(read);
        assert_eq!(right.recv(vec![0; 1]).await.0.unwrap(), 0);
    });
}

#[test]
fn dropping_a_stream_with_a_pending_receive_tells_the_peer_and_the_receiver() {
    let runtime = runtime();
    runtime.block_on(async {
        let (client, server) = tcp_pair().await;
        let pending = spawn(client.recv(Vec::with_capacity(64)));
        ops::nop().await.unwrap();
        assert!(!pending.is_finished());
        drop(client);
        assert_eq!(server.recv(vec![0; 1]).await.0.unwrap(), 0, "the peer sees the end at once");
        let (result, buffer) = pending.await.unwrap();
        assert!(matches!(result.map_err(|error| error.raw_os_error()), Ok(0) | Err(Some(libc::ECANCELED))));
        assert_eq!(buffer.capacity(), 64);
    });
}

#[test]
fn dropping_a_listener_ends_its_accept() {
    runtime().block_on(async {
        let listener = TcpListener::bind(anywhere()).unwrap();
        let pending = spawn(listener.accept());
        ops::nop().await.unwrap();
        drop(listener);
        pending.await.unwrap().expect_err("there is nothing to take connections from");
    });
}

#[test]
fn a_connection_accepted_for_nobody_is_closed() {
    runtime().block_on(async {
        let listener = TcpListener::bind(anywhere()).unwrap();
        let mut pending = listener.accept();
        assert!((&mut pending).now_or_never().is_none());
        ops::nop().await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        // The accept has completed by now; nobody has looked.
        ops::nop().await.unwrap();
        drop(pending);
        let (result, _) = client.recv(vec![0; 1]).await;
        assert!(matches!(result, Ok(0)) || result.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    });
}

#[test]
fn std_twins_go_in_and_come_out() {
    let listener = std::net::TcpListener::bind(anywhere()).unwrap();
    let clone = listener.try_clone().unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    runtime().block_on(async {
        let listener = TcpListener::from(listener);
        assert!(is_nonblocking(&clone), "the flag is shared with clones");
        let server = listener.accept().await.unwrap();
        client.write_all(b"hello").unwrap();

        let pending = server.recv(vec![0; 5]);
        let busy = server.into_std().expect_err("the receive counts as soon as it is described");
        assert!(busy.to_string().contains("in flight"));
        let server = busy.into_inner();
        assert_eq!(pending.await.0.unwrap(), 5);
        let mut server = server.into_std().unwrap();
        assert!(is_nonblocking(&server));
        server.write_all(b"std again").unwrap();
        let mut answer = [0; 9];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"std again");
        let listener: std::net::TcpListener = listener.into_std().unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);

        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        talk(UnixStream::from(left), UnixStream::from(right)).await;
    });
}

#[test]
fn a_cancelled_send_says_what_went_and_frees_the_stream() {
    runtime().block_on(async {
        let (mut client, server) = tcp_pair().await;
        let mut sending = client.send_all(vec![7; 64 << 20]);
        while sending.count() == 0 {
            assert!((&mut sending).now_or_never().is_none());
            ops::nop().await.unwrap();
        }
        let (result, count, content) = sending.cancel().await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(content.len(), 64 << 20);
        let last = spawn(async move {
            client.send_all(vec![8; 100]).await.0.unwrap();
        });
        let (result, arrived) = server.recv_exact(vec![0; count + 100]).await;
        assert_eq!(result.unwrap(), count + 100);
        assert!(arrived[..count].iter().all(|byte| *byte == 7) && arrived[count..].iter().all(|byte| *byte == 8));
        last.await.unwrap();
    });
}

#[test]
fn a_file_is_made_written_and_read_by_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let runtime = runtime();
    let mut pages = runtime.driver().registry().try_lease(4096).unwrap();
    pages.set_len(4096);
    pages.fill(6);
    runtime.block_on(async {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o640).open(&path).await.unwrap();
        assert_eq!(file.write_at("hello", 0).await.0.unwrap(), 5);
        let (count, pages) = file.write_fixed_at(pages, 100).await;
        assert_eq!(count.unwrap(), 4096);
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(file.len().unwrap(), 4196);
        assert_eq!(file.metadata().unwrap().len(), 4196);
        let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap());
        assert_eq!(mode & 0o737, 0o600, "made with the mode that was asked for");
        let (count, pages) = file.read_fixed_at(pages, 0).await;
        assert_eq!((count.unwrap(), &pages[..5], pages[4095]), (4096, &b"hello"[..], 6));
        file.write_all_at(vec![1; 10], 4190).await.0.unwrap();
        let (result, end) = file.read_exact_at(vec![0; 10], 4190).await;
        assert_eq!((result.unwrap(), end), (10, vec![1; 10]));
        file.close().await.unwrap();

        let again = OpenOptions::new().write(true).create_new(true).open(&path).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
        let log = OpenOptions::new().append(true).open(&path).await.unwrap();
        log.write_all_at("end", 0).await.0.unwrap();
        assert_eq!(log.len().unwrap(), 4203, "appended whatever the offset");
        let std: std::fs::File = log.into_std().unwrap();
        assert_eq!(File::from(std).len().unwrap(), 4203);
        assert_eq!(File::create(&path).await.unwrap().len().unwrap(), 0, "truncated");
        assert_eq!(File::open(folder.path().join("no")).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn options_that_contradict_each_other_open_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("never");
    runtime().block_on(async {
        let wrong = [
            OpenOptions::new(),
            OpenOptions::new().read(true).create(true),
            OpenOptions::new().read(true).truncate(true),
            OpenOptions::new().append(true).truncate(true).create(true),
        ];
        for options in wrong {
            let error = options.open(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{options:?}");
        }
    });
    assert!(!path.exists());
}

#[test]
fn closing_a_busy_file_says_so_and_closes_it_all_the_same() {
    let runtime = runtime();
    runtime.block_on(async {
        let (reader, _writer) = io::pipe().unwrap();
        let file = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(reader)));
        let pending = spawn(ops::read(&file, vec![0; 1]));
        ops::nop().await.unwrap();
        assert_eq!(file.close().await.unwrap_err().kind(), ErrorKind::ResourceBusy);
        let cancelled = pending.await.unwrap().0.unwrap_err();
        assert_eq!(cancelled.raw_os_error(), Some(libc::ECANCELED));
    });
}
