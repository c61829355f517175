//! Where the numbers come from: without commit, kernel, processor and command a record cannot be compared with another.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commit that is checked out, with `-dirty` behind it where tracked files differ from it.
pub(crate) fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-dirty"),
    }
}

/// The release of the running kernel.
pub(crate) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The model and the number of the processors that this process may use.
pub(crate) fn cpu() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or_else(|_| "?".to_owned(), |count| count.to_string());
    format!("{} x {count}", model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

/// How many tasks have been running or about to, on average over the last minute.
pub(crate) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The command that repeats this run.
pub(crate) fn command(bench: &str) -> String {
    let options: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mut command = format!("cargo bench --bench {bench}");
    if !options.is_empty() {
        command.push_str(" -- ");
        command.push_str(&options.join(" "));
    }
    command
}

/// Cargo's target folder: cargo tags it as a cache, and our executable lies somewhere below it.
pub(crate) fn target_folder() -> io::Result<PathBuf> {
    let executable = std::env::current_exe()?;
    if let Some(tagged) = executable.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()) {
        return Ok(tagged.to_owned());
    }
    // A target folder that existed before cargo came carries no tag; its layout is target/PROFILE/deps/EXECUTABLE.
    std::env::var_os("CARGO_TARGET_DIR")
        .map(PathBuf::from)
        .or_else(|| executable.ancestors().nth(3).map(Path::to_owned))
        .ok_or_else(|| io::Error::other("no target folder above the benchmark; set CARGO_TARGET_DIR to it"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
