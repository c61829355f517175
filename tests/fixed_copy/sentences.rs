//! What it says when something is wrong: a sentence, and never a panic.

use std::fs;

use crate::folder::Folder;

#[test]
fn a_source_that_cannot_be_copied_is_told() {
    let folder = Folder::new();
    fs::create_dir(folder.path("there")).expect("a directory");
    for (from, words) in [
        ("missing", "cannot copy missing: No such file"),
        ("there", "there is a directory"),
        ("/dev/null", "a pipe, a socket or a device"),
        ("there/missing/file", "cannot copy there/missing/file"),
    ] {
        let sentence = folder.refused(&[from, "to"]);
        assert!(sentence.starts_with("fixed_copy: ") && sentence.contains(words), "{from}: {sentence}");
    }
    assert_eq!(folder.names(), ["there"]);
}

#[test]
fn a_target_that_cannot_be_written_is_told() {
    let folder = Folder::new();
    let bytes = folder.write("from", 5000);
    fs::hard_link(folder.path("from"), folder.path("twin")).expect("a second name");
    std::os::unix::fs::symlink("nowhere", folder.path("link")).expect("a link");
    fs::create_dir_all(folder.path("there/from")).expect("a directory");
    for (to, words) in [
        ("from", "from and from are the same file"),
        ("twin", "from and twin are the same file"),
        (".", "are the same file"),
        ("link", "link is a symbolic link that leads nowhere"),
        ("missing/to", "make the directory first"),
        ("from/to", "Not a directory"),
        ("/dev/null", "/dev/null is a pipe, a socket or a device"),
        ("there", "there/from is a directory"),
        ("missing/..", "is no name for a file"),
        ("new/", "new/ is no directory; make it first"),
        // It leads to a pipe, which has no name to lead to.
        ("/dev/stdout", "/dev/stdout is a pipe, a socket or a device"),
    ] {
        let sentence = folder.refused(&["from", to]);
        assert!(sentence.starts_with("fixed_copy: ") && sentence.contains(words), "{to}: {sentence}");
    }
    assert_eq!(folder.read("from"), bytes);
    assert_eq!(folder.names(), ["from", "link", "there", "twin"]);
}

#[test]
fn bad_options_are_told_with_their_bounds() {
    let folder = Folder::new();
    folder.write("from", 10);
    for (option, words) in [
        ("--block=5000", "a power of two of bytes, from 4K to 16M"),
        ("--block=32M", "from 4K to 16M"),
        ("--block=9999999M", "from 4K to 16M"),
        ("--block=big", "`big` is not a size; write 65536, 64K or 1M"),
        ("--depth=0", "1..=1024"),
        ("--depth=2000", "1..=1024"),
        ("--fast", "--fast"),
    ] {
        let sentence = folder.refused(&[option, "from", "to"]);
        assert!(sentence.contains(words), "{option}: {sentence}");
    }
    let sentence = folder.refused(&["--depth=1024", "--block=16M", "from", "to"]);
    assert!(sentence.contains("16384 MiB of memory") && sentence.contains("up to 1024 MiB"), "{sentence}");
    assert!(folder.refused(&["from"]).contains("<TO>"));
    assert!(folder.refused(&["--verify"]).contains("FROM"));
    assert_eq!(folder.names(), ["from"]);
}

#[test]
fn the_help_names_every_option() {
    let said = Folder::new().copy(&["--help"]);
    for option in [
        "FROM",
        "TO",
        "--direct",
        "--depth",
        "--block",
        "--verify",
        "--fsync",
        "--compare-cp",
        "--quiet",
        "SIGINT",
        "O_DIRECT",
    ] {
        assert!(said.contains(option), "{option} is missing in {said}");
    }
    for default in ["16", "256K"] {
        assert!(said.contains(&format!("[default: {default}]")), "{default}: {said}");
    }
}
