//! One copy, from opening the source to naming the copy.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ringmain::fs::File;
use ringmain::{Config, Driver, Runtime};
use rustix::fs::Mode;

use crate::blocks::{Blocks, begins_with_data};
use crate::draft::Draft;
use crate::lanes::Pass;
use crate::options::Options;
use crate::places::Places;
use crate::progress;
use crate::report::{Report, Stopped};
use crate::side::{PAGE, Side};
use crate::signals::Stop;
use crate::{complain, while_doing};

/// Bytes of pages that a copy takes at most. They are pinned, so that nobody else can have them.
const BUFFERS_MAX: u64 = 1 << 30;

/// What is to be copied, and how.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) places: Places,
    pub(crate) direct: bool,
    pub(crate) depth: u32,
    pub(crate) block: u32,
    pub(crate) verify: bool,
    pub(crate) fsync: bool,
    pub(crate) quiet: bool,
}

/// How a copy ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Done(Report),
    /// By a signal. Nothing is left of it.
    Stopped(Stopped),
}

impl Request {
    /// # Errors
    /// A sentence, if the options together ask for more than is sensible.
    pub(crate) fn new(places: Places, options: &Options) -> io::Result<Self> {
        let Options { direct, depth, block, verify, fsync, quiet, .. } = *options;
        let bytes = u64::from(depth) * u64::from(block);
        if bytes > BUFFERS_MAX {
            let sentence = format!(
                "--depth {depth} and --block {block} would take {} MiB of memory for good; choose less of one, up to {} MiB",
                bytes >> 20,
                BUFFERS_MAX >> 20
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
        }
        Ok(Self { places, direct, depth, block, verify, fsync, quiet })
    }
}

/// Copies the file.
///
/// # Errors
/// A sentence; nothing is left of the copy then, and what had its name before still has it.
pub(crate) fn copy(request: &Request, stop: &Stop) -> io::Result<Ending> {
    let began = Instant::now();
    let cpu_before = cpu();
    // Comparing takes a buffer for each of the two files.
    let buffers = request.depth.max(2);
    let pages = buffers * (request.block / PAGE as u32);
    let entries = buffers.next_power_of_two().max(8);
    let config = Config::default().entries(entries).completions(4 * entries).pages(pages);
    let runtime = Runtime::builder().config(config).build().map_err(io::Error::other)?;
    runtime.block_on(async {
        if let Some(reason) = Driver::current().registry().unregistered_reason() {
            complain(&format!("the pages are not registered, which is slower: {reason}"));
        }
        let mut copied = copied(request, stop).await?;
        if let Ending::Done(report) = &mut copied {
            report.wall = began.elapsed() - report.verifying.wall;
            report.cpu = cpu() - cpu_before - report.verifying.cpu;
        }
        Ok(copied)
    })
}

async fn copied(request: &Request, stop: &Stop) -> io::Result<Ending> {
    let Places { from, to } = &request.places;
    let opened =
        File::open(from).await.map_err(|error| while_doing(&format!("cannot open {}", from.display()), &error))?;
    let source = opened.metadata()?;
    let (draft, target) = Draft::create(request.places.folder()).await?;
    let from = Rc::new(Side::new(opened, from, request.direct)?);
    let to_side = Rc::new(Side::new(target, to, request.direct)?);

    // A file of `/sys` says that it has a page of data, and that no block of a disk has it.
    let is_measured = source.blocks() > 0 || !begins_with_data(&from, source.len())?;
    let mut length = if is_measured { source.len() } else { 0 };
    let blocks = Blocks::new(vec![from.clone()], length, request.block);
    let pass = Pass::new(&from, &to_side, blocks, request.block, stop);
    let bar = progress::show(&pass, "copied", length, request.quiet);
    // All of it a hole at first, of which only what has data gets blocks of the disk.
    set_len(&to_side, length)?;
    let passed = pass.copy(request.depth).await;
    drop(bar);
    passed?;
    if let Some(signal) = stop.signal() {
        return Ok(Ending::Stopped(Stopped { signal, moved: pass.moved(), length, to: to.clone() }));
    }
    // No read meets the end of a file that is cut inside of a hole.
    let found = from.file().len()?;
    if found < length {
        return Err(from.is_shorter(found));
    }
    if length == 0 {
        length = copy_unmeasured(&pass, request.block as usize).await?;
    }
    // A direct write of the last block has gone up to the end of its page.
    set_len(&to_side, length)?;

    let mut report = Report::new(&request.places, pass.moved(), pass.holes());
    if request.verify {
        let (began, cpu_before) = (Instant::now(), cpu());
        let blocks = Blocks::new(vec![from.clone(), to_side.clone()], length, request.block);
        let pass = Pass::new(&from, &to_side, blocks, request.block, stop);
        let bar = progress::show(&pass, "verified", length, request.quiet);
        let passed = pass.compare(request.depth).await;
        drop(bar);
        passed?;
        report.is_verified = true;
        report.verifying.wall = began.elapsed();
        report.verifying.cpu = cpu() - cpu_before;
    }

    let permissions = Mode::from_raw_mode(source.mode() & 0o777);
    rustix::fs::fchmod(to_side.file(), permissions)
        .map_err(|errno| to_side.told("set the permissions of", errno.into()))?;
    if request.fsync {
        to_side.file().sync_all().await.map_err(|error| to_side.told("sync", error))?;
    }
    // The last look: from here on it is the copy.
    if let Some(signal) = stop.signal() {
        return Ok(Ending::Stopped(Stopped { signal, moved: report.bytes, length, to: to.clone() }));
    }
    draft.publish(to)?;
    if request.fsync {
        let folder = request.places.folder();
        let told = |error| while_doing(&format!("cannot sync the directory {}", folder.display()), &error);
        File::open(folder).await.map_err(told)?.sync_all().await.map_err(told)?;
    }
    Ok(Ending::Done(report))
}

/// A file that says it is empty may not be: those of `/proc` know their length when they have been read, and those of
/// `/sys` say one that they do not have. One buffer, as they are small. Returns the bytes that there were.
async fn copy_unmeasured(pass: &Pass, block: usize) -> io::Result<u64> {
    let mut buffer = pass.lease().await?;
    let mut at = 0;
    loop {
        buffer = pass.from.fill(buffer, at, block).await?;
        let count = buffer.len();
        if count > 0 {
            buffer = pass.to.put(buffer, at).await?;
            pass.count(count);
            at += count as u64;
        }
        if count < block {
            return Ok(at);
        }
    }
}

fn set_len(side: &Side, length: u64) -> io::Result<()> {
    rustix::fs::ftruncate(side.file(), length).map_err(|errno| side.told("set the length of", errno.into()))
}

/// CPU time of this process so far, the kernel's workers for it included: they are its threads.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
