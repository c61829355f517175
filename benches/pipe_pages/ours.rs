//! The same transfers as futures: from owned buffers, from registered pages, and as spliced pages.
//!
//! Each thread builds a runtime of its own inside the measured time, so those are kept small.

use std::io::{self, Write};
use std::time::Duration;

use ringmain::ops::{self, End, PipeReader, PipeWriter, Route, fs::File};
use ringmain::{Config, Driver, Fd, FixedBuf, IoBuf, Runtime};

use crate::{Pipe, TRANSFER, timed};

/// Pages of the registry that one transfer takes.
const PAGES: u32 = (TRANSFER / 4096) as u32;

/// `write` and `read` of owned buffers.
pub(crate) fn plain(pipe: Pipe, bytes: u64) -> io::Result<Duration> {
    let Pipe { reader, writer } = pipe;
    timed(
        bytes,
        move || {
            runtime()?.block_on(async {
                let writer = PipeWriter::from_std(writer.into())?;
                let mut source = vec![0x5a; TRANSFER];
                let mut left = bytes;
                while left > 0 {
                    let (written, slice) = ops::write(&writer, source.slice(..chunk(left))).await;
                    left -= written? as u64;
                    source = slice.into_inner();
                }
                Ok(())
            })
        },
        move || {
            runtime()?.block_on(async {
                let reader = PipeReader::from_std(reader.into())?;
                let mut target = Vec::with_capacity(TRANSFER);
                let mut moved = 0;
                loop {
                    let (count, buffer) = ops::read(&reader, target).await;
                    match count? {
                        0 => return Ok(moved),
                        count => moved += count as u64,
                    }
                    target = buffer;
                }
            })
        },
    )
}

/// `write_fixed` and `read_fixed` of registered pages.
pub(crate) fn fixed(pipe: Pipe, bytes: u64) -> io::Result<Duration> {
    let Pipe { reader, writer } = pipe;
    timed(
        bytes,
        move || {
            runtime()?.block_on(async {
                let writer = PipeWriter::from_std(writer.into())?;
                let mut source = lease().await?;
                source.as_capacity_mut().fill(0x5a);
                source.set_len(TRANSFER);
                let mut left = bytes;
                while left > 0 {
                    let (written, slice) = ops::write_fixed(&writer, source.slice(..chunk(left))).await;
                    left -= written? as u64;
                    source = slice.into_inner();
                }
                Ok(())
            })
        },
        move || {
            runtime()?.block_on(async {
                let reader = PipeReader::from_std(reader.into())?;
                let mut target = lease().await?;
                let mut moved = 0;
                loop {
                    let (count, buffer) = ops::read_fixed(&reader, target).await;
                    match count? {
                        0 => return Ok(moved),
                        count => moved += count as u64,
                    }
                    target = buffer;
                }
            })
        },
    )
}

/// Pages of a file in memory, spliced into the pipe by one thread and out of it into `/dev/null` by the other.
///
/// No byte is copied or looked at, so this is the cost of handing pages on. The input's route is forced: `Auto` gives
/// files to worker threads, as most can wait for a disk, but this one is in memory.
pub(crate) fn splice(pipe: Pipe, bytes: u64) -> io::Result<Duration> {
    let Pipe { reader, writer } = pipe;
    timed(
        bytes,
        move || {
            let memory = rustix::fs::memfd_create("pipe_pages", rustix::fs::MemfdFlags::CLOEXEC)?;
            let mut memory = std::fs::File::from(memory);
            memory.write_all(&[0x5a; TRANSFER])?;
            runtime()?.block_on(async {
                let source = File::from(memory);
                let writer = PipeWriter::from_std(writer.into())?;
                let mut left = bytes;
                while left > 0 {
                    let spliced = ops::splice(End::at(&source, 0), &writer, chunk(left)).route(Route::Inline);
                    left -= spliced.await? as u64;
                }
                Ok(())
            })
        },
        move || {
            let sink = Fd::new(std::fs::File::options().write(true).open("/dev/null")?.into());
            runtime()?.block_on(async {
                let reader = PipeReader::from_std(reader.into())?;
                let mut moved = 0;
                loop {
                    match ops::splice(&reader, &sink, TRANSFER).await? {
                        0 => return Ok(moved),
                        count => moved += count as u64,
                    }
                }
            })
        },
    )
}

fn runtime() -> io::Result<Runtime> {
    let config = Config::default().entries(8).completions(64).pages(PAGES);
    Runtime::builder().config(config).build().map_err(io::Error::other)
}

async fn lease() -> io::Result<FixedBuf> {
    Driver::current().registry().lease(TRANSFER).await.map_err(io::Error::other)
}

fn chunk(left: u64) -> usize {
    left.min(TRANSFER as u64) as usize
}
