//! `splice`, `tee` and `splice_exact`: lengths, offsets, and what is refused.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;

use futures::future::{join, join_all};
use ringmain::ops::{self, End, Route};
use ringmain::{Fd, Runtime};
use rustix::fs::{Advice, fadvise};

use crate::peers::{drain, fill, pattern, poll_once, read_to_end, tcp_pair, turns, without_hanging};
use crate::rings;

const ROUTES: [Route; 3] = [Route::Auto, Route::Inline, Route::Ring];

fn file_with(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("its bytes");
    file
}

/// A handle for the ring on the same open file, so that both have one cursor.
fn shared(file: &File) -> ops::fs::File {
    file.try_clone().expect("a second descriptor").into()
}

#[test]
fn t01_a_huge_length_is_clamped() {
    without_hanging(|| {
        let content = pattern(1, 200_000);
        let file = file_with(&content);
        rings::each(|runtime| {
            for route in ROUTES {
                for len in [usize::MAX, isize::MAX as usize, 1 << 32, u32::MAX as usize, 1 << 31, 0] {
                    huge(&runtime, &file, &content, route, len);
                }
            }
        });
    });
}

fn huge(runtime: &Runtime, file: &File, content: &[u8], route: Route, len: usize) {
    let file = shared(file);
    let (reader, writer) = ops::pipe().unwrap();
    let (sink, peer) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    let sink = ops::net::UnixStream::from(sink);
    runtime.block_on(async {
        let into_pipe = ops::splice(End::at(&file, 0), &writer, len).route(route).await.unwrap();
        assert!(into_pipe <= writer.size().unwrap(), "{into_pipe} bytes are in a pipe that has no room for them");
        assert_eq!(into_pipe == 0, len == 0, "{into_pipe} of {len} bytes");
        if len == 0 {
            assert_eq!(ops::splice(&reader, &sink, len).route(route).await.unwrap(), 0);
            return;
        }
        let mut arrived = Vec::new();
        while arrived.len() < into_pipe {
            let out = ops::splice(&reader, &sink, len).route(route).await.unwrap();
            assert!(out > 0 && out <= into_pipe, "{out} bytes came out of a pipe that {into_pipe} went into");
            arrived.extend(drain(&peer));
        }
        assert!(arrived == content[..into_pipe], "the bytes are others");
    });
}

#[test]
fn t02_short_steps_add_up_in_order() {
    const PIECE: usize = 64 * 1024;
    const PIECES: usize = 64;
    without_hanging(|| {
        let content = pattern(2, PIECE * PIECES);
        let source = file_with(&content);
        source.sync_all().unwrap();
        for (name, config) in rings::table() {
            let sink = tempfile::tempfile().unwrap();
            // Out of the cache, so that the kernel may stop at any page that has not been read yet.
            fadvise(&source, 0, None, Advice::DontNeed).unwrap();
            let (from, to) = (shared(&source), shared(&sink));
            rings::build(&name, config).block_on(async {
                let pieces = (0..PIECES).map(async |piece| {
                    let at = (piece * PIECE) as u64;
                    let (reader, writer) = ops::pipe()?;
                    let (result, moved) = ops::splice_exact(End::at(&from, at), &writer, PIECE as u64).await;
                    result?;
                    assert_eq!(moved, PIECE as u64);
                    ops::splice_exact(&reader, End::at(&to, at), moved).await.0?;
                    assert!(drain(&reader).is_empty(), "bytes are left in the pipe");
                    io::Result::Ok(())
                });
                for outcome in join_all(pieces).await {
                    outcome.unwrap_or_else(|error| panic!("a short step is no error, but with {name}: {error}"));
                }
            });
            assert!(read_whole(&sink) == content, "bytes are missing or not at their place with {name}");
        }
    });
}

fn read_whole(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}

#[test]
fn t03_a_file_of_any_length_reaches_a_socket_whole() {
    without_hanging(|| {
        rings::each(|runtime| {
            for len in [1, 4095, 65_536, 65_537, 1_000_003] {
                for beyond in [0, 5_000] {
                    send_file(&runtime, len, len as u64 + beyond);
                }
            }
        });
    });
}

/// Send `asked` bytes of a file that has `len`: the two halves run side by side, as a linked pair would.
fn send_file(runtime: &Runtime, len: usize, asked: u64) {
    let content = pattern(len as u64, len);
    let file = shared(&file_with(&content));
    let (sink, peer) = tcp_pair();
    let peer = read_to_end(peer);
    let sink = ops::net::TcpStream::from(sink);
    let (reader, writer) = ops::pipe().unwrap();
    runtime.block_on(async {
        let fill = async {
            let ended = ops::splice_exact(End::at(&file, 0), &writer, asked).await;
            drop(writer);
            ended
        };
        let halves = join(fill, ops::splice_exact(&reader, &sink, asked)).await;
        for (result, moved) in [halves.0, halves.1] {
            assert_eq!(moved, len as u64, "of {asked} bytes asked for");
            match result {
                Ok(()) => assert_eq!(asked, len as u64),
                Err(error) => assert_eq!((error.kind(), asked > len as u64), (ErrorKind::UnexpectedEof, true)),
            }
        }
    });
    assert!(drain(&reader).is_empty(), "bytes are left in the pipe");
    drop(sink);
    assert!(peer.join().unwrap() == content, "the peer has got other bytes");
}

#[test]
fn a_cancelled_splice_exact_says_what_it_has_moved() {
    without_hanging(|| {
        rings::each(|runtime| {
            for route in ROUTES {
                let (source, feed) = ops::pipe().unwrap();
                let (branch, into_branch) = ops::pipe().unwrap();
                runtime.block_on(async {
                    rustix::io::write(&feed, b"the first part").unwrap();
                    let mut transfer = ops::splice_exact(&source, &into_branch, 100).route(route);
                    while transfer.moved() < 14 {
                        assert!(poll_once(&mut transfer).await.is_none(), "86 bytes are missing");
                        turns(1).await;
                    }
                    let (result, moved) = transfer.cancel().await;
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(125), "ECANCELED");
                    assert_eq!(moved, 14);
                    assert_eq!(drain(&branch), b"the first part");

                    let (result, moved) = ops::splice_exact(&source, &into_branch, 5).route(route).cancel().await;
                    assert_eq!((result.unwrap_err().raw_os_error(), moved), (Some(125), 0), "never polled");
                });
            }
        });
    });
}

#[test]
fn t04_an_offset_for_a_pipe_or_socket_is_refused_with_its_side() {
    without_hanging(|| {
        let file = shared(&file_with(b"bytes"));
        let (reader, writer) = ops::pipe().unwrap();
        let (socket, _peer) = ops::net::UnixStream::pair().unwrap();
        rustix::io::write(&writer, b"bytes").unwrap();
        rings::each(|runtime| {
            let cases: [(End, End, &str); 6] = [
                (End::at(&reader, 0), End::at(&file, 0), "input"),
                (End::at(&reader, 7), (&socket).into(), "input"),
                (End::at(&socket, 0), (&writer).into(), "input"),
                (End::at(&file, 0), End::at(&writer, 0), "output"),
                ((&socket).into(), End::at(&writer, 1 << 40), "output"),
                ((&reader).into(), End::at(&socket, 0), "output"),
            ];
            runtime.block_on(async {
                for (from, to, side) in cases {
                    for route in ROUTES {
                        let metrics = runtime.driver().metrics();
                        let before = (metrics.attempts.get(), metrics.submissions.get());
                        let error = ops::splice(from.clone(), to.clone(), 5).route(route).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                        assert!(error.to_string().contains(&format!("the {side} is a pipe or socket")), "{error}");
                        let after = (metrics.attempts.get(), metrics.submissions.get());
                        assert_eq!(before, after, "it was tried all the same");
                    }
                }
            });
        });
        assert_eq!(drain(&reader), b"bytes", "a refused splice has moved something");
    });
}

#[test]
fn t31_an_offset_leaves_the_cursor_where_it_is_and_none_moves_it() {
    without_hanging(|| {
        let content = pattern(31, 100_000);
        rings::each(|runtime| {
            for route in ROUTES {
                let mut plain = file_with(&content);
                plain.seek(SeekFrom::Start(1_000)).unwrap();
                let file = shared(&plain);
                let (reader, writer) = ops::pipe().unwrap();
                runtime.block_on(async {
                    let count = ops::splice(End::at(&file, 100), &writer, 500).route(route).await.unwrap();
                    assert_eq!((count, plain.stream_position().unwrap()), (500, 1_000));
                    assert!(drain(&reader) == content[100..600]);

                    let count = ops::splice(&file, &writer, 500).route(route).await.unwrap();
                    assert_eq!((count, plain.stream_position().unwrap()), (500, 1_500));
                    assert!(drain(&reader) == content[1_000..1_500]);

                    // A partial result: the pipe has room for one page only.
                    let room = fill(&writer);
                    rustix::io::read(&reader, &mut [0; 4096]).unwrap();
                    let count = ops::splice(&file, &writer, 50_000).route(route).await.unwrap();
                    assert!((1..=4096).contains(&count), "{count} bytes went into one free page");
                    assert_eq!(plain.stream_position().unwrap(), 1_500 + count as u64);
                    assert!(drain(&reader)[room - 4096..] == content[1_500..1_500 + count]);

                    // The output has a cursor, too.
                    rustix::io::write(&writer, b"overwritten").unwrap();
                    ops::splice_exact(&reader, End::at(&file, 50), 4).route(route).await.0.unwrap();
                    assert_eq!(plain.stream_position().unwrap(), 1_500 + count as u64);
                    ops::splice_exact(&reader, &file, 7).route(route).await.0.unwrap();
                    assert_eq!(plain.stream_position().unwrap(), 1_507 + count as u64);
                });
                let whole = read_whole(&plain);
                assert_eq!(&whole[50..54], b"over");
            }
        });
    });
}

#[test]
fn t31_offset_splices_on_one_file_do_not_disturb_each_other() {
    without_hanging(|| {
        let content = pattern(32, 64 * 1024);
        let file = shared(&file_with(&content));
        rings::each(|runtime| {
            runtime.block_on(async {
                let reads = (0..64).map(async |piece: usize| {
                    let (reader, writer) = ops::pipe().unwrap();
                    ops::splice_exact(End::at(&file, piece as u64 * 1024), &writer, 1024).await.0.unwrap();
                    assert!(drain(&reader) == content[piece * 1024..][..1024], "piece {piece} is another");
                });
                join_all(reads).await;
            });
        });
    });
}

/// The kernel takes an offset of -1 for the cursor. Nobody who computes an offset means that.
#[test]
fn t31_an_impossible_offset_is_refused_and_not_taken_for_the_cursor() {
    without_hanging(|| {
        let mut plain = file_with(b"0123456789");
        plain.seek(SeekFrom::Start(3)).unwrap();
        let file = shared(&plain);
        let (reader, writer) = ops::pipe().unwrap();
        rings::each(|runtime| {
            runtime.block_on(async {
                for offset in [u64::MAX, 1 << 63] {
                    let read = ops::read_at(&file, vec![0; 4], offset).await.0;
                    let write = ops::write_at(&file, "xx", offset).await.0;
                    let readv = ops::readv_at(&file, vec![vec![0; 4]], offset).await.0;
                    let exact = ops::splice_exact(End::at(&file, offset), &writer, 4).await.0;
                    let kinds = [read.err(), write.err(), readv.err(), exact.err()];
                    for error in kinds {
                        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::InvalidInput), "at {offset}");
                    }
                    for route in ROUTES {
                        let error = ops::splice(End::at(&file, offset), &writer, 4).route(route).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput, "at {offset} by {route:?}");
                    }
                }
            });
        });
        assert_eq!((plain.stream_position().unwrap(), read_whole(&plain)), (3, b"0123456789".to_vec()));
        assert!(drain(&reader).is_empty());
    });
}

/// That the ends of a tee are pipes is in its types; its documentation shows that nothing else compiles.
#[test]
fn t30_a_tee_of_a_pipe_into_itself_is_refused_with_the_rule() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (reader, writer) = ops::pipe().unwrap();
            rustix::io::write(&writer, b"bytes").unwrap();
            // The same pipe, known by other descriptors.
            let (std_reader, std_writer) = std::io::pipe().unwrap();
            let adopted = ops::PipeReader::from_std(std_reader).unwrap();
            let adopted_writer = ops::PipeWriter::from_std(std_writer).unwrap();
            rustix::io::write(&adopted_writer, b"bytes").unwrap();
            runtime.block_on(async {
                for route in ROUTES {
                    for (from, to) in [(&reader, &writer), (&adopted, &adopted_writer)] {
                        assert!(from.is_same_pipe(to));
                        let error = ops::tee(from, to, 5).route(route).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput);
                        assert!(error.to_string().contains("tee needs two pipes"), "{error}");
                    }
                    assert!(!reader.is_same_pipe(&adopted_writer));
                    assert_eq!(ops::tee(&reader, &adopted_writer, 5).route(route).await.unwrap(), 5);
                }
            });
        });
    });
}

/// More is known to come only when the caller says so, and a socket is not told of it otherwise.
#[test]
fn t14_no_splice_says_that_more_will_come_unless_it_is_told() {
    const SPLICE_F_MORE: u32 = 4;
    let flags_of = |more: Option<bool>| {
        let (runtime, script) = Runtime::builder().build_scripted().unwrap();
        let seen = std::rc::Rc::new(std::cell::Cell::new(None));
        script.play({
            let seen = std::rc::Rc::clone(&seen);
            move |kernel| {
                for pending in kernel.pending() {
                    seen.set(Some(pending.entry.op_flags));
                    kernel.complete(pending.entry.user_data, 1);
                }
            }
        });
        let (reader, writer) = ops::pipe().unwrap();
        runtime.block_on(async {
            match more {
                None => ops::splice_exact(&reader, &writer, 1).route(Route::Ring).await.0.unwrap(),
                Some(more) => drop(ops::splice(&reader, &writer, 1).more(more).route(Route::Ring).await.unwrap()),
            }
        });
        seen.get().expect("a splice came to the ring") & SPLICE_F_MORE
    };
    assert_eq!((flags_of(None), flags_of(Some(false)), flags_of(Some(true))), (0, 0, SPLICE_F_MORE));
}

#[test]
fn t07_a_blocking_socket_is_refused_before_anything_moves() {
    without_hanging(|| {
        rings::each(|runtime| {
            let (blocking, _peer) = tcp_pair();
            let socket = Fd::new(blocking.into());
            let (reader, writer) = ops::pipe().unwrap();
            rustix::io::write(&writer, b"bytes").unwrap();
            runtime.block_on(async {
                for route in ROUTES {
                    let out = ops::splice(&reader, &socket, 5).route(route).await.unwrap_err();
                    let into = ops::splice(&socket, &writer, 5).route(route).await.unwrap_err();
                    for (error, side) in [(out, "output"), (into, "input")] {
                        assert_eq!(error.kind(), ErrorKind::InvalidInput);
                        assert!(error.to_string().contains(&format!("the {side} is a blocking socket")), "{error}");
                    }
                }
            });
            assert_eq!(drain(&reader), b"bytes");
        });
    });
}
