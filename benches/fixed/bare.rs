//! The bare loop over the io-uring crate: nobody who uses the ring can be faster than this.
#![allow(unsafe_code, reason = "the io-uring crate's push, registering memory and advice about it are unsafe")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{EnterFlags, IoUring, SubmissionQueue, opcode, types};

use crate::aligned::Aligned;
use crate::work::{Job, Meter};

/// What the registry of ours is aligned to, for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Keeps the depth full: each enter submits as many as have ended, and waits for one more.
pub(crate) fn run(job: &Job, meter: &mut Meter) -> io::Result<()> {
    let file = job.open()?;
    let block = job.kind.block();
    let mut memory = Aligned::new(job.depth * block, HUGE_PAGE);
    ask_for_huge_pages(&mut memory)?;
    memory.fill(0);
    // After the memory, so that it is closed before that is freed.
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_no_sqarray()
        .setup_submit_all()
        .setup_clamp()
        .build(256)?;
    // As the runtime waits: a wait for a disk is not accounted as one, where the kernel can be told.
    let can_wait_idle = ring.params().is_feature_no_iowait();
    let wait_flags = if can_wait_idle { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
    let (mut submitter, mut submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    register(&submitter, &mut memory)?;

    let mut places = vec![0; job.depth];
    let mut in_flight = 0;
    meter.start();
    for (slot, place) in places.iter_mut().enumerate() {
        let Some(at) = job.work.next() else { break };
        *place = at;
        push(&mut submissions, &file, &mut memory, job, slot, at)?;
        in_flight += 1;
    }
    let mut failed = Ok(());
    while in_flight > 0 {
        submissions.sync();
        submitter.submit_with_args_and_flags(1, &types::SubmitArgs::new(), wait_flags)?;
        completions.sync();
        for completion in &mut completions {
            in_flight -= 1;
            let slot = completion.user_data() as usize;
            let bytes = &memory[slot * block..][..block];
            let checked = match completion.result() {
                count if count >= 0 => job.work.check(count as usize, bytes, places[slot]),
                errno => Err(io::Error::from_raw_os_error(-errno)),
            };
            failed = failed.and(checked);
            // After a failure the rest only ends: nothing may be in flight when the memory goes.
            if failed.is_ok()
                && let Some(at) = job.work.next()
            {
                places[slot] = at;
                push(&mut submissions, &file, &mut memory, job, slot, at)?;
                in_flight += 1;
            }
        }
    }
    meter.stop();
    // A thread has 16 places for registered rings, and closing a ring does not free its place.
    submitter.unregister_ring_fd()?;
    failed
}

fn push(
    submissions: &mut SubmissionQueue,
    file: &File,
    memory: &mut Aligned,
    job: &Job,
    slot: usize,
    at: u64,
) -> io::Result<()> {
    let block = job.kind.block();
    let bytes = &mut memory[slot * block..][..block];
    let (fd, len) = (types::Fd(file.as_raw_fd()), block as u32);
    let entry = if job.is_write() {
        opcode::WriteFixed::new(fd, bytes.as_ptr(), len, 0).offset(at).build()
    } else {
        opcode::ReadFixed::new(fd, bytes.as_mut_ptr(), len, 0).offset(at).build()
    };
    // SAFETY: I1 and I2 ask that what an entry points to outlives its completion. The memory is neither moved nor freed
    // before the loop has reaped everything, and no other entry has this part of it. That the bytes are those of their
    // place is checked for every read.
    unsafe { submissions.push(&entry.user_data(slot as u64)) }.map_err(io::Error::other)
}

fn register(submitter: &io_uring::Submitter, memory: &mut Aligned) -> io::Result<()> {
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: I5 asks that registered memory is freed after the ring is closed. The caller's memory is declared before
    // its ring, which is therefore dropped first. Reads that met other memory would fail their check.
    unsafe { submitter.register_buffers(&[buffer]) }
}

fn ask_for_huge_pages(memory: &mut Aligned) -> io::Result<()> {
    // Whole pages only: what lies beside them on the heap is not ours to advise about.
    let len = memory.len() & !4095;
    // SAFETY: I4 asks that the bytes are reachable in one way only; they are borrowed here, and this advice changes
    // none of them. Reads that met other memory would fail their check.
    unsafe { rustix::mm::madvise(memory.as_mut_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage) }?;
    Ok(())
}
