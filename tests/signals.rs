//! Signals all the time, on the thread that the ring belongs to.
//!
//! A signal sent to a process is taken by its first thread, if that one can; the built-in harness runs tests on others.
//! So this target has a `main` of its own, which knows names as filters, and no other option.

mod parked;
mod rings;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parked::parked_splice;
use ringmain::ops::net::{TcpListener, TcpStream};
use ringmain::{Fd, ops, sleep};
use rustix::process::{Signal, getpid, kill_process};

const TESTS: [(&str, fn()); 2] = [
    ("e06_no_interruption_is_ever_seen", e06_no_interruption_is_ever_seen),
    ("s02_interruptions_do_not_end_a_shutdown_early", s02_interruptions_do_not_end_a_shutdown_early),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let is_chosen = |name: &str| {
        let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str()))
    };
    if arguments.iter().any(|argument| argument == "--ignored") {
        return;
    }
    for (name, test) in TESTS.iter().filter(|(name, _)| is_chosen(name)) {
        under_signals(test);
        println!("test {name} ... ok");
    }
}

/// Run this while a signal comes four times a millisecond.
fn under_signals(test: &fn()) {
    let came = Arc::new(AtomicBool::new(false));
    let registration = signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&came)).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let sender = thread::spawn({
        let ends = Arc::clone(&ends);
        move || {
            let mut sent = 0u64;
            while !ends.load(Ordering::Relaxed) {
                kill_process(getpid(), Signal::USR1).expect("a process may signal itself");
                sent += 1;
                thread::sleep(Duration::from_micros(250));
            }
            sent
        }
    });
    test();
    ends.store(true, Ordering::Relaxed);
    let sent = sender.join().unwrap();
    assert!(came.load(Ordering::Relaxed) && sent > 10, "{sent} signals were sent");
    signal_hook::low_level::unregister(registration);
}

/// Waits of every kind, each long enough to be interrupted, and none of them with an error.
fn e06_no_interruption_is_ever_seen() {
    rings::each(|runtime| {
        runtime.block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let ours = Fd::new(OwnedFd::from(ours));
            let echo = thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = theirs.read(&mut bytes) {
                    // The pace of this peer, so that the ring sleeps through a signal or two.
                    thread::sleep(Duration::from_millis(2));
                    theirs.write_all(&bytes[..count]).unwrap();
                }
            });
            for _ in 0..8 {
                let (sent, _) = ops::send(&ours, b"there and back".to_vec()).await;
                assert_eq!(sent.unwrap(), 14);
                ops::readable(&ours).await.unwrap();
                let (received, bytes) = ops::recv(&ours, Vec::with_capacity(64)).await;
                assert_eq!((received.unwrap(), &bytes[..]), (14, &b"there and back"[..]));
            }
            drop(ours);
            echo.join().unwrap();
            sleep(Duration::from_millis(5)).await;
            splices_are_not_interrupted().await;
            connections_are_not_interrupted().await;
            let file = Fd::new(tempfile::tempfile().unwrap().into());
            let (written, bytes) = ops::write_all_at(&file, vec![7; 1 << 20], 0).await;
            written.unwrap();
            ops::fsync(&file, false).await.unwrap();
            let (read, again) = ops::read_exact_at(&file, Vec::with_capacity(1 << 20), 0).await;
            assert_eq!(read.unwrap(), 1 << 20);
            assert!(again == bytes);
        });
        assert_eq!(runtime.driver().slots_used(), 0);
    });
}

async fn splices_are_not_interrupted() {
    for route in [ops::Route::Inline, ops::Route::Ring] {
        let (reader, feed) = std::io::pipe().unwrap();
        let source = Fd::new(OwnedFd::from(reader));
        let feeder = thread::spawn(move || {
            // As above: the splice waits meanwhile.
            thread::sleep(Duration::from_millis(5));
            let mut feed = feed;
            feed.write_all(b"fed").unwrap();
        });
        let (_sink, into) = ops::pipe().unwrap();
        assert_eq!(ops::splice(&source, &into, 4096).route(route).await.unwrap(), 3);
        feeder.join().unwrap();
    }
}

async fn connections_are_not_interrupted() {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let accept = listener.accept();
    let client = async {
        sleep(Duration::from_millis(3)).await;
        TcpStream::connect(address).await.unwrap()
    };
    let (accepted, _client) = futures::future::join(accept, client).await;
    accepted.unwrap();
}

fn s02_interruptions_do_not_end_a_shutdown_early() {
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let (idle, _writer) = std::io::pipe().unwrap();
        let idle = Fd::new(OwnedFd::from(idle));
        let mut kept = Vec::new();
        for _ in 0..8 {
            let (socket, peer) = UnixStream::pair().unwrap();
            let (reader, into) = std::io::pipe().unwrap();
            runtime.spawn(parked_splice(socket, into));
            let lease = registry.try_lease(4096).unwrap();
            let idle = idle.clone();
            runtime.spawn(async move { ops::read_fixed(&idle, lease).await });
            kept.push((peer, reader));
        }
        runtime.block_on(async {
            while runtime.driver().operations_active() < 16 {
                ops::nop().await.unwrap();
            }
            ops::nop().await.unwrap();
        });
        assert_eq!(registry.snapshot().pages_in_flight, 8);
        let started = Instant::now();
        drop(runtime);
        assert!(started.elapsed() < Duration::from_secs(4), "the kernel was given up on");
        assert_eq!(registry.snapshot().pages_free, 64, "everything was reaped, and nothing leaked");
        drop(kept);
    });
}
