//! Tests that need a process of their own: another user, other limits, another file system.
//!
//! The test's binary runs itself again, with only this one test, below a shell command that sets the limits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

/// What tells the child that it is one.
const MARK: &str = "RINGMAIN_TEST_CHILD";

/// The exit code with which a shell command says that this machine does not allow what it is for.
const SKIPPED: i32 = 77;

/// Run `body` in a process below `command`, a line of shell in which `"$@"` stands for the process.
///
/// The command may `exit 77` where the machine does not allow it; the test then says so and passes.
pub(crate) fn below(command: &str, body: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let name = thread::current().name().expect("the harness names the thread after the test").to_owned();
    // Another user may not be allowed into the folder that this binary lies in.
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a folder that all can enter");
    let binary = folder.path().join("data");
    fs::copy(std::env::current_exe().expect("this binary"), &binary).expect("a copy of it");
    let output = Command::new("sh")
        .args(["-c", command, "sh"])
        .arg(&binary)
        .args(["--exact", &name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .current_dir(folder.path())
        .output()
        .expect("a shell");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(SKIPPED) {
        // The machine that decides about a change is root, and allows all of this.
        assert!(std::env::var_os("CI").is_none(), "{name} was skipped: {stderr}");
        eprintln!("SKIPPED {name}: this machine does not allow it: {stderr}");
        return;
    }
    assert!(output.status.success(), "the child failed ({})\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "the child has run no test\n{stdout}\n{stderr}");
}

/// The command that becomes a user without rights, of whom nothing else runs here, under a limit of locked memory.
///
/// Locked memory and pipes are counted for each user, so `user` is a number that no other test has.
pub(crate) fn unprivileged(user: u32, memlock_kib: u32) -> String {
    let uid = 100_000 + std::process::id() % 100_000 * 8 + user;
    let change = format!("setpriv --reuid {uid} --regid {uid} --clear-groups");
    format!(
        "ulimit -l {memlock_kib} || exit {SKIPPED}; \
         if [ \"$(id -u)\" != 0 ]; then exec \"$@\"; fi; \
         {change} true || exit {SKIPPED}; exec {change} \"$@\""
    )
}

/// The command that puts a file system of this many KiB at `./small`, which goes away with the process.
pub(crate) fn with_a_small_disk(kib: u32) -> String {
    format!(
        "mkdir small; unshare --mount true || exit {SKIPPED}; \
         exec unshare --mount sh -c 'mount -t tmpfs -o size={kib}k none small || exit {SKIPPED}; exec \"$@\"' sh \"$@\""
    )
}
