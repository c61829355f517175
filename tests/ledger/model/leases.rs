//! What a script does with leases: takes them, waits for them, cuts, joins, shares and drops them; and shrinks the registry.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringmain::{FixedBuf, LeaseMany, Snapshot};

use super::tenants::{Claim, Form, PAGE, Pages, Tenant, pages_of, span_of};
use super::{PAGES, Play, TENANTS_MAX};

/// Futures that wait for pages; further ones are skipped.
const WAITERS_MAX: usize = 6;

pub(super) struct Waiter {
    pub(super) lens: Vec<usize>,
    lease: LeaseMany,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Play {
    /// A length in bytes, small or large, at the borders of pages and not.
    pub(super) fn length(&self, pick: usize) -> usize {
        let longest = self.chunks.iter().map(Range::len).max().expect("there is a chunk");
        [1, 100, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 5, PAGES * PAGE, longest][pick % 8]
    }

    /// The rule: as many free pages in a row, at a multiple of the alignment, in one chunk.
    pub(super) fn fits(&self, bytes: usize, align: usize) -> bool {
        let held = self.pages();
        let pages = bytes.div_ceil(PAGE);
        self.chunks.iter().map(pages_of).any(|chunk| {
            let mut starts = chunk.clone().filter(|page| (page * PAGE).is_multiple_of(align));
            starts.any(|start| held.are_free(start..start + pages))
        })
    }

    /// Whether there are pages of which the model does not know where they are.
    pub(super) fn is_vague(&self) -> bool {
        let counts = self.registry.snapshot();
        counts.pages_lent > 0 || counts.waiting > self.waiters.len() || self.unseen(&counts) > 0
    }

    /// Pages that receives have brought, and that nobody has taken.
    pub(super) fn brought(&self) -> usize {
        self.flights.iter().filter(|flight| flight.has_unseen()).count()
    }

    /// Leased pages that nobody has seen: each lender, as it waits, may have been granted one beside.
    pub(super) fn unseen(&self, counts: &Snapshot) -> usize {
        let unseen = self.brought();
        let leased = self.pages().count(Claim::Leased) + unseen;
        if self.lends { unseen + counts.pages_leased.saturating_sub(leased).min(self.rings.len()) } else { unseen }
    }

    pub(super) fn try_lease(&mut self, pick: usize, detail: usize) {
        if self.tenants.len() >= TENANTS_MAX {
            return;
        }
        let (bytes, align) = (self.length(pick), PAGE << (detail % 4));
        let expected = self.waiters.is_empty() && self.fits(bytes, align);
        let lease = self.registry.try_lease_aligned(bytes, align);
        let is_right = lease.is_some() == expected || lease.is_none() && self.is_vague();
        assert!(is_right, "a lease of {bytes} bytes, aligned to {align}, is granted: {expected}");
        if let Some(lease) = lease {
            assert!(lease.alignment() >= align);
            self.admit(lease, bytes);
        }
    }

    pub(super) fn try_many(&mut self, pick: usize, detail: usize) {
        let lens = vec![self.length(pick); 1 + detail % 3];
        if self.tenants.len() + lens.len() > TENANTS_MAX {
            return;
        }
        let fits = lens.iter().all(|len| self.fits(*len, 1));
        match self.registry.try_lease_many(&lens) {
            Some(leases) => {
                assert!(self.waiters.is_empty() && fits, "who waits comes first");
                leases.into_iter().zip(lens).for_each(|(lease, len)| self.admit(lease, len));
            }
            None => assert!(!self.waiters.is_empty() || !self.fit_together(&lens), "{lens:?} bytes are there"),
        }
    }

    /// Whether several fit at once, where that needs no search: all of them are a page at most, or there is only one.
    pub(super) fn fit_together(&self, lens: &[usize]) -> bool {
        if self.is_vague() {
            return false;
        }
        let free = self.chunks.iter().map(|chunk| pages_of(chunk).len()).sum::<usize>() - self.pages().held();
        match lens {
            [one] => self.fits(*one, 1),
            _ => lens.iter().all(|len| *len <= PAGE) && lens.len() <= free,
        }
    }

    pub(super) fn wait(&mut self, lens: Vec<usize>) {
        if self.waiters.len() >= WAITERS_MAX || self.tenants.len() + lens.len() > TENANTS_MAX {
            return;
        }
        let mut waiter = Waiter { lease: self.registry.lease_many(&lens), lens, woken: Arc::default() };
        let may = self.waiters.is_empty() && waiter.lens.iter().all(|len| self.fits(*len, 1));
        let must = self.waiters.is_empty() && self.fit_together(&waiter.lens);
        match waiter.poll() {
            Poll::Ready(Ok(leases)) => {
                assert!(may, "it is served out of turn");
                leases.into_iter().zip(waiter.lens).for_each(|(lease, len)| self.admit(lease, len));
            }
            Poll::Ready(Err(_)) => assert!(waiter.lens.len() > 1, "one that is no longer than a chunk is granted"),
            Poll::Pending => {
                assert!(!must, "it waits for what is there");
                self.waiters.push_back(waiter);
            }
        }
    }

    /// Let those whose turn has come have what they were granted; nobody else need not wait.
    pub(super) fn serve(&mut self) {
        while let Some(first) = self.waiters.front_mut() {
            if !first.woken.0.load(Ordering::Relaxed) {
                let is_woken = |waiter: &Waiter| waiter.woken.0.load(Ordering::Relaxed);
                assert!(!self.waiters.iter().any(is_woken), "somebody was served out of turn");
                assert!(!self.fit_together(&self.waiters[0].lens), "the first one need not wait");
                return;
            }
            let Poll::Ready(leases) = first.poll() else { panic!("one that was woken has been granted its pages") };
            let Waiter { lens, .. } = self.waiters.pop_front().expect("there is a first one");
            let leases = leases.expect("what could be waited for can be granted");
            leases.into_iter().zip(lens).for_each(|(lease, len)| self.admit(lease, len));
        }
    }

    /// A new lease: nobody else has its pages, the kernel included.
    pub(super) fn admit(&mut self, lease: FixedBuf, bytes: usize) {
        assert_eq!((lease.capacity(), lease.len()), (bytes, 0));
        self.adopt(lease);
    }

    pub(super) fn adopt(&mut self, mut lease: FixedBuf) {
        lease.set_len(lease.capacity());
        let span = span_of(&mut lease);
        let chunk = self.chunks.iter().position(|chunk| chunk.start <= span.start && span.end <= chunk.end);
        let chunk = chunk.expect("a lease lies in one chunk");
        self.is_draining &= chunk == 0;
        let held = self.pages();
        assert!(held.are_free(pages_of(&span)), "a page is leased though it is not free");
        self.settle_in(span, Form::Lease(lease));
    }

    pub(super) fn settle_in(&mut self, span: Range<usize>, form: Form) {
        let mark = self.fresh_mark();
        let mut tenant = Tenant { id: self.next_tenant, span, mark, form };
        tenant.stamp();
        self.tenants.push(tenant);
        self.next_tenant += 1;
    }

    /// A byte that nobody bears; what the kernel has still to write counts.
    pub(super) fn fresh_mark(&mut self) -> u8 {
        loop {
            self.next_mark = self.next_mark.wrapping_add(1);
            if self.tenants.iter().all(|tenant| tenant.mark != self.next_mark) {
                return self.next_mark;
            }
        }
    }

    /// One of the tenants for which this holds.
    pub(super) fn pick(&self, pick: usize, predicate: impl Fn(&Tenant) -> bool) -> Option<usize> {
        let places: Vec<usize> = (0..self.tenants.len()).filter(|at| predicate(&self.tenants[*at])).collect();
        Some(places[pick.checked_rem(places.len())?])
    }

    pub(super) fn split(&mut self, pick: usize, detail: usize) {
        let Some(at) = self.pick(pick, Tenant::is_idle_lease).filter(|_| self.tenants.len() < TENANTS_MAX) else {
            return;
        };
        let Tenant { span, form: Form::Lease(lease), .. } = &mut self.tenants[at] else {
            panic!("it was picked as such")
        };
        let cut = match detail % 3 {
            0 => detail * 37,
            1 => (detail / 3) * PAGE,
            _ => span.len() - detail.min(span.len()),
        } % (span.len() + 1);
        let middle = span.start + cut;
        let other = if detail.is_multiple_of(2) {
            let rest = middle..span.end;
            span.end = middle;
            (rest, lease.split_off(cut))
        } else {
            let rest = span.start..middle;
            span.start = middle;
            (rest, lease.split_to(cut))
        };
        self.tenants[at].stamp();
        self.settle_in(other.0, Form::Lease(other.1));
    }

    pub(super) fn unsplit(&mut self, pick: usize, detail: usize) {
        let Some(one) = self.pick(pick, Tenant::is_idle_lease) else { return };
        let end = self.tenants[one].span.end;
        // Half of the time one that fits, if there is one.
        let next = self
            .pick(detail, |tenant| tenant.is_idle_lease() && (detail.is_multiple_of(2) || tenant.span.start == end));
        let Some(two) = next.filter(|two| *two != one) else { return };
        let second = self.tenants.swap_remove(two.max(one));
        let first = self.tenants.swap_remove(two.min(one));
        let (mut first, mut second) = if one < two { (first, second) } else { (second, first) };
        let (Form::Lease(front), Form::Lease(back)) = (first.form, second.form) else {
            panic!("it was picked as such")
        };
        match front.unsplit(back) {
            Ok(whole) => {
                assert_eq!(first.span.end, second.span.start, "what is joined is neighbours");
                assert_eq!(whole.len(), whole.capacity());
                first.span.end = second.span.end;
                first.form = Form::Lease(whole);
                first.stamp();
                self.tenants.push(first);
            }
            Err((front, back)) => {
                assert_ne!(first.span.end, second.span.start, "neighbours can be joined");
                (first.form, second.form) = (Form::Lease(front), Form::Lease(back));
                self.tenants.extend([first, second]);
            }
        }
    }

    pub(super) fn freeze(&mut self, pick: usize) {
        let Some(at) = self.pick(pick, Tenant::is_idle_lease) else { return };
        let tenant = &mut self.tenants[at];
        if let Form::Lease(lease) = std::mem::replace(&mut tenant.form, Form::Away) {
            tenant.form = Form::Shared { parts: vec![lease.freeze()], away: 0 };
        }
    }

    /// One reader more, of a part; or a part is cut in two, or joined.
    pub(super) fn narrow(&mut self, pick: usize, detail: usize) {
        let has_parts = |tenant: &Tenant| matches!(&tenant.form, Form::Shared { parts, .. } if !parts.is_empty());
        let Some(at) = self.pick(pick, has_parts) else { return };
        let Form::Shared { parts, .. } = &mut self.tenants[at].form else { panic!("it was picked as such") };
        if parts.len() > 4 {
            return;
        }
        let count = parts.len();
        let part = &mut parts[detail % count];
        let cut = detail * 53 % (part.len() + 1);
        match detail % 4 {
            0 => parts.extend([parts[detail % count].clone()]),
            1 => {
                let part = part.clone().slice(cut..);
                parts.push(part);
            }
            2 => {
                let rest = part.split_off(cut);
                parts.push(rest);
            }
            _ => {
                let part = parts.swap_remove(detail % count);
                match parts.pop().map(|next| part.clone().unsplit(next)) {
                    Some(Ok(whole)) => parts.push(whole),
                    Some(Err((part, next))) => parts.extend([part, next]),
                    None => parts.push(part),
                }
            }
        }
    }

    pub(super) fn thaw(&mut self, pick: usize) {
        let has_parts = |tenant: &Tenant| matches!(&tenant.form, Form::Shared { parts, .. } if !parts.is_empty());
        let Some(at) = self.pick(pick, has_parts) else { return };
        let tenant = &mut self.tenants[at];
        let Form::Shared { parts, away } = &mut tenant.form else { panic!("it was picked as such") };
        let part = parts.pop().expect("there is a part");
        let (start, len) = (part.as_ptr().addr(), part.len());
        match part.try_into_exclusive() {
            Ok(mut lease) => {
                assert!(parts.is_empty() && *away == 0, "there is another reader");
                assert_eq!(lease.len(), len);
                lease.set_len(lease.capacity());
                tenant.span.start = start;
                tenant.form = Form::Lease(lease);
                tenant.stamp();
            }
            Err(part) => {
                assert!(!parts.is_empty() || *away > 0, "there is no other reader");
                parts.push(part);
            }
        }
    }

    pub(super) fn release(&mut self, pick: usize, detail: usize) {
        let is_here = |tenant: &Tenant| match &tenant.form {
            Form::Lease(_) => true,
            Form::Away => false,
            Form::Shared { parts, .. } => !parts.is_empty(),
        };
        let Some(at) = self.pick(pick, is_here) else { return };
        if let Form::Shared { parts, away } = &mut self.tenants[at].form {
            let count = parts.len();
            drop(parts.swap_remove(detail % count));
            if !parts.is_empty() || *away > 0 {
                return;
            }
        }
        drop(self.tenants.swap_remove(at));
    }

    pub(super) fn shrink(&mut self) {
        let expected = self.is_grown() && !self.is_draining && !self.uses_grown(&self.pages());
        let shrinks = self.registry.shrink() == 1;
        assert!(shrinks == expected || self.lends, "a chunk that is all free is given back");
        self.is_draining |= shrinks && self.rings.iter().any(|ring| ring.is_pinning);
        if shrinks && !self.lends {
            assert_eq!(self.is_grown(), self.is_draining, "memory stays while a ring has it in its table");
        }
    }

    pub(super) fn is_grown(&self) -> bool {
        self.registry.snapshot().pages_total > PAGES
    }

    pub(super) fn uses_grown(&self, pages: &Pages) -> bool {
        self.chunks.get(1).is_some_and(|grown| !pages.are_free(pages_of(grown)))
    }
}

impl Waiter {
    fn poll(&mut self) -> Poll<std::io::Result<Vec<FixedBuf>>> {
        Pin::new(&mut self.lease).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.woken))))
    }
}
