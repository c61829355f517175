//! Where an example's executable is. Cargo tells tests the paths of binaries, but not of examples.
//!
//! A test that drives an example as a process has the name of that example.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The executable of the example that this test is named after, as new as its sources.
pub(crate) fn executable() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // This test is TARGET/PROFILE/deps/NAME-HASH.
        let test = std::env::current_exe().expect("a test knows its own path");
        let profile = test.ancestors().nth(2).expect("tests are built below a profile's folder");
        let name = test.file_name().and_then(|name| name.to_str()?.rsplit_once('-')).expect("a name and a hash").0;
        let path = profile.join("examples").join(name);
        // `cargo test` builds examples first; `cargo test --test NAME` does not.
        let built = fs::metadata(&path).and_then(|found| found.modified()).ok();
        if built.is_none_or(|built| built < newest_source(name)) {
            build(name, profile);
        }
        path
    })
}

fn build(example: &str, profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--example", example, "--profile", name, "--target-dir"])
        .arg(profile.parent().expect("a profile's folder is in the target folder"))
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the example {example} must build");
}

fn newest_source(example: &str) -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut left: Vec<PathBuf> = ["lib.rs", "runtime", "ops"].map(|name| root.join(name)).into();
    let folder = root.join("examples").join(example);
    left.push(if folder.is_dir() { folder } else { folder.with_extension("rs") });
    let mut newest = SystemTime::UNIX_EPOCH;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).expect("a source folder").map(|entry| entry.expect("an entry").path()));
        } else {
            newest = newest.max(fs::metadata(&path).and_then(|found| found.modified()).expect("a source file"));
        }
    }
    newest
}
