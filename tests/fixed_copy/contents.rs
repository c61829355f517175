//! What is in a copy: every byte, every hole, and the permissions.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::folder::{Folder, allocated, is_draft};

/// The ways to copy that differ in how blocks are cut, aligned and kept in flight.
const WAYS: [&[&str]; 5] = [
    &[],
    &["--direct"],
    &["--depth", "1", "--block", "4K"],
    &["--depth", "3", "--block", "8K", "--direct"],
    &["--depth", "64", "--block", "64K"],
];

fn copies_in_every_way(folder: &Folder, lengths: &[usize]) {
    for &len in lengths {
        let bytes = folder.write("from", len);
        for way in WAYS {
            let said = folder.copy(&[way, &["--verify", "from", "to"][..]].concat());
            assert!(folder.read("to") == bytes, "{len} bytes by {way:?}");
            assert!(said.contains("verified"), "{said}");
        }
        assert_eq!(folder.names(), ["from", "to"], "nothing else is left");
    }
}

#[test]
fn files_of_odd_lengths_are_copied_to_the_byte() {
    let block = 256 << 10;
    let lengths = [0, 1, 511, 4095, 4096, 4097, 12_288, block - 1, block, block + 1, 3 * block + 4097];
    copies_in_every_way(&Folder::new(), &lengths);
}

#[test]
fn files_in_memory_are_copied_too_with_or_without_o_direct() {
    let Some(folder) = Folder::in_memory() else { return };
    copies_in_every_way(&folder, &[0, 1, 4097, 1_000_001]);
}

#[test]
fn a_big_file_is_copied_with_many_blocks_in_flight() {
    let folder = Folder::new();
    let bytes = folder.write("from", (48 << 20) + 123);
    for options in [&["--depth", "128", "--block", "16K"][..], &["--direct", "--block", "1M"]] {
        let said = folder.copy(&[options, &["--verify", "from", "to"]].concat());
        assert!(folder.read("to") == bytes, "{options:?}");
        assert!(said.contains("50.3 MB in"), "{said}");
    }
}

#[test]
fn holes_stay_holes_wherever_they_are() {
    let folder = Folder::new();
    let len = 64 << 20;
    let islands: [&[u64]; 5] = [&[], &[0], &[len - 5000], &[5_000_001], &[0, 1 << 20, (40 << 20) - 100, len - 5000]];
    for places in islands {
        let file = File::create(folder.path("from")).expect("a file");
        file.set_len(len).expect("a hole");
        for &at in places {
            file.write_all_at(&[0x5a; 5000], at).expect("an island");
        }
        file.sync_all().expect("its blocks are given out");
        let bytes = folder.read("from");
        for way in WAYS {
            let said = folder.copy(&[way, &["--verify", "--fsync", "from", "to"][..]].concat());
            assert!(folder.read("to") == bytes, "{places:?} by {way:?}");
            assert!(said.contains("MB of holes kept"), "{said}");
            // A filesystem gives out more than is written at times, but never a hole's 64 MB.
            let (ours, theirs) = (allocated(&folder.path("to")), allocated(&folder.path("from")));
            assert!(ours <= theirs + (1 << 20), "{ours} bytes on the disk, {theirs} of the source, by {way:?}");
        }
    }
}

#[test]
fn a_file_that_does_not_know_its_length_is_copied_to_its_end() {
    let folder = Folder::new();
    folder.copy(&["--direct", "/proc/self/limits", "limits"]);
    assert!(folder.read("limits").starts_with(b"Limit "));
    folder.copy(&["--verify", "/proc/version", "version"]);
    assert_eq!(folder.read("version"), fs::read("/proc/version").expect("every Linux has it"));
}

#[test]
fn permissions_are_kept_but_for_the_set_id_bits() {
    let folder = Folder::new();
    folder.write("from", 10);
    for (mode, copied) in [(0o640, 0o640), (0o400, 0o400), (0o777, 0o777), (0o4755, 0o755), (0o2711, 0o711)] {
        fs::set_permissions(folder.path("from"), Permissions::from_mode(mode)).expect("its owner may");
        folder.copy(&["from", "to"]);
        let found = fs::metadata(folder.path("to")).expect("the copy").permissions().mode();
        assert_eq!(found & 0o7777, copied, "of {mode:o}");
    }
}

#[test]
fn a_target_that_is_there_is_replaced_and_its_other_names_are_not() {
    let folder = Folder::new();
    let (old, bytes) = (folder.write("old", 100_000), folder.write("from", 5000));
    fs::hard_link(folder.path("old"), folder.path("to")).expect("a second name");
    folder.copy(&["from", "to"]);
    assert!(folder.read("to") == bytes && folder.read("old") == old);
}

#[test]
fn a_directory_gets_the_copy_under_its_old_name() {
    let folder = Folder::new();
    let bytes = folder.write("from", 5000);
    fs::create_dir(folder.path("there")).expect("a directory");
    folder.copy(&["from", "there"]);
    assert_eq!(folder.read("there/from"), bytes);
}

#[test]
fn what_a_symbolic_link_leads_to_is_copied_and_replaced() {
    let folder = Folder::new();
    let bytes = folder.write("from", 5000);
    fs::create_dir(folder.path("there")).expect("a directory");
    folder.write("there/real", 10);
    std::os::unix::fs::symlink("there/real", folder.path("to")).expect("a link");
    std::os::unix::fs::symlink("from", folder.path("link")).expect("a link");
    folder.copy(&["link", "to"]);
    assert!(folder.path("to").is_symlink(), "the link is still one");
    assert_eq!(folder.read("there/real"), bytes);
    assert!(!folder.names().iter().any(|name| is_draft(name)));
}

/// `stat` says that a file of `/sys` has the length of a page, and it has less.
#[test]
fn a_file_of_sysfs_is_copied_up_to_where_it_ends() {
    let from = "/sys/kernel/mm/transparent_hugepage/enabled";
    if !std::path::Path::new(from).exists() {
        eprintln!("SKIPPED a_file_of_sysfs: this machine has no {from}");
        return;
    }
    for options in [&[][..], &["--verify"]] {
        let folder = Folder::new();
        folder.copy(&[options, &[from, "to"]].concat());
        assert_eq!(folder.read("to"), std::fs::read(from).expect("everybody may read it"));
    }
}

/// The last page of such a file is not a whole one.
#[test]
fn a_file_that_is_all_hole_takes_nothing_on_the_disk() {
    let folder = Folder::new();
    let hole = std::fs::File::create(folder.path("from")).expect("a file");
    hole.set_len(100_000).expect("a hole");
    let said = folder.copy(&["from", "to"]);
    assert!(said.contains("0.1 MB of holes kept"), "{said}");
    assert!(folder.read("to") == vec![0; 100_000]);
    if allocated(&folder.path("from")) == 0 {
        assert_eq!(allocated(&folder.path("to")), 0);
    }
}
