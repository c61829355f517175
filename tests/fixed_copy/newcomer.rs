//! The first run, and what a comparison says.

use crate::folder::Folder;

#[test]
fn without_arguments_it_copies_files_of_this_machine_verifies_them_and_ends() {
    let folder = Folder::new();
    let said = folder.copy(&[]);
    assert_eq!(said.matches(", verified in ").count(), 3, "{said}");
    assert_eq!(said.matches("  cp: ").count(), 3, "{said}");
    assert!(said.contains("268.4 MB of holes kept"), "{said}");
    assert!(said.trim_end().ends_with("of data arrived as they were."), "{said}");
    assert!(folder.names().is_empty());
}

#[test]
fn a_comparison_with_cp_is_the_last_line_and_leaves_one_copy() {
    let folder = Folder::new();
    let bytes = folder.write("from", 3_000_000);
    let said = folder.copy(&["--compare-cp", "--fsync", "from", "to"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("from -> to: 3.0 MB in "), "{said}");
    assert!(lines[1].starts_with("cp: 3.0 MB in ") && lines[1].contains("fixed_copy took"), "{said}");
    assert!(folder.read("to") == bytes);
    assert_eq!(folder.names(), ["from", "to"]);
}

#[test]
fn no_bar_is_drawn_where_there_is_no_terminal() {
    let folder = Folder::new();
    folder.write("from", 3_000_000);
    let output = folder.run(&["from", "to"]);
    assert!(!output.stderr.contains(&0x1b) && !output.stdout.contains(&0x1b), "{output:?}");
    assert!(folder.run(&["--quiet", "from", "to"]).stderr.is_empty());
}

#[test]
fn a_first_run_that_finds_no_place_says_how_to_name_one() {
    let folder = Folder::new();
    let mut command = folder.command(&[]);
    let output = command.env("TMPDIR", folder.path("missing")).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot make a directory in ") && said.contains("set TMPDIR to"), "{said}");
}
