//! Copies that do not come to their end.

use std::fs::File;
use std::os::unix::fs::FileExt;
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
