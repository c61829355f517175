//! Whole transfers: how they go on after a short step, how they end, and what a cancel gives back.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use futures::FutureExt;
use ringmain::{Fd, IoBuf, Runtime, Script, ops};

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

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// A runtime whose kernel answers each entry with the next of these, and then with `last` for ever.
fn played(answers: &'static [i32], last: i32) -> (Runtime, Rc<Cell<usize>>) {
    let (runtime, script) = Runtime::builder().build_scripted().unwrap();
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    script.play(move |kernel: &Script| {
        for pending in kernel.pending() {
            let answer = answers.get(count.get()).copied().unwrap_or(last);
            count.set(count.get() + 1);
            kernel.complete(pending.entry.user_data, answer);
        }
    });
    (runtime, asked)
}

#[test]
fn a_whole_transfer_goes_through_a_small_pipe() {
    let (reader, writer) = pipe();
    let sent = pattern(1 << 20);
    let expected = sent.clone();
    runtime().block_on(async {
        let sending = ringmain::spawn(async move { ops::write_all(&writer, sent).await });
        let (result, arrived) = ops::read_exact(&reader, Vec::with_capacity(1 << 20).slice(..1 << 20)).await;
        assert_eq!(result.unwrap(), 1 << 20);
        assert_eq!(sending.await.unwrap().0.unwrap(), 1 << 20);
        assert!(arrived.into_inner() == expected);
    });
}

#[test]
fn a_whole_transfer_goes_through_a_socket_whose_peer_is_slow() {
    let (socket, mut peer) = stream();
    let sent = pattern(1 << 20);
    let expected = sent.clone();
    let echo = std::thread::spawn(move || {
        let mut part = [0; 7919];
        let mut all = Vec::new();
        while all.len() < 1 << 20 {
            let count = peer.read(&mut part).unwrap();
            all.extend_from_slice(&part[..count]);
        }
        for part in all.chunks(1013) {
            peer.write_all(part).unwrap();
        }
    });
    runtime().block_on(async {
        let (result, sent) = ops::send_all(&socket, sent).await;
        assert_eq!(result.unwrap(), sent.len());
        let (result, arrived) = ops::recv_exact(&socket, vec![0; 1 << 20].into_boxed_slice()).await;
        assert_eq!(result.unwrap(), 1 << 20);
        assert!(arrived[..] == expected);
    });
    echo.join().unwrap();
}

#[test]
fn places_in_a_file_are_read_and_written_whole() {
    let file = Fd::new(tempfile::tempfile().unwrap().into());
    let content = pattern(100_000);
    let expected = content.clone();
    runtime().block_on(async {
        assert_eq!(ops::write_all_at(&file, content, 5000).await.0.unwrap(), 100_000);
        let (result, arrived) = ops::read_exact_at(&file, Vec::with_capacity(50_000).slice(..50_000), 30_000).await;
        assert_eq!(result.unwrap(), 50_000);
        assert!(arrived.bytes() == &expected[25_000..75_000]);
        let (result, arrived) = ops::read_exact_at(&file, vec![0; 20], 104_990).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(arrived, &expected[99_990..], "what there was comes with the error");
    });
}

#[test]
fn a_stream_that_ends_early_gives_what_there_was() {
    let (reader, writer) = pipe();
    runtime().block_on(async {
        ops::write_all(&writer, "short").await.0.unwrap();
        drop(writer);
        let (result, arrived) = ops::read_exact(&reader, Vec::with_capacity(64)).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(arrived, b"short");
        let (result, _) = ops::read_exact(&reader, Vec::new()).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "no capacity is no success");
    });
}

#[test]
fn short_writes_and_a_full_disk_are_told_apart() {
    let file = Fd::new(tempfile::tempfile().unwrap().into());
    let (runtime, asked) = played(&[100, 1, -libc::EAGAIN, 0x4, 399], 0);
    // The EAGAIN is followed by a poll of the runtime's own, which the played kernel answers with POLLOUT.
    assert_eq!(runtime.block_on(ops::write_all_at(&file, pattern(500), 0)).0.unwrap(), 500);
    assert_eq!(asked.get(), 5);

    let (runtime, _) = played(&[100, -libc::ENOSPC], 0);
    let mut writing = ops::write_all_at(&file, pattern(500), 0);
    let (result, content) = runtime.block_on(&mut writing);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!((writing.count(), content.len()), (100, 500));
}

#[test]
fn a_write_without_progress_is_an_error_and_no_spin() {
    let file = Fd::new(tempfile::tempfile().unwrap().into());
    let (runtime, asked) = played(&[100], 0);
    let (result, content) = runtime.block_on(ops::write_all_at(&file, pattern(500), 0));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::WriteZero);
    assert_eq!((asked.get(), content), (2, pattern(500)));
}

#[test]
fn steps_continue_where_the_last_one_ended() {
    let file = Fd::new(tempfile::tempfile().unwrap().into());
    let (runtime, script) = Runtime::builder().build_scripted().unwrap();
    let entries = Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = entries.clone();
    script.play(move |kernel: &Script| {
        for pending in kernel.pending() {
            seen.borrow_mut().push((pending.entry.off, pending.entry.len));
            kernel.complete(pending.entry.user_data, pending.entry.len.min(200) as i32);
        }
    });
    assert_eq!(runtime.block_on(ops::write_all_at(&file, pattern(500), 1000)).0.unwrap(), 500);
    assert_eq!(*entries.borrow(), [(1000, 500), (1200, 300), (1400, 100)]);
}

#[test]
fn a_cancelled_read_gives_back_what_it_had() {
    let (reader, writer) = pipe();
    let runtime = runtime();
    runtime.block_on(async {
        ops::write_all(&writer, "half").await.0.unwrap();
        let mut reading = ops::read_exact(&reader, Vec::with_capacity(8).slice(..8));
        // Polled until the first step is over, which the pipe then tells by being empty.
        while reading.count() < 4 {
            assert!((&mut reading).now_or_never().is_none(), "four bytes are missing");
            ops::nop().await.unwrap();
        }
        let (result, count, bytes) = reading.cancel().await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!((count, bytes.bytes()), (4, &b"half"[..]));

        // And nothing that comes later is lost to it.
        ops::write_all(&writer, "rest").await.0.unwrap();
        let (result, rest) = ops::read_exact(&reader, vec![0; 4]).await;
        assert_eq!((result.unwrap(), &rest[..]), (4, &b"rest"[..]));
    });
    assert_eq!(runtime.driver().operations_active(), 0);
}

#[test]
fn a_cancelled_write_says_how_much_went() {
    let (socket, mut peer) = stream();
    let content = pattern(1 << 22);
    let expected = content.clone();
    runtime().block_on(async {
        let mut sending = ops::send_all(&socket, content);
        while sending.count() == 0 {
            assert!((&mut sending).now_or_never().is_none(), "a socket's buffer has no room for that");
            ops::nop().await.unwrap();
        }
        let (result, count, content) = sending.cancel().await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert!(count > 0 && count < content.len());
        drop(socket);
        let mut arrived = Vec::new();
        peer.read_to_end(&mut arrived).unwrap();
        assert!(arrived.len() == count && arrived == expected[..count], "the count is exact");
    });
}

#[test]
fn a_transfer_cancelled_before_it_began_moved_nothing() {
    let (reader, writer) = pipe();
    runtime().block_on(async {
        let (result, count, text) = ops::write_all(&writer, "never").cancel().await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!((count, text), (0, "never"));
        drop(writer);
        assert_eq!(ops::read(&reader, vec![0; 8]).await.0.unwrap(), 0);
    });
}
