//! Cancelled and dropped: nothing lost, nothing freed early, nobody else's result.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use futures::future::{self, Either, join_all};
use ringmain::{Config, Fd, Runtime, Wait, ops, sleep};
use rustix::io::Errno;

use crate::turns::{one_turn, pipe, poll_once, settled, sockets};
use crate::{errno, rings};

/// The played kernel takes nothing, in each of the ways in which an enter may fail, after the read was pushed.
#[test]
fn c03_a_failed_submit_frees_nothing_that_the_kernel_may_still_get() {
    for failure in [Errno::AGAIN, Errno::BUSY, Errno::NOMEM, Errno::INTR] {
        let (runtime, script) = Runtime::builder().config(Config::default().pages(4)).build_scripted().unwrap();
        let driver = runtime.driver().clone();
        let _entered = driver.enter();
        let (fd, _writer) = pipe();
        let noop = &mut std::task::Context::from_waker(std::task::Waker::noop());
        let mut first = Box::pin(ops::read(&fd, Vec::with_capacity(8)));
        assert!(first.as_mut().poll(noop).is_pending());
        script.fail_enter(failure.raw_os_error());
        driver.turn(Wait::No).expect("a failure that passes is not the program's");
        assert!(first.as_mut().poll(noop).is_pending());
        assert!(script.pending().is_empty(), "the kernel took nothing");
        let mut second = Box::pin(ops::read(&fd, Vec::with_capacity(8)));
        assert!(second.as_mut().poll(noop).is_pending());
        assert_eq!(driver.slots_used(), 2, "the first has kept its slot");
        driver.turn(Wait::No).unwrap();
        let [one, two] = script.pending()[..] else { panic!("both were submitted, once") };
        script.complete_with_bytes(two.entry.user_data, b"second");
        script.complete_with_bytes(one.entry.user_data, b"first");
        driver.turn(Wait::No).unwrap();
        for (read, bytes) in [(first, &b"first"[..]), (second, &b"second"[..])] {
            let (count, buffer) = read.now_or_never();
            assert_eq!((count.unwrap(), &buffer[..]), (bytes.len(), bytes));
        }
        assert_eq!(driver.slots_used(), 0);
    }
}

/// Polled once: the output of what must be ready.
trait NowOrNever: Future + Sized {
    fn now_or_never(self) -> Self::Output {
        futures::FutureExt::now_or_never(self).expect("it is done")
    }
}

impl<F: Future> NowOrNever for F {}

/// How long a reader waits before it cancels.
const PATIENCE: Duration = Duration::from_micros(100);

/// Reads that keep being cancelled: what `cancel` gives back, the count and the buffer, is all that there is.
async fn read_all(fd: &Fd, bytes: usize) -> (Vec<u8>, u32) {
    let (mut received, mut cancels) = (Vec::new(), 0);
    while received.len() < bytes {
        let (count, buffer) = match future::select(ops::read(fd, Vec::with_capacity(24)), sleep(PATIENCE)).await {
            Either::Left((done, _)) => done,
            Either::Right(((), read)) => {
                cancels += 1;
                read.cancel().await
            }
        };
        match count {
            Ok(0) => break,
            Ok(_) => received.extend(buffer),
            Err(error) => assert_eq!(errno::<()>(Err(error)), Errno::CANCELED),
        }
    }
    (received, cancels)
}

/// The same with reads of several steps: `cancel` tells how far they came.
async fn read_all_exactly(fd: &Fd, bytes: usize) -> (Vec<u8>, u32) {
    let (mut received, mut cancels) = (Vec::new(), 0);
    while received.len() < bytes {
        let want = 24.min(bytes - received.len());
        let read = ops::read_exact(fd, vec![0; want].into_boxed_slice());
        match future::select(read, sleep(PATIENCE)).await {
            Either::Left(((count, buffer), _)) => {
                assert_eq!(count.expect("the stream ends where a read does"), want);
                received.extend_from_slice(&buffer);
            }
            Either::Right(((), read)) => {
                cancels += 1;
                let (_, count, buffer) = read.cancel().await;
                received.extend_from_slice(&buffer[..count]);
            }
        }
    }
    (received, cancels)
}

fn no_record_is_lost(runtime: &Runtime, records: u64, exact: bool) {
    let (fd, mut peer) = sockets();
    let sender = std::thread::spawn(move || {
        for record in 0..records {
            peer.write_all(&record.to_be_bytes()).unwrap();
            if record % 50 == 0 {
                // The sender's own pace, so that reads are cancelled; nothing is waited for.
                std::thread::sleep(Duration::from_micros(record * 7919 % 3000));
            }
        }
    });
    let bytes = usize::try_from(records).unwrap() * 8;
    let (received, cancels) =
        runtime.block_on(async { if exact { read_all_exactly(&fd, bytes).await } else { read_all(&fd, bytes).await } });
    sender.join().unwrap();
    let (chunks, torn) = received.as_chunks::<8>();
    assert!(torn.is_empty() && chunks.iter().copied().map(u64::from_be_bytes).eq(0..records));
    println!("{cancels} reads were cancelled on the way");
}

#[test]
fn c06_a_cancelled_read_loses_no_record() {
    let runtime = Runtime::new().unwrap();
    no_record_is_lost(&runtime, 3000, false);
    no_record_is_lost(&runtime, 3000, true);
}

#[test]
#[ignore = "takes a minute"]
fn c06_a_cancelled_read_loses_no_record_in_a_long_stream() {
    rings::each(|runtime| {
        no_record_is_lost(&runtime, 40_000, false);
        no_record_is_lost(&runtime, 40_000, true);
    });
}

#[test]
fn c07_every_cancel_reaches_the_kernel_however_small_the_ring() {
    rings::each(|runtime| {
        let pairs: Vec<_> = (0..200).map(|_| sockets()).collect();
        let results = runtime.block_on(async {
            let mut recvs: Vec<_> = pairs.iter().map(|(fd, _)| ops::recv(fd, Vec::with_capacity(64))).collect();
            for recv in &mut recvs {
                assert!(poll_once(recv).await.is_pending());
            }
            one_turn().await;
            join_all(recvs.into_iter().map(ringmain::Submission::cancel)).await
        });
        for (result, buffer) in results {
            assert_eq!((errno(result), buffer.capacity()), (Errno::CANCELED, 64));
        }
        assert_eq!((runtime.driver().operations_active(), runtime.driver().slots_used()), (0, 0));
    });
}

/// As above, by drop instead of `cancel`, and with a second crowd that takes the place of the first at once.
#[test]
fn c07_every_drop_reaches_the_kernel_however_small_the_ring() {
    rings::each(|runtime| {
        let pairs: Vec<_> = (0..100).map(|_| sockets()).collect();
        runtime.block_on(async {
            for _ in 0..3 {
                let mut recvs: Vec<_> = pairs.iter().map(|(fd, _)| ops::recv(fd, Vec::with_capacity(64))).collect();
                for recv in &mut recvs {
                    assert!(poll_once(recv).await.is_pending());
                }
                one_turn().await;
            }
            settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn c10_an_operation_that_completed_unseen_does_not_hold_up_shutdown() {
    rings::each(|runtime| {
        let (fd, mut writer) = pipe();
        writer.write_all(b"here already").unwrap();
        let mut read = ops::read(&fd, Vec::with_capacity(64));
        runtime.block_on(async {
            assert!(poll_once(&mut read).await.is_pending());
            // Its completion is taken by the same turn as this one's, and nobody looks at it.
            while runtime.driver().operations_active() > 0 {
                one_turn().await;
            }
        });
        assert_eq!(runtime.driver().slots_used(), 1);
        drop(read);
        let started = Instant::now();
        let patience = Duration::from_secs(4);
        drop(runtime);
        assert!(started.elapsed() < patience, "shutdown waited for a completion that had come");
    });
}

/// Users' operations, cancels of the runtime's own and wakes from another thread, in a ring of four entries.
fn internal_entries_wake_nobody(rounds: u32) {
    let config = Config::default().entries(4).completions(8).pages(4);
    let runtime = Runtime::builder().config(config).build().unwrap();
    let (fd, mut writer) = pipe();
    let (wake, mut woken) = futures::channel::mpsc::unbounded();
    let waker = std::thread::spawn(move || {
        for number in 0..rounds {
            if wake.unbounded_send(number).is_err() {
                return;
            }
            std::thread::yield_now();
        }
    });
    runtime.block_on(async {
        let mut next = 0;
        for round in 0..rounds {
            let mut dropped = ops::read(&fd, Vec::with_capacity(8));
            assert!(poll_once(&mut dropped).await.is_pending());
            let nops = join_all((0..3).map(|_| ops::nop()));
            drop(dropped);
            assert!(nops.await.into_iter().all(|result| result.is_ok()));
            // A read that must bring this round's bytes, and not an earlier one's.
            writer.write_all(&round.to_be_bytes()).unwrap();
            let (count, bytes) = ops::read(&fd, Vec::with_capacity(4)).await;
            assert_eq!((count.unwrap(), &bytes[..]), (4, &round.to_be_bytes()[..]));
            while let Ok(number) = woken.try_recv() {
                assert_eq!(number, next);
                next += 1;
            }
        }
        while next < rounds {
            assert_eq!(futures::StreamExt::next(&mut woken).await, Some(next));
            next += 1;
        }
        settled().await;
    });
    waker.join().unwrap();
    assert_eq!((runtime.driver().metrics().stale.get(), runtime.driver().slots_used()), (0, 0));
}

#[test]
fn c12_entries_of_the_runtimes_own_wake_nobody() {
    internal_entries_wake_nobody(2000);
}

#[test]
#[ignore = "takes a minute"]
fn c12_entries_of_the_runtimes_own_wake_nobody_a_hundred_thousand_times() {
    internal_entries_wake_nobody(100_000);
}

#[test]
fn c14_dropping_an_operation_in_flight_neither_blocks_nor_aborts() {
    rings::each(|runtime| {
        let (fd, _writer) = pipe();
        let rounds = 50;
        let ticks = std::rc::Rc::new(std::cell::Cell::new(0));
        let ticker = runtime.spawn({
            let ticks = ticks.clone();
            async move {
                loop {
                    one_turn().await;
                    ticks.set(ticks.get() + 1);
                }
            }
        });
        let mut worst = Duration::ZERO;
        runtime.block_on(async {
            for _ in 0..rounds {
                let read = ops::read(&fd, Vec::with_capacity(4096));
                match future::select(read, sleep(Duration::from_micros(200))).await {
                    Either::Left((done, _)) => panic!("nobody writes, and yet {done:?}"),
                    Either::Right(((), read)) => {
                        let started = Instant::now();
                        drop(read);
                        worst = worst.max(started.elapsed());
                    }
                }
            }
        });
        assert!(ticks.get() > rounds / 2, "other tasks went on: {}", ticks.get());
        assert!(worst < Duration::from_secs(1), "a drop took {worst:?}");
        ticker.abort();
        runtime.block_on(async {
            assert!(ticker.await.unwrap_err().is_cancelled());
            settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

/// A writer on another thread races with a drop that comes at a different moment each time.
fn completion_and_drop_race(runtime: &Runtime, rounds: u32) {
    let (fd, mut writer) = pipe();
    let mut drain = fd.try_clone_to_owned().map(std::fs::File::from).unwrap();
    let (go, going) = std::sync::mpsc::channel::<()>();
    let (done, over) = std::sync::mpsc::channel::<()>();
    let racer = std::thread::spawn(move || {
        while going.recv().is_ok() {
            writer.write_all(b"x").unwrap();
            done.send(()).unwrap();
        }
    });
    let mut arrived = 0;
    runtime.block_on(async {
        for round in 0..rounds {
            let mut read = ops::read(&fd, Vec::with_capacity(1));
            assert!(poll_once(&mut read).await.is_pending());
            go.send(()).unwrap();
            for _ in 0..round % 4 {
                one_turn().await;
            }
            drop(read);
            over.recv().unwrap();
            settled().await;
            // The byte went with the read that was dropped, or it is still there.
            rustix::io::ioctl_fionbio(&drain, true).unwrap();
            arrived += u32::from(drain.read(&mut [0; 2]).is_ok());
            rustix::io::ioctl_fionbio(&drain, false).unwrap();
            assert_eq!(runtime.driver().slots_used(), 0);
        }
    });
    drop(go);
    racer.join().unwrap();
    println!("{arrived} of {rounds} bytes were left by the read that was dropped");
}

#[test]
fn c16_a_completion_and_a_drop_may_race() {
    rings::each(|runtime| completion_and_drop_race(&runtime, 200));
}

#[test]
#[ignore = "takes minutes"]
fn c16_a_completion_and_a_drop_may_race_a_million_times() {
    completion_and_drop_race(&Runtime::new().unwrap(), 1_000_000);
}

#[test]
fn c18_a_batch_that_failed_leaves_nothing_to_the_next_one() {
    const BLOCK: usize = 4096;
    let mut file = tempfile::tempfile().unwrap();
    for block in 0..32u8 {
        file.write_all(&[block; BLOCK]).unwrap();
    }
    let file = Fd::new(file.into());
    // Reading from a descriptor that is open for writing only fails with EBADF.
    let unreadable = Fd::new(std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into());
    rings::each(|runtime| {
        runtime.block_on(async {
            for _ in 0..5 {
                let batch = (0..16).map(|at| {
                    let fd = if at == 2 { &unreadable } else { &file };
                    Box::pin(ops::read_at(fd, Vec::with_capacity(BLOCK), at * BLOCK as u64))
                });
                let mut batch = future::select_all(batch);
                let failed = loop {
                    let ((result, _), _, rest) = batch.await;
                    if let Err(error) = result {
                        break error;
                    }
                    batch = future::select_all(rest);
                };
                assert_eq!(failed.raw_os_error(), Some(Errno::BADF.raw_os_error()));
                // The rest of the batch was dropped; some of it is done, some in flight.
                let next =
                    join_all((16..32).map(|at| ops::read_at(&file, Vec::with_capacity(BLOCK), at * BLOCK as u64)));
                for (block, (count, bytes)) in (16u8..).zip(next.await) {
                    assert_eq!((count.unwrap(), bytes), (BLOCK, vec![block; BLOCK]));
                }
            }
            settled().await;
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

#[test]
fn c19_a_write_that_was_dropped_never_lands_in_the_next_file() {
    rings::each(|runtime| {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let number = writer.as_raw_fd();
        let writer = Fd::new(writer.into());
        let free = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        let mut file = runtime.block_on(async {
            let (filled, _) = ops::write(&writer, vec![1; free]).await;
            assert_eq!(filled.unwrap(), free);
            let mut blocked = ops::write(&writer, vec![2; 4096]);
            assert!(poll_once(&mut blocked).await.is_pending());
            one_turn().await;
            drop(blocked);
            drop(writer);
            // Everything the number could be given to, while the write is on its way out.
            let files: Vec<_> = (0..8).map(|_| tempfile::tempfile().unwrap()).collect();
            assert!(
                runtime.driver().operations_active() == 0 || files.iter().all(|file| file.as_raw_fd() != number),
                "the number was given away while the kernel still had it"
            );
            settled().await;
            files
        });
        let mut piped = vec![0; free];
        reader.read_exact(&mut piped).unwrap();
        assert_eq!(piped, vec![1; free]);
        for file in &mut file {
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 0, "a file got what was meant for the pipe");
        }
    });
}

/// The compile-time part stands with `FixedBuf` and `Sqe`: borrowed memory cannot be registered, and a lease cannot be
/// given up while an operation has it.
#[test]
fn c20_a_lease_of_another_ring_is_refused_and_comes_back() {
    let home = Runtime::builder().config(Config::default().pages(4)).build().unwrap();
    let abroad = Runtime::builder().config(Config::default().pages(4)).build().unwrap();
    let lease = home.driver().registry().try_lease(4096).unwrap();
    let (fd, mut writer) = pipe();
    writer.write_all(b"four").unwrap();
    let (result, lease) = abroad.block_on(ops::read_fixed(&fd, lease));
    let error = result.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("lease it from the runtime that uses it"), "{error}");
    let (result, lease) = home.block_on(ops::read_fixed(&fd, lease));
    assert_eq!((result.unwrap(), &lease[..]), (4, &b"four"[..]));
    assert_eq!(abroad.driver().registry().snapshot().pages_free, 4);
}

#[test]
fn c20_a_lease_outlives_its_runtime() {
    let runtime = Runtime::builder().config(Config::default().pages(4)).build().unwrap();
    let mut lease = runtime.driver().registry().try_lease(3 * 4096).unwrap();
    assert!(lease.is_registered());
    drop(runtime);
    assert!(!lease.is_registered());
    lease.as_capacity_mut().fill(7);
    lease.set_len(lease.capacity());
    assert!(lease.iter().all(|byte| *byte == 7), "it is memory still");
}
