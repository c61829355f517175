//! The ring against the kernel of this machine, built in every way the kernel takes.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity};

use super::*;
use crate::runtime::config::RingMode;
use crate::runtime::ring::attempt::tests::{attempt, encode, nop, pipe, poll_in, read, splice};

/// I6, at compile time: were the ring `Send`, two implementations would fit and this would be ambiguous.
const _: () = {
    struct Fits;
    trait AmbiguousIfSend<A> {
        fn check() {}
    }
    impl<T> AmbiguousIfSend<()> for T {}
    impl<T: Send> AmbiguousIfSend<Fits> for T {}
    let _ = <KernelRing as AmbiguousIfSend<_>>::check;
};

/// Stages an entry whose memory the calling test keeps alive until it has reaped the completion.
fn stage(ring: &mut KernelRing, entry: Entry) {
    // SAFETY: I1, I2: each test owns what its entries name and reaps their completions before it drops that.
    unsafe { ring.push(&entry) };
}

/// Runs `body` on a ring of every flag set; a set the kernel does not take is skipped loudly.
fn on_every_ring(config: &Config, mut body: impl FnMut(&mut KernelRing, &Setup)) {
    for rung in setup::RUNGS {
        match KernelRing::build_from(&[rung], config) {
            Ok((mut ring, setup)) => body(&mut ring, &setup),
            Err(error) if error.is_unsupported_kernel() && rung != setup::RUNGS[5] => {
                eprintln!("SKIPPED: flag set {rung:#x}: {error}");
            }
            Err(error) => panic!("a ring of flag set {rung:#x} cannot be built: {error}"),
        }
    }
}

fn ring(config: &Config) -> KernelRing {
    KernelRing::build(config).expect("this machine has io_uring").0
}

fn small() -> Config {
    Config::default().entries(8).completions(16)
}

/// Enters and reaps until `count` completions have come.
fn collect(ring: &mut KernelRing, count: usize) -> Vec<Cqe> {
    let mut seen = Vec::new();
    seen.extend(ring.reap());
    while seen.len() < count {
        match ring.enter(Wait::Until(None)) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINTR | libc::EAGAIN)) => {}
            Err(error) => panic!("the ring cannot be entered: {error}"),
        }
        seen.extend(ring.reap());
    }
    assert_eq!(seen.len(), count);
    seen
}

#[test]
fn every_ring_carries_an_operation_there_and_back() {
    let mut modes = Vec::new();
    on_every_ring(&Config::default(), |ring, setup| {
        modes.push(setup.mode());
        stage(ring, nop(7));
        assert_eq!(ring.enter(Wait::No).expect("entered"), 1);
        assert_eq!(collect(ring, 1), [Cqe { user_data: 7, result: 0, flags: 0 }]);
        assert_eq!(ring.space(), setup.entries() as usize);
    });
    assert!(modes.contains(&RingMode::Plain), "{modes:?}");
}

#[test]
fn a_mode_that_is_forced_is_the_mode_got() {
    for mode in [RingMode::Defer, RingMode::Coop, RingMode::Plain] {
        match KernelRing::build(&small().mode(mode)) {
            Ok((_, setup)) => assert_eq!(setup.mode(), mode),
            Err(error) => {
                assert!(error.is_unsupported_kernel() && mode != RingMode::Plain, "{error}");
                eprintln!("SKIPPED: {mode:?}: {error}");
            }
        }
    }
}

#[test]
fn the_sizes_asked_for_are_the_sizes_got() {
    let (_, setup) = KernelRing::build(&Config::default().entries(64).completions(1024)).expect("built");
    assert_eq!((setup.entries(), setup.completions()), (64, 1024));
    assert!(!setup.is_reduced());
    assert!(setup.supports(Opcode::Nop));
    assert!(setup.features().any(|name| name == "NODROP"));
}

#[test]
fn a_configuration_that_contradicts_itself_builds_nothing() {
    let refused = KernelRing::build(&Config::default().entries(3)).map(drop).expect_err("3 is no power of two");
    assert!(refused.is_invalid_config());
}

#[test]
fn more_operations_than_the_queue_holds_go_in_batches() {
    on_every_ring(&small(), |ring, _| {
        let mut seen = Vec::new();
        for user_data in 0..100 {
            if ring.space() == 0 {
                assert_eq!(ring.enter(Wait::No).expect("entered"), 8);
                seen.extend(ring.reap().map(|completion| completion.user_data));
            }
            stage(ring, nop(user_data));
        }
        let left = 100 - seen.len();
        seen.extend(collect(ring, left).iter().map(|completion| completion.user_data));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..100));
    });
}

#[test]
fn more_completions_than_the_queue_holds_all_arrive() {
    on_every_ring(&small(), |ring, _| {
        let mut seen = Vec::new();
        for user_data in 0..2000 {
            while ring.space() == 0 {
                // Nothing is reaped unless the kernel insists, so that it must keep nearly all of them aside.
                if ring.enter(Wait::No).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                    seen.extend(ring.reap().map(|completion| completion.user_data));
                }
            }
            stage(ring, nop(user_data));
        }
        assert!(ring.more_work(), "completions kept aside are announced");
        let left = 2000 - seen.len();
        seen.extend(collect(ring, left).iter().map(|completion| completion.user_data));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..2000));
        assert!(!ring.is_overflowing());
        assert!(!ring.more_work());
    });
}

#[test]
#[should_panic(expected = "the submission queue is full")]
fn pushing_into_a_full_queue_panics() {
    let mut ring = ring(&small());
    for user_data in 0..9 {
        stage(&mut ring, nop(user_data));
    }
}

#[test]
fn a_bad_entry_does_not_hold_the_batch_back() {
    on_every_ring(&small(), |ring, setup| {
        stage(ring, nop(1));
        stage(ring, Entry { opcode: 255, ..nop(2) });
        stage(ring, nop(3));
        let consumed = ring.enter(Wait::No).expect("entered");
        let stops_short = setup.flags & setup::SUBMIT_ALL == 0;
        assert_eq!(consumed, if stops_short { 2 } else { 3 });
        assert_eq!(ring.space(), 8 - (3 - consumed), "what was not consumed is still staged");
        let mut results: Vec<_> = collect(ring, 3).iter().map(|seen| (seen.user_data, seen.result)).collect();
        results.sort_unstable();
        assert_eq!(results, [(1, 0), (2, -libc::EINVAL), (3, 0)]);
    });
}

#[test]
fn a_limited_wait_ends_by_itself() {
    on_every_ring(&small(), |ring, _| {
        let limit = Duration::from_millis(20);
        let start = ring.now();
        assert_eq!(ring.enter(Wait::Until(Some(limit))).expect("the end of a wait is no error"), 0);
        assert!(ring.now() - start >= limit);
    });
}

#[test]
fn the_longest_wait_is_a_wait_the_kernel_takes() {
    on_every_ring(&small(), |ring, _| {
        stage(ring, nop(1));
        assert_eq!(ring.enter(Wait::Until(Some(Duration::MAX))).expect("entered"), 1);
        assert_eq!(collect(ring, 1).len(), 1);
    });
}

#[test]
fn an_unlimited_wait_ends_with_a_completion() {
    on_every_ring(&small(), |ring, _| {
        let (reader, writer) = pipe();
        stage(ring, Entry { user_data: 5, ..poll_in(&reader) });
        let writing = std::thread::spawn(move || rustix::io::write(&writer, b"x").map(|_| writer));
        let seen = collect(ring, 1);
        assert_eq!((seen[0].user_data, seen[0].result & i32::from(libc::POLLIN)), (5, i32::from(libc::POLLIN)));
        writing.join().expect("the writer does not panic").expect("written");
    });
}

#[test]
fn deferred_work_is_announced() {
    on_every_ring(&small(), |ring, setup| {
        let (reader, writer) = pipe();
        stage(ring, poll_in(&reader));
        assert_eq!(ring.enter(Wait::No).expect("entered"), 1);
        assert!(!ring.more_work(), "nothing is ready");
        rustix::io::write(&writer, b"x").expect("written");
        if setup.mode() == RingMode::Defer {
            assert!(ring.more_work(), "the completion waits for an enter");
            assert_eq!(ring.reap().count(), 0, "nothing is posted before the enter");
        }
        assert_eq!(ring.enter(Wait::No).expect("entered"), 0);
        assert_eq!(ring.reap().count(), 1);
    });
}

#[test]
fn a_seventeenth_ring_works_by_its_descriptor() {
    let mut rings: Vec<_> = (0..17).map(|_| KernelRing::build(&small()).expect("built")).collect();
    if !rings[0].1.is_descriptor_registered() {
        eprintln!("SKIPPED: this kernel registers no ring descriptors");
    }
    let (last, setup) = rings.last_mut().expect("there are seventeen");
    assert!(!setup.is_descriptor_registered(), "the table of a thread has sixteen places");
    stage(last, nop(3));
    assert_eq!(collect(last, 1)[0].user_data, 3);
    assert_eq!(last.enter(Wait::Until(Some(Duration::from_millis(1)))).expect("entered"), 0);
}

#[test]
fn a_dropped_ring_leaves_the_table_of_its_thread() {
    let first = KernelRing::build(&small()).expect("built").1.is_descriptor_registered();
    for _ in 0..40 {
        assert_eq!(KernelRing::build(&small()).expect("built").1.is_descriptor_registered(), first);
    }
}

#[test]
fn workers_are_limited_and_pinned_as_configured() {
    let allowed = sched_getaffinity(None).expect("the thread has CPUs");
    let cpu = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).expect("the thread has a CPU");
    let config = small().ring_splices(2).iowq_bounded(3).iowq_unbounded(5).iowq_affinity([cpu]);
    let (mut ring, setup) = KernelRing::build(&config).expect("built");
    assert_eq!(setup.worker_limits(), Some((3, 5)));
    assert_eq!(ring.limit_workers(&small()).expect("asked"), Some([3, 5]), "the kernel holds these limits");

    // A splice from an empty pipe occupies a worker until the test writes.
    let ((source, filler), (_sink, target)) = (pipe(), pipe());
    stage(&mut ring, splice(&source, &target, 1));
    assert_eq!(ring.enter(Wait::No).expect("entered"), 1);
    assert_eq!(allowed_cpus_of_worker(gettid()), cpu.to_string());
    rustix::io::write(&filler, b"x").expect("written");
    assert_eq!(collect(&mut ring, 1)[0].result, 1);
}

/// `Cpus_allowed_list` of a worker of `thread`, once that has started and taken its name.
fn allowed_cpus_of_worker(thread: Pid) -> String {
    let name = format!("iou-wrk-{}", thread.as_raw_nonzero());
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        for task in std::fs::read_dir("/proc/self/task").expect("procfs is mounted") {
            // Threads of other tests end meanwhile.
            let Ok(status) = std::fs::read_to_string(task.expect("listed").path().join("status")) else {
                continue;
            };
            if status.lines().next().is_some_and(|line| line.ends_with(&name)) {
                let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                return line.expect("every task says where it may run").trim().to_owned();
            }
        }
        std::thread::yield_now();
    }
    panic!("no worker named {name} has started");
}

#[test]
fn registered_memory_is_read_into() {
    on_every_ring(&small(), |ring, _| {
        let mut memory = vec![0_u8; 4096];
        let start = NonNull::from(memory.as_mut_slice()).cast::<u8>();
        // SAFETY: I4, I5: the memory outlives its registration, which is taken back below with nothing in flight.
        unsafe { ring.register_buffers(&[(start, 4096)]) }.expect("one page can be registered");
        let (reader, writer) = pipe();
        rustix::io::write(&writer, b"registered").expect("written");
        stage(ring, read(Opcode::ReadFixed, &reader, &mut memory[..10]));
        assert_eq!(collect(ring, 1)[0].result, 10);
        ring.unregister_buffers().expect("they were registered");
        assert_eq!(&memory[..10], b"registered");
        let again = ring.unregister_buffers().expect_err("nothing is registered");
        assert_eq!(again.raw_os_error(), Some(libc::ENXIO));
    });
}

#[test]
fn a_cleared_buffer_is_let_go_of_with_its_tag() {
    on_every_ring(&small(), |ring, _| {
        if let Err(error) = ring.register_sparse(4) {
            return eprintln!("SKIPPED: no sparse table of buffers: {error}");
        }
        let mut memory = vec![0_u8; 4096];
        let start = NonNull::from(memory.as_mut_slice()).cast::<u8>();
        // SAFETY: I4, I5: the memory outlives its registration, which is cleared below with nothing in flight.
        unsafe { ring.update_buffer(2, Some((start, 4096)), 77) }.expect("an entry of the table is set");
        let (reader, writer) = pipe();
        rustix::io::write(&writer, b"registered").expect("written");
        let fixed = |memory: &mut [u8]| Entry { buf_index: 2, ..read(Opcode::ReadFixed, &reader, memory) };
        stage(ring, fixed(&mut memory[..10]));
        assert_eq!(collect(ring, 1)[0].result, 10);

        // Used while it is cleared: the tag comes after the operation.
        stage(ring, fixed(&mut memory[..4]));
        assert_eq!(ring.enter(Wait::No).expect("entered"), 1);
        // SAFETY: I4, I5: no memory is named.
        unsafe { ring.update_buffer(2, None, 0) }.expect("an entry of the table is cleared");
        rustix::io::write(&writer, b"last").expect("written");
        let last = collect(ring, 2);
        assert_eq!((last[0].result, last[1].user_data, last[1].result), (4, 77, 0));
        stage(ring, fixed(&mut memory[..4]));
        assert_eq!(collect(ring, 1)[0].result, -libc::EFAULT, "the entry names nothing");
        ring.unregister_buffers().expect("the table was registered");
        assert_eq!(&memory[..10], b"laststered");
    });
}

#[test]
fn a_table_of_buffers_is_cloned_between_rings_of_one_thread() {
    let (mut first, mut plain, mut sparse) = (ring(&small()), ring(&small()), ring(&small()));
    let mut memory = vec![0_u8; 4096];
    let start = NonNull::from(memory.as_mut_slice()).cast::<u8>();
    // SAFETY: I4, I5: the memory outlives the rings, and nothing is in flight when they end.
    unsafe { first.register_buffers(&[(start, 4096)]) }.expect("one page can be registered");
    let source = first.as_raw_fd();
    sparse.register_sparse(4).expect("this kernel has sparse tables, as the clone needs them");
    for (clone, into_sparse) in [(&mut plain, false), (&mut sparse, true)] {
        if let Err(error) = clone.clone_buffers(source, 1, into_sparse) {
            eprintln!("SKIPPED: no clone of a table of buffers: {error}");
            continue;
        }
        let (reader, writer) = pipe();
        rustix::io::write(&writer, b"cloned").expect("written");
        stage(clone, read(Opcode::ReadFixed, &reader, &mut memory[..6]));
        assert_eq!((collect(clone, 1)[0].result, &memory[..6]), (6, &b"cloned"[..]));
        clone.unregister_buffers().expect("the table was cloned");
    }
    first.unregister_buffers().expect("it was registered");
}

#[test]
fn an_eventfd_is_signalled_for_a_completion() {
    on_every_ring(&small(), |ring, _| {
        let signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("made");
        ring.register_eventfd(signal.as_fd()).expect("registered");
        assert_eq!(attempt(poll_in(&signal)), -libc::EAGAIN);
        stage(ring, nop(1));
        assert_eq!(ring.enter(Wait::No).expect("entered"), 1);
        assert_eq!(attempt(poll_in(&signal)), i32::from(libc::POLLIN));
        assert_eq!(collect(ring, 1).len(), 1);
    });
}

#[test]
fn the_probe_tells_known_opcodes_from_unknown_ones() {
    let ring = ring(&small());
    assert!(ring.supports(Opcode::Nop.code()));
    assert!(ring.supports(Opcode::Read.code()));
    assert!(!ring.supports(255));
}

#[test]
fn an_attempt_through_the_ring_is_the_attempt() {
    let mut ring = ring(&small());
    // SAFETY: a NOP names no memory.
    assert_eq!(unsafe { ring.attempt(&nop(1)) }, 0);
    assert_eq!(ring.space(), 8, "an attempt stages nothing");
}

#[test]
fn an_attempt_accepts_only_from_a_listener_that_does_not_block() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let accept = Entry { op_flags: libc::SOCK_CLOEXEC as u32, ..encode(Opcode::Accept, &listener) };
    assert_eq!(attempt(accept), -libc::EOPNOTSUPP, "it would wait");
    listener.set_nonblocking(true).expect("set");
    assert_eq!(attempt(accept), -libc::EAGAIN);
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let mut address = [0_u8; 128];
    let mut len: libc::socklen_t = 128;
    let addr = address.as_mut_ptr().expose_provenance() as u64;
    let off = (&raw mut len).expose_provenance() as u64;
    let accepted = attempt(Entry { addr, off, ..accept });
    assert!(accepted >= 0, "{accepted}");
    let port = client.local_addr().expect("connected").port();
    assert_eq!(address[2..4], port.to_be_bytes(), "the address of the peer was written");
    assert_eq!(len as usize, size_of::<libc::sockaddr_in>());
    let mut ring = ring(&small());
    stage(&mut ring, Entry { opcode: Opcode::Close.code(), fd: accepted, ..nop(1) });
    assert_eq!(collect(&mut ring, 1)[0].result, 0);
}
