//! What a machine forbids, or has too little of: a sentence that says so, or a smaller ring. Never a bare errno, and
//! never an abort.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;

use ringmain::{BuildError, Config, Driver, Opcode, Registry, RingMode, Runtime, Wait, diagnose, is_supported, ops};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::rings;

/// `asm-generic/unistd.h`, the same on every architecture.
const IO_URING_SETUP: i64 = 425;
const IO_URING_ENTER: i64 = 426;

/// Run this on a thread on which a filter answers one system call with an errno. The filter ends with the thread.
fn filtered<T: Send + 'static>(call: i64, errno: Errno, run: impl FnOnce() -> T + Send + 'static) -> T {
    let filter = SeccompFilter::new(
        [(call, vec![])].into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.raw_os_error().unsigned_abs()),
        TargetArch::try_from(std::env::consts::ARCH).expect("the filter knows this architecture"),
    )
    .expect("the filter is well formed");
    let program: BpfProgram = filter.try_into().expect("the filter is well formed");
    thread::spawn(move || {
        seccompiler::apply_filter(&program).expect("a thread may filter itself");
        run()
    })
    .join()
    .expect("the filtered thread does not panic")
}

fn build() -> BuildError {
    Runtime::new().expect_err("it is forbidden")
}

#[test]
fn l01_a_container_that_forbids_rings_is_named_as_the_cause() {
    for (call, errno) in [
        (IO_URING_SETUP, Errno::PERM),
        (IO_URING_SETUP, Errno::NOSYS),
        (IO_URING_SETUP, Errno::ACCESS),
        (IO_URING_ENTER, Errno::PERM),
    ] {
        let error = filtered(call, errno, build);
        let sentence = error.to_string();
        assert!(error.is_forbidden() && error.is_seccomp(), "{call} answered {errno:?}: {sentence}");
        assert!(sentence.contains("seccomp") && sentence.contains("docker run"), "it says what to do: {sentence}");
        let cause = std::error::Error::source(&error).expect("the kernel's own error is kept");
        assert!(cause.to_string().contains(&errno.raw_os_error().to_string()), "{cause}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn l01_asking_whether_rings_are_there_never_fails() {
    let (usable, supported, report) = filtered(IO_URING_SETUP, Errno::PERM, || {
        let diagnosis = diagnose();
        (diagnosis.is_usable(), is_supported(Opcode::Splice), diagnosis.to_string())
    });
    assert!(!usable && !supported);
    assert!(report.contains("seccomp"), "{report}");
    assert!(diagnose().is_usable(), "the filter ended with its thread");
    assert!(is_supported(Opcode::Splice));
}

#[test]
fn a_runtime_that_could_not_be_built_has_no_place_in_its_registry() {
    let registry = Registry::new(4).unwrap();
    let builder = Runtime::builder().registry(registry.clone());
    let error = filtered(libc::SYS_eventfd2, Errno::MFILE, move || builder.build().map(drop).unwrap_err());
    assert!(error.is_out_of_descriptors() && error.to_string().contains("eventfd"), "{error}");
    assert!(!registry.is_registered(), "the ring that had its pages is gone");
    let runtime = Runtime::builder().registry(registry).build().unwrap();
    runtime.block_on(ops::nop()).unwrap();
}

/// What a log is written to that cannot be written to.
fn broken_log() -> std::io::Sink {
    panic!("the log is broken")
}

#[test]
fn a_panic_in_the_log_leaves_no_place_in_the_queue_for_pages() {
    let registry = Registry::with_config(&Config::default().pages(1).pages_max(1 + 512)).unwrap();
    let full = registry.clone();
    filtered(libc::SYS_mprotect, Errno::NOMEM, move || {
        let subscriber = tracing_subscriber::fmt().with_writer(broken_log).finish();
        let mut lease = full.lease_many(&[2 * 4096, 4096]);
        tracing::subscriber::with_default(subscriber, || {
            let poll = || Pin::new(&mut lease).poll(&mut Context::from_waker(Waker::noop())).is_pending();
            catch_unwind(AssertUnwindSafe(poll)).expect_err("that it cannot grow is logged");
        });
        assert_eq!(full.snapshot().waiting, 1);
    });
    assert_eq!((registry.snapshot().waiting, registry.snapshot().pages_free), (0, 1));
}

static CALLED: AtomicUsize = AtomicUsize::new(0);

/// What a log is written to that calls the driver.
fn calling_log() -> std::io::Sink {
    Driver::current().turn(Wait::No).unwrap();
    CALLED.fetch_add(1, Ordering::Relaxed);
    std::io::sink()
}

#[test]
fn who_hears_that_lent_pages_cannot_grow_may_call_the_driver() {
    let registry = Registry::with_config(&Config::default().pages(1).pages_max(1 + 512)).unwrap();
    filtered(libc::SYS_mprotect, Errno::NOMEM, move || {
        let config = Config::default().lent([(8192, 4)]);
        let (runtime, _script) = Runtime::builder().config(config).registry(registry.clone()).build_scripted().unwrap();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(calling_log).finish();
        tracing::subscriber::with_default(subscriber, || {
            let _entered = runtime.driver().enter();
            let group = runtime.driver().buffer_group(8192, false).unwrap();
            assert_eq!(group.available(), 0);
            assert_eq!(
                (registry.try_lease(8192).is_none(), CALLED.load(Ordering::Relaxed)),
                (true, 1),
                "it is said now"
            );
        });
    });
}

#[test]
fn a_lease_that_the_system_had_no_memory_for_is_tried_again() {
    let registry = Registry::with_config(&Config::default().pages(1).pages_max(1 + 512)).unwrap();
    let full = registry.clone();
    let lease = filtered(libc::SYS_mprotect, Errno::NOMEM, move || {
        let mut lease = full.lease(2 * 4096);
        assert!(Pin::new(&mut lease).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(full.try_lease(1).is_none(), "nobody has any page, and everybody waits");
        lease
    });
    let (runtime, _script) = Runtime::builder().registry(registry.clone()).build_scripted().unwrap();
    assert_eq!(runtime.block_on(lease).unwrap().capacity(), 2 * 4096);
    assert_eq!((registry.snapshot().pages_total, registry.snapshot().waits), (513, 1));
}

#[test]
fn l01_a_shortage_is_not_reported_as_forbidden() {
    for (errno, out_of_descriptors) in [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::NOMEM, false)] {
        let error = filtered(IO_URING_SETUP, errno, build);
        assert!(!error.is_forbidden() && !error.is_unsupported_kernel(), "{error}");
        assert_eq!(error.is_out_of_descriptors(), out_of_descriptors, "{error}");
    }
}

/// Its part in a child process, where the address space is limited.
#[test]
#[ignore = "limits its own address space: run by `l05_a_ring_too_large_is_built_smaller`"]
fn l05_in_a_child() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
    // The largest ring maps 3 MiB and more.
    let room = pages * 4096 + (2 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(room), ..getrlimit(Resource::As) }).unwrap();
    let config = Config::default().entries(32_768).completions(65_536).pages(1);
    match Runtime::builder().config(config).build() {
        Ok(runtime) => {
            let setup = runtime.driver().setup();
            println!("built with {} and {} entries", setup.entries(), setup.completions());
            assert!(setup.is_reduced(), "the size got is told");
            runtime.block_on(ops::nop()).unwrap();
        }
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn l05_a_ring_too_large_is_built_smaller() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limits::l05_in_a_child", "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("1 passed") && said.contains("built with "), "{said}");
}

#[test]
fn l09_every_mode_is_what_was_asked_for_or_is_refused_with_a_sentence() {
    for mode in [RingMode::Defer, RingMode::Coop, RingMode::Plain] {
        match Runtime::builder().config(Config::default().mode(mode)).build() {
            Ok(runtime) => {
                let setup = runtime.driver().setup();
                assert_eq!(setup.mode(), mode);
                let flags: Vec<_> = setup.flags().collect();
                assert_eq!(flags.contains(&"DEFER_TASKRUN"), mode == RingMode::Defer, "{flags:?}");
                assert_eq!(flags.contains(&"COOP_TASKRUN"), mode == RingMode::Coop, "{flags:?}");
                assert!(!flags.contains(&"SQPOLL"), "nobody asked for a thread that burns a core");
            }
            Err(error) => assert!(error.is_unsupported_kernel(), "{error}"),
        }
    }
}

#[test]
fn l09_opcodes_are_probed_when_the_ring_is_built() {
    rings::each(|runtime| {
        let setup = runtime.driver().setup();
        assert_ne!(setup.mode(), RingMode::Auto, "the mode chosen is told");
        assert!(setup.supports(Opcode::Nop));
        assert!(setup.opcode_count() > 0);
    });
}

/// A kernel that takes no flag set at all: the walk ends with a sentence about the kernel.
#[test]
fn l09_a_kernel_that_takes_no_flags_is_reported_as_too_old() {
    let error = filtered(IO_URING_SETUP, Errno::INVAL, build);
    assert!(error.is_unsupported_kernel(), "{error}");
    assert!(error.to_string().contains("run Linux 5.11 or newer"), "{error}");
}
