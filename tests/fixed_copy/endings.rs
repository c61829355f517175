//! Copies that do not come to their end.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::example::executable;
use crate::folder::{Folder, ended, is_draft};

/// Long enough in blocks of one page to be met half way.
const LONG: usize = 128 << 20;

#[test]
fn a_killed_copy_leaves_nothing_under_the_final_name() {
    let folder = Folder::new();
    folder.write("from", LONG);
    let mut child = folder.half_way(&["from", "to"]);
    child.kill().expect("it is there");
    let output = ended(child);
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    assert!(!folder.path("to").exists());
}

#[test]
fn a_killed_copy_leaves_an_old_target_as_it_was_and_the_next_one_works() {
    let folder = Folder::new();
    let bytes = folder.write("from", LONG);
    let old = folder.write("to", 1000);
    let mut child = folder.half_way(&["from", "to"]);
    child.kill().expect("it is there");
    ended(child);
    assert_eq!(folder.read("to"), old);
    folder.copy(&["from", "to"]);
    assert!(folder.read("to") == bytes);
}

#[test]
fn a_signal_removes_the_temporary_file_and_tells_what_was_moved() {
    let folder = Folder::new();
    folder.write("from", LONG);
    let old = folder.write("old", 1000);
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")] {
        for (to, sentence) in [("old", "old is as it was"), ("new", "there is no new")] {
            let child = folder.half_way(&["from", to]);
            // Twice, as `timeout(1)` does.
            kill_process(Pid::from_child(&child), signal).expect("it is there");
            kill_process(Pid::from_child(&child), signal).expect("it is not waited for yet");
            let output = ended(child);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{said}");
            assert!(said.contains(name) && said.contains("of 134.2 MB were moved"), "{said}");
            assert!(said.contains(sentence), "{said}");
            assert_eq!(folder.names(), ["from", "old"]);
            assert_eq!(folder.read("old"), old);
        }
    }
}

#[test]
fn a_source_that_changes_behind_the_copy_is_found_by_verifying() {
    let folder = Folder::new();
    folder.write("from", LONG);
    let old = folder.write("to", 1000);
    let child = folder.half_way(&["--verify", "from", "to"]);
    // Blocks go in order here, so the first is copied already.
    let source = File::options().write(true).open(folder.path("from")).expect("the source");
    source.write_all_at(b"changed", 100).expect("bytes of its own");
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the copy differs from its source at byte 100"), "{said}");
    assert_eq!(folder.names(), ["from", "to"]);
    assert_eq!(folder.read("to"), old);
}

#[test]
fn a_source_that_becomes_shorter_is_told() {
    let folder = Folder::new();
    folder.write("from", LONG);
    let child = folder.half_way(&["from", "to"]);
    File::options().write(true).open(folder.path("from")).expect("the source").set_len(1000).expect("its owner may");
    let output = ended(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("became shorter while it was copied"), "{said}");
    assert_eq!(folder.names(), ["from"]);
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left_on_it() {
    let folder = Folder::new();
    folder.write("from", 4 << 20);
    std::fs::create_dir(folder.path("small")).expect("a directory");
    // In a namespace of its own, so that the filesystem goes away with the process.
    let script = "mount -t tmpfs -o size=1024k none small || exit 77; \"$@\"; code=$?; ls -A small; exit $code";
    for options in [&[][..], &["--direct"]] {
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(executable())
            .args(options)
            .args(["from", "small/to"])
            .current_dir(folder.path("."))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare(1) is part of every Linux");
        let output = ended(child);
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(77) || said.starts_with("unshare:") {
            assert!(std::env::var_os("CI").is_none(), "a_full_disk_is_told was skipped: {said}");
            eprintln!("SKIPPED a_full_disk_is_told: this machine lets nobody mount: {said}");
            return;
        }
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("cannot write small/to: No space left on device"), "{said}");
        assert!(said.contains("free some space"), "{said}");
        assert!(output.stdout.is_empty(), "what is left: {output:?}");
    }
}

/// A reader of the results that has gone is an error, and no reason to lose the copy.
#[test]
fn the_copy_is_there_when_nobody_reads_the_report() {
    let folder = Folder::new();
    let bytes = folder.write("from", 5000);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = folder.command(&["from", "to"]).stdout(writer).stderr(Stdio::null()).status().expect("it runs");
    assert_eq!(status.code(), Some(1));
    assert_eq!(folder.read("to"), bytes);
    assert!(!folder.names().iter().any(|name| is_draft(name)));
}

/// The limit is of a process: it is told of it by a signal that ends it, unless that is taken care of.
#[test]
fn a_copy_that_may_not_be_so_long_is_told_and_removed() {
    let folder = Folder::new();
    folder.write("from", 1 << 20);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 100; exec \"$0\" \"$@\""]).arg(executable()).args(["from", "to"]);
    command.current_dir(folder.path(".")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ended(command.spawn().expect("it starts"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("File too large") && said.contains("raise `ulimit -f`"), "{said}");
    assert_eq!(folder.names(), ["from"]);
}

#[test]
fn a_terminal_that_goes_leaves_nothing_behind_unless_it_may() {
    let folder = Folder::new();
    let bytes = folder.write("from", LONG);
    let child = folder.half_way(&["from", "to"]);
    kill_process(Pid::from_child(&child), Signal::HUP).expect("it is there");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(128 + Signal::HUP.as_raw()), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("SIGHUP: "), "{output:?}");
    assert_eq!(folder.names(), ["from"]);

    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(executable()).args([
        "--depth=1",
        "--block=4K",
        "from",
        "to",
    ]);
    command.current_dir(folder.path(".")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    folder.wait_for_a_draft();
    kill_process(Pid::from_child(&child), Signal::HUP).expect("it is there");
    assert_eq!(ended(child).status.code(), Some(0));
    assert!(folder.read("to") == bytes);
}

/// Ctrl-C goes to every process of a terminal's job, and so to cp, which ends by it.
#[test]
fn a_comparison_that_is_interrupted_ends_with_the_number_of_the_signal() {
    let folder = Folder::new();
    folder.write("from", 5000);
    // A cp that is interrupted, and whoever started it too.
    std::fs::write(folder.path("cp"), "#!/bin/sh\nkill -INT $PPID; kill -INT $$\n").expect("a script");
    std::fs::set_permissions(folder.path("cp"), PermissionsExt::from_mode(0o755)).expect("its owner may");
    let path = format!("{}:{}", folder.path("").display(), std::env::var("PATH").expect("there is a path"));
    let mut command = folder.command(&["--compare-cp", "from", "to"]);
    command.env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ended(command.spawn().expect("it starts"));
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(folder.names(), ["cp", "from"]);
}
