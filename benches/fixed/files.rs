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
    can_direct: bool,
}

#[derive(Debug)]
struct Pair {
    read: PathBuf,
    write: PathBuf,
    _folder: TempDir,
}

impl Files {
    /// Makes files of so many bytes. Where there is no tmpfs or no O_DIRECT, it says so.
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
        let disk = Pair::make(tempfile::tempdir_in(folder)?, bytes)?;
        let direct = open(&disk.read, false, true);
        if let Err(error) = &direct {
            println!("SKIPPED: nothing direct is measured, this filesystem has no O_DIRECT: {error}");
        }
        Ok(Files { disk, memory, can_direct: direct.is_ok() })
    }

    /// The file for one kind of work; none where this machine has no such place.
    pub(crate) fn path(&self, kind: Kind, place: Place) -> Option<&Path> {
        let pair = match place {
            Place::Direct if !self.can_direct => return None,
            Place::Direct | Place::Buffered => &self.disk,
            Place::Memory => self.memory.as_ref()?,
        };
        Some(if kind == Kind::SequentialWrite { &pair.write } else { &pair.read })
    }
}

/// Brings a file out of the page cache, or into it.
pub(crate) fn prepare(path: &Path, place: Place) -> io::Result<()> {
    let mut file = File::open(path)?;
    match place {
        Place::Direct => {
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Place::Buffered | Place::Memory => {
            io::copy(&mut file, &mut io::sink())?;
        }
    }
    Ok(())
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
