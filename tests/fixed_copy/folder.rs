//! A folder on a disk, and copies in it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::example::executable;

/// Nothing here takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

/// A folder that is removed at the end.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    /// One in memory, where this machine has that.
    pub(crate) fn in_memory() -> Option<Self> {
        match tempfile::tempdir_in("/dev/shm") {
            Ok(folder) => Some(Self { folder }),
            Err(error) => {
                eprintln!("SKIPPED: this machine has no /dev/shm: {error}");
                None
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of bytes that are different at every place.
    pub(crate) fn write(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes = noise(len);
        fs::write(self.path(name), &bytes).expect("a file can be written");
        bytes
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file can be read")
    }

    /// The names of all that is in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder can be read");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("of text")).collect();
        names.sort();
        names
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(executable());
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs it in the folder to its end, which must be a good one, and returns what it said.
    pub(crate) fn copy(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it says text")
    }

    /// Runs it in the folder to its end, which must be a refusal, and returns its sentence.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let sentence = String::from_utf8(output.stderr).expect("it says text");
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?} is refused: {sentence}");
        assert!(output.stdout.is_empty() && !sentence.contains("panicked"), "{arguments:?}: {sentence}");
        sentence
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        ended(self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Starts a copy that goes on for long enough to be met in the middle, and waits for its first bytes on the disk.
    pub(crate) fn half_way(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(&[&["--depth", "1", "--block", "4K"], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        self.wait_for_bytes(|| child.try_wait().expect("a child can be asked").is_none());
        child
    }

    /// Waits until a copy has written its first bytes.
    pub(crate) fn wait_for_a_draft(&self) {
        self.wait_for_bytes(|| true);
    }

    fn wait_for_bytes(&self, mut goes_on: impl FnMut() -> bool) {
        let begun = Instant::now();
        // There is nothing to block on in a file that another process writes, so it is looked at again.
        while !self.has_bytes_of_a_draft() {
            assert!(begun.elapsed() < HANG, "it writes nothing");
            assert!(goes_on(), "it is not met half way");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn has_bytes_of_a_draft(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        self.names().iter().filter(|name| is_draft(name)).any(|name| {
            // It may be gone by now.
            fs::metadata(self.path(name)).is_ok_and(|found| found.blocks() > 0)
        })
    }
}

/// Whether a file has the name of a copy that is not finished.
pub(crate) fn is_draft(name: &str) -> bool {
    name.starts_with(".fixed_copy-")
}

/// Waits for the end of it. One that does not come to it is killed, and fails the test.
pub(crate) fn ended(mut child: Child) -> Output {
    let (out, err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let (out, err) = (thread::spawn(|| all_of(out)), thread::spawn(|| all_of(err)));
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status,
            None if begun.elapsed() > HANG => {
                child.kill().expect("it is there");
                panic!("it does not end; it has said: {:?}", err.join().expect("no panic"));
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    };
    Output { status, stdout: out.join().expect("no panic"), stderr: err.join().expect("no panic") }
}

fn all_of(mut pipe: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).expect("a pipe can be read");
    bytes
}

/// Bytes that repeat at no distance that a block could have.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes that a file has on its disk.
pub(crate) fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).expect("a file").blocks() * 512
}
