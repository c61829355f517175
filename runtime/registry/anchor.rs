//! What keeps an arena mapped (I5): a count of those who need it.
//!
//! The plain version is an `Arc` of the arena in each lease. Threads that lease and release would then all write to the
//! one count of it, and wait for each other's caches. Here each thread has a count of its own, in an allocation of its
//! own, and these are what the arena's count counts.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::arena::{Arena, Place, Voice};
use super::magazines::{MAGAZINES, own_place};
use super::pool::Run;
use super::queue::Grant;
use super::segment::Segment;

/// A share of an arena, which lives for as long.
#[derive(Clone)]
pub(super) struct Anchor(Arc<Apart>);

/// On other cache lines than its count, which is written to.
#[repr(align(128))]
struct Apart(Arc<Arena>);

/// One for each place that threads have, made when it is first needed.
#[derive(Clone, Default)]
pub(super) struct Anchors(Arc<[OnceLock<Anchor>; MAGAZINES]>);

impl Anchors {
    /// This thread's.
    #[inline]
    pub(super) fn own(&self, arena: &Arc<Arena>) -> &Anchor {
        self.0[own_place()].get_or_init(|| Anchor(Arc::new(Apart(Arc::clone(arena)))))
    }
}

impl Anchor {
    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.0.0
    }

    pub(super) fn try_take(&self, run: Run, place: Place, voice: Voice) -> Option<Segment> {
        if let Some(grant) = self.take_ready(run) {
            return Some(self.segment(grant, place));
        }
        Arena::try_take(self, run, voice, |grant| self.segment(grant, place))
    }

    /// Takes all of the runs at once if nobody waits and they are there; else takes a place at the end of the queue, and
    /// says which before any foreign code runs.
    pub(super) fn take_or_wait(
        &self,
        runs: &[Run],
        waker: &Waker,
        place: Place,
        voice: Voice,
        seat: impl FnOnce(u64),
    ) -> Option<Vec<Segment>> {
        Arena::take_or_wait(self, runs, waker, voice, |grants| self.segments(grants, place), seat)
    }

    pub(super) fn try_take_all(&self, runs: &[Run], place: Place) -> Option<Vec<Segment>> {
        Arena::try_take_all(self, runs, |grants| self.segments(grants, place))
    }

    /// What was granted to this place in the queue, if anything was; else remembers whom to wake.
    pub(super) fn collect(&self, ticket: u64, waker: &Waker, place: Place) -> Option<Vec<Segment>> {
        Arena::collect(self, ticket, waker, |grants| self.segments(grants, place))
    }

    fn segments(&self, grants: Vec<Grant>, place: Place) -> Vec<Segment> {
        grants.into_iter().map(|grant| self.segment(grant, place)).collect()
    }

    fn segment(&self, grant: Grant, place: Place) -> Segment {
        Segment::new(self.clone(), grant, place)
    }
}

impl Deref for Anchor {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        self.arena()
    }
}

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anchor").finish_non_exhaustive()
    }
}
