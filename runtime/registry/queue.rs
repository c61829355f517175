//! Who waits for pages, and the free ones: what the registry's one lock protects.
//!
//! Waiting is strictly first come, first served. A lease that does not fit yet holds back everyone behind it, whatever
//! their size: a large lease is never starved by a stream of small ones. Nothing here runs foreign code: wakers are
//! handed out to be woken, and dropped, once the lock is released.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::PAGE_BYTES;
use super::arena::Ground;
use super::layout::Layout;
use super::pool::{Pool, Run};
use super::snapshot::Snapshot;

/// When the system had no memory to grow by, somebody may wait though nobody has anything to give back: how long until it
/// is asked again.
const GROW_AGAIN: Duration = Duration::from_secs(1);

/// Pages taken out of the free ones, for one holder.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) first_page: usize,
    /// The length asked for; the pages are those that it touches.
    pub(super) bytes: usize,
}

impl Grant {
    pub(super) fn pages(&self) -> Range<usize> {
        self.first_page..self.first_page + self.bytes.div_ceil(PAGE_BYTES)
    }
}

#[derive(Debug)]
struct Waiter {
    runs: Vec<Run>,
    waker: Waker,
    since: Instant,
}

/// What is left to do when nothing is locked any more: foreign code.
#[must_use = "it wakes those that were granted pages"]
#[derive(Debug, Default)]
pub(super) struct Later {
    woken: Vec<Waker>,
    warnings: Vec<(&'static str, io::Error)>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pool: Pool,
    /// In order of arrival. I7: one place for each living lease, which gives it up when it is dropped.
    waiting: BTreeMap<u64, Waiter>,
    /// Granted to a place whose future has not been polled since.
    granted: BTreeMap<u64, Vec<Grant>>,
    next_place: u64,
    waits: u64,
    wait_total: Duration,
    wait_max: Duration,
    chunks_mapped: u64,
    /// How often a chunk was added for a lease that did not fit.
    growths: u64,
    /// The system refused to let the registry grow, which is said once.
    growth_refused: bool,
    /// When it did so last, and has not been asked again since.
    refused_at: Option<Instant>,
    /// Left to do by those who could not log, and who wake nobody, as they only take.
    unsaid: Later,
}

impl Queue {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            pool: Pool::new(layout),
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            next_place: 0,
            waits: 0,
            wait_total: Duration::ZERO,
            wait_max: Duration::ZERO,
            chunks_mapped: 0,
            growths: 0,
            growth_refused: false,
            refused_at: None,
            unsaid: Later::default(),
        }
    }

    /// Fills in who waits, and who did.
    pub(super) fn count(&self, snapshot: &mut Snapshot) {
        snapshot.waiting = self.waiting.len();
        snapshot.waits = self.waits;
        snapshot.wait_total = self.wait_total;
        snapshot.wait_max = self.wait_max;
        snapshot.chunks_mapped = self.chunks_mapped;
    }

    /// What was left unsaid.
    pub(super) fn take_unsaid(&mut self) -> Later {
        std::mem::take(&mut self.unsaid)
    }

    /// Has the next one say it who may.
    pub(super) fn leave_unsaid(&mut self, later: Later) {
        self.unsaid.woken.extend(later.woken);
        self.unsaid.warnings.extend(later.warnings);
    }

    /// Takes a run now, unless somebody waits already.
    pub(super) fn try_take(&mut self, run: Run, ground: &Ground, later: &mut Later) -> Option<Grant> {
        if self.waiting.is_empty() { self.take(run, ground, later) } else { None }
    }

    /// Takes all of the runs now, or none, unless somebody waits already.
    pub(super) fn try_take_all(&mut self, runs: &[Run], ground: &Ground, later: &mut Later) -> Option<Vec<Grant>> {
        if self.waiting.is_empty() { self.take_all(runs, ground, later) } else { None }
    }

    /// Takes all of the runs now, unless somebody waits already; else takes a place at the end of the queue.
    pub(super) fn take_or_wait(
        &mut self,
        runs: &[Run],
        waker: impl FnOnce() -> Waker,
        ground: &Ground,
        later: &mut Later,
    ) -> Result<Vec<Grant>, u64> {
        if self.waiting.is_empty() {
            // What others release from here on comes to this queue, so that nothing is missed by the last look.
            ground.ledger.magazines.close();
            if let Some(grants) = self.take_all(runs, ground, later) {
                ground.ledger.magazines.open();
                return Ok(grants);
            }
        }
        let place = self.next_place;
        self.next_place += 1;
        self.waiting.insert(place, Waiter { runs: runs.to_vec(), waker: waker(), since: Instant::now() });
        Err(place)
    }

    /// What was granted to this place. If nothing was, `waker` replaces the one known for it. The waker that is not
    /// needed any more is handed back.
    #[must_use = "dropping a waker is foreign code: do it after the lock is released"]
    pub(super) fn collect(&mut self, place: u64, waker: Waker) -> (Option<Vec<Grant>>, Waker) {
        match self.waiting.get_mut(&place) {
            Some(waiter) => (None, std::mem::replace(&mut waiter.waker, waker)),
            None => (self.granted.remove(&place), waker),
        }
    }

    /// Gives up a place, and what was granted to it; those behind it may have their turn now.
    #[must_use = "dropping a waker is foreign code: do it after the lock is released"]
    pub(super) fn abandon(&mut self, place: u64, ground: &Ground, later: &mut Later) -> Option<Waker> {
        let waiter = self.waiting.remove(&place);
        for grant in self.granted.remove(&place).unwrap_or_default() {
            self.untake(&grant, ground);
        }
        self.serve(ground, later);
        if self.waiting.is_empty() {
            ground.ledger.magazines.open();
        }
        waiter.map(|waiter| waiter.waker)
    }

    /// Nobody holds these pages any more.
    pub(super) fn release(&mut self, pages: Range<usize>, ground: &Ground, later: &mut Later) {
        self.put(pages, ground);
        self.serve(ground, later);
    }

    /// Puts memory behind a chunk that has none.
    pub(super) fn open(&mut self, chunk: usize, ground: &Ground) -> io::Result<()> {
        ground.open(chunk)?;
        self.pool.open(chunk);
        self.chunks_mapped += 1;
        ground.announce();
        Ok(())
    }

    /// Gives back, or has each ring let go of, the chunks that have been all free for this long; how many.
    pub(super) fn shrink(&mut self, now: Instant, idle: Duration, ground: &Ground, later: &mut Later) -> usize {
        let drained = self.pool.drain(now, idle);
        if !drained.is_empty() {
            ground.announce();
        }
        drained.iter().for_each(|chunk| self.close(*chunk, ground, later));
        if self.next_growth().is_some_and(|due| due <= now) {
            self.refused_at = None;
            self.serve(ground, later);
            // By the clock of whoever asks.
            self.refused_at = self.refused_at.and(Some(now));
        }
        drained.len()
    }

    /// A ring has let go of this chunk. Whatever state it is in, it is right then.
    pub(super) fn settle_draining(&mut self, chunk: usize, ground: &Ground, later: &mut Later) {
        if self.pool.is_draining(chunk) {
            // Nobody waits for it: a lease that it would have had room for has it live again.
            self.close(chunk, ground, later);
        } else if self.pool.is_live(chunk) {
            // It was wanted again meanwhile, and can be registered again.
            ground.announce();
        }
    }

    /// When the next chunk will have been free for this long, or the system is to be asked for memory again.
    pub(super) fn next_due(&self, idle: Duration, ground: &Ground) -> Option<Instant> {
        let next = self.pool.next_drain(idle).into_iter().chain(self.next_growth()).min();
        ground.has_due.store(next.is_some(), Ordering::Relaxed);
        next
    }

    fn next_growth(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.refused_at?.checked_add(GROW_AGAIN) }
    }

    pub(super) fn is_live(&self, chunk: usize) -> bool {
        self.pool.is_live(chunk)
    }

    pub(super) fn is_draining(&self, chunk: usize) -> bool {
        self.pool.is_draining(chunk)
    }

    /// Grants what is there to those who wait, in their order, up to the first whose turn has not come.
    fn serve(&mut self, ground: &Ground, later: &mut Later) {
        if self.waiting.is_empty() {
            return;
        }
        while let Some((&place, waiter)) = self.waiting.first_key_value() {
            let (runs, since) = (waiter.runs.clone(), waiter.since);
            let Some(grants) = self.take_all(&runs, ground, later) else {
                return;
            };
            let waited = since.elapsed();
            self.waits += 1;
            self.wait_total += waited;
            self.wait_max = self.wait_max.max(waited);
            self.granted.insert(place, grants);
            later.woken.extend(self.waiting.remove(&place).map(|waiter| waiter.waker));
        }
        ground.ledger.magazines.open();
    }

    fn take_all(&mut self, runs: &[Run], ground: &Ground, later: &mut Later) -> Option<Vec<Grant>> {
        // Where they did not fit and the registry has grown meanwhile, they may fit now.
        loop {
            let growths = self.growths;
            let grants = self.take_all_once(runs, ground, later);
            if grants.is_some() || self.growths == growths {
                return grants;
            }
        }
    }

    /// The longest first, as it is the hardest to place; the grants are in the order of the runs.
    fn take_all_once(&mut self, runs: &[Run], ground: &Ground, later: &mut Later) -> Option<Vec<Grant>> {
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(runs[*at].pages));
        let mut grants: Vec<(usize, Grant)> = Vec::with_capacity(runs.len());
        for at in order {
            match self.take(runs[at], ground, later) {
                Some(grant) => grants.push((at, grant)),
                None => {
                    grants.iter().for_each(|(_, grant)| self.untake(grant, ground));
                    return None;
                }
            }
        }
        grants.sort_by_key(|(at, _)| *at);
        Some(grants.into_iter().map(|(_, grant)| grant).collect())
    }

    fn take(&mut self, run: Run, ground: &Ground, later: &mut Later) -> Option<Grant> {
        let mut taken = self.pool.take(run);
        if taken.is_none() && self.empty_magazines(ground) {
            taken = self.pool.take(run);
        }
        if taken.is_none() && self.grow(run, ground, later) {
            taken = self.pool.take(run);
        }
        let first_page = taken?;
        let grant = Grant { first_page, bytes: run.bytes };
        ground.ledger.hold(grant.pages());
        Some(grant)
    }

    fn empty_magazines(&mut self, ground: &Ground) -> bool {
        ground.ledger.magazines.empty(|run| {
            ground.ledger.unready(run.start);
            self.put(run, ground);
        })
    }

    /// One more chunk for a run that does not fit, if the bound allows it: one that is being given back comes first.
    fn grow(&mut self, run: Run, ground: &Ground, later: &mut Later) -> bool {
        if self.pool.revive(run).is_some() {
            ground.announce();
            self.growths += 1;
            return true;
        }
        let Some(chunk) = self.pool.absent(run) else {
            return false;
        };
        match self.open(chunk, ground) {
            Ok(()) => {
                self.growths += 1;
                true
            }
            Err(error) => {
                self.refused_at = Some(Instant::now());
                ground.has_due.store(true, Ordering::Relaxed);
                if !std::mem::replace(&mut self.growth_refused, true) {
                    later.warnings.push(("the registry cannot grow, and leases wait instead", error));
                }
                false
            }
        }
    }

    fn close(&mut self, chunk: usize, ground: &Ground, later: &mut Later) {
        match ground.close(chunk) {
            // A ring has it registered still.
            None => return,
            Some(Ok(())) => {}
            Some(Err(error)) => later.warnings.push(("memory of the registry is not given back to the system", error)),
        }
        self.pool.close(chunk);
    }

    fn untake(&mut self, grant: &Grant, ground: &Ground) {
        ground.ledger.unhold(grant.pages());
        self.put(grant.pages(), ground);
    }

    fn put(&mut self, pages: Range<usize>, ground: &Ground) {
        self.pool.put(pages, || {
            ground.has_due.store(true, Ordering::Relaxed);
            Instant::now()
        });
    }
}

impl Later {
    pub(super) fn is_empty(&self) -> bool {
        self.woken.is_empty() && self.warnings.is_empty()
    }

    /// Warns, then wakes in order, the rest also if one of them panics: each has been granted pages and would
    /// otherwise never know.
    pub(super) fn carry_out(self) {
        struct Rest(VecDeque<Waker>);
        impl Drop for Rest {
            fn drop(&mut self) {
                self.0.drain(..).for_each(Waker::wake);
            }
        }
        let mut rest = Rest(self.woken.into());
        for (what, error) in self.warnings {
            tracing::warn!(%error, "{what}");
        }
        while let Some(waker) = rest.0.pop_front() {
            waker.wake();
        }
    }
}
