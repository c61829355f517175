//! Memory that begins where a page does, in safe code.

use std::ops::{Deref, DerefMut};

/// Zeros on the heap, the first of which is where it was asked for. They are all that can be seen through it.
#[derive(Debug)]
pub(crate) struct Aligned {
    pub(crate) bytes: Vec<u8>,
    /// Where in `bytes` the aligned part begins.
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Aligned {
    /// `len` bytes, the first of which is at a multiple of `alignment`.
    pub(crate) fn new(len: usize, alignment: usize) -> Self {
        let bytes = vec![0; len + alignment];
        let start = bytes.as_ptr().align_offset(alignment);
        Aligned { bytes, start, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
