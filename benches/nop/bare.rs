//! The bare loop over the io-uring crate: nobody who uses the ring can be faster than this.
#![allow(unsafe_code, reason = "the io-uring crate's push is unsafe; `push_nop` below is the only call of it")]

use std::io;

use io_uring::{IoUring, SubmissionQueue, opcode};

use crate::Clock;

/// Submits `batches` batches of `batch` NOPs, each by one enter that also waits for the whole batch.
pub(crate) fn nops(batch: u32, batches: u32, clock: &mut Clock) -> io::Result<()> {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_no_sqarray()
        .setup_submit_all()
        .setup_clamp()
        .build(256)?;
    let (mut submitter, mut submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    let mut one_batch = || {
        for number in 0..batch {
            push_nop(&mut submissions, u64::from(number))?;
        }
        submissions.sync();
        submitter.submit_and_wait(batch as usize)?;
        completions.sync();
        let (mut answered, mut failed) = (0, 0);
        for completion in &mut completions {
            answered += 1;
            failed |= completion.result();
        }
        if answered == batch && failed == 0 {
            Ok(())
        } else {
            Err(io::Error::other(format!("{answered} of {batch} NOPs were answered, result {failed}")))
        }
    };
    for _ in 0..batches / 16 {
        one_batch()?;
    }
    clock.start();
    for _ in 0..batches {
        one_batch()?;
    }
    clock.stop();
    // A thread has 16 places for registered rings, and closing a ring does not free its place.
    submitter.unregister_ring_fd()
}

fn push_nop(submissions: &mut SubmissionQueue, user_data: u64) -> io::Result<()> {
    let entry = opcode::Nop::new().build().user_data(user_data);
    // SAFETY: I1 and I2 ask that what an entry points to outlives its completion; a NOP points to nothing. That the
    // loop gets each NOP back with result 0 is checked in every batch.
    unsafe { submissions.push(&entry) }.map_err(io::Error::other)
}
