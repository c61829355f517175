//! Every plain operation: what it does, what it says when it cannot, and that the buffer comes back either way.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use ringmain::{Config, Fd, FixedBuf, IoBuf, Mode, OFlags, PollFlags, Runtime, ops};

fn runtime() -> Runtime {
    Runtime::new().unwrap()
}

fn pipe() -> (Fd, Fd) {
    let (reader, writer) = io::pipe().unwrap();
    (Fd::new(reader.into()), Fd::new(writer.into()))
}

fn stream() -> (Fd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let fd = Fd::new(OwnedFd::from(ours));
    fd.set_nonblocking().unwrap();
    (fd, theirs)
}

fn file(content: &[u8]) -> Fd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    Fd::new(file.into())
}

fn lease(runtime: &Runtime, len: usize) -> FixedBuf {
    runtime.driver().registry().try_lease(len).expect("pages are free")
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.expect_err("it cannot have succeeded").raw_os_error()
}

#[test]
fn a_nop_succeeds() {
    runtime().block_on(ops::nop()).unwrap();
}

#[test]
fn a_read_fills_from_the_start_and_sets_the_length() {
    let (reader, writer) = pipe();
    runtime().block_on(async {
        assert_eq!(ops::write(&writer, "first").await.0.unwrap(), 5);
        let old = b"something longer".to_vec();
        let (count, bytes) = ops::read(&reader, old).await;
        assert_eq!((count.unwrap(), &bytes[..]), (5, &b"first"[..]));
        drop(writer);
        let (count, bytes) = ops::read(&reader, bytes).await;
        assert_eq!((count.unwrap(), bytes.len()), (0, 0), "the end");
    });
}

#[test]
fn a_read_at_an_offset_leaves_the_position_alone() {
    let file = file(b"0123456789");
    runtime().block_on(async {
        let (count, bytes) = ops::read_at(&file, vec![0; 4].slice(..4), 3).await;
        assert_eq!((count.unwrap(), bytes.bytes()), (4, &b"3456"[..]));
        assert_eq!(ops::read(&file, vec![0; 4]).await.0.unwrap(), 0, "the position is where the writer left it");
        assert_eq!(ops::write_at(&file, "ab", 9).await.0.unwrap(), 2);
        let (_, bytes) = ops::read_at(&file, Vec::with_capacity(64), 0).await;
        assert_eq!(bytes, b"012345678ab");
    });
}

#[test]
fn vectors_are_filled_and_written_in_order() {
    let (reader, writer) = pipe();
    runtime().block_on(async {
        let (count, parts) = ops::writev(&writer, vec!["one", "", "three"]).await;
        assert_eq!((count.unwrap(), parts), (8, vec!["one", "", "three"]));
        let parts = vec![Vec::with_capacity(3), Vec::with_capacity(3), b"stale".to_vec()];
        let exact = parts.into_iter().map(|part: Vec<u8>| part.slice(..3)).collect();
        let (count, parts) = ops::readv(&reader, exact).await;
        assert_eq!(count.unwrap(), 8);
        let parts: Vec<_> = parts.iter().map(IoBuf::bytes).collect();
        assert_eq!(parts, [b"one", b"thr", &b"ee"[..]]);
    });
    let file = file(b"0123456789");
    runtime().block_on(async {
        assert_eq!(ops::writev_at(&file, vec!["ab", "cd"], 3).await.0.unwrap(), 4);
        let whole = vec![vec![0; 5].into_boxed_slice(), vec![0; 5].into_boxed_slice()];
        let (count, parts) = ops::readv_at(&file, whole, 1).await;
        assert_eq!((count.unwrap(), &parts[0][..], &parts[1][..4]), (9, &b"12abc"[..], &b"d789"[..]));
    });
}

#[test]
fn registered_pages_serve_pipes_sockets_and_files() {
    let runtime = runtime();
    let (mut front, mut back) = (lease(&runtime, 100), lease(&runtime, 5000));
    front.as_capacity_mut()[..5].copy_from_slice(b"pages");
    front.set_len(5);
    let (reader, writer) = pipe();
    let (socket, mut peer) = stream();
    let file = file(b"");
    runtime.block_on(async {
        let mut count;
        (count, front) = ops::write_fixed(&writer, front).await;
        assert_eq!(count.unwrap(), 5);
        (count, back) = ops::read_fixed(&reader, back).await;
        assert_eq!((count.unwrap(), &back[..]), (5, &b"pages"[..]));

        (count, back) = ops::write_fixed(&socket, back).await;
        assert_eq!(count.unwrap(), 5);
        let mut arrived = [0; 5];
        peer.read_exact(&mut arrived).unwrap();
        assert_eq!(&arrived, b"pages");
        peer.write_all(b"answer").unwrap();
        let narrowed;
        (count, narrowed) = ops::read_fixed(&socket, back.slice(10..13)).await;
        assert_eq!((count.unwrap(), narrowed.bytes()), (3, &b"ans"[..]));

        assert_eq!(ops::write_fixed_at(&file, front, 4).await.0.unwrap(), 5);
        let (count, whole) = ops::read_fixed_at(&file, narrowed.into_inner(), 0).await;
        assert_eq!((count.unwrap(), &whole[..]), (9, &b"\0\0\0\0pages"[..]));
    });
    let counts = runtime.driver().registry().snapshot();
    assert_eq!(counts.pages_free, counts.pages_total);
}

#[test]
fn fixed_operations_work_where_pages_are_not_registered() {
    let runtime = Runtime::builder().config(Config::default().register_pages(false)).build().unwrap();
    assert!(!runtime.driver().registry().is_registered());
    let mut pages = lease(&runtime, 64);
    pages.as_capacity_mut()[..3].copy_from_slice(b"abc");
    pages.set_len(3);
    let (reader, writer) = pipe();
    runtime.block_on(async {
        let (count, pages) = ops::write_fixed(&writer, pages).await;
        assert_eq!(count.unwrap(), 3);
        let (count, pages) = ops::read_fixed(&reader, pages).await;
        assert_eq!((count.unwrap(), &pages[..]), (3, &b"abc"[..]));
    });
}

#[test]
fn a_lease_of_another_runtime_is_refused_and_comes_back() {
    let (here, elsewhere) = (runtime(), runtime());
    let mut stranger = lease(&elsewhere, 64);
    stranger.set_len(64);
    let (reader, writer) = pipe();
    here.block_on(async {
        let (result, stranger) = ops::write_fixed(&writer, stranger).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        let (result, stranger) = ops::read_fixed(&reader, stranger).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(stranger.len(), 64);
    });
}

#[test]
fn a_socket_receives_and_sends() {
    let (socket, mut peer) = stream();
    runtime().block_on(async {
        assert_eq!(ops::send(&socket, "question").await.0.unwrap(), 8);
        let mut question = [0; 8];
        peer.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"question");
        peer.write_all(b"answer").unwrap();
        let (count, bytes) = ops::recv(&socket, Vec::with_capacity(64)).await;
        assert_eq!((count.unwrap(), &bytes[..]), (6, &b"answer"[..]));
        ops::shutdown(&socket, Shutdown::Write).await.unwrap();
        assert_eq!(peer.read(&mut question).unwrap(), 0, "the peer sees the end");
        drop(peer);
        assert_eq!(ops::recv(&socket, bytes).await.0.unwrap(), 0);
    });
}

#[test]
fn a_poll_says_which_events_hold() {
    let (reader, writer) = pipe();
    runtime().block_on(async {
        assert!(ops::writable(&writer).await.unwrap().contains(PollFlags::OUT));
        ops::write(&writer, "x").await.0.unwrap();
        assert_eq!(ops::poll(&reader, PollFlags::IN).await.unwrap(), PollFlags::IN);
        drop(reader);
        assert!(ops::writable(&writer).await.unwrap().contains(PollFlags::ERR), "nobody reads any more");
    });
}

#[test]
fn a_connect_meets_an_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Fd::new(OwnedFd::from(listener));
    runtime().block_on(async {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None).unwrap();
        let client = Fd::new(socket.into());
        let accept = ringmain::spawn(ops::accept(&listener));
        ops::connect(&client, address).await.unwrap();
        let server = accept.await.unwrap().unwrap();
        let flags = rustix::fs::fcntl_getfl(&server).unwrap();
        assert!(flags.contains(OFlags::NONBLOCK));
        assert!(rustix::io::fcntl_getfd(&server).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        ops::send(&client, "hello").await.0.unwrap();
        assert_eq!(ops::recv(&Fd::new(server), vec![0; 9]).await.0.unwrap(), 5);
    });
}

#[test]
fn a_file_is_opened_synced_and_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fresh");
    runtime().block_on(async {
        let opened = ops::open(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR).await;
        let fd = Fd::new(opened.unwrap());
        ops::write(&fd, "content").await.0.unwrap();
        ops::fsync(&fd, false).await.unwrap();
        ops::fsync(&fd, true).await.unwrap();
        ops::close(fd.into_owned().unwrap()).await.unwrap();
    });
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

#[test]
fn an_errno_arrives_unchanged_and_the_buffer_with_it() {
    let (reader, writer) = pipe();
    let folder = Fd::new(fs::File::open("/").unwrap().into());
    let (socket, peer) = stream();
    drop(peer);
    let (_unread, orphaned) = pipe();
    drop(_unread);
    let runtime = runtime();
    let mut pages = lease(&runtime, 8);
    pages.set_len(8);
    runtime.block_on(async {
        let kept = b"kept".to_vec();
        let (result, kept) = ops::read(&writer, kept).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::EBADF), &b"kept"[..]), "the wrong end of a pipe");
        let (result, kept) = ops::read_at(&folder, kept, 0).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::EISDIR), &b"kept"[..]));
        let (result, kept) = ops::write(&orphaned, kept).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::EPIPE), &b"kept"[..]));
        let (result, kept) = ops::write_at(&orphaned, kept, 5).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::EPIPE), &b"kept"[..]));
        let (result, kept) = ops::readv(&writer, vec![kept]).await;
        assert_eq!((errno(result), &kept[0][..]), (Some(libc::EBADF), &b"kept"[..]));
        let (result, kept) = ops::writev(&reader, kept).await;
        assert_eq!((errno(result), &kept[0][..]), (Some(libc::EBADF), &b"kept"[..]));
        let (result, pages) = ops::read_fixed(&writer, pages).await;
        assert_eq!((errno(result), pages.len()), (Some(libc::EBADF), 8));
        let (result, pages) = ops::write_fixed(&orphaned, pages).await;
        assert_eq!((errno(result), pages.len()), (Some(libc::EPIPE), 8));
        let (result, kept) = ops::recv(&reader, kept.into_iter().next().unwrap()).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::ENOTSOCK), &b"kept"[..]));
        let (result, kept) = ops::send(&socket, kept).await;
        assert_eq!((errno(result), &kept[..]), (Some(libc::EPIPE), &b"kept"[..]));
        assert_eq!(errno(ops::accept(&socket).await), Some(libc::EINVAL), "it does not listen");
        assert_eq!(errno(ops::shutdown(&reader, Shutdown::Both).await), Some(libc::ENOTSOCK));
        assert_eq!(errno(ops::fsync(&reader, false).await), Some(libc::EINVAL));
        let missing = ops::open("/no/such/file", OFlags::RDONLY, Mode::empty()).await;
        assert_eq!(errno(missing), Some(libc::ENOENT));
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(errno(ops::connect(&reader, nowhere).await), Some(libc::ENOTSOCK));
    });
}

#[test]
fn what_cannot_be_described_is_refused_with_the_buffer() {
    let (reader, writer) = pipe();
    let invalid = |result: io::Result<usize>| assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    runtime().block_on(async {
        ops::write(&writer, "unread").await.0.unwrap();
        invalid(ops::read(&reader, Vec::new()).await.0);
        let (result, slice) = ops::recv(&reader, b"full".to_vec().slice(4..4)).await;
        invalid(result);
        assert_eq!(slice.into_inner(), b"full");
        let (result, buffers) = ops::readv(&reader, vec![b"room".to_vec(), Vec::new()]).await;
        invalid(result);
        assert_eq!(buffers[0], b"room");
        invalid(ops::readv(&reader, Vec::<Vec<u8>>::new()).await.0);
        invalid(ops::writev(&writer, Vec::<&'static str>::new()).await.0);
        let (result, many) = ops::writev(&writer, vec!["x"; 1025]).await;
        invalid(result);
        assert_eq!(many.len(), 1025);
        let nul = ops::open("a\0b", OFlags::RDONLY, Mode::empty()).await;
        assert_eq!(nul.unwrap_err().kind(), ErrorKind::InvalidInput);
        let (count, bytes) = ops::read(&reader, vec![0; 64]).await;
        assert_eq!((count.unwrap(), &bytes[..]), (6, &b"unread"[..]), "nothing was read or written meanwhile");
    });
}

#[test]
fn no_offset_means_the_position_by_accident() {
    let file = file(b"0123456789");
    runtime().block_on(async {
        for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64 + 1] {
            let (result, _) = ops::read_at(&file, vec![0; 4], offset).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "reading at {offset}");
            let (result, _) = ops::write_at(&file, "lost", offset).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "writing at {offset}");
        }
        assert_eq!(ops::read_at(&file, vec![0; 64], 0).await.0.unwrap(), 10, "nothing was appended");
    });
}

#[test]
fn writing_nothing_succeeds_with_nothing() {
    let runtime = runtime();
    let (_reader, writer) = pipe();
    let (socket, _peer) = stream();
    let file = file(b"");
    let empty = lease(&runtime, 64);
    runtime.block_on(async {
        assert_eq!(ops::write(&writer, "").await.0.unwrap(), 0);
        assert_eq!(ops::write_at(&file, "", 9).await.0.unwrap(), 0);
        assert_eq!(ops::writev(&writer, vec!["", ""]).await.0.unwrap(), 0);
        assert_eq!(ops::send(&socket, "").await.0.unwrap(), 0);
        let (count, empty) = ops::write_fixed(&writer, empty).await;
        assert_eq!(count.unwrap(), 0);
        assert_eq!(ops::write_fixed_at(&file, empty.slice(64..), 0).await.0.unwrap(), 0);
        assert_eq!(ops::write_all(&writer, "").await.0.unwrap(), 0);
        assert_eq!(ops::send_all(&socket, Vec::new()).await.0.unwrap(), 0);
    });
}
