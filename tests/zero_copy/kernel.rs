//! Against the kernel, under every ring configuration.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;

use futures::FutureExt;
use ringmain::net::UnixStream;
use ringmain::{Config, Driver, Fd, IoBuf, Opcode, Runtime, ops};
use rustix::io::Errno;

use super::{PAGE, rings, turns};

/// From the first byte on, so that every send asks.
fn each(test: impl FnMut(Runtime)) {
    rings::each_with(|config| config.zero_copy_min(1), test);
}

fn has(runtime: &Runtime, opcode: Opcode) -> bool {
    let supported = runtime.driver().setup().supports(opcode);
    if !supported {
        eprintln!("SKIPPED: this kernel does not know {opcode}");
    }
    supported
}

/// A connection over loopback, and a thread that reads all that comes through it.
fn connection() -> (Fd, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        all
    });
    (Fd::new(client.into()), reader)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn lease_with(bytes: &[u8]) -> ringmain::FixedBuf {
    let mut lease = Driver::current().registry().try_lease(bytes.len()).expect("the pages are free");
    lease.as_capacity_mut().copy_from_slice(bytes);
    lease.set_len(bytes.len());
    lease
}

fn joined(parts: &[ringmain::FixedBuf]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

#[test]
fn all_bytes_arrive_from_leases_from_other_memory_and_from_several_of_each() {
    each(|runtime| {
        if !has(&runtime, Opcode::SendZc) || !has(&runtime, Opcode::SendmsgZc) {
            return;
        }
        let mut expected = Vec::new();
        let (socket, reader) = connection();
        runtime.block_on(async {
            // A socket of its own for each kind, as the first copied send is the last that asks.
            for kind in 0..4 {
                let (fresh, reader) = connection();
                let content = pattern(10 * PAGE + kind);
                let (before, after) = content.split_at(3 * PAGE + 5);
                let result = match kind {
                    0 => {
                        let (result, released) = ops::send_zc(&fresh, content.clone()).await;
                        assert_eq!(released.await, content);
                        result
                    }
                    1 => {
                        let (result, released) = ops::send_zc(&fresh, lease_with(&content)).await;
                        assert_eq!(&released.await[..], content);
                        result
                    }
                    2 => {
                        let parts = vec![before.to_vec(), Vec::new(), after.to_vec()];
                        let (result, released) = ops::send_vectored_zc(&fresh, parts).await;
                        assert_eq!(released.await.concat(), content);
                        result
                    }
                    _ => {
                        let parts = vec![lease_with(before), lease_with(after)];
                        let (result, released) = ops::send_vectored_zc(&fresh, parts).await;
                        assert_eq!(&released.await[1][..], after);
                        result
                    }
                };
                assert_eq!(result.unwrap(), content.len(), "kind {kind}");
                drop(fresh);
                assert!(reader.join().unwrap() == content, "kind {kind}");
            }
            // One connection, longer than any socket's buffer: all of each send goes, in order.
            for round in 0..4 {
                let content = pattern((1 << 20) + round);
                let (result, released) = ops::send_zc(&socket, content.clone()).await;
                assert_eq!(result.unwrap(), content.len());
                expected.extend(released.await);
            }
        });
        drop(socket);
        assert!(reader.join().unwrap() == expected);
        assert_eq!(runtime.driver().slots_used(), 0);
        assert_eq!(runtime.driver().registry().snapshot().pages_in_flight, 0);
    });
}

#[test]
fn n07_on_loopback_the_kernel_copies_and_the_socket_learns_it() {
    each(|runtime| {
        if !has(&runtime, Opcode::SendZc) {
            return;
        }
        let (socket, reader) = connection();
        runtime.block_on(async {
            for _ in 0..3 {
                let (result, released) = ops::send_zc(&socket, vec![7; PAGE]).await;
                assert_eq!(result.unwrap(), PAGE, "a report is no error");
                assert_eq!(released.await.len(), PAGE);
            }
        });
        drop(socket);
        assert_eq!(reader.join().unwrap().len(), 3 * PAGE);
        let metrics = runtime.driver().metrics();
        if metrics.sends_zero_copy.get() > 0 {
            eprintln!("SKIPPED: this kernel shares pages over loopback");
            return;
        }
        // Or two plain ones and a refusal, before 6.2.
        assert_eq!(metrics.sends_copied.get() + metrics.sends_plain.get(), 3);
        assert!(metrics.sends_plain.get() >= 2, "{metrics:?}");
    });
}

#[test]
fn a_unix_socket_sends_plainly_in_the_same_call() {
    each(|runtime| {
        runtime.block_on(async {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            for _ in 0..2 {
                let (result, released) = ours.send_zc(lease_with(b"head")).await;
                assert_eq!((result.unwrap(), &released.await[..]), (4, &b"head"[..]));
                let (result, released) = ours.send_vectored_zc(vec!["bo", "dy"]).await;
                assert_eq!((result.unwrap(), released.await), (4, vec!["bo", "dy"]));
            }
            let (count, all) = theirs.recv_exact(Vec::with_capacity(16).slice(..16)).await;
            assert_eq!((count.unwrap(), all.bytes()), (16, &b"headbodyheadbody"[..]));
            assert_eq!(Driver::current().metrics().sends_plain.get(), 4);
        });
    });
}

#[test]
fn n05_a_send_that_fails_gives_its_buffer_back_with_the_errno() {
    each(|runtime| {
        runtime.block_on(async {
            // A pipe is no socket; its notification comes all the same.
            let (_reader, writer) = ops::pipe().unwrap();
            let (result, released) = ops::send_zc(&writer, vec![7; PAGE]).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::NOTSOCK.raw_os_error()));
            assert_eq!(released.await.len(), PAGE);

            let (socket, reader) = connection();
            rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
            let (result, released) = ops::send_zc(&socket, lease_with(&[7; 100])).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::PIPE.raw_os_error()));
            assert_eq!(released.await.len(), 100);
            assert_eq!(reader.join().unwrap().len(), 0);
            turns::settled().await;
        });
        let counts = runtime.driver().registry().snapshot();
        assert_eq!((counts.pages_free, runtime.driver().slots_used()), (counts.pages_total, 0));
    });
}

#[test]
fn a_send_into_a_full_connection_waits_and_a_cancel_tells_how_far_it_came() {
    each(|runtime| {
        if !has(&runtime, Opcode::SendZc) {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        let socket = Fd::new(client.into());
        runtime.block_on(async {
            // More than both sides' buffers can ever hold.
            let content: std::rc::Rc<[u8]> = pattern(1_000_003).repeat(64).into();
            let mut send = ops::send_zc(&socket, content.clone());
            for _ in 0..3 {
                assert!((&mut send).now_or_never().is_none(), "nobody reads");
                turns::one_turn().await;
            }
            let (result, released) = send.cancel().await;
            let sent = match result {
                Ok(sent) => sent,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::CANCELED.raw_os_error()));
                    0
                }
            };
            assert!(sent < content.len());
            drop(socket);
            let mut received = Vec::new();
            let mut server = server;
            server.read_to_end(&mut received).unwrap();
            assert_eq!(released.await.len(), content.len());
            assert!(received.len() == sent && received[..] == content[..sent], "{sent} of {}", received.len());
            turns::settled().await;
        });
    });
}

#[test]
fn dropping_what_is_on_its_way_back_loses_neither_bytes_nor_pages() {
    each(|runtime| {
        let (socket, reader) = connection();
        runtime.block_on(async {
            for _ in 0..20 {
                let (result, released) = ops::send_zc(&socket, lease_with(&pattern(3 * PAGE))).await;
                assert_eq!(result.unwrap(), 3 * PAGE);
                drop(released);
            }
            turns::settled().await;
        });
        drop(socket);
        assert_eq!(reader.join().unwrap(), pattern(3 * PAGE).repeat(20));
        let counts = runtime.driver().registry().snapshot();
        assert_eq!((counts.pages_free, runtime.driver().slots_used()), (counts.pages_total, 0));
    });
}

#[test]
fn several_leases_go_through_files_pipes_and_sockets_and_come_back() {
    each(|runtime| {
        runtime.block_on(async {
            let content = pattern(2 * PAGE + 100);
            let cut = |at: usize| vec![lease_with(&content[..at]), lease_with(&content[at..])];
            let empty = |first: usize| {
                let lease = |len| Driver::current().registry().try_lease(len).expect("the pages are free");
                vec![lease(first), lease(content.len() - first)]
            };
            let file = ops::fs::File::from(tempfile::tempfile().unwrap());
            let (count, _) = ops::writev_fixed_at(&file, cut(100), 50).await;
            assert_eq!(count.unwrap(), content.len());
            let (count, parts) = ops::readv_fixed_at(&file, empty(PAGE), 50).await;
            assert_eq!(count.unwrap(), content.len());
            assert!(joined(&parts) == content);

            let (reader, writer) = ops::pipe().unwrap();
            let (count, _) = ops::writev_fixed(&writer, cut(1)).await;
            assert_eq!(count.unwrap(), content.len());
            let (count, parts) = ops::readv_fixed(&reader, empty(content.len() - 1)).await;
            assert_eq!(count.unwrap(), content.len());
            assert!(joined(&parts) == content);

            let (ours, theirs) = UnixStream::pair().unwrap();
            let (count, _) = ops::writev_fixed(&ours, cut(PAGE)).await;
            assert_eq!(count.unwrap(), content.len());
            let (count, parts) = ops::readv_fixed(&theirs, empty(3)).await;
            let count = count.unwrap();
            assert!(count > 0 && joined(&parts)[..count] == content[..count]);
        });
    });
}

#[test]
fn the_default_threshold_is_32_kib() {
    let runtime = Runtime::builder().config(Config::default().pages(4)).build().unwrap();
    let (socket, reader) = connection();
    runtime.block_on(async {
        let (result, _released) = ops::send_zc(&socket, vec![7; (32 << 10) - 1]).await;
        assert_eq!(result.unwrap(), (32 << 10) - 1);
        assert_eq!(Driver::current().metrics().sends_plain.get(), 1);
        if !has(&runtime, Opcode::SendZc) {
            return;
        }
        let (result, released) = ops::send_zc(&socket, vec![7; 32 << 10]).await;
        assert_eq!(result.unwrap(), 32 << 10);
        released.await;
        let metrics = Driver::current().metrics().sends_plain.get();
        let asked = Driver::current().metrics().sends_copied.get() + Driver::current().metrics().sends_zero_copy.get();
        assert_eq!(metrics + asked, 2);
    });
    drop(socket);
    assert_eq!(reader.join().unwrap().len(), (64 << 10) - 1);
}
