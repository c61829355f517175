//! The same NOPs as awaited operations of one task: what the runtime adds to the bare loop.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;

use ringmain::ops::{Nop, nop};
use ringmain::{Runtime, Submission};

use crate::Clock;

/// Submits `batches` batches of `batch` NOPs: starts all of a batch, then takes the result of each.
pub(crate) fn nops(batch: u32, batches: u32, clock: &mut Clock) -> io::Result<()> {
    let runtime = Runtime::new().map_err(io::Error::other)?;
    if batch == 1 {
        return runtime.block_on(one_by_one(batches, clock));
    }
    runtime.block_on(async {
        // A combinator for any number of futures would allocate for each batch.
        let mut submissions: Vec<Submission<Nop>> = (0..batch).map(|_| nop()).collect();
        for _ in 0..batches / 16 {
            one_batch(&mut submissions).await?;
        }
        clock.start();
        for _ in 0..batches {
            one_batch(&mut submissions).await?;
        }
        clock.stop();
        Ok(())
    })
}

/// A batch of one is what a program writes most: an operation, awaited.
async fn one_by_one(batches: u32, clock: &mut Clock) -> io::Result<()> {
    for _ in 0..batches / 16 {
        nop().await?;
    }
    clock.start();
    for _ in 0..batches {
        nop().await?;
    }
    clock.stop();
    Ok(())
}

async fn one_batch(submissions: &mut [Submission<Nop>]) -> io::Result<()> {
    let mut started = false;
    let mut ended = 0;
    poll_fn(|cx| {
        if !std::mem::replace(&mut started, true) {
            for submission in submissions.iter_mut() {
                *submission = nop();
                if Pin::new(submission).poll(cx).is_ready() {
                    return Poll::Ready(Err(io::Error::other("a NOP was answered before the kernel had it")));
                }
            }
            return Poll::Pending;
        }
        while let Some(submission) = submissions.get_mut(ended) {
            match Pin::new(submission).poll(cx) {
                Poll::Ready(Ok(())) => ended += 1,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}
