//! Registered pages: limits, lengths, and leases that outlive what they came from.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex};

use ringmain::ops;
use ringmain::{Config, FixedBuf, IoBuf, Runtime};

use crate::child;
use crate::peers::{drain, pattern, without_hanging};
use crate::rings;

fn runtime_with(pages: u32) -> Runtime {
    Runtime::builder().config(Config::default().pages(pages)).build().unwrap()
}

fn lease(runtime: &Runtime, len: usize) -> FixedBuf {
    runtime.driver().registry().try_lease(len).expect("the pages are free")
}

fn lease_with(runtime: &Runtime, bytes: &[u8]) -> FixedBuf {
    let mut lease = lease(runtime, bytes.len());
    lease.as_capacity_mut().copy_from_slice(bytes);
    lease.set_len(bytes.len());
    lease
}

/// Kernels that charge the ring itself to the limit take two pages for one of this size.
fn small_ring_with(pages: u32) -> Runtime {
    Runtime::builder().config(Config::default().entries(8).completions(16).pages(pages)).build().unwrap()
}

#[test]
fn f01_sixteen_pages_fit_into_a_limit_of_sixteen_pages() {
    // And the three small rings of this test, as the kernel frees a ring some time after its end. Buffers that straddle
    // pages would take twice as much.
    child::below(&child::unprivileged(1, 64 + 3 * 8), || {
        without_hanging(|| {
            let exact = small_ring_with(16);
            let registry = exact.driver().registry();
            assert!(registry.is_registered(), "{:?}", registry.unregistered_reason());
            works(&exact);

            let beyond = small_ring_with(32);
            let registry = beyond.driver().registry();
            assert!(!registry.is_registered(), "more is locked than the limit allows");
            let reason = registry.unregistered_reason().unwrap();
            for words in ["needs 128 KiB", "allows this user 88 KiB", "has pinned 64 KiB", "ulimit -l"] {
                assert!(reason.contains(words), "{reason} should say {words}");
            }
            works(&beyond);

            drop((exact, beyond));
            let again = small_ring_with(16);
            assert!(again.driver().registry().is_registered(), "the limit was not given back");
        });
    });
}

#[test]
fn f14_without_enough_locked_memory_the_same_calls_work_and_one_warning_says_why() {
    child::below(&child::unprivileged(2, 256), || {
        let log = Log::default();
        let lines = Arc::clone(&log.0);
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        without_hanging(|| {
            let runtime = Runtime::new().unwrap();
            let registry = runtime.driver().registry();
            assert!(!registry.is_registered());
            let reason = registry.unregistered_reason().unwrap();
            assert!(reason.contains("RLIMIT_MEMLOCK allows this user 256 KiB"), "{reason}");
            works(&runtime);
        });
        let lines = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
        let warnings: Vec<_> = lines.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 1, "{lines}");
        assert!(warnings[0].contains("RLIMIT_MEMLOCK") && warnings[0].contains("unregistered"), "{lines}");
    });
}

/// Newer kernels charge the ring itself to the limit. There is none then, and the error says what to do; on others the
/// ring works, unregistered.
#[test]
fn f14_without_any_locked_memory_there_is_a_runtime_or_a_sentence() {
    child::below(&child::unprivileged(3, 0), || {
        without_hanging(|| match Runtime::new() {
            Ok(runtime) => {
                assert!(!runtime.driver().registry().is_registered());
                works(&runtime);
            }
            Err(error) => {
                assert!(error.is_memlock_limit(), "{error}");
                let sentence = error.to_string();
                for words in ["RLIMIT_MEMLOCK", "is 0", "`ulimit -l"] {
                    assert!(sentence.contains(words), "{sentence} should say {words}");
                }
            }
        });
    });
}

/// What is logged, kept.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A write and a read of leased pages through a pipe and a file.
fn works(runtime: &Runtime) {
    let content = pattern(1, 4096);
    let (reader, writer) = ops::pipe().unwrap();
    let file = ops::fs::File::from(tempfile::tempfile().unwrap());
    runtime.block_on(async {
        let (count, out) = ops::write_fixed(&writer, lease_with(runtime, &content)).await;
        assert_eq!(count.unwrap(), 4096);
        let (count, into) = ops::read_fixed(&reader, lease(runtime, 4096)).await;
        assert_eq!((count.unwrap(), &into[..]), (4096, &content[..]));
        let (count, _into) = ops::write_fixed_at(&file, into, 100).await;
        assert_eq!(count.unwrap(), 4096);
        let (count, into) = ops::read_fixed_at(&file, out, 100).await;
        assert_eq!((count.unwrap(), &into[..]), (4096, &content[..]));
    });
}

#[test]
fn f03_a_lease_stays_memory_when_its_registry_is_gone() {
    without_hanging(|| {
        rings::each(|other| {
            let runtime = runtime_with(16);
            let registry = runtime.driver().registry().clone();
            let mut lease = lease_with(&runtime, &pattern(3, 5_000));
            drop(runtime);
            assert!(!registry.is_registered(), "a ring that is gone has it registered");
            drop(registry);
            assert!(!lease.is_registered());
            assert!(lease[..] == pattern(3, 5_000));
            lease[0] ^= 0xFF;
            lease[0] ^= 0xFF;

            // Another ring does not know this memory, and says so before it asks the kernel.
            let (reader, writer) = ops::pipe().unwrap();
            other.block_on(async {
                let (result, lease) = ops::write_fixed(&writer, lease).await;
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert!(error.to_string().contains("not a lease of the runtime's own registry"), "{error}");
                rustix::io::write(&writer, b"bytes").unwrap();
                let (result, lease) = ops::read_fixed(&reader, lease).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
                assert!(lease[..] == pattern(3, 5_000), "a refused read has changed the buffer");

                // It is a buffer like any other, though.
                let (result, lease) = ops::read(&reader, lease).await;
                assert_eq!((result.unwrap(), &lease[..]), (5, &b"bytes"[..]));
            });
        });
    });
}

#[test]
fn f07_no_fixed_read_runs_past_its_lease() {
    without_hanging(|| {
        rings::each(|runtime| {
            let content = pattern(7, 8192);
            // One page, cut in three: what is read into the middle must leave its neighbours alone.
            let mut before = lease(&runtime, 4096);
            before.as_capacity_mut().fill(0x5A);
            let mut middle = before.split_off(1_000);
            let mut after = middle.split_off(100);
            let mut plain = tempfile::tempfile().unwrap();
            plain.write_all(&content).unwrap();
            let file = ops::fs::File::from(plain);
            runtime.block_on(async {
                // All that is there is more than there is room for.
                let (count, buffer) = ops::read_fixed_at(&file, middle, 0).await;
                assert_eq!((count.unwrap(), &buffer[..]), (100, &content[..100]));

                // A slice that ends beyond the lease ends with it; so does a slice of a slice.
                let (count, slice) = ops::read_fixed_at(&file, buffer.slice(60..4096), 10).await;
                assert_eq!(count.unwrap(), 40);
                let buffer = slice.into_inner();
                assert!(buffer[..60] == content[..60] && buffer[60..] == content[10..50]);
                let (count, slice) = ops::read_fixed_at(&file, buffer.slice(50..90).slice(10..4096), 0).await;
                assert_eq!(count.unwrap(), 30);
                let buffer = slice.into_inner().into_inner();
                assert!(buffer[60..90] == content[..30], "byte {:?}", &buffer[60..90]);

                // A slice that begins behind the lease has no room at all.
                let (result, slice) = ops::read_fixed_at(&file, buffer.slice(101..200), 0).await;
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
                let (count, _slice) = ops::write_fixed_at(&file, slice, 0).await;
                assert_eq!(count.unwrap(), 0, "there is nothing to write");
            });
            assert!(before.as_capacity_mut().iter().all(|byte| *byte == 0x5A), "the front neighbour has changed");
            assert!(after.as_capacity_mut().iter().all(|byte| *byte == 0x5A), "the back neighbour has changed");
        });
    });
}

#[test]
fn f12_the_visible_length_is_what_the_last_read_brought() {
    without_hanging(|| {
        rings::each(|runtime| {
            let content = pattern(12, 4096);
            let (reader, writer) = ops::pipe().unwrap();
            runtime.block_on(async {
                rustix::io::write(&writer, &content).unwrap();
                let (count, buffer) = ops::read_fixed(&reader, lease(&runtime, 4096)).await;
                assert_eq!((count.unwrap(), buffer.len()), (4096, 4096));
                rustix::io::write(&writer, b"ten bytes!").unwrap();
                let (count, buffer) = ops::read_fixed(&reader, buffer).await;
                assert_eq!((count.unwrap(), &buffer[..]), (10, &b"ten bytes!"[..]), "old bytes look like new ones");

                // Of a slice that reaches behind the visible bytes, the visible ones are written.
                let (count, slice) = ops::write_fixed(&writer, buffer.slice(4..2_000)).await;
                assert_eq!((count.unwrap(), drain(&reader)), (6, b"bytes!".to_vec()));

                // A slice of a fresh lease shows nothing, and nothing of it is written.
                let fresh = lease(&runtime, 4096).slice(100..200);
                assert_eq!(fresh.bytes(), b"");
                let (count, fresh) = ops::write_fixed(&writer, fresh).await;
                assert_eq!((count.unwrap(), fresh.bytes()), (0, &b""[..]));

                // What is read into it is seen through it.
                rustix::io::write(&writer, &content[..300]).unwrap();
                let (count, fresh) = ops::read_fixed(&reader, fresh).await;
                assert_eq!((count.unwrap(), fresh.bytes()), (100, &content[..100]));
                drop(slice);
            });
        });
    });
}

#[test]
fn one_frozen_page_is_written_to_many_at_once() {
    without_hanging(|| {
        rings::each(|runtime| {
            let content = pattern(5, 4096);
            let page = lease_with(&runtime, &content).freeze();
            let pipes: Vec<_> = (0..8).map(|_| ops::pipe().unwrap()).collect();
            runtime.block_on(async {
                let writes = pipes.iter().map(|(_, writer)| ops::write_fixed(writer, page.clone()));
                let written = futures::future::join_all(writes).await;
                for ((count, part), (reader, _)) in written.into_iter().zip(&pipes) {
                    assert_eq!((count.unwrap(), part.len()), (4096, 4096));
                    assert!(drain(reader) == content, "every reader sees the one page");
                }
            });
            let mut page = page.try_into_exclusive().expect("the writes have given their clones back");
            assert!(page.as_capacity_mut() == &content[..]);
        });
    });
}

#[test]
fn f16_direct_reads_into_registered_pages_are_as_plain_reads_at_every_alignment() {
    const LEN: usize = 4 << 20;
    let content = pattern(16, LEN);
    let path = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(path.path(), &content).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let direct = match rustix::fs::open(path.path(), flags, rustix::fs::Mode::empty()) {
        Ok(direct) => direct,
        Err(error) => return eprintln!("SKIPPED: no direct reads on this file system: {error}"),
    };
    without_hanging(move || {
        rings::each_with(
            |config| config.pages(1024),
            |runtime| {
                let direct = ringmain::Fd::new(direct.try_clone().unwrap());
                let registry = runtime.driver().registry().clone();
                runtime.block_on(async {
                    for align in [4096, 64 << 10, 2 << 20] {
                        for (len, offset) in [(4096, 0), (4096, 4096), (128 << 10, 64 << 10), (1 << 20, 12_288)] {
                            // Inside one large region, at an offset that is a multiple of the alignment and no more.
                            let before = registry.try_lease(4096).expect("a page is free");
                            let lease = registry.try_lease_aligned(len, align).expect("the pages are free");
                            assert!(lease.alignment() >= align);
                            let (count, lease) = ops::read_fixed_at(&direct, lease, offset as u64).await;
                            assert_eq!(count.unwrap(), len, "{len} bytes at {offset}, aligned to {align}");
                            assert!(lease[..] == content[offset..offset + len]);
                            drop(before);
                        }
                    }
                });
            },
        );
    });
}

#[test]
fn leases_that_are_left_are_named_when_the_last_runtime_ends() {
    let log = Log::default();
    let lines = Arc::clone(&log.0);
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone()).finish();
    let line = line!() + 3;
    tracing::subscriber::with_default(subscriber, || {
        let runtime = runtime_with(4);
        std::mem::forget(runtime.driver().registry().try_lease(5000));
        drop(runtime);
    });
    let lines = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
    let is_named = lines.contains(&format!("{}:{line}: 5000 bytes", file!()));
    assert_eq!(is_named, cfg!(debug_assertions), "debug builds say so, and no other: {lines}");
}
