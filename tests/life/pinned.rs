//! What pages cost that several rings have registered: the memory is pinned, and charged, once for each ring that could
//! not take over what another had pinned.

use std::sync::mpsc;
use std::thread;

use ringmain::{Config, Fd, Registry, RingMode, Runtime, ops};

use crate::turns::one_turn;
use crate::{alone, workers_end};

const MODES: [RingMode; 3] = [RingMode::Defer, RingMode::Coop, RingMode::Plain];
const PAGES: usize = 64;

/// What this process has pinned. The kernel counts it once for each registration that is not a clone.
fn pinned_pages() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is a /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") / 4
}

fn ring_of(registry: &Registry, mode: RingMode) -> Runtime {
    let config = Config::default().mode(mode);
    Runtime::builder().config(config).registry(registry.clone()).build().expect("a ring of each mode can be had")
}

/// Bytes go through a registered page of this ring, which is so in its table, cloned or not.
fn moves_bytes(runtime: &Runtime) {
    let registry = runtime.driver().registry();
    let (reader, writer) = std::io::pipe().expect("there are descriptors");
    let (reader, writer) = (Fd::new(reader.into()), Fd::new(writer.into()));
    let mut lease = registry.try_lease(4096).expect("pages are free");
    lease.as_capacity_mut().fill(7);
    lease.set_len(4096);
    assert!(lease.is_registered());
    let read = runtime.block_on(async {
        let (count, lease) = ops::write_fixed(&writer, lease).await;
        assert_eq!(count.expect("the pipe is empty"), 4096);
        let (count, lease) = ops::read_fixed(&reader, lease).await;
        assert_eq!(count.expect("the pipe is full"), 4096);
        lease
    });
    assert!(read.iter().all(|byte| *byte == 7));
}

/// What a second ring pins beside the first one's pages, on another thread or on the same.
fn pinned_by_the_second(first: RingMode, second: RingMode, is_abroad: bool) -> usize {
    let before = pinned_pages();
    let registry = Registry::new(PAGES).expect("there is memory");
    let (built, is_built) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let more = thread::scope(|scope| {
        let hold = |mode| {
            let runtime = ring_of(&registry, mode);
            moves_bytes(&runtime);
            runtime
        };
        let at_home = (!is_abroad).then(|| hold(first));
        if is_abroad {
            scope.spawn(move || {
                let runtime = hold(first);
                built.send(()).expect("the test waits");
                ended.recv().expect_err("the test drops its end");
                moves_bytes(&runtime);
            });
            is_built.recv().expect("the thread builds one");
        }
        assert_eq!(pinned_pages() - before, PAGES);
        let runtime = hold(second);
        let more = pinned_pages() - before - PAGES;
        // The second ring goes on with what it has taken over, or pinned, when the first one has gone.
        drop((at_home, end));
        moves_bytes(&runtime);
        more
    });
    workers_end();
    assert_eq!(pinned_pages(), before);
    more
}

/// Whether this kernel clones tables at all.
fn clones_tables() -> bool {
    let clones = pinned_by_the_second(RingMode::Plain, RingMode::Plain, false) == 0;
    if !clones {
        eprintln!("SKIPPED: this kernel clones no table of buffers");
    }
    clones
}

#[test]
fn rings_of_one_thread_pin_the_pages_that_they_share_once() {
    let _alone = alone();
    if clones_tables() {
        for (first, second) in MODES.iter().flat_map(|first| MODES.map(|second| (*first, second))) {
            assert_eq!(pinned_by_the_second(first, second, false), 0, "{first:?}, {second:?}");
        }
    }
}

/// `Defer` and `Coop` rings are bound to their threads, as far as the kernel can, and it lets nobody else clone from them.
#[test]
fn a_ring_that_is_bound_to_another_thread_has_its_pages_pinned_once_more() {
    let _alone = alone();
    if clones_tables() {
        for (first, second) in MODES.iter().flat_map(|first| MODES.map(|second| (*first, second))) {
            let once_more = if first == RingMode::Plain { 0 } else { PAGES };
            assert_eq!(pinned_by_the_second(first, second, true), once_more, "{first:?}, then {second:?}");
        }
    }
}

#[test]
fn what_a_registry_grows_by_is_pinned_once_for_each_ring() {
    const CHUNK: usize = 512;
    let _alone = alone();
    let before = pinned_pages();
    let registry = Registry::with_config(&Config::default().pages(1).pages_max(1 + 512)).expect("there is memory");
    let rings = [(); 2].map(|()| ring_of(&registry, RingMode::Auto));
    let begun = pinned_pages();
    let lease = registry.try_lease(CHUNK * 4096).expect("it grows");
    for (index, runtime) in rings.iter().enumerate() {
        runtime.block_on(one_turn());
        assert_eq!(pinned_pages() - begun, (index + 1) * CHUNK);
    }
    drop((rings, lease, registry));
    workers_end();
    assert_eq!(pinned_pages(), before);
}
