//! The run without arguments.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::example::executable;
use crate::process::{Proxy, run, until};

#[test]
fn without_arguments_it_shows_every_route_and_verifies_all() {
    let begun = Instant::now();
    let remains = run(&[]);
    assert_eq!(remains.status.code(), Some(0), "{remains:?}");
    // Usually a quarter of this; other tests run beside it.
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    for relay in ["ringmain auto", "ringmain inline", "ringmain ring", "ringmain copy", "epoll read/write"] {
        let rows: Vec<&str> = remains.stdout.lines().filter(|line| line.starts_with(relay)).collect();
        let [row] = rows[..] else { panic!("{relay} has one row: {}", remains.stdout) };
        let way = if relay.contains("copy") || relay.contains("epoll") { "copy" } else { "splice" };
        let cells = row[relay.len()..].trim_start();
        assert!(cells.starts_with(way), "{row}");
        // The one that finds its route by itself copies a little first, and says how much it has spliced in percent.
        let cells = cells.split_once('%').map_or(cells, |(_, rest)| rest).split_whitespace();
        let numbers: Vec<f64> = cells.filter_map(|cell| cell.parse().ok()).collect();
        let [megabytes, rate, cpu, calls, ..] = numbers[..] else { panic!("{row} has its numbers") };
        assert!(megabytes >= 67.0 && rate > 0.0 && cpu > 0.0 && calls > 0.0, "{row}");
        assert!(
            remains.stdout.contains(&format!("  {relay}: {megabytes} MB moved and verified")),
            "{}",
            remains.stdout
        );
    }
    assert!(remains.stdout.contains(" MB arrived as they were sent."), "{}", remains.stdout);
}

#[test]
fn no_relay_outlives_a_demonstration_that_is_killed() {
    // The first is the epoll loop that warms the machine up.
    for (signal, option) in [(Signal::TERM, "--epoll-twin"), (Signal::TERM, "--json"), (Signal::KILL, "--json")] {
        let mut demonstration = Proxy::spawned(&mut Command::new(executable()));
        let mut relay = None;
        until("a relay of ours has been started", || {
            relay = demonstration.children().into_iter().find(|child| {
                fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|words| words.contains(option))
            });
            relay.is_some()
        });
        demonstration.signal(signal);
        // It has the other end of a pipe for as long as it is there, and says nothing when that is gone.
        let remains = demonstration.remains();
        assert_eq!(remains.stderr, "", "{remains:?}");
        let stat = format!("/proc/{}/stat", relay.expect("it was found"));
        // Nobody may reap it here.
        let is_gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        until("the relay has ended", is_gone);
    }
}

#[test]
fn a_demonstration_without_loopback_says_how_to_get_it() {
    let output = Command::new("unshare").args(["--net", "--"]).arg(executable()).stdin(Stdio::null()).output();
    let output = output.expect("unshare(1) is part of every Linux");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.starts_with("unshare:") {
        assert!(std::env::var_os("CI").is_none(), "a_demonstration_without_loopback was skipped: {said}");
        eprintln!("SKIPPED a_demonstration_without_loopback: this machine gives nobody a network of their own: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("`epoll read/write` failed: loopback cannot be reached"), "{said}");
    assert!(said.contains("ip link set lo up"), "{said}");
}

#[test]
fn a_demonstration_whose_reader_has_gone_says_so() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(executable()).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn();
    let output = output.and_then(|child| child.wait_with_output()).expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write to standard output: Broken pipe"), "{said}");
}
