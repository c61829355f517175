//! The files that are read and written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags};
use tempfile::TempDir;

use crate::work::Kind;

/// Each page of a file begins with its own offset. Direct operations are aligned to it, too.
pub(crate) const PAGE: usize = 4096;

/// Which way to a file's bytes is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file on a disk, past the page cache.
    Direct,
    /// A file on a disk that is in the page cache.
    Buffered,
    /// A file in memory.
    Memory,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Direct => "direct",
            Place::Buffered => "buffered",
            Place::Memory => "tmpfs",
        }
    }
}

/// A file to read and one to write, on a disk and in memory. They are removed at the end.
#[derive(Debug)]
pub(crate) struct Files {
    disk: Pair,
    memory: Option<Pair>,
}

#[derive(Debug)]
struct Pair {
    read: PathBuf,
    write: PathBuf,
    _folder: TempDir,
}

impl Files {
    /// Makes files of so many bytes. Where there is no tmpfs, it says so.
    pub(crate) fn make(bytes: u64) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let filesystem = match rustix::fs::statfs(folder)?.f_type {
            0xef53 => "ext4".to_owned(),
            other => format!("type {other:#x} of statfs(2)"),
        };
        println!("files of {} MiB in {} ({filesystem})", bytes >> 20, folder.display());
        let memory = match tempfile::tempdir_in("/dev/shm") {
            Ok(folder) => Some(Pair::make(folder, bytes)?),
            Err(error) => {
                println!("SKIPPED: nothing in tmpfs is measured, there is no /dev/shm: {error}");
                None
            }
        };
        Ok(Files { disk: Pair::make(tempfile::tempdir_in(folder)?, bytes)?, memory })
    }

    /// The file for one kind of work, out of the page cache or in it; none where this machine has no such place.
    pub(crate) fn prepare(&self, kind: Kind, place: Place) -> io::Result<Option<&Path>> {
        let pair = match place {
            Place::Direct | Place::Buffered => &self.disk,
            Place::Memory => match &self.memory {
                Some(memory) => memory,
                None => return Ok(None),
            },
        };
        let path = if kind == Kind::SequentialWrite { &pair.write } else { &pair.read };
        match place {
            Place::Direct => {
                let file = File::open(path)?;
                file.sync_all()?;
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
                if let Err(error) = open(path, false, true) {
                    println!("SKIPPED: nothing direct is measured, this filesystem has no O_DIRECT: {error}");
                    return Ok(None);
                }
            }
            Place::Buffered => {
                io::copy(&mut File::open(path)?, &mut io::sink())?;
            }
            Place::Memory => {}
        }
        Ok(Some(path))
    }
}

impl Pair {
    fn make(folder: TempDir, bytes: u64) -> io::Result<Self> {
        let (read, write) = (folder.path().join("read"), folder.path().join("write"));
        let mut file = BufWriter::with_capacity(1 << 20, File::create_new(&read)?);
        // So that a read can be told from another.
        let mut page = [0x5a; PAGE];
        for at in (0..bytes).step_by(PAGE) {
            page[..8].copy_from_slice(&at.to_le_bytes());
            file.write_all(&page)?;
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::copy(&read, &write)?;
        Ok(Pair { read, write, _folder: folder })
    }
}

/// Opens a file to read it or to write it.
pub(crate) fn open(path: &Path, write: bool, direct: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(!write).write(write);
    if direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    options.open(path)
}
