//! Where the example's executable is. Cargo tells tests the paths of binaries, but not of examples.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The executable of the proxy example, as new as its sources.
pub(crate) fn executable() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // This test is TARGET/PROFILE/deps/proxy-HASH.
        let test = std::env::current_exe().expect("a test knows its own path");
        let profile = test.ancestors().nth(2).expect("tests are built below a profile's folder");
        let path = profile.join("examples/proxy");
        // `cargo test` builds examples first; `cargo test --test proxy` does not.
        let built = fs::metadata(&path).and_then(|found| found.modified()).ok();
        if built.is_none_or(|built| built < newest_source()) {
            build(profile);
        }
        path
    })
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--example", "proxy", "--profile", name, "--target-dir"])
        .arg(profile.parent().expect("a profile's folder is in the target folder"))
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the proxy example must build");
}

fn newest_source() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut left: Vec<PathBuf> = ["lib.rs", "runtime", "ops", "examples/proxy"].map(|name| root.join(name)).into();
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
