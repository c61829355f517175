use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::ops::{Exact, ExactCancel, Payload, SendZc, Step};
use crate::runtime::{Operation, Submission};

/// A send that borrows its stream, so that no other can begin before this one is over.
///
/// Its output is that of the future inside.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Sending<'stream, T> {
    future: T,
    _stream: PhantomData<&'stream mut ()>,
}

impl<T> Sending<'_, T> {
    pub(super) fn new(future: T) -> Self {
        Self { future, _stream: PhantomData }
    }
}

impl<'stream, O: Operation> Sending<'stream, Submission<O>> {
    /// `cancel()`: asks for the end; await what this returns for what was sent. See [`Submission::cancel`].
    #[must_use = "await it to learn how the send ended"]
    pub fn cancel(self) -> Self {
        Self::new(self.future.cancel())
    }
}

impl<'stream, O: Step> Sending<'stream, Exact<O>> {
    /// `count()`: the bytes that the sends which are over have sent. See [`Exact::count`].
    pub fn count(&self) -> usize {
        self.future.count()
    }

    /// `cancel()`: asks for the end; await what this returns for how far it came. See [`Exact::cancel`].
    pub fn cancel(self) -> Sending<'stream, ExactCancel<O>> {
        Sending::new(self.future.cancel())
    }
}

impl<P: Payload> Sending<'_, SendZc<P>> {
    /// `cancel()`: asks for the end; await what this returns for what was sent. See [`SendZc::cancel`].
    pub fn cancel(self) -> Self {
        Self::new(self.future.cancel())
    }
}

impl<T: Future + Unpin> Future for Sending<'_, T> {
    type Output = T::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        Pin::new(&mut self.future).poll(cx)
    }
}
