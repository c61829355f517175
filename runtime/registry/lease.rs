//! Waiting for pages, as futures with names.

use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::anchor::Anchor;
use super::arena::{Place, Voice};
use super::fixed_buf::FixedBuf;
use super::layout::Layout;
use super::pool::{Pool, Run};
use super::segment::Segment;
use super::{PAGE_BYTES, invalid};

/// `Lease` - the future of [`Registry::lease`](super::Registry::lease): waits its turn for a [`FixedBuf`].
///
/// It joins the queue when it is first polled.
///
/// # Cancel safety
///
/// Dropping it gives up its place in the queue. Pages that were granted to it and that it did not see yet go to whoever
/// is next.
///
/// # Panics
///
/// When polled again after it was ready.
#[must_use = "a lease joins the queue when it is polled"]
pub struct Lease {
    claim: Claim,
}

/// `LeaseMany` - the future of [`Registry::lease_many`](super::Registry::lease_many): waits its turn for several
/// [`FixedBuf`]s at once.
///
/// It joins the queue when it is first polled, and holds nothing until it has all.
///
/// # Cancel safety
///
/// As [`Lease`].
///
/// # Panics
///
/// When polled again after it was ready.
#[must_use = "a lease joins the queue when it is polled"]
pub struct LeaseMany {
    claim: Claim,
}

/// What is asked for, by how far it has come.
struct Claim {
    asked: Asked,
    /// Where it was asked for.
    place: Place,
    voice: Voice,
    state: State,
}

/// Length and alignment of each, in bytes.
enum Asked {
    One([(usize, usize); 1]),
    Many(Vec<(usize, usize)>),
}

#[derive(Debug)]
enum State {
    Unpolled(Anchor),
    /// In the queue at this place, or granted pages since.
    Waiting(Anchor, u64),
    Ready,
}

impl Lease {
    pub(super) fn new(anchor: Anchor, len: usize, align: usize, place: Place, voice: Voice) -> Self {
        let asked = Asked::One([(len, align)]);
        Self { claim: Claim { asked, place, voice, state: State::Unpolled(anchor) } }
    }
}

impl LeaseMany {
    pub(super) fn new(anchor: Anchor, lens: &[usize], place: Place) -> Self {
        let asked = Asked::Many(lens.iter().map(|len| (*len, 1)).collect());
        Self { claim: Claim { asked, place, voice: Voice::Aloud, state: State::Unpolled(anchor) } }
    }
}

impl Asked {
    fn as_slice(&self) -> &[(usize, usize)] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

impl Claim {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<Vec<Segment>>> {
        let granted = match &self.state {
            State::Unpolled(anchor) => match self.runs(anchor) {
                Ok(runs) => {
                    let anchor = anchor.clone();
                    let seat = |place| self.state = State::Waiting(anchor.clone(), place);
                    anchor.take_or_wait(&runs, cx.waker(), self.place, self.voice, seat).map(Ok)
                }
                Err(error) => Some(Err(error)),
            },
            State::Waiting(anchor, place) => anchor.collect(*place, cx.waker(), self.place).map(Ok),
            State::Ready => panic!("a lease is polled after it was ready; await it once"),
        };
        match granted {
            Some(granted) => {
                self.state = State::Ready;
                Poll::Ready(granted)
            }
            None => Poll::Pending,
        }
    }

    /// The only lease that is asked for, if it is there at once: that needs no clone of the waker, and no list.
    #[inline]
    fn try_one(&mut self) -> Option<Segment> {
        let (State::Unpolled(anchor), [(len, align)]) = (&self.state, self.asked.as_slice()) else { return None };
        let run = run(&anchor.ground.layout, *len, *align).ok()?;
        let Some(grant) = anchor.take_ready(run) else {
            let segment = anchor.try_take(run, self.place, self.voice)?;
            self.state = State::Ready;
            return Some(segment);
        };
        match mem::replace(&mut self.state, State::Ready) {
            State::Unpolled(anchor) => Some(Segment::new(anchor, grant, self.place)),
            State::Waiting(..) | State::Ready => None,
        }
    }

    fn runs(&self, anchor: &Anchor) -> io::Result<Vec<Run>> {
        let layout = &anchor.ground.layout;
        let asked = self.asked.as_slice().iter();
        let runs: io::Result<Vec<Run>> = asked.map(|(len, align)| run(layout, *len, *align)).collect();
        runs.and_then(|runs| fits_together(layout, runs))
    }
}

/// The run of pages for a lease of so many bytes, if one can ever be granted.
pub(super) fn run(layout: &Layout, bytes: usize, align: usize) -> io::Result<Run> {
    let max = layout.run_max() * PAGE_BYTES;
    if bytes == 0 {
        return Err(invalid("a lease of 0 bytes has no page; ask for at least one byte".to_owned()));
    }
    if bytes > max {
        return Err(invalid(format!(
            "a lease of {bytes} bytes can never be granted: the longest run of this registry is {max} bytes ({} \
             pages); ask for less, or build the registry with more pages",
            max / PAGE_BYTES
        )));
    }
    if !align.is_power_of_two() || align > layout.align() {
        return Err(invalid(format!(
            "a lease cannot be aligned to {align} bytes: ask for a power of two up to {}, which this registry is aligned \
             to itself",
            layout.align()
        )));
    }
    Ok(Run { bytes, pages: bytes.div_ceil(PAGE_BYTES), align: align.div_ceil(PAGE_BYTES) })
}

/// Several at once have to fit an empty registry together, or they would wait for ever.
pub(super) fn fits_together(layout: &Layout, runs: Vec<Run>) -> io::Result<Vec<Run>> {
    if runs.len() > 1 && !Pool::would_fit(*layout, &runs) {
        let pages: usize = runs.iter().map(|run| run.pages).sum();
        return Err(invalid(format!(
            "these {} leases of {pages} pages together can never be granted at once by a registry of {} pages; ask for \
             less, or build the registry with more pages",
            runs.len(),
            layout.pages_max()
        )));
    }
    Ok(runs)
}

impl Future for Lease {
    type Output = io::Result<FixedBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(segment) = self.claim.try_one() {
            return Poll::Ready(Ok(FixedBuf::new(segment)));
        }
        self.claim.poll(cx).map_ok(|mut segments| FixedBuf::new(segments.pop().expect("one lease was asked for")))
    }
}

impl Future for LeaseMany {
    type Output = io::Result<Vec<FixedBuf>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.claim.poll(cx).map_ok(|segments| segments.into_iter().map(FixedBuf::new).collect())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let State::Waiting(anchor, place) = &self.state {
            anchor.abandon(*place);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens: Vec<usize> = self.asked.as_slice().iter().map(|(len, _)| *len).collect();
        f.debug_struct("Claim").field("bytes", &lens).field("state", &self.state).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.claim).finish()
    }
}

impl fmt::Debug for LeaseMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseMany").field(&self.claim).finish()
    }
}
