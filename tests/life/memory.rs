//! Memory that was given back is never written, and memory that the kernel has is never given back.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use ringmain::ops::net::TcpStream;
use ringmain::{Fd, FixedBuf, Runtime, ops};

use crate::parked::parked_splice;
use crate::turns::{one_turn, pipe, poll_once, settled, sockets};
use crate::unmapping::mapped;
use crate::{Census, alone, rings, workers_end};

const BUFFER: usize = 64 << 10;

/// What a test fills its own memory with, to see whether somebody else writes there.
const CANARY: u8 = 0xC3;

/// What goes through the pipes.
const DATA: u8 = 0x5A;

fn canaries() -> Vec<Vec<u8>> {
    (0..6).map(|_| vec![CANARY; BUFFER]).collect()
}

fn sing(canaries: &[Vec<u8>]) {
    assert!(canaries.iter().flatten().all(|byte| *byte == CANARY), "the kernel wrote into memory of somebody else's");
}

/// The allocator does what the other tests rely on.
#[test]
fn freed_memory_is_not_mapped_any_more() {
    let _alone = alone();
    let before = mapped();
    let buffer = vec![1u8; BUFFER];
    let start = buffer.as_ptr().addr();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let range = line.split_whitespace().next().unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let at = |number| usize::from_str_radix(number, 16).unwrap();
            (at(from)..at(to)).contains(&start)
        })
    };
    assert!(is_mapped() && mapped() == before + BUFFER);
    drop(buffer);
    assert!(!is_mapped() && mapped() == before);
}

/// Dropped in every moment: queued; waiting; waiting with the data there and not yet moved.
fn dropped_reads(runtime: &Runtime, rounds: usize) {
    let before = mapped();
    for round in 0..rounds {
        let (fd, mut writer) = pipe();
        runtime.block_on(async {
            let mut read = ops::read(&fd, Vec::with_capacity(BUFFER));
            assert!(poll_once(&mut read).await.is_pending());
            let moment = round % 3;
            if moment > 0 {
                one_turn().await;
            }
            if moment == 2 {
                writer.write_all(&[DATA; BUFFER / 2]).unwrap();
            }
            drop(read);
            let kept = if moment == 0 { 0 } else { BUFFER };
            assert_eq!(mapped() - before, kept, "the kernel has it exactly if it was pushed");
            let canaries = canaries();
            writer.write_all(&[DATA; BUFFER / 2]).unwrap();
            settled().await;
            sing(&canaries);
        });
        assert_eq!(mapped(), before, "the kernel has let go of it");
    }
    assert_eq!(runtime.driver().slots_used(), 0);
}

#[test]
fn c02_a_dropped_reads_buffer_is_never_written_after_reuse() {
    let _alone = alone();
    rings::each(|runtime| dropped_reads(&runtime, 60));
}

#[test]
#[ignore = "takes a minute"]
fn c02_ten_thousand_dropped_reads_buffers_are_never_written_after_reuse() {
    let _alone = alone();
    dropped_reads(&Runtime::new().unwrap(), 10_000);
}

/// Pages of the registry stay mapped, so that no late write would fail: each page's next holder puts a canary there.
#[test]
fn a_dropped_reads_pages_are_never_written_after_reuse() {
    let _alone = alone();
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let fill = |lease: &mut FixedBuf| {
            lease.as_capacity_mut().fill(CANARY);
            lease.set_len(lease.capacity());
        };
        runtime.block_on(async {
            for round in 0..30 {
                let (fd, mut writer) = pipe();
                let lease = registry.try_lease(16 * 4096).unwrap();
                let mut others: Vec<_> = (0..3).map(|_| registry.try_lease(16 * 4096).unwrap()).collect();
                others.iter_mut().for_each(fill);
                let mut read = ops::read_fixed(&fd, lease);
                assert!(poll_once(&mut read).await.is_pending());
                one_turn().await;
                assert_eq!(registry.snapshot().pages_in_flight, 16);
                if round % 2 == 0 {
                    writer.write_all(&[DATA; BUFFER]).unwrap();
                }
                drop(read);
                assert!(registry.try_lease(1).is_none(), "the kernel has them still");
                settled().await;
                let mut next = registry.try_lease(16 * 4096).expect("the kernel has let go of them");
                fill(&mut next);
                others.push(next);
                if round % 2 == 1 {
                    writer.write_all(&[DATA; BUFFER]).unwrap();
                }
                one_turn().await;
                assert!(others.iter().all(|lease| lease.iter().all(|byte| *byte == CANARY)));
            }
        });
        assert_eq!(registry.snapshot().pages_free, 64);
    });
}

#[test]
fn pages_of_a_dropped_runtime_are_never_written_after_reuse() {
    let _alone = alone();
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let (fd, mut writer) = pipe();
        let lease = registry.try_lease(64 * 4096).unwrap();
        runtime.spawn(async move { ops::read_fixed(&fd, lease).await });
        runtime.block_on(one_turn());
        assert_eq!(registry.snapshot().pages_in_flight, 64);
        writer.write_all(&[DATA; BUFFER]).unwrap();
        drop(runtime);
        let mut next = registry.try_lease(64 * 4096).expect("shutdown has reaped the read");
        next.as_capacity_mut().fill(CANARY);
        next.set_len(next.capacity());
        // The other end is closed or takes it: nobody is there to move it.
        let _broken_pipe = writer.write(&[DATA; 1]);
        assert!(next.iter().all(|byte| *byte == CANARY));
    });
}

/// Connects to both families, every second one dropped in one of two moments. The allocator overwrites what is freed,
/// so that an address which the kernel reads too late is one of no family.
#[test]
fn c01_an_address_stays_until_the_kernel_has_read_it() {
    let _alone = alone();
    let runtime = Runtime::new().unwrap();
    for ip in [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
        let listener = match TcpListener::bind(ip) {
            Ok(listener) => listener,
            Err(error) => {
                assert!(ip.is_ipv6() && std::env::var_os("CI").is_none(), "{ip} cannot be bound: {error}");
                eprintln!("SKIPPED in part: {ip} cannot be bound here: {error}");
                continue;
            }
        };
        let address = listener.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let acceptor = std::thread::spawn({
            let ends = Arc::clone(&ends);
            move || {
                for stream in listener.incoming() {
                    stream.unwrap();
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                }
            }
        });
        runtime.block_on(async {
            for batch in 0..25 {
                let mut connects: Vec<_> = (0..20).map(|_| Box::pin(TcpStream::connect(address))).collect();
                for connect in &mut connects {
                    // Some may be refused a slot, none may be done.
                    assert!(poll_once(connect).await.is_pending());
                }
                if batch % 2 == 0 {
                    one_turn().await;
                }
                let mut keep = Vec::new();
                for (at, connect) in connects.into_iter().enumerate() {
                    if at % 2 == 0 { keep.push(connect) } else { drop(connect) }
                }
                for connected in join_all(keep).await {
                    connected.expect("an address that the kernel reads whole is answered");
                }
            }
            settled().await;
        });
        ends.store(true, Ordering::SeqCst);
        // Wakes the acceptor, unless one of the dropped connects has done so: then it is refused.
        let _woken = std::net::TcpStream::connect(address);
        acceptor.join().unwrap();
    }
    assert_eq!(runtime.driver().slots_used(), 0);
}

#[test]
fn s01_a_dropped_runtime_frees_nothing_that_the_kernel_has() {
    let _alone = alone();
    let before = Census::take();
    for _ in 0..3 {
        let runtime = Runtime::new().unwrap();
        let (fds, mut peers): (Vec<_>, Vec<_>) = (0..64).map(|_| sockets()).unzip();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![DATA; 8 * BUFFER]).unwrap();
        let file = Fd::new(file.into());
        for fd in &fds {
            let fd = fd.clone();
            runtime.spawn(async move { ops::recv(&fd, Vec::with_capacity(BUFFER)).await.0 });
        }
        let mut ends = Vec::new();
        for _ in 0..16 {
            let ((source, feed), (sink, into)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
            runtime.spawn(parked_splice(source, into));
            ends.push((feed, sink));
        }
        runtime.block_on(async {
            while runtime.driver().operations_active() < 64 + 16 {
                one_turn().await;
            }
        });
        let reads = runtime.block_on(async {
            let mut reads: Vec<_> =
                (0..8u64).map(|at| ops::read_at(&file, Vec::with_capacity(BUFFER), at * BUFFER as u64)).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            reads
        });
        assert_eq!(runtime.driver().operations_active(), 64 + 16 + 8);
        let started = Instant::now();
        drop(reads);
        drop(runtime);
        assert!(started.elapsed() < Duration::from_secs(4), "the kernel was given up on");
        assert_eq!(mapped(), before.mapped, "every buffer was reaped");
        let canaries = canaries();
        for peer in &mut peers {
            // Its other end is open: `fds` lives.
            peer.write_all(&[DATA; 4096]).unwrap();
        }
        sing(&canaries);
    }
    workers_end();
    assert_eq!(Census::take(), before);
}
