//! The result of an operation whose memory the kernel still has.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Stage, Submission};
use crate::runtime::buf::Ticket;
use crate::runtime::completion::{Completion, Creates};
use crate::runtime::operation::Operation;

/// What [`Submission::poll_answer`] finds.
#[derive(Debug)]
pub enum Answer<T> {
    /// The operation has its result, and the kernel still has its memory: poll the submission for that.
    Early(io::Result<u32>),
    /// The operation is over, and this is its output.
    Output(T),
}

impl<O: Operation> Submission<O> {
    /// `poll_answer(cx)`: as a poll, and is ready already when the result of a zero-copy send is known.
    ///
    /// Such an operation has two completions: the result, and a notification that the kernel has let go of the memory,
    /// which may come a round trip of the network later. After [`Answer::Early`] the submission goes on; await it, or
    /// drop it, which cancels nothing any more. Any other operation answers [`Answer::Output`] only.
    ///
    /// # Panics
    /// As a poll does, after [`Answer::Output`] too.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer<O::Output>> {
        if let Poll::Ready(output) = Pin::new(&mut *self).poll(cx) {
            return Poll::Ready(Answer::Output(output));
        }
        let Stage::InFlight { slot, .. } = &*self.stage else {
            return Poll::Pending;
        };
        match slot.early_result() {
            Some(result) => {
                let mut completion = Completion::answered(Ticket::NONE, result, 0, Creates::Nothing);
                Poll::Ready(Answer::Early(completion.result()))
            }
            None => Poll::Pending,
        }
    }
}
