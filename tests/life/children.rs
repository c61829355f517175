//! A process that starts others while its runtime works: what they inherit changes nothing.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use ringmain::{Fd, Runtime, ops};

use crate::counts::{all_wait, wait_for_ever};
use crate::turns::{one_turn, pipe, poll_once};
use crate::{Census, alone, rings, workers_end};

/// A child by `posix_spawn(3)`, which shares the parent's memory until it execs, or by `fork(2)`, which copies it: the
/// standard library forks where it is to set the group.
fn command(program: &str, forks: bool) -> Command {
    let mut command = Command::new(program);
    if forks {
        command.gid(rustix::process::getgid().as_raw());
    }
    command
}

/// A child writes something, and ends, while a read into a lease waits that is answered after it.
async fn a_child_comes_and_goes(runtime: &Runtime, round: u8, forks: bool) {
    let lease = runtime.driver().registry().try_lease(4096).expect("pages are free");
    let (reader, mut writer) = pipe();
    let mut pending = ops::read_fixed(&reader, lease);
    assert!(poll_once(&mut pending).await.is_pending());
    one_turn().await;

    let mut lasting = command("cat", forks).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("there is cat");
    let output = command("echo", forks).arg(round.to_string()).output().expect("there is echo");
    assert_eq!((output.status.code(), output.stdout), (Some(0), format!("{round}\n").into_bytes()));

    writer.write_all(&[round; 4096]).expect("the pipe is empty");
    let (count, lease) = pending.await;
    assert_eq!(count.expect("bytes are there"), 4096);
    assert!(lease.iter().all(|byte| *byte == round), "what has come is in the parent's page");

    // And the ring writes into the child, from the lease, what comes back.
    let stdin = Fd::new(lasting.stdin.take().expect("piped").into());
    let (count, lease) = ops::write_fixed(&stdin, lease).await;
    assert_eq!(count.expect("the pipe is empty"), 4096);
    drop(stdin);
    let mut echoed = Vec::new();
    lasting.stdout.take().expect("piped").read_to_end(&mut echoed).expect("the child writes and ends");
    assert!(lasting.wait().expect("it was started").success());
    assert_eq!(echoed, &lease[..]);
}

#[test]
fn a_runtime_with_everything_in_flight_goes_on_while_children_come_and_go() {
    let _alone = alone();
    let before = Census::take();
    rings::each(|runtime| {
        let registry = runtime.driver().registry().clone();
        let (tasks, peers) = wait_for_ever(&runtime);
        let mut kept = registry.try_lease(3 * 4096).expect("pages are free");
        kept.as_capacity_mut().fill(0xa5);
        kept.set_len(3 * 4096);
        runtime.block_on(async {
            all_wait(&runtime).await;
            for round in 0..8 {
                a_child_comes_and_goes(&runtime, round, round % 2 == 1).await;
            }
        });
        assert_eq!((runtime.driver().operations_active(), registry.snapshot().pages_in_flight), (8, 2));
        assert!(kept.iter().all(|byte| *byte == 0xa5));
        drop((kept, runtime));
        assert_eq!(registry.snapshot().pages_free, 64);
        drop((tasks, peers, registry));
        workers_end();
        assert_eq!(Census::take(), before);
    });
}

/// Its copy of the ring's descriptor was closed when it became another program.
#[test]
fn a_runtime_ends_while_a_child_lives() {
    let _alone = alone();
    let before = Census::take();
    for forks in [false, true] {
        rings::each(|runtime| {
            let (tasks, peers) = wait_for_ever(&runtime);
            runtime.block_on(all_wait(&runtime));
            let mut child =
                command("cat", forks).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("there is cat");
            drop((runtime, tasks, peers));
            workers_end();
            drop(child.stdin.take());
            assert!(child.wait().expect("it was started").success());
            assert_eq!(Census::take(), before);
        });
    }
}
