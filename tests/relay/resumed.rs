//! Stopped in the middle, and gone on with: what is left, who holds what, and other ends than before.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringmain::ops::{self, End, HalfClose, RelayRoute, Residue, fs, net};
use ringmain::{Fd, Runtime};
use rustix::io::Errno;

use crate::ROUTES;
use crate::peers::{fill, pattern, poll_once, read_to_end, stays_pending, tcp_pair, turn, without_hanging};

/// A direction that was stopped with these bytes in a pipe, as its sink was full.
async fn stopped_in_a_pipe(bytes: &[u8]) -> ops::StoppedForward {
    let (mut source, from) = UnixStream::pair().unwrap();
    let (to, _sink) = UnixStream::pair().unwrap();
    let (from, to) = (net::UnixStream::from(from), net::UnixStream::from(to));
    fill(&to);
    source.write_all(bytes).unwrap();
    let mut forward = ops::forward(&from, &to).route(RelayRoute::Inline);
    while forward.flow().inside() < bytes.len() as u64 {
        assert!(poll_once(&mut forward).await.is_none());
        turn().await;
    }
    let ended = forward.cancel().await;
    assert_eq!(ended.flow.inside(), bytes.len() as u64);
    ended.stopped.unwrap()
}

/// A source that has ended.
fn ended() -> net::UnixStream {
    net::UnixStream::from(UnixStream::pair().unwrap().0)
}

#[test]
fn what_is_in_a_pipe_reaches_sinks_that_have_no_splice() {
    without_hanging(|| {
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let from = ended();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            std::fs::write(&path, b"before, ").unwrap();
            let log = fs::File::from(std::fs::OpenOptions::new().append(true).open(&path).unwrap());
            let forward = stopped_in_a_pipe(b"after").await.resume(&from, &log).route(RelayRoute::Auto);
            forward.await.result.unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"before, after");

            // A terminal, which says only to a splice that it has none.
            let (program, mut user) = crate::ends::terminal();
            let flags = rustix::fs::fcntl_getfl(&program).unwrap();
            rustix::fs::fcntl_setfl(&program, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
            let program = Fd::new(program);
            let forward = stopped_in_a_pipe(b"shown").await.resume(&from, &program).route(RelayRoute::Auto);
            forward.await.result.unwrap();
            let mut shown = [0; 5];
            user.read_exact(&mut shown).unwrap();
            assert_eq!(&shown, b"shown");
        });
    });
}

#[test]
fn t33_what_is_in_a_pipe_is_not_spliced_into_a_blocking_socket() {
    without_hanging(|| {
        let runtime = Runtime::new().unwrap();
        let (to, sink) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let filled = fill(&to);
        to.set_nonblocking(false).unwrap();
        // Not through the crate's own type, which would switch it.
        let to = Fd::new(to.into());
        let got = runtime.block_on(async {
            let from = ended();
            let stopped = stopped_in_a_pipe(b"behind it").await;
            let mut forward = stopped.resume(&from, &to).route(RelayRoute::Auto);
            stays_pending(&mut forward, "the sink is full").await;
            let got = read_to_end(sink);
            forward.await.result.unwrap();
            got
        });
        drop(to);
        let got = got.join().unwrap();
        assert!(got.len() == filled + 9 && got.ends_with(b"behind it"));
    });
}

#[test]
fn a_source_without_splice_is_copied_also_when_others_were_spliced_before() {
    without_hanging(|| {
        let runtime = Runtime::new().unwrap();
        let text = std::fs::read("/proc/self/limits").unwrap();
        runtime.block_on(async {
            let stopped = stopped_in_a_pipe(b"spliced, ").await;
            let limits = fs::File::from(std::fs::File::open("/proc/self/limits").unwrap());
            let (to, sink) = UnixStream::pair().unwrap();
            let to = net::UnixStream::from(to);
            stopped.resume(&limits, &to).route(RelayRoute::Auto).await.result.unwrap();
            drop(to);
            assert!(read_to_end(sink).join().unwrap() == [b"spliced, ".to_vec(), text].concat());
        });
    });
}

/// A played disk has read something when it is told to stop, and a played terminal knows no way not to wait.
#[test]
fn a_stop_loses_nothing_when_the_sink_turns_out_to_wait() {
    let (runtime, script) = Runtime::builder().build_scripted().unwrap();
    let file = fs::File::from(tempfile::tempfile().unwrap());
    let (to, _sink) = UnixStream::pair().unwrap();
    let to = net::UnixStream::from(to);
    runtime.block_on(async {
        let mut forward = ops::forward(End::at(&file, 0), &to).route(RelayRoute::Copy);
        assert!(poll_once(&mut forward).await.is_none());
        turn().await;
        let mut forward = forward.cancel();
        assert!(poll_once(&mut forward).await.is_none());
        script.answer_attempt(-Errno::OPNOTSUPP.raw_os_error());
        script.play(|script| {
            for pending in script.pending() {
                script.complete(pending.entry.user_data, if pending.entry.opcode == 14 { 0 } else { 7 });
            }
        });
        let ended = forward.await;
        assert_eq!((ended.flow.bytes_in, ended.flow.inside()), (7, 7));
        let residue = ended.stopped.unwrap().into_residue().expect("seven bytes are inside");
        assert!(matches!(&residue, Residue::Bytes(bytes) if bytes.len() == 7), "{residue:?}");
    });
}

#[test]
fn a_drained_relay_leaves_its_streams_free() {
    without_hanging(|| {
        for route in ROUTES {
            for ends_both in [false, true] {
                let (client, a) = UnixStream::pair().unwrap();
                let (b, _server) = UnixStream::pair().unwrap();
                let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
                Runtime::new().unwrap().block_on(async {
                    let mut relay = ops::relay(&a, &b).route(route);
                    if ends_both {
                        relay = relay.half_close(HalfClose::EndBoth);
                    }
                    stays_pending(&mut relay, "nobody has said anything").await;
                    if ends_both {
                        client.shutdown(Shutdown::Write).unwrap();
                    } else {
                        relay = relay.drain();
                    }
                    let ended = relay.await;
                    ended.result.unwrap();
                    assert!(a.into_std().is_ok() && b.into_std().is_ok(), "by {route:?}, ends both: {ends_both}");
                });
            }
        }
    });
}

#[test]
fn counters_that_are_asked_for_late_show_what_has_moved() {
    without_hanging(|| {
        let (mut source, from) = UnixStream::pair().unwrap();
        let (to, _sink) = UnixStream::pair().unwrap();
        let (from, to) = (net::UnixStream::from(from), net::UnixStream::from(to));
        source.write_all(b"moved").unwrap();
        Runtime::new().unwrap().block_on(async {
            let mut forward = ops::forward(&from, &to);
            while forward.flow().bytes_out < 5 {
                assert!(poll_once(&mut forward).await.is_none());
                turn().await;
            }
            assert_eq!(forward.live().flow(), forward.flow());
            let mut forward = forward.cancel().await.stopped.unwrap().resume(&from, &to);
            assert_eq!(forward.live().flow().bytes_out, 5);
        });
    });
}

#[test]
fn room_that_was_not_reserved_yet_is_reserved_when_it_goes_on() {
    without_hanging(|| {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let twin = file.try_clone().unwrap();
        let (file, from) = (fs::File::from(file), ended());
        Runtime::new().unwrap().block_on(async {
            let stopped = ops::forward(&from, &file).preallocate(10 << 20).cancel().await.stopped.unwrap();
            stopped.resume(&from, &file).await.result.unwrap();
        });
        let reserved = |file: &std::fs::File| rustix::fs::fstat(file.as_fd()).unwrap().st_blocks * 512;
        let probe = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        if rustix::fs::fallocate(&probe, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 10 << 20).is_err()
            || reserved(&probe) < 10 << 20
        {
            eprintln!("SKIPPED: this file system reserves nothing");
            return;
        }
        assert!(reserved(&twin) >= 10 << 20);
    });
}

#[test]
fn the_error_of_a_sink_is_not_hidden_by_the_time_that_runs_out_after_it() {
    without_hanging(|| {
        for route in ROUTES {
            let (mut client, a) = UnixStream::pair().unwrap();
            let (b, server) = UnixStream::pair().unwrap();
            server.shutdown(Shutdown::Read).unwrap();
            client.write_all(b"an upload that nobody wants").unwrap();
            let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
            let relay = ops::relay(&a, &b).route(route).idle_timeout(Duration::from_millis(20));
            let ended = Runtime::new().unwrap().block_on(relay);
            assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::BrokenPipe, "by {route:?}");
        }
    });
}

#[test]
fn a_pipe_is_not_relayed_into_itself() {
    without_hanging(|| {
        for route in ROUTES {
            let (reader, writer) = ops::pipe().unwrap();
            rustix::io::write(&writer, &pattern(1, 10)).unwrap();
            let ended = Runtime::new().unwrap().block_on(ops::forward(&reader, &writer).route(route));
            let error = ended.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "by {route:?}");
            assert!(error.to_string().contains("same pipe"), "{error}");
            assert_eq!(ended.flow.bytes_in, 0);
        }
    });
}

#[test]
fn what_is_no_stream_is_refused_with_a_sentence() {
    without_hanging(|| {
        let udp = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (_peer, stream) = tcp_pair();
        let stream = Fd::new(stream.into());
        for (end, said) in [(Fd::new(udp().into()), "no stream"), (Fd::new(listener().into()), "accept a connection")] {
            for route in ROUTES {
                let ended = Runtime::new().unwrap().block_on(ops::forward(&end, &stream).route(route));
                let error = ended.result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "by {route:?}");
                assert!(error.to_string().contains(said), "{error}");
                let ended = Runtime::new().unwrap().block_on(ops::relay(&stream, &end).route(route));
                assert_eq!(ended.result.unwrap_err().kind(), ErrorKind::InvalidInput, "by {route:?}");
            }
        }
    });
}
