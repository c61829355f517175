//! Every kind of end: files, terminals, devices, pipes, and what has no splice.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use ringmain::ops::{self, End, Limits, RelayRoute, RouteReason, fs, net};
use ringmain::{Fd, Runtime};
use rustix::fs::OFlags;

use crate::ROUTES;
use crate::peers::{pattern, read_to_end, stays_pending, tcp_pair, turn, without_hanging, write_and_close};
use crate::rings;

const LEN: usize = 300_001;

fn file_with(content: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

fn content_of(mut file: &std::fs::File) -> Vec<u8> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

#[test]
fn a_file_goes_to_a_socket_whole_and_in_ranges() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                for (offset, limit) in [(None, u64::MAX), (Some(0), u64::MAX), (Some(4097), 65_537), (Some(1 << 40), 5)]
                {
                    let file = file_with(&pattern(1, LEN));
                    let twin = file.try_clone().unwrap();
                    let file = fs::File::from(file);
                    let (to, sink) = tcp_pair();
                    let (to, reader) = (net::TcpStream::from(to), read_to_end(sink));
                    let from = offset.map_or_else(|| End::from(&file), |offset| End::at(&file, offset));
                    let ended =
                        runtime.block_on(ops::forward(from, &to).route(route).limit(Limits::new().bytes(limit)));
                    ended.result.unwrap();
                    let whole = pattern(1, LEN);
                    let begin = whole.len().min(offset.unwrap_or(0) as usize);
                    let end = whole.len().min(begin.saturating_add(limit as usize));
                    drop(to);
                    assert!(reader.join().unwrap() == whole[begin..end], "by {route:?} from {offset:?}");
                    assert_eq!(ended.flow.bytes_out as usize, end - begin);
                    let cursor = (&twin).stream_position().unwrap();
                    let moved = if offset.is_none() { (end - begin) as u64 } else { 0 };
                    assert_eq!(cursor, moved, "an offset leaves the cursor alone, and no offset moves it: {route:?}");
                }
            }
        });
    });
}

#[test]
fn a_socket_goes_to_a_file_at_its_cursor_and_at_an_offset() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                for offset in [None, Some(10_000)] {
                    let file = tempfile::tempfile().unwrap();
                    let twin = file.try_clone().unwrap();
                    let file = fs::File::from(file);
                    let (source, from) = tcp_pair();
                    let (writer, from) = (write_and_close(source, pattern(2, LEN)), net::TcpStream::from(from));
                    let to = offset.map_or_else(|| End::from(&file), |offset| End::at(&file, offset));
                    let ended = runtime.block_on(ops::forward(&from, to).route(route));
                    ended.result.unwrap();
                    writer.join().unwrap();
                    let mut expected = vec![0; offset.unwrap_or(0) as usize];
                    expected.extend_from_slice(&pattern(2, LEN));
                    assert!(content_of(&twin) == expected, "by {route:?} at {offset:?}");
                }
            }
        });
    });
}

#[test]
fn a_file_goes_to_a_file_and_the_holes_of_one_are_zeros() {
    without_hanging(|| {
        for route in ROUTES {
            let sparse = tempfile::tempfile().unwrap();
            sparse.set_len(1 << 20).unwrap();
            let mut expected = vec![0; 1 << 20];
            for at in [0, 333_333, (1 << 20) - 10] {
                std::os::unix::fs::FileExt::write_all_at(&sparse, b"not zeros!", at as u64).unwrap();
                expected[at..at + 10].copy_from_slice(b"not zeros!");
            }
            let copy = tempfile::tempfile().unwrap();
            let twin = copy.try_clone().unwrap();
            let (from, to) = (fs::File::from(sparse), fs::File::from(copy));
            let ended = Runtime::new().unwrap().block_on(ops::forward(&from, &to).route(route));
            ended.result.unwrap();
            assert!(content_of(&twin) == expected, "by {route:?}");
        }
    });
}

#[test]
fn t38_files_of_every_file_system_here_arrive_as_they_are() {
    without_hanging(|| {
        for folder in ["/dev/shm", "/tmp", env!("CARGO_MANIFEST_DIR"), "/var/tmp"] {
            let Ok(mut file) = tempfile::tempfile_in(folder) else {
                eprintln!("SKIPPED in part: no file can be made in {folder}");
                continue;
            };
            file.write_all(&pattern(38, LEN)).unwrap();
            file.seek(SeekFrom::Start((LEN + 100_000) as u64)).unwrap();
            file.write_all(b"behind a hole").unwrap();
            let mut expected = pattern(38, LEN);
            expected.resize(LEN + 100_000, 0);
            expected.extend_from_slice(b"behind a hole");
            let file = fs::File::from(file);
            for route in ROUTES {
                let (to, sink) = tcp_pair();
                let (to, reader) = (net::TcpStream::from(to), read_to_end(sink));
                let ended = Runtime::new().unwrap().block_on(ops::forward(End::at(&file, 0), &to).route(route));
                ended.result.unwrap();
                drop(to);
                assert!(reader.join().unwrap() == expected, "of {folder} by {route:?}");
            }
        }
    });
}

#[test]
fn t05_a_file_opened_for_appending_is_written_from_pages() {
    without_hanging(|| {
        rings::each(|runtime| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            std::fs::write(&path, b"what was there, ").unwrap();
            let log = fs::File::from(std::fs::OpenOptions::new().append(true).open(&path).unwrap());
            let content = pattern(5, 1 << 20);
            let (source, from) = tcp_pair();
            let (writer, from) = (write_and_close(source, content.clone()), net::TcpStream::from(from));
            let ended = runtime.block_on(ops::forward(&from, &log));
            ended.result.unwrap();
            assert_eq!((ended.flow.route, ended.flow.reason), (RelayRoute::Copy, RouteReason::NoSplice));
            writer.join().unwrap();
            assert!(std::fs::read(&path).unwrap() == [b"what was there, ".to_vec(), content].concat());

            // From a pipe, too, which would be spliced directly; and who insists hears of it, with nothing lost.
            let (reader, writer) = ops::pipe().unwrap();
            runtime.block_on(async {
                ops::write(&writer, b"one line".to_vec()).await.0.unwrap();
                drop(writer);
                let ended = ops::forward(&reader, &log).route(RelayRoute::Ring).await;
                assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(22), "EINVAL");
                assert_eq!(ended.flow.bytes_in, 0);
                ops::forward(&reader, &log).await.result.unwrap();
            });
            assert!(std::fs::read(&path).unwrap().ends_with(b"one line"));
        });
    });
}

#[test]
fn t25_sources_without_splice_are_copied() {
    without_hanging(|| {
        for name in ["/proc/self/limits", "/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled"] {
            let Ok(expected) = std::fs::read(name) else {
                eprintln!("SKIPPED in part: there is no {name}");
                continue;
            };
            for route in [RelayRoute::Auto, RelayRoute::Copy] {
                let file = fs::File::from(std::fs::File::open(name).unwrap());
                let (to, sink) = UnixStream::pair().unwrap();
                let (to, reader) = (net::UnixStream::from(to), read_to_end(sink));
                let ended = Runtime::new().unwrap().block_on(ops::forward(&file, &to).route(route));
                ended.result.unwrap_or_else(|error| panic!("{name} by {route:?}: {error}"));
                drop(to);
                let (got, words) = (reader.join().unwrap(), |bytes: &[u8]| bytes.split(|byte| *byte == b'\n').count());
                assert_eq!(words(&got), words(&expected), "{name} by {route:?}");
            }
        }
        // A program error is not hidden by the fallback: a directory cannot be read.
        let folder = fs::File::from(std::fs::File::open("/").unwrap());
        let (to, _sink) = UnixStream::pair().unwrap();
        let to = net::UnixStream::from(to);
        let ended = Runtime::new().unwrap().block_on(ops::forward(&folder, &to));
        assert!(ended.result.is_err());
    });
}

#[test]
fn devices_without_an_end_are_read_up_to_the_limit() {
    without_hanging(|| {
        for name in ["/dev/zero", "/dev/urandom"] {
            for route in ROUTES {
                let device = Fd::new(std::fs::File::open(name).unwrap().into());
                let (to, sink) = UnixStream::pair().unwrap();
                let (to, reader) = (net::UnixStream::from(to), read_to_end(sink));
                let forward = ops::forward(&device, &to).route(route).limit(Limits::new().bytes(LEN as u64));
                let ended = Runtime::new().unwrap().block_on(forward);
                ended.result.unwrap_or_else(|error| panic!("{name} by {route:?}: {error}"));
                drop(to);
                let bytes = reader.join().unwrap();
                assert_eq!(bytes.len(), LEN);
                assert!(name != "/dev/zero" || bytes.iter().all(|byte| *byte == 0));
            }
        }
        for route in ROUTES {
            let null = Fd::new(std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into());
            let (source, from) = tcp_pair();
            let (writer, from) = (write_and_close(source, pattern(3, LEN)), net::TcpStream::from(from));
            let ended = Runtime::new().unwrap().block_on(ops::forward(&from, &null).route(route));
            ended.result.unwrap_or_else(|error| panic!("/dev/null by {route:?}: {error}"));
            assert_eq!(ended.flow.bytes_out as usize, LEN);
            writer.join().unwrap();
        }
    });
}

/// The two ends of a terminal in raw mode: the program's, and the one that a user would sit at.
pub(crate) fn terminal() -> (OwnedFd, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let program = rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
    let mut settings = rustix::termios::tcgetattr(&program).unwrap();
    settings.make_raw();
    rustix::termios::tcsetattr(&program, rustix::termios::OptionalActions::Now, &settings).unwrap();
    (program, user.into())
}

#[test]
fn a_terminal_is_read_and_written_through_the_ring_and_holds_no_page_while_it_is_silent() {
    without_hanging(|| {
        rings::each(|runtime| {
            for nonblocking in [false, true] {
                let (program, mut user) = terminal();
                if nonblocking {
                    let flags = rustix::fs::fcntl_getfl(&program).unwrap();
                    rustix::fs::fcntl_setfl(&program, flags | OFlags::NONBLOCK).unwrap();
                }
                let program = Fd::new(program);
                let (peer, theirs) = UnixStream::pair().unwrap();
                let (peer, mut theirs) = (net::UnixStream::from(peer), theirs);
                runtime.block_on(async {
                    let mut relay = ops::relay(&program, &peer);
                    stays_pending(&mut relay, "nobody has typed anything").await;
                    let idle = runtime.driver().registry().snapshot();
                    assert_eq!((idle.pages_leased, idle.pages_in_flight), (0, 0), "an idle terminal holds a page");
                    user.write_all(b"typed").unwrap();
                    theirs.write_all(b"shown").unwrap();
                    while relay.flows().0.bytes_out < 5 || relay.flows().1.bytes_out < 5 {
                        stays_pending(&mut relay, "neither side has ended").await;
                    }
                    stays_pending(&mut relay, "neither side has ended").await;
                    let idle = runtime.driver().registry().snapshot();
                    assert_eq!((idle.pages_leased, idle.pages_in_flight), (0, 0), "nor does one that was used");
                    let ended = relay.cancel().await;
                    assert_eq!((ended.a_to_b.inside(), ended.b_to_a.inside()), (0, 0));
                });
                let (mut typed, mut shown) = ([0; 5], [0; 5]);
                theirs.read_exact(&mut typed).unwrap();
                user.read_exact(&mut shown).unwrap();
                assert_eq!((&typed, &shown), (b"typed", b"shown"), "nonblocking: {nonblocking}");
            }
        });
    });
}

#[test]
fn a_pipe_end_is_spliced_directly_by_every_route() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                let (reader, into) = std::io::pipe().unwrap();
                let (out, writer) = std::io::pipe().unwrap();
                let (reader, writer) = (Fd::new(reader.into()), Fd::new(writer.into()));
                let (a, b) = UnixStream::pair().unwrap();
                let (a, b) = (net::UnixStream::from(a), net::UnixStream::from(b));
                let source = write_and_close(into, pattern(8, LEN));
                let sink = read_to_end(out);
                let (there, back) = runtime.block_on(async {
                    let there = ringmain::spawn(ops::forward(&reader, &a).route(route));
                    let back = ops::forward(&b, &writer).route(route).await;
                    drop(writer);
                    (there.await.unwrap(), back)
                });
                there.result.unwrap();
                back.result.unwrap();
                for flow in [there.flow, back.flow] {
                    let spliced = if route == RelayRoute::Copy { 0 } else { flow.hops };
                    assert_eq!(flow.hops_spliced, spliced, "by {route:?}");
                    assert_eq!(flow.route, if route == RelayRoute::Auto { RelayRoute::Inline } else { route });
                }
                source.join().unwrap();
                assert!(sink.join().unwrap() == pattern(8, LEN), "by {route:?}");
            }
        });
    });
}

#[test]
fn a_direct_ring_splice_waits_without_a_worker_and_is_cancelled() {
    without_hanging(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = Fd::new(reader.into());
        let (a, mut b) = UnixStream::pair().unwrap();
        let a = net::UnixStream::from(a);
        Runtime::new().unwrap().block_on(async {
            let mut forward = ops::forward(&reader, &a).route(RelayRoute::Ring);
            stays_pending(&mut forward, "the pipe is empty").await;
            writer.write_all(b"then").unwrap();
            while forward.flow().bytes_out < 4 {
                stays_pending(&mut forward, "the writer has not gone").await;
            }
            let ended = forward.cancel().await;
            assert_eq!(ended.flow.bytes_out, 4);
            drop(writer);
            ended.stopped.unwrap().resume(&reader, &a).await.result.unwrap();
            turn().await;
        });
        let mut text = String::new();
        b.read_to_string(&mut text).unwrap();
        assert_eq!(text, "then");
    });
}

/// A played kernel says of a TLS socket's next record that it is no data; that is not a socket without splice.
#[test]
fn t36_a_control_record_ends_a_relay_that_has_spliced_and_it_can_be_resumed() {
    let (runtime, script) = Runtime::builder().build_scripted().unwrap();
    let (_source, from) = tcp_pair();
    let (to, _sink) = tcp_pair();
    let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
    script.play(|script| {
        for pending in script.pending() {
            script.complete(pending.entry.user_data, 1);
        }
    });
    runtime.block_on(async {
        for answer in [100, 100, -22] {
            script.answer_attempt(answer);
        }
        let ended = ops::forward(&from, &to).route(RelayRoute::Inline).await;
        assert_eq!(ended.result.unwrap_err().raw_os_error(), Some(22), "EINVAL");
        assert_eq!((ended.flow.bytes_in, ended.flow.bytes_out), (100, 100));
        // The record has been received by whoever understands it. The end is asked for once more, by a receive.
        for answer in [50, 50, 0, 0] {
            script.answer_attempt(answer);
        }
        let ended = ended.stopped.unwrap().resume(&from, &to).await;
        ended.result.unwrap();
        assert_eq!(ended.flow.bytes_out, 150);
    });
}

/// A played kernel refuses to splice, first into the pipe, then out of it: what is inside by then is read out of it.
#[test]
fn t25_a_sink_that_refuses_a_splice_gets_what_is_in_the_pipe_by_copy() {
    for refused_in in [true, false] {
        let (runtime, script) = Runtime::builder().build_scripted().unwrap();
        let (_source, from) = tcp_pair();
        let (to, _sink) = tcp_pair();
        let (from, to) = (net::TcpStream::from(from), net::TcpStream::from(to));
        script.play(|script| {
            for pending in script.pending() {
                script.complete(pending.entry.user_data, 1);
            }
        });
        // A full buffer says that bytes come in bulk, and the next step splices.
        let mut answers = vec![65_536, 65_536];
        answers.extend(if refused_in { vec![-22, 7000, 7000] } else { vec![7000, -22, 7000, 3000, 4000] });
        answers.push(0);
        for answer in answers {
            script.answer_attempt(answer);
        }
        let ended = runtime.block_on(ops::forward(&from, &to));
        ended.result.unwrap();
        assert_eq!((ended.flow.bytes_in, ended.flow.bytes_out), (72_536, 72_536));
        assert_eq!((ended.flow.route, ended.flow.reason), (RelayRoute::Copy, RouteReason::NoSplice));
    }
}

#[test]
fn an_offset_for_a_stream_is_refused_by_name() {
    let (a, _b) = UnixStream::pair().unwrap();
    let a = net::UnixStream::from(a);
    let file = fs::File::from(tempfile::tempfile().unwrap());
    let runtime = Runtime::new().unwrap();
    let error = runtime.block_on(ops::forward(End::at(&a, 0), &file)).result.unwrap_err();
    assert!(error.to_string().contains("source") && error.to_string().contains("offset"), "{error}");
    let error = runtime.block_on(ops::forward(&file, End::at(&a, 0))).result.unwrap_err();
    assert!(error.to_string().contains("sink"), "{error}");
}

#[test]
fn t23_a_copied_file_keeps_the_bytes_of_when_it_was_read() {
    without_hanging(|| {
        let file = file_with(&[b'1'; 4096]);
        let twin = file.try_clone().unwrap();
        let file = fs::File::from(file);
        let (to, sink) = UnixStream::pair().unwrap();
        let to = net::UnixStream::from(to);
        let ended = Runtime::new().unwrap().block_on(ops::forward(End::at(&file, 0), &to).route(RelayRoute::Copy));
        ended.result.unwrap();
        std::os::unix::fs::FileExt::write_all_at(&twin, &[b'2'; 4096], 0).unwrap();
        drop(to);
        let bytes = thread::spawn(move || {
            let (mut sink, mut bytes) = (sink, Vec::new());
            sink.read_to_end(&mut bytes).unwrap();
            bytes
        });
        assert!(bytes.join().unwrap() == [b'1'; 4096], "a snapshot");
    });
}

#[test]
fn a_file_in_the_page_cache_is_spliced_on_this_thread() {
    without_hanging(|| {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&pattern(11, LEN)).unwrap();
        let can_tell = rustix::io::preadv2(
            &file,
            &mut [std::io::IoSliceMut::new(&mut [0])],
            0,
            rustix::io::ReadWriteFlags::NOWAIT,
        );
        let file = fs::File::from(file);
        let (to, sink) = tcp_pair();
        let (to, reader) = (net::TcpStream::from(to), read_to_end(sink));
        let runtime = Runtime::new().unwrap();
        let ended = runtime.block_on(ops::forward(End::at(&file, 0), &to));
        ended.result.unwrap();
        drop(to);
        assert!(reader.join().unwrap() == pattern(11, LEN));
        if can_tell.is_err() {
            eprintln!("SKIPPED in part: this file system cannot tell what is cached");
            return;
        }
        assert_eq!((ended.flow.route, ended.flow.reason), (RelayRoute::Inline, RouteReason::Cached));
        assert_eq!(ended.flow.hops, ended.flow.hops_spliced);
    });
}

#[test]
fn room_is_reserved_in_a_file_without_changing_its_length() {
    without_hanging(|| {
        for offset in [None, Some(5000)] {
            let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let twin = file.try_clone().unwrap();
            let file = fs::File::from(file);
            let (source, from) = tcp_pair();
            let (writer, from) = (write_and_close(source, pattern(12, 1000)), net::TcpStream::from(from));
            let to = offset.map_or_else(|| End::from(&file), |offset| End::at(&file, offset));
            let ended = Runtime::new().unwrap().block_on(ops::forward(&from, to).preallocate(10 << 20));
            ended.result.unwrap();
            writer.join().unwrap();
            let status = rustix::fs::fstat(&twin).unwrap();
            assert_eq!(status.st_size as u64, 1000 + offset.unwrap_or(0));
            if status.st_blocks * 512 < 10 << 20 {
                eprintln!("SKIPPED in part: this file system reserves nothing");
            }
            assert!(content_of(&twin)[offset.unwrap_or(0) as usize..] == pattern(12, 1000));
        }
        // More than any disk has is found out before anything moves.
        let folder = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = fs::File::from(folder);
        let (mut source, from) = tcp_pair();
        source.write_all(b"too much").unwrap();
        let from = net::TcpStream::from(from);
        let ended = Runtime::new().unwrap().block_on(ops::forward(&from, &file).preallocate(1 << 60));
        assert!(ended.result.is_err());
        assert_eq!(ended.flow.bytes_in, 0);
    });
}
