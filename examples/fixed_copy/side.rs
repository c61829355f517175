//! One end of a copy: a file, and whether it is used past the page cache.

use std::io;
use std::path::Path;

use ringmain::fs::File;
use ringmain::{FixedBuf, IoBuf};
use rustix::fs::OFlags;

use crate::complain;

/// What direct operations are aligned to, in memory, in the file and in length. Disks ask for 512 or 4096 bytes.
pub(crate) const PAGE: usize = 4096;

/// A file that is read or written in blocks of registered pages.
#[derive(Debug)]
pub(crate) struct Side {
    file: File,
    name: String,
    is_direct: bool,
}

impl Side {
    /// Uses `file`, which is spoken of by the name of `path`, and past the page cache if that is wanted and can be done.
    ///
    /// # Errors
    /// Those of `fcntl(2)`, with a sentence.
    pub(crate) fn new(file: File, path: &Path, direct: bool) -> io::Result<Self> {
        let mut side = Self { file, name: path.display().to_string(), is_direct: false };
        if direct {
            side.is_direct = side.go_direct()?;
        }
        Ok(side)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads from `at` on until `len` bytes have come or the file has ended. The buffer shows what came.
    pub(crate) async fn fill(&self, mut buffer: FixedBuf, at: u64, len: usize) -> io::Result<FixedBuf> {
        let whole = self.whole(len);
        let mut filled = 0;
        while filled < len {
            let (count, slice) = self.file.read_fixed_at(buffer.slice(filled..whole), at + filled as u64).await;
            buffer = slice.into_inner();
            let count = count.map_err(|error| self.told("read", error))?;
            filled += count;
            // Past the page cache a read ends inside of a page only where the file does.
            if count == 0 || self.is_direct && !filled.is_multiple_of(PAGE) {
                break;
            }
        }
        buffer.set_len(filled.min(len));
        Ok(buffer)
    }

    /// Writes what the buffer shows to `at`. A direct write is of whole pages: the rest of the last one is zeros, and has
    /// to be cut off.
    pub(crate) async fn put(&self, mut buffer: FixedBuf, at: u64) -> io::Result<FixedBuf> {
        let (len, whole) = (buffer.len(), self.whole(buffer.len()));
        buffer.as_capacity_mut()[len..whole].fill(0);
        buffer.set_len(whole);
        let mut written = 0;
        while written < whole {
            let (count, slice) = self.file.write_fixed_at(buffer.slice(written..), at + written as u64).await;
            buffer = slice.into_inner();
            written += match count {
                Ok(0) => return Err(self.told("write", io::ErrorKind::WriteZero.into())),
                Ok(count) => count,
                Err(error) => return Err(self.told("write", error)),
            };
        }
        Ok(buffer)
    }

    /// The error, as a sentence about this file.
    pub(crate) fn told(&self, what: &str, error: io::Error) -> io::Error {
        let advice = match error.kind() {
            io::ErrorKind::FileTooLarge => {
                "; raise `ulimit -f`, or copy to a filesystem that takes files of this length"
            }
            io::ErrorKind::StorageFull => "; free some space, or copy to another place",
            io::ErrorKind::InvalidInput if self.is_direct => "; leave --direct out, which this disk may not support so",
            _ => "",
        };
        io::Error::new(error.kind(), format!("cannot {what} {}: {error}{advice}", self.name))
    }

    /// The error of a file that ends before it should.
    pub(crate) fn is_shorter(&self, end: u64) -> io::Error {
        let sentence = format!("it became shorter while it was copied, and ends at byte {end}; copy it again");
        self.told("read", io::Error::new(io::ErrorKind::UnexpectedEof, sentence))
    }

    fn whole(&self, len: usize) -> usize {
        if self.is_direct { len.next_multiple_of(PAGE) } else { len }
    }

    /// Not by `open(2)`, which makes the file and refuses it then.
    fn go_direct(&self) -> io::Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.file).map_err(|errno| self.told("open", errno.into()))?;
        match rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::INVAL) => {
                complain(&format!(
                    "the filesystem of {} has no O_DIRECT, so that file goes through the page cache",
                    self.name
                ));
                Ok(false)
            }
            Err(errno) => Err(self.told("use O_DIRECT on", errno.into())),
        }
    }
}
