//! The newcomer's run: real files of this machine are copied in each way, verified, and compared with cp.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

use crate::copier::{self, Ending, Request};
use crate::report::megabytes;
use crate::signals::Stop;
use crate::{complain, cp, places, say};

/// The length of the file that is nearly all hole.
const SPARSE_BYTES: u64 = 256 << 20;
/// Where it is not: at the front, in the middle across a block's border, and at its very end.
const ISLANDS: [u64; 3] = [0, SPARSE_BYTES / 2 - 100, SPARSE_BYTES - 5000];
const ISLAND: [u8; 5000] = [0x5a; 5000];

/// Copies this executable and a sparse file into a directory that is removed at the end.
///
/// # Errors
/// A sentence, if a copy fails or is not what its source is.
pub(crate) fn run(stop: &Stop) -> io::Result<ExitCode> {
    let parent = std::env::temp_dir();
    let folder = tempfile::Builder::new().prefix("fixed_copy-").tempdir_in(&parent).map_err(|error| {
        let sentence = format!("cannot make a directory in {}: {error}; set TMPDIR to where you may", parent.display());
        io::Error::new(error.kind(), sentence)
    })?;
    let executable = std::env::current_exe()?;
    say(&format!("Copying files of this machine into {}; each is verified.", folder.path().display()))?;
    let mut moved = 0;
    for (name, direct) in [("through the page cache", false), ("past the page cache (--direct)", true)] {
        say(&format!("\nIts own executable, {name}:"))?;
        match copied(&executable, &folder.path().join("executable"), direct, stop)? {
            Ok(bytes) => moved += bytes,
            Err(code) => return Ok(code),
        }
    }
    say("\nA file that is nearly all hole:")?;
    let (sparse, copy) = (folder.path().join("sparse"), folder.path().join("sparse-copy"));
    write_sparse(&sparse)?;
    match copied(&sparse, &copy, false, stop)? {
        Ok(bytes) => moved += bytes,
        Err(code) => return Ok(code),
    }
    // `st_blocks` counts in units of 512 bytes, whatever a block of the filesystem is.
    let [before, after] = [allocated(&sparse)?, allocated(&copy)?];
    say(&format!(
        "  it has {} MB, of which {after} bytes are on the disk, and {before} of its source",
        megabytes(SPARSE_BYTES)
    ))?;
    say(&format!("\nAll {} MB of data arrived as they were.", megabytes(moved)))?;
    Ok(ExitCode::SUCCESS)
}

/// The bytes of data that were moved, or with what to exit after a signal.
fn copied(from: &Path, to: &Path, direct: bool, stop: &Stop) -> io::Result<Result<u64, ExitCode>> {
    let places = places::resolve(from, to)?;
    let request = Request { places, direct, depth: 16, block: 256 << 10, verify: true, fsync: false, quiet: true };
    // A run that is thrown away brings the file into memory, which would be slow for whoever comes first.
    cp::run(&request.places, false)?;
    match copier::copy(&request, stop)? {
        Ending::Stopped(stopped) => {
            complain(&stopped.to_string());
            Ok(Err(ExitCode::from(128 + stopped.signal)))
        }
        Ending::Done(report) => {
            say(&format!("  {report}"))?;
            say(&format!("  {}", report.beside(cp::run(&request.places, false)?)))?;
            Ok(Ok(report.bytes))
        }
    }
}

fn write_sparse(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    for at in ISLANDS {
        file.write_all_at(&ISLAND, at)?;
    }
    Ok(())
}

fn allocated(path: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(path)?.blocks() * 512)
}
