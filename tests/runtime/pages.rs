//! The registry as it grows and shrinks under a runtime, and several runtimes that have one.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use ringmain::{Config, Driver, Fd, FixedBuf, Registry, Runtime, Script, Wait, ops, sleep};

use crate::rings;
use crate::turns::{one_turn, poll_once};

const READ: u8 = 22;
const READ_FIXED: u8 = 4;
const CHUNK: usize = 512 * 4096;

fn growing() -> Config {
    Config::default().pages(1).pages_max(1 + 2 * 512)
}

fn scripted(config: Config) -> (Runtime, Script) {
    let (runtime, script) = Runtime::builder().config(config).build_scripted().unwrap();
    script.play(|kernel| {
        for pending in kernel.pending() {
            kernel.complete(pending.entry.user_data, 0);
        }
    });
    (runtime, script)
}

/// The opcode by which a read into this lease goes, and the index that it names.
async fn route(script: &Script, lease: FixedBuf) -> ((u8, u16), FixedBuf) {
    let seen = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let note = seen.clone();
    script.play(move |kernel| {
        for pending in kernel.pending() {
            note.set((pending.entry.opcode, pending.entry.buf_index));
            kernel.complete(pending.entry.user_data, 0);
        }
    });
    let (reader, _writer) = std::io::pipe().unwrap();
    let (count, lease) = ops::read_fixed(&Fd::new(reader.into()), lease).await;
    assert_eq!(count.unwrap(), 0);
    (seen.get(), lease)
}

#[test]
fn a_chunk_is_named_by_index_after_the_turn_that_registers_it() {
    let (runtime, script) = scripted(growing());
    let registry = runtime.driver().registry().clone();
    runtime.block_on(async {
        let first = registry.try_lease(4096).unwrap();
        let grown = registry.try_lease(CHUNK).expect("it grows");
        assert_eq!((script.entries_set(), grown.is_registered()), (1, false));
        let (how, grown) = route(&script, grown).await;
        assert_eq!(how, (READ, 0), "described before the ring knew of the chunk");
        assert_eq!((script.entries_set(), grown.is_registered()), (2, true));
        let (how, _grown) = route(&script, grown).await;
        assert_eq!(how, (READ_FIXED, 1));
        let (how, _first) = route(&script, first).await;
        assert_eq!(how, (READ_FIXED, 0));
    });
    let now = registry.snapshot();
    assert_eq!((now.chunks_mapped, now.registrations), (2, 2));
}

#[test]
fn memory_is_given_back_only_after_the_completion_with_its_tag() {
    let (runtime, script) = scripted(growing());
    let registry = runtime.driver().registry().clone();
    let total = || registry.snapshot().pages_total;
    runtime.block_on(async {
        drop(registry.try_lease(CHUNK).expect("it grows"));
        one_turn().await;
        script.hold_memory(true);
        assert_eq!(registry.shrink(), 1);
        one_turn().await;
        one_turn().await;
        assert_eq!((script.entries_set(), total()), (1, 513), "cleared, and not let go of");
        let again = registry.try_lease(CHUNK).expect("it is still there");
        let (how, again) = route(&script, again).await;
        assert_eq!(how, (READ, 0), "its entry is being cleared");
        script.hold_memory(false);
        one_turn().await;
        one_turn().await;
        assert_eq!((script.entries_set(), total()), (2, 513), "and is set anew");
        drop(again);
        assert_eq!(registry.shrink(), 1);
        one_turn().await;
        one_turn().await;
        assert_eq!((script.entries_set(), total()), (1, 1));
    });
    assert_eq!(runtime.driver().metrics().stale.get(), 0, "a tag is no stale completion");
}

#[test]
fn memory_that_is_long_unused_goes_without_a_call() {
    let (runtime, _script) = scripted(growing().pages_idle(Duration::from_secs(10)));
    let registry = runtime.driver().registry().clone();
    runtime.block_on(async {
        drop(registry.try_lease(CHUNK).expect("it grows"));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(registry.snapshot().pages_total, 513);
        sleep(Duration::from_secs(6)).await;
        one_turn().await;
        assert_eq!(registry.snapshot().pages_total, 1);
    });
}

#[test]
fn f14_a_later_chunk_that_is_refused_is_used_by_plain_operations() {
    let (runtime, script) = scripted(growing());
    let registry = runtime.driver().registry().clone();
    runtime.block_on(async {
        script.refuse_memory(Some(12));
        let grown = registry.try_lease(CHUNK).expect("it grows");
        one_turn().await;
        let (how, grown) = route(&script, grown).await;
        assert_eq!((how, grown.is_registered(), registry.is_registered()), ((READ, 0), false, true));
        drop(grown);
        script.refuse_memory(None);
        assert_eq!(registry.shrink(), 1);
        one_turn().await;
        one_turn().await;
        assert_eq!(registry.snapshot().pages_total, 1, "what was never registered is given back as well");
        let grown = registry.try_lease(CHUNK).expect("it grows");
        one_turn().await;
        let (how, _grown) = route(&script, grown).await;
        assert_eq!(how, (READ_FIXED, 1), "a new chunk is tried anew");
    });
}

/// Through a pipe: these bytes, from a lease into another of the same length.
async fn through_a_pipe(registry: &Registry, len: usize, mark: u8) {
    let (reader, writer) = ops::pipe().unwrap();
    let (mut out, into) = (registry.lease(len).await.unwrap(), registry.lease(len).await.unwrap());
    out.as_capacity_mut().fill(mark);
    out.set_len(len);
    let written = ops::write_fixed(&writer, out);
    let (count, _out) = written.await;
    let count = count.unwrap();
    let (read, into) = ops::read_fixed(&reader, into).await;
    assert_eq!(read.unwrap(), count);
    assert!(into.iter().all(|byte| *byte == mark));
}

#[test]
fn f04_growing_and_shrinking_do_not_wait_for_operations_in_flight() {
    rings::each_with(
        |config| config.pages(4).pages_max(4 + 2 * 512),
        |runtime| {
            let registry = runtime.driver().registry().clone();
            let (idle, _writer) = std::io::pipe().unwrap();
            let idle = Fd::new(idle.into());
            runtime.block_on(async {
                let mut pending = ops::read_fixed(&idle, registry.try_lease(4096).unwrap());
                assert!(poll_once(&mut pending).await.is_pending());
                one_turn().await;
                for round in 0..3 {
                    let grown = registry.try_lease(CHUNK).expect("it grows");
                    one_turn().await;
                    assert_eq!(grown.is_registered(), registry.is_registered());
                    drop(grown);
                    through_a_pipe(&registry, 5 * 4096, round).await;
                    assert!(registry.shrink() > 0);
                    while registry.snapshot().pages_total > 4 {
                        one_turn().await;
                    }
                }
                assert_eq!(registry.snapshot().pages_in_flight, 1, "the read has been there all the time");
            });
        },
    );
}

#[test]
fn leases_go_from_ring_to_ring_on_many_threads() {
    const THREADS: usize = 4;
    let registry = Registry::with_config(&Config::default().pages(16).pages_max(16 + 512)).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<FixedBuf>();
    thread::scope(|scope| {
        for mark in 0..THREADS {
            let (registry, sender) = (registry.clone(), sender.clone());
            scope.spawn(move || {
                let runtime = Runtime::builder().registry(registry.clone()).build().unwrap();
                assert!(Registry::is_registered(&registry));
                runtime.block_on(async {
                    for turn in 0..50 {
                        join_all((1..4).map(|pages| through_a_pipe(&registry, pages * 4096, mark as u8))).await;
                        let mut lease = registry.lease(100).await.unwrap();
                        lease.as_capacity_mut().fill(mark as u8);
                        lease.set_len(100);
                        if turn % 10 == 0 {
                            sender.send(lease).unwrap();
                        }
                    }
                });
            });
        }
        drop(sender);
        // What was leased on one ring is written by another.
        let runtime = Runtime::builder().registry(registry.clone()).build().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let writer = Fd::new(writer.into());
        runtime.block_on(async {
            for lease in receiver {
                let mark = lease[0];
                let (count, _lease) = ops::write_fixed(&writer, lease).await;
                assert_eq!(count.unwrap(), 100);
                let mut bytes = [0; 100];
                reader.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, [mark; 100]);
            }
        });
    });
    let now = registry.snapshot();
    assert_eq!((now.pages_total, now.waiting), (now.pages_free, 0));
    assert!(!registry.is_registered(), "every ring has gone");
}

#[test]
fn rings_of_one_thread_have_one_registry_and_outlive_each_other() {
    rings::each_with(
        |config| config.register_pages(true),
        |first| {
            let registry = first.driver().registry().clone();
            let second = Runtime::builder().config(first.driver().config().clone()).registry(registry.clone()).build();
            let second = second.unwrap();
            second.block_on(through_a_pipe(&registry, 4096, 1));
            first.block_on(through_a_pipe(&registry, 4096, 2));
            drop(first);
            assert!(registry.is_registered());
            second.block_on(through_a_pipe(&registry, 4096, 3));
        },
    );
}

#[test]
fn c20_a_lease_of_another_registry_is_refused_with_a_sentence() {
    let (one, other) = (Runtime::new().unwrap(), Registry::new(1).unwrap());
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut foreign = other.try_lease(1).unwrap();
    foreign.set_len(1);
    one.block_on(async {
        let (count, foreign) = ops::write_fixed(&Fd::new(writer.into()), foreign.freeze()).await;
        let error = count.unwrap_err();
        assert_eq!((error.kind(), foreign.len()), (std::io::ErrorKind::InvalidInput, 1));
        assert!(error.to_string().contains("the runtime's own registry"), "{error}");
    });
    let _driver: &Driver = one.driver();
}

#[test]
fn f13_plain_and_registered_pages_do_the_same() {
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = Fd::new(reader.into());
        runtime.block_on(async {
            writer.write_all(b"plainfixed").unwrap();
            let (count, plain) = ops::read(&reader, Vec::with_capacity(5)).await;
            assert_eq!((count.unwrap(), &plain[..]), (5, &b"plain"[..]));
            let (count, fixed) = ops::read_fixed(&reader, registry.try_lease(5).unwrap()).await;
            assert_eq!((count.unwrap(), &fixed[..]), (5, &b"fixed"[..]));
        });
    });
}

#[test]
fn a_runtime_that_ends_keeps_no_memory_of_a_registry_that_goes_on() {
    let registry = Registry::with_config(&growing()).unwrap();
    let total = || registry.snapshot().pages_total;
    let runtime = Runtime::builder().registry(registry.clone()).build().unwrap();
    let driver = runtime.driver().clone();
    let grown = registry.try_lease(CHUNK).expect("it grows");
    runtime.block_on(one_turn());
    assert_eq!(grown.is_registered(), registry.is_registered());
    drop(runtime);
    assert!(!grown.is_registered());
    // A driver that has shut down may still be turned, and follows nothing any more.
    let more = registry.try_lease(CHUNK).expect("it grows again");
    driver.turn(ringmain::Wait::No).unwrap();
    assert!(!more.is_registered());
    drop((grown, more));
    assert_eq!((registry.shrink(), total()), (2, 1));
    let again = Runtime::builder().registry(registry.clone()).build().unwrap();
    again.block_on(through_a_pipe(&registry, 4096, 1));
}

/// Builds a runtime when it is dropped.
struct Successor(Registry, std::rc::Rc<std::cell::RefCell<Option<Runtime>>>);

impl Drop for Successor {
    fn drop(&mut self) {
        let (runtime, _script) = Runtime::builder().registry(self.0.clone()).build_scripted().unwrap();
        self.1.replace(Some(runtime));
    }
}

#[test]
fn a_ring_that_comes_while_another_one_goes_keeps_what_it_has_registered() {
    let registry = Registry::with_config(&growing()).unwrap();
    let next = std::rc::Rc::default();
    let (runtime, script) = Runtime::builder().registry(registry.clone()).build_scripted().unwrap();
    let successor = Successor(registry.clone(), std::rc::Rc::clone(&next));
    // Dropped with the ring, that is in the midst of the shutdown.
    script.play(move |_| _ = &successor);
    drop((script, runtime));
    assert!(next.borrow().is_some() && registry.is_registered(), "its place is its own");
    next.take();
    assert!(!registry.is_registered());
}

#[test]
fn each_chunk_that_is_long_unused_goes_at_its_own_time() {
    let (runtime, _script) = scripted(growing().register_pages(false).pages_idle(Duration::from_secs(10)));
    let registry = runtime.driver().registry();
    let leases = [(); 2].map(|()| registry.try_lease(CHUNK).expect("it grows"));
    drop(leases);
    let turn = |wait| {
        runtime.driver().turn(wait).unwrap();
        registry.snapshot().pages_total
    };
    assert_eq!(turn(Wait::Until(None)), 1025, "it sleeps until the first is due");
    while turn(Wait::Until(None)) > 1 {}
}

#[test]
fn a_lease_of_no_byte_is_of_its_registry_wherever_it_was_cut_off() {
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let total = registry.snapshot().pages_total;
        let mut lease = registry.try_lease(total * 4096).unwrap();
        let (none_before, none_behind) = (lease.split_to(0), lease.split_off(total * 4096));
        let (_reader, writer) = std::io::pipe().unwrap();
        let writer = Fd::new(writer.into());
        assert_eq!([none_before.is_registered(), none_behind.is_registered()], [lease.is_registered(); 2]);
        runtime.block_on(async {
            for none in [none_before, none_behind] {
                let (count, none) = ops::write_fixed(&writer, none).await;
                assert_eq!((count.unwrap(), none.capacity()), (0, 0));
            }
        });
    });
}

#[test]
fn f04_rings_come_and_go_while_others_grow_and_shrink_what_they_share() {
    const THREADS: u8 = 3;
    let registry = Registry::with_config(&Config::default().pages(4).pages_max(4 + 4 * 512)).unwrap();
    thread::scope(|scope| {
        for mark in 0..THREADS {
            let registry = registry.clone();
            scope.spawn(move || {
                for life in 0..6 {
                    let runtime = Runtime::builder().registry(registry.clone()).build().unwrap();
                    runtime.block_on(async {
                        for turn in 0..20 {
                            let few = (1..4).map(|pages| through_a_pipe(&registry, pages * 4096, mark));
                            join_all(few).await;
                            if (turn + life) % 3 == 0 {
                                registry.shrink();
                            }
                        }
                    });
                }
            });
        }
    });
    let now = registry.snapshot();
    assert_eq!((now.pages_total, now.waiting), (now.pages_free, 0));
    registry.shrink();
    assert_eq!((registry.snapshot().pages_total, registry.is_registered()), (4, false), "no ring is left to keep any");
}
