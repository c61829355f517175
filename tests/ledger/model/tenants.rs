//! Who has which bytes, by the model: a list of tenants, searched from the start.

use std::ops::Range;

use ringmain::{FixedBuf, IoBuf, SharedBuf, Snapshot};

pub(super) const PAGE: usize = 4096;

/// A tenant of more bytes than this has its mark at every 512th address alone, which is what keeps scripts fast.
const DENSE_MAX: usize = 4 * PAGE;
const SPARSE_STEP: usize = 512;

/// Bytes at these addresses that belong to one lease, all of them its mark.
pub(super) struct Tenant {
    pub(super) id: usize,
    pub(super) span: Range<usize>,
    pub(super) mark: u8,
    pub(super) form: Form,
}

pub(super) enum Form {
    /// The program has it, and may write.
    Lease(FixedBuf),
    /// An operation has it.
    Away,
    /// Parts that the program has, and how many an operation has.
    Shared { parts: Vec<SharedBuf>, away: usize },
}

/// What an operation takes along, and gives back.
#[derive(Debug)]
pub(super) enum Memory {
    Lease(FixedBuf),
    Shared(SharedBuf),
}

impl IoBuf for Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lease(lease) => lease,
            Self::Shared(part) => part,
        }
    }
}

/// What a page counts as: the greatest of all that claim it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    Leased,
    Shared,
    Send,
    Write,
    Read,
    Notifying,
}

/// The state of each page, chunk by chunk; `None` is free.
pub(super) struct Pages(Vec<(Range<usize>, Vec<Option<Claim>>)>);

impl Pages {
    /// All the pages of these chunks, free.
    pub(super) fn new(chunks: &[Range<usize>]) -> Self {
        Self(chunks.iter().map(pages_of).map(|pages| (pages.clone(), vec![None; pages.len()])).collect())
    }

    pub(super) fn claim(&mut self, span: &Range<usize>, claim: Claim) {
        let pages = pages_of(span);
        let Some((chunk, states)) = self.0.iter_mut().find(|(chunk, _)| chunk.contains(&pages.start)) else {
            panic!("{span:?} lies outside the registry");
        };
        for state in &mut states[pages.start - chunk.start..pages.end - chunk.start] {
            *state = (*state).max(Some(claim));
        }
    }

    fn states(&self) -> impl Iterator<Item = Claim> {
        self.0.iter().flat_map(|(_, states)| states.iter().filter_map(|state| *state))
    }

    pub(super) fn count(&self, claim: Claim) -> usize {
        self.states().filter(|other| *other == claim).count()
    }

    pub(super) fn held(&self) -> usize {
        self.states().count()
    }

    pub(super) fn with_kernel(&self) -> usize {
        self.states().filter(|claim| *claim >= Claim::Send).count()
    }

    pub(super) fn are_free(&self, pages: Range<usize>) -> bool {
        let chunk = self.0.iter().find(|(chunk, _)| chunk.start <= pages.start && pages.end <= chunk.end);
        chunk.is_some_and(|(chunk, states)| {
            states[pages.start - chunk.start..pages.end - chunk.start].iter().all(Option::is_none)
        })
    }

    /// A snapshot has these pages in these states, and so many leased ones that nobody has seen.
    pub(super) fn check(&self, counts: &Snapshot, unseen: usize) {
        let count = |claim: Claim| self.count(claim);
        assert_eq!(counts.pages_leased, count(Claim::Leased) + unseen, "pages that one has");
        assert_eq!(counts.pages_shared, count(Claim::Shared), "pages that several have");
        assert_eq!(counts.in_flight.send, count(Claim::Send), "pages that are being sent");
        assert_eq!(counts.in_flight.write, count(Claim::Write), "pages that are being written");
        assert_eq!(counts.in_flight.read, count(Claim::Read), "pages that are being filled");
        assert_eq!(counts.in_flight.receive + counts.in_flight.other, 0, "nothing else is in flight on pages");
        assert_eq!(counts.pages_notifying, count(Claim::Notifying), "pages that await a notification");
    }
}

impl Tenant {
    pub(super) fn is_idle_lease(&self) -> bool {
        matches!(self.form, Form::Lease(_)) && !self.span.is_empty()
    }

    /// Write its mark on all of it, which only its one holder can.
    pub(super) fn stamp(&mut self) {
        let Form::Lease(lease) = &mut self.form else { panic!("only a lease can be written to") };
        let (mark, start) = (self.mark, self.span.start);
        let bytes = lease.as_capacity_mut();
        if bytes.len() <= DENSE_MAX {
            bytes.fill(mark);
            return;
        }
        for at in sparse(start, bytes.len()) {
            bytes[at] = mark;
        }
    }

    /// Nobody else has written where the program can look.
    pub(super) fn check(&mut self) {
        let is_dense = self.span.len() <= DENSE_MAX;
        match &mut self.form {
            Form::Away => {}
            Form::Lease(lease) => {
                assert_eq!(span_of(lease), self.span, "a lease stays where it is");
                assert_marked(lease.as_capacity_mut(), self.mark, is_dense);
            }
            Form::Shared { parts, .. } => parts.iter().for_each(|part| assert_marked(part, self.mark, is_dense)),
        }
    }
}

/// The addresses of a lease.
pub(super) fn span_of(lease: &mut FixedBuf) -> Range<usize> {
    let bytes = lease.as_capacity_mut().as_ptr_range();
    bytes.start.addr()..bytes.end.addr()
}

/// The addresses of the pages that a span touches, divided by the length of one.
pub(super) fn pages_of(span: &Range<usize>) -> Range<usize> {
    if span.is_empty() { 0..0 } else { span.start / PAGE..span.end.div_ceil(PAGE) }
}

fn sparse(start: usize, len: usize) -> impl Iterator<Item = usize> {
    (start.next_multiple_of(SPARSE_STEP) - start..len).step_by(SPARSE_STEP)
}

fn assert_marked(bytes: &[u8], mark: u8, is_dense: bool) {
    let is_right = if is_dense {
        bytes.chunks(SPARSE_STEP).all(|chunk| chunk == &[mark; SPARSE_STEP][..chunk.len()])
    } else {
        sparse(bytes.as_ptr().addr(), bytes.len()).all(|at| bytes[at] == mark)
    };
    assert!(is_right, "somebody else wrote into the bytes marked {mark}");
}
