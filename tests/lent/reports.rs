//! What users of other runtimes reported of provided buffers, by the keys of the table in `CONTRIBUTING.md`.

use std::collections::HashSet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::task::Poll;

use futures::stream::StreamExt;
use ringmain::{Driver, Fd, FixedBuf, ops};

use crate::turns::{one_turn, poll_once, settled, sockets};
use crate::{all, all_free, each, pattern, runtime};

/// A small generator, so that a failure can be repeated: `xorshift64`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A group of two; connect, send, drop the receive at a random moment, many times: both buffers are there at the end.
#[test]
fn p01_a_thousand_receives_dropped_at_random_leave_both_buffers() {
    let runtime = runtime(&[(4096, 2)], 4);
    let registry = runtime.driver().registry().clone();
    runtime.block_on(async {
        let mut chance = Chance(0x5eed);
        for round in 0..1000 {
            let (socket, mut peer) = sockets();
            let moment = chance.below(5);
            let is_stream = chance.below(2) == 0;
            if moment == 0 {
                peer.write_all(b"early").unwrap();
            }
            let mut single = ops::recv_lent(&socket);
            let mut stream = ops::recv_multishot(&socket);
            if chance.below(2) == 0 {
                stream = stream.incremental();
            }
            let mut polled = async || match is_stream {
                true => poll_once(&mut stream.next()).await.is_ready(),
                false => poll_once(&mut single).await.is_ready(),
            };
            let mut is_done = moment > 1 && polled().await;
            if moment > 2 {
                one_turn().await;
            }
            if moment != 0 {
                peer.write_all(b"late").unwrap();
            }
            if moment > 3 && !is_done {
                one_turn().await;
                is_done = polled().await;
            }
            let _came_in_time = is_done;
            drop((single, stream));
            if round % 7 == 0 {
                settled().await;
            }
        }
        settled().await;
        // All four pages can be had: the two of each kind that are lent, through receives.
        let (socket, mut peer) = sockets();
        let mut held = Vec::new();
        for at in 0..2u8 {
            peer.write_all(&[at]).unwrap();
            held.push(ops::recv_lent(&socket).await.unwrap().unwrap());
        }
        assert_eq!(held.iter().map(|page| page[0]).collect::<Vec<_>>(), [0, 1]);
    });
    drop(runtime);
    assert!(all_free(&registry), "{registry:?}");
}

/// Sixteen reads from sixteen named pipes, which are fed in reverse order: no buffer is two reads' at once.
#[test]
fn p05_slow_reads_never_share_a_buffer() {
    each(&[(4096, 16)], 32, |runtime| {
        let dir = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let pipes: Vec<_> = (0..16)
                .map(|at| {
                    let path = dir.path().join(format!("pipe-{at}"));
                    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
                    // Opened for both, so that opening does not wait for the other side.
                    let both = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
                    let writer = both.try_clone().unwrap();
                    (Fd::new(OwnedFd::from(both)), writer)
                })
                .collect();
            let mut reads: Vec<_> = pipes.iter().map(|(reader, _)| ops::read_lent(reader)).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            one_turn().await;
            let mut pages = Vec::new();
            for (at, (_, writer)) in pipes.iter().enumerate().rev() {
                (&*writer).write_all(&[at as u8; 1000]).unwrap();
                if at % 3 == 0 {
                    one_turn().await;
                }
            }
            for (at, read) in reads.into_iter().enumerate() {
                let page = read.await.unwrap().unwrap();
                assert_eq!(&page[..], [at as u8; 1000], "the content is its own pipe's");
                pages.push(page);
            }
            let places: HashSet<_> = pages.iter().map(|page| page.as_ptr()).collect();
            assert_eq!(places.len(), 16, "each has a buffer of its own");
        });
    });
}

/// By type a multishot receive has a group (`MultishotSqe::recv`, a doctest that must not compile), and so there is none
/// that the kernel answers by `EINVAL`.
#[test]
fn p06_every_multishot_receive_has_a_group() {
    each(&[(4096, 2)], 8, |runtime| {
        runtime.block_on(async {
            let (socket, peer) = sockets();
            drop(peer);
            assert!(all(ops::recv_multishot(&socket)).await.is_empty());
            let (reader, writer) = crate::turns::pipe();
            drop(writer);
            if Driver::current().setup().supports(ringmain::Opcode::ReadMultishot) {
                assert!(all(ops::read_multishot(&reader)).await.is_empty());
            }
            let udp = Fd::new(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into());
            let mut messages = ops::recvmsg_multishot(&udp);
            assert!(poll_once(&mut messages.next()).await.is_pending());
            one_turn().await;
            assert!(poll_once(&mut messages.next()).await.is_pending(), "the kernel has taken it");
        });
    });
}

/// Streams and receives of many connections at once, some dropped on the way, on few pages: what is not dropped is whole.
#[test]
fn u10_many_streams_on_few_pages_bring_all_of_their_bytes() {
    each(&[(4096, 4), (65_536, 1)], 24, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let bytes = pattern(60_000);
            let mut tasks = Vec::new();
            let mut feeders = Vec::new();
            for at in 0..12 {
                let (socket, mut peer) = sockets();
                let sent = bytes.clone();
                feeders.push(std::thread::spawn(move || {
                    // The reader may have gone.
                    for piece in sent.chunks(1000) {
                        if peer.write_all(piece).is_err() {
                            return;
                        }
                    }
                }));
                let bytes = bytes.clone();
                tasks.push(ringmain::spawn(async move {
                    let mut stream = ops::recv_multishot(&socket);
                    match at % 4 {
                        0 => stream = stream.incremental(),
                        1 => stream = stream.bundled(),
                        2 => stream = stream.buffer_bytes(5000),
                        _ => {
                            stream.next().await.unwrap().unwrap();
                            return;
                        }
                    }
                    assert!(all(stream).await == bytes);
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            for feeder in feeders {
                feeder.join().unwrap();
            }
            settled().await;
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

#[test]
fn buffers_that_nobody_receives_into_make_room_for_those_that_somebody_waits_for() {
    each(&[(4096, 4), (65_536, 1)], 20, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let (socket, mut peer) = sockets();
            for _ in 0..3 {
                // The small ones come to lie where they leave no 16 pages in one piece.
                let before = registry.try_lease(2 * 4096).unwrap();
                peer.write_all(b"small").unwrap();
                let small = ops::recv_lent(&socket).await.unwrap().unwrap();
                assert_eq!(&small[..], b"small");
                drop((before, small));
                peer.write_all(b"large").unwrap();
                let large = ops::recv_lent_sized(&socket, 65_536).await.unwrap().unwrap();
                assert_eq!((&large[..], large.capacity()), (&b"large"[..], 65_536));
            }
            settled().await;
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}

/// Streams of every kind that come and go, reads that fail, items that are kept, pages that run out: what is in the
/// program's hands is marked, all of its capacity, and nobody else writes there.
#[test]
fn nobody_writes_to_pages_in_the_programs_hands() {
    each(&[(4096, 3)], 8, |runtime| {
        let registry = runtime.driver().registry().clone();
        runtime.block_on(async {
            let mut random = Chance(0x9E37_79B9_7F4A_7C15);
            let memory = Fd::new(std::fs::File::open("/proc/self/mem").unwrap().into());
            let pairs: Vec<_> = (0..4).map(|_| sockets()).collect();
            for (_, peer) in &pairs {
                peer.set_nonblocking(true).unwrap();
            }
            let mut streams: Vec<Option<ops::RecvMultishot>> = (0..4).map(|_| None).collect();
            let mut failing = Vec::new();
            let mut held: Vec<(FixedBuf, u8)> = Vec::new();
            let mut kept = 0;
            for round in 0..3000u32 {
                let at = random.below(4) as usize;
                match random.below(8) {
                    0 => streams[at] = None,
                    1 => failing.push(ops::read_lent(&memory)),
                    2 if !failing.is_empty() => drop(failing.swap_remove(0)),
                    3 if !held.is_empty() => {
                        let (buffer, mark) = held.swap_remove(random.below(held.len() as u64) as usize);
                        assert!(buffer.iter().all(|byte| *byte == mark), "round {round}: written by somebody else");
                    }
                    4 | 5 => {
                        let bytes = vec![0xEE; 1 + random.below(9000) as usize];
                        let _full = (&pairs[at].1).write(&bytes);
                    }
                    _ => one_turn().await,
                }
                let stream = streams[at].get_or_insert_with(|| match random.below(3) {
                    0 => ops::recv_multishot(&pairs[at].0),
                    1 => ops::recv_multishot(&pairs[at].0).incremental().bundled(),
                    _ => ops::recv_multishot(&pairs[at].0).bundled(),
                });
                if let Poll::Ready(item) = poll_once(&mut stream.next()).await {
                    let mut buffer = item.expect("no stream ends by itself").unwrap();
                    assert!(buffer.iter().all(|byte| *byte == 0xEE), "what came is what was sent");
                    let mark = (round % 200) as u8;
                    buffer.as_capacity_mut().fill(mark);
                    buffer.set_len(buffer.capacity());
                    held.push((buffer, mark));
                    kept += 1;
                }
                for read in &mut failing {
                    if !read.is_in_flight() || poll_once(read).await.is_ready() {
                        *read = ops::read_lent(&memory);
                    }
                }
                failing.truncate(3);
            }
            assert!(held.iter().all(|(buffer, mark)| buffer.iter().all(|byte| byte == mark)));
            assert!(kept > 100, "{kept} pieces came");
            drop((streams, failing, held));
            settled().await;
        });
        drop(runtime);
        assert!(all_free(&registry), "{registry:?}");
    });
}
