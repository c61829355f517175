//! Counts of slots, buffers, pages, descriptors, pipes and worker threads return to where they were.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use ringmain::{Config, Fd, JoinHandle, RingMode, Runtime, ops};

use crate::parked::parked_splice;
use crate::turns::{one_turn, pipe, poll_once, settled, sockets};
use crate::unmapping::{LARGE, mapped};
use crate::{Census, alone, rings, workers_end};

/// Eight tasks that wait for what never comes: in memory, in pages, for a connection, in a worker thread.
pub(crate) fn wait_for_ever(runtime: &Runtime) -> (Vec<JoinHandle<()>>, impl Sized + use<>) {
    let registry = runtime.driver().registry().clone();
    let (read, a) = pipe();
    let (fixed, b) = pipe();
    let (recv, c) = sockets();
    let (polled, d) = pipe();
    let listener = Fd::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().into());
    let (first, e) = (ops::pipe().unwrap(), ops::pipe().unwrap());
    let (second, f) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (vectored, g) = pipe();
    let lease = registry.try_lease(2 * 4096).unwrap();
    let tasks = vec![
        runtime.spawn(async move { drop(ops::read(&read, Vec::with_capacity(LARGE)).await) }),
        runtime.spawn(async move { drop(ops::read_fixed(&fixed, lease).await) }),
        runtime.spawn(async move { drop(ops::recv(&recv, Vec::with_capacity(LARGE)).await) }),
        runtime.spawn(async move { drop(ops::readable(&polled).await) }),
        runtime.spawn(async move { drop(ops::accept(&listener).await) }),
        runtime.spawn(async move { drop(ops::splice(&first.0, &e.1, LARGE).await) }),
        runtime.spawn(async move { drop(parked_splice(second.0, f.1).await) }),
        runtime.spawn(async move {
            drop(ops::readv(&vectored, vec![Vec::with_capacity(LARGE), Vec::with_capacity(LARGE)]).await);
        }),
    ];
    (tasks, (a, b, c, d, first.1, e.0, second.1, f.0, g))
}

/// Until all eight are with the kernel.
pub(crate) async fn all_wait(runtime: &Runtime) {
    while runtime.driver().operations_active() < 8 {
        one_turn().await;
    }
    one_turn().await;
}

#[test]
fn a_dropped_runtime_returns_everything() {
    let _alone = alone();
    let before = Census::take();
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let (tasks, peers) = wait_for_ever(&runtime);
        runtime.block_on(all_wait(&runtime));
        assert_eq!(registry.snapshot().pages_in_flight, 2);
        assert_eq!(mapped() - before.mapped, 4 * LARGE);
        drop(runtime);
        assert_eq!(registry.snapshot().pages_free, 64);
        drop((tasks, peers, registry));
        workers_end();
        assert_eq!(Census::take(), before);
    });
}

/// At once after they were spawned, and at once after their first poll: nothing of it has reached the kernel.
#[test]
fn a_runtime_dropped_before_its_first_turn_returns_everything() {
    let _alone = alone();
    let before = Census::take();
    rings::each(|runtime| {
        let (tasks, peers) = wait_for_ever(&runtime);
        runtime.block_on(std::future::ready(()));
        drop((runtime, tasks, peers));
        workers_end();
        assert_eq!(Census::take(), before);
    });
}

#[test]
fn an_aborted_task_returns_everything() {
    let _alone = alone();
    let before = Census::take();
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        for _ in 0..3 {
            let (tasks, peers) = wait_for_ever(&runtime);
            runtime.block_on(async {
                all_wait(&runtime).await;
                for task in tasks {
                    task.abort();
                    assert!(task.await.unwrap_err().is_cancelled());
                }
                settled().await;
            });
            assert_eq!((runtime.driver().slots_used(), registry.snapshot().pages_free), (0, 64));
            assert_eq!(mapped(), before.mapped);
            drop(peers);
        }
        drop((runtime, registry));
        workers_end();
        assert_eq!(Census::take(), before);
    });
}

/// Leaked by the program, an operation keeps what is its own: its buffer, its descriptor, and its handle on the ring
/// (two descriptors). Everything else returns, and the kernel has let go of the buffer.
#[test]
fn a_leaked_future_keeps_only_its_own() {
    let _alone = alone();
    for mode in [RingMode::Auto, RingMode::Plain] {
        // The kernel ends the worker threads of a ring that is still open with the thread that they work for.
        std::thread::spawn(move || leak_a_future(mode)).join().unwrap();
        workers_end();
    }
}

fn leak_a_future(mode: RingMode) {
    let before = Census::take();
    let runtime = Runtime::builder().config(Config::default().mode(mode).pages(64)).build().unwrap();
    let registry = runtime.driver().registry().clone();
    let (tasks, peers) = wait_for_ever(&runtime);
    let (fd, writer) = pipe();
    let mut read = ops::read(&fd, Vec::with_capacity(LARGE));
    runtime.block_on(async {
        assert!(poll_once(&mut read).await.is_pending());
        all_wait(&runtime).await;
    });
    std::mem::forget(read);
    drop((runtime, tasks, peers));
    assert_eq!((registry.snapshot().pages_free, registry.is_registered()), (64, false));
    drop((registry, fd, writer));
    let after = Census::take();
    assert_eq!((after.mapped - before.mapped, after.descriptors - before.descriptors), (LARGE, 2));
}

/// Accepts that race with the connections they are for: taken before, with, and after the drop or cancel.
fn accepts_race(runtime: &Runtime, rounds: usize) {
    let before = Census::take();
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Fd::new(listener.into());
    let mut clients = Vec::new();
    let mut served = 0;
    runtime.block_on(async {
        for round in 0..rounds {
            let mut accept = ops::accept(&listener);
            assert!(poll_once(&mut accept).await.is_pending());
            if round % 2 == 0 {
                one_turn().await;
            }
            clients.push(std::net::TcpStream::connect(address).unwrap());
            match round % 6 {
                0 | 1 => drop(accept),
                2 | 3 => {
                    one_turn().await;
                    drop(accept);
                }
                _ => served += usize::from(accept.cancel().await.is_ok()),
            }
            // What nobody took stays in the listener's queue; it is short, so take all that is there.
            if round % 32 == 31 {
                settled().await;
                rustix::io::ioctl_fionbio(&listener, true).unwrap();
                while rustix::net::accept(&listener).is_ok() {
                    served += 1;
                }
                rustix::io::ioctl_fionbio(&listener, false).unwrap();
            }
        }
        settled().await;
    });
    assert_eq!(runtime.driver().slots_used(), 0);
    drop(listener);
    for mut client in clients {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        match client.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("a client whose connection nobody has sees no end of it: {other:?}"),
        }
    }
    println!("{served} of {rounds} connections were given to the program");
    assert_eq!(Census::take(), before, "a descriptor was leaked");
}

#[test]
fn c04_an_accept_that_was_cancelled_leaks_no_connection() {
    let _alone = alone();
    rings::each(|runtime| accepts_race(&runtime, 60));
}

#[test]
#[ignore = "takes a minute"]
fn c04_five_thousand_accepts_that_were_cancelled_leak_no_connection() {
    let _alone = alone();
    accepts_race(&Runtime::new().unwrap(), 5000);
}
