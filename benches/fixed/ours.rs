//! Tasks of the runtime, one for each operation in flight.

use std::io;
use std::rc::Rc;

use ringmain::fs::File;
use ringmain::{Config, Driver, FixedBuf, IoBuf, JoinHandle, Runtime};

use crate::aligned::Aligned;
use crate::files::PAGE;
use crate::work::{Job, Meter};

/// Reads and writes of registered pages.
pub(crate) fn fixed(job: &Job, meter: &mut Meter) -> io::Result<()> {
    runtime(job)?.block_on(async {
        let file = Rc::new(File::from(job.open()?));
        let registry = Driver::current().registry().clone();
        if let Some(reason) = registry.unregistered_reason() {
            return Err(io::Error::other(format!("registered pages are to be measured: {reason}")));
        }
        let mut buffers: Vec<FixedBuf> = Vec::new();
        for _ in 0..job.depth {
            let mut buffer = registry.lease(job.kind.block()).await?;
            buffer.set_len(job.kind.block());
            buffers.push(buffer);
        }
        meter.start();
        let lanes = buffers.into_iter().map(|mut buffer| {
            let (file, work, is_write) = (file.clone(), job.work.clone(), job.is_write());
            ringmain::spawn(async move {
                while let Some(at) = work.next() {
                    let (count, back) = if is_write {
                        file.write_fixed_at(buffer, at).await
                    } else {
                        file.read_fixed_at(buffer, at).await
                    };
                    buffer = back;
                    work.check(count?, &buffer, at)?;
                }
                Ok(())
            })
        });
        ended(lanes.collect()).await?;
        meter.stop();
        Ok(())
    })
}

/// Reads and writes of owned buffers.
pub(crate) fn plain(job: &Job, meter: &mut Meter) -> io::Result<()> {
    runtime(job)?.block_on(async {
        let file = Rc::new(File::from(job.open()?));
        let buffers: Vec<Aligned> = (0..job.depth).map(|_| Aligned::new(job.kind.block(), PAGE)).collect();
        meter.start();
        let lanes = buffers.into_iter().map(|Aligned { mut bytes, start, len }| {
            let (file, work, is_write) = (file.clone(), job.work.clone(), job.is_write());
            ringmain::spawn(async move {
                while let Some(at) = work.next() {
                    let slice = bytes.slice(start..start + len);
                    let (count, slice) =
                        if is_write { file.write_at(slice, at).await } else { file.read_at(slice, at).await };
                    bytes = slice.into_inner();
                    work.check(count?, &bytes[start..], at)?;
                }
                Ok(())
            })
        });
        ended(lanes.collect()).await?;
        meter.stop();
        Ok(())
    })
}

fn runtime(job: &Job) -> io::Result<Runtime> {
    let pages = job.depth * job.kind.block() / 4096;
    let config = Config::default().entries(256).completions(512).pages(pages as u32);
    Runtime::builder().config(config).build().map_err(io::Error::other)
}

async fn ended(lanes: Vec<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    for lane in lanes {
        lane.await.map_err(io::Error::other)??;
    }
    Ok(())
}
