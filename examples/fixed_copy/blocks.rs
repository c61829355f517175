//! The places of a file that have data, cut into blocks.

use std::io;
use std::rc::Rc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::side::{PAGE, Side};

/// Bytes to be moved by one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) at: u64,
    pub(crate) len: usize,
}

/// All blocks of some files of the same length, in order: what is data in any of them, and nothing of what is a hole in
/// all.
#[derive(Debug)]
pub(crate) struct Blocks {
    files: Vec<Rc<Side>>,
    length: u64,
    block: u64,
    at: u64,
    /// Up to here there is data, beginning at `at`.
    data_end: u64,
    holes: u64,
}

impl Blocks {
    pub(crate) fn new(files: Vec<Rc<Side>>, length: u64, block: u32) -> Self {
        Self { files, length, block: block.into(), at: 0, data_end: 0, holes: 0 }
    }

    /// The next block, if there is one more.
    ///
    /// # Errors
    /// Those of `lseek(2)`, with the name of the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<Block>> {
        if self.at == self.data_end && !self.find_data()? {
            return Ok(None);
        }
        // To the next multiple of a block's size, so that blocks behind a hole lie as well as the others.
        let len = (self.block - self.at % self.block).min(self.data_end - self.at);
        let block = Block { at: self.at, len: len as usize };
        self.at += len;
        Ok(Some(block))
    }

    /// Bytes of holes passed so far.
    pub(crate) fn holes(&self) -> u64 {
        self.holes
    }

    /// Moves to the next data, and says whether there is any.
    fn find_data(&mut self) -> io::Result<bool> {
        let mut found: Option<(u64, u64)> = None;
        for file in &self.files {
            if let Some((start, end)) = data_from(file, self.at, self.length)?
                && found.is_none_or(|(first, _)| start < first)
            {
                found = Some((start, end));
            }
        }
        let Some((start, end)) = found else {
            self.holes += self.length - self.at;
            (self.at, self.data_end) = (self.length, self.length);
            return Ok(false);
        };
        // Whole pages, as direct operations want them, and never back into what was a block already.
        let page = PAGE as u64;
        let start = (start - start % page).max(self.at).min(self.length);
        self.holes += start - self.at;
        self.at = start;
        self.data_end = end.next_multiple_of(page).min(self.length);
        Ok(self.at < self.data_end)
    }
}

/// Whether a file has data at its very beginning.
///
/// # Errors
/// Those of `lseek(2)`, with the name of the file.
pub(crate) fn begins_with_data(file: &Side, length: u64) -> io::Result<bool> {
    Ok(data_from(file, 0, length)?.is_some_and(|(start, _)| start == 0))
}

/// The first data at or behind a place: where it begins, and where the hole after it does.
fn data_from(file: &Side, at: u64, length: u64) -> io::Result<Option<(u64, u64)>> {
    let told = |errno: Errno| file.told("look for holes in", errno.into());
    match rustix::fs::seek(file.file(), SeekFrom::Data(at)) {
        Ok(start) => {
            match rustix::fs::seek(file.file(), SeekFrom::Hole(start)) {
                Ok(end) => Ok(Some((start, end))),
                // It was cut in the meantime, and there is none any more.
                Err(Errno::NXIO) => Ok(None),
                Err(errno) => Err(told(errno)),
            }
        }
        // There is none.
        Err(Errno::NXIO) => Ok(None),
        // A file of `/proc` knows of no holes.
        Err(Errno::INVAL) => Ok((at < length).then_some((at, length))),
        Err(errno) => Err(told(errno)),
    }
}
