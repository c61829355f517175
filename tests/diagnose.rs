//! The diagnose example as a real process.

#![forbid(unsafe_code)]

mod example;

use std::io::pipe;
use std::process::{Command, Output, Stdio};

use example::executable;

fn run(arguments: &[&str]) -> Output {
    Command::new(executable()).args(arguments).output().expect("it runs")
}

#[test]
fn it_prints_the_report_and_says_in_its_exit_code_whether_a_ring_can_be_built() {
    let output = run(&[]);
    let said = String::from_utf8(output.stdout).expect("it says text");
    let is_usable = ringmain::diagnose().is_usable();
    assert_eq!(output.status.code(), Some(if is_usable { 0 } else { 1 }), "{said}");
    let ring = said.lines().find_map(|line| line.strip_prefix("ring ")).expect("a line about the ring");
    assert!(ring.trim_start().starts_with(if is_usable { "yes" } else { "no" }), "{said}");
    assert!(output.stderr.is_empty());
}

#[test]
fn it_has_a_help_and_takes_no_arguments() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8(help.stdout).expect("text").contains("exit code"));
    let refused = run(&["--everything"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).expect("text").contains("--everything"));
}

#[test]
fn a_reader_that_wants_no_more_is_no_failure() {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let child = Command::new(executable()).stdout(writer).stderr(Stdio::piped()).spawn().expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(if ringmain::diagnose().is_usable() { 0 } else { 1 }));
    assert!(output.stderr.is_empty(), "{output:?}");
}
