//! What is sent: this program's own executable, and the source files it was built from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Bytes of one round, over all connections.
const ROUND_BYTES: usize = 64 << 20;

/// Connections that carry a round together.
const STREAMS: usize = 4;

/// The files, one after the other and again until they fill a round.
#[derive(Debug)]
pub(crate) struct Corpus {
    files: usize,
    pub(crate) streams: Vec<Stream>,
}

/// What one connection carries, and what it must hash to.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: Vec<u8>,
}

impl Corpus {
    pub(crate) fn collect() -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut paths = Vec::new();
        // An executable that was moved to another machine has its sources nowhere, and itself to send.
        for folder in ["runtime", "ops", "examples", "benches", "tests"].map(|name| root.join(name)) {
            if folder.is_dir() {
                collect_sources(&folder, &mut paths)?;
            }
        }
        paths.sort();
        paths.push(std::env::current_exe()?);

        let files = paths.len();
        let mut all = Vec::with_capacity(ROUND_BYTES);
        for path in paths {
            all.extend(fs::read(&path).map_err(|error| {
                io::Error::new(error.kind(), format!("{} cannot be read: {error}", path.display()))
            })?);
        }
        let once = all.len();
        while all.len() < ROUND_BYTES {
            all.extend_from_within(..once.min(ROUND_BYTES - all.len()));
        }
        let streams = all[..ROUND_BYTES].chunks(ROUND_BYTES / STREAMS).map(Stream::new).collect();
        Ok(Self { files, streams })
    }

    /// Bytes of one round.
    pub(crate) fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes.len() as u64).sum()
    }

    pub(crate) fn describe(&self) -> String {
        let round = ROUND_BYTES >> 20;
        match self.files {
            1 => format!("this program's own executable, in rounds of {round} MiB,"),
            files => format!(
                "this program's own executable and {} of its source files, in rounds of {round} MiB,",
                files - 1
            ),
        }
    }
}

impl Stream {
    fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), digest: digest(bytes) }
    }
}

pub(crate) fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn collect_sources(folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() {
            collect_sources(&path, into)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}
