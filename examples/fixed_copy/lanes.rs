//! How blocks go through the ring: lanes that each keep a read and a write in flight.
//!
//! The plain version is one loop that reads a block and writes it. A lane has two buffers instead and reads into one
//! while the other is written, so that there are as many reads as writes in flight all the time, and several lanes share
//! the blocks. Buffers are leased once, and nothing is allocated for a block.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use futures::future::join;
use ringmain::{Driver, FixedBuf, JoinHandle};

use crate::blocks::{Block, Blocks};
use crate::side::Side;
use crate::signals::Stop;

/// What the lanes of one pass over a file share.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) from: Rc<Side>,
    pub(crate) to: Rc<Side>,
    blocks: RefCell<Blocks>,
    block: usize,
    moved: Cell<u64>,
    has_failed: Cell<bool>,
    stop: Stop,
}

impl Pass {
    pub(crate) fn new(from: &Rc<Side>, to: &Rc<Side>, blocks: Blocks, block: u32, stop: &Stop) -> Rc<Self> {
        Rc::new(Self {
            from: from.clone(),
            to: to.clone(),
            blocks: RefCell::new(blocks),
            block: block as usize,
            moved: Cell::new(0),
            has_failed: Cell::new(false),
            stop: stop.clone(),
        })
    }

    /// Bytes that have been dealt with.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// Bytes of holes that have been passed over.
    pub(crate) fn holes(&self) -> u64 {
        self.blocks.borrow().holes()
    }

    /// Copies all blocks, with at most `depth` operations in flight.
    ///
    /// # Errors
    /// The first that any lane met; the others end with the blocks they have.
    pub(crate) async fn copy(self: &Rc<Self>, depth: u32) -> io::Result<()> {
        let mut lanes: Vec<JoinHandle<io::Result<()>>> = Vec::new();
        for _ in 0..depth / 2 {
            lanes.push(ringmain::spawn(self.clone().watched(Self::copy_in_two_buffers)));
        }
        if depth % 2 == 1 {
            lanes.push(ringmain::spawn(self.clone().watched(Self::copy_in_one_buffer)));
        }
        ended(lanes).await
    }

    /// Reads all blocks of both files and compares them, with at most `depth` operations in flight, but two at least.
    ///
    /// # Errors
    /// `InvalidData` if they differ; as [`copy`](Self::copy) otherwise.
    pub(crate) async fn compare(self: &Rc<Self>, depth: u32) -> io::Result<()> {
        let lanes = (0..(depth / 2).max(1)).map(|_| ringmain::spawn(self.clone().watched(Self::compare_blocks)));
        ended(lanes.collect()).await
    }

    pub(crate) async fn lease(&self) -> io::Result<FixedBuf> {
        Driver::current().registry().lease(self.block).await
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.moved.set(self.moved.get() + bytes as u64);
    }

    /// One lane, whose error ends the others.
    async fn watched<F: Future<Output = io::Result<()>>>(
        self: Rc<Self>,
        lane: impl FnOnce(Rc<Self>) -> F,
    ) -> io::Result<()> {
        let ended = lane(self.clone()).await;
        if ended.is_err() {
            self.has_failed.set(true);
        }
        ended
    }

    async fn copy_in_two_buffers(self: Rc<Self>) -> io::Result<()> {
        let Some(mut block) = self.next()? else { return Ok(()) };
        let mut empty = self.lease().await?;
        let mut full = self.read(self.lease().await?, block).await?;
        while let Some(next) = self.next()? {
            let (written, read) = join(self.write(full, block), self.read(empty, next)).await;
            (empty, full, block) = (written?, read?, next);
        }
        self.write(full, block).await?;
        Ok(())
    }

    async fn copy_in_one_buffer(self: Rc<Self>) -> io::Result<()> {
        let mut buffer = self.lease().await?;
        while let Some(block) = self.next()? {
            buffer = self.read(buffer, block).await?;
            buffer = self.write(buffer, block).await?;
        }
        Ok(())
    }

    async fn compare_blocks(self: Rc<Self>) -> io::Result<()> {
        let (mut ours, mut theirs) = (self.lease().await?, self.lease().await?);
        while let Some(Block { at, len }) = self.next()? {
            let (source, copy) = join(self.from.fill(ours, at, len), self.to.fill(theirs, at, len)).await;
            (ours, theirs) = (source?, copy?);
            if ours[..] != theirs[..] {
                let differs = ours.iter().zip(&theirs[..]).take_while(|(source, copy)| source == copy).count();
                let sentence = format!(
                    "the copy differs from its source at byte {}; was that written to in the meantime?",
                    at + differs as u64
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, sentence));
            }
            self.count(len);
        }
        Ok(())
    }

    async fn read(&self, buffer: FixedBuf, block: Block) -> io::Result<FixedBuf> {
        let buffer = self.from.fill(buffer, block.at, block.len).await?;
        if buffer.len() < block.len {
            return Err(self.from.is_shorter(block.at + buffer.len() as u64));
        }
        Ok(buffer)
    }

    async fn write(&self, buffer: FixedBuf, block: Block) -> io::Result<FixedBuf> {
        let buffer = self.to.put(buffer, block.at).await?;
        self.count(block.len);
        Ok(buffer)
    }

    /// The next block, or none when all are given out, when a lane has failed, and when the user wants no more.
    fn next(&self) -> io::Result<Option<Block>> {
        if self.has_failed.get() || self.stop.signal().is_some() {
            return Ok(None);
        }
        self.blocks.borrow_mut().next()
    }
}

/// Waits for all of them, whatever becomes of one: a lane that is dropped would leave its operations in flight.
async fn ended(lanes: Vec<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    let mut outcome = Ok(());
    for lane in lanes {
        let ended = lane.await.map_err(io::Error::other).flatten();
        if outcome.is_ok() {
            outcome = ended;
        }
    }
    outcome
}
