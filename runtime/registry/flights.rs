//! What the kernel does with the pages of one run.
//!
//! Nearly every run has one holder and at most one operation at a time. That is one word, changed in one step, and the
//! same whatever the length. The plain version is a record for each page; what is left of it, [`Sharers`], is for runs
//! that several hold or operations of which overlap, and has a record for each stretch that all of these see alike.

use std::ops::Range;

use super::counts::{Class, Counts, Kind, Shift};
use super::ledger::Hold;

/// One operation that the kernel has on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) kind: Kind,
    /// Its result is out, and its notification is to come.
    pub(super) is_notifying: bool,
    /// Which pages of the run, from its start on.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The state of a run, as its word has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No holder: a thread keeps it ready.
    Ready,
    /// One holder, and no operation.
    Idle { is_lent: bool },
    /// One holder, and one operation.
    Flying { is_lent: bool, flight: Flight },
    /// What there is to know is in its `Sharers`.
    Several,
}

const LENT: u64 = 1;
const SEVERAL: u64 = 2;
const FLYING: u64 = 4;
const NOTIFYING: u64 = 8;
const KIND_SHIFT: u32 = 4;
const KIND_MASK: u64 = 7 << KIND_SHIFT;
const READY: u64 = 1 << 7;
const FROM_SHIFT: u32 = 8;
const TO_SHIFT: u32 = 32;
const PAGE_MASK: u64 = (1 << 24) - 1;

impl State {
    pub(super) const FRESH: Self = Self::Idle { is_lent: false };

    #[inline]
    pub(super) fn to_word(self) -> u64 {
        let lent = |is_lent| if is_lent { LENT } else { 0 };
        match self {
            Self::Idle { is_lent } => lent(is_lent),
            Self::Ready => READY,
            Self::Several => SEVERAL,
            Self::Flying { is_lent, flight } => {
                let notifying = if flight.is_notifying { NOTIFYING } else { 0 };
                flying(flight.kind, &(flight.from..flight.to)) | lent(is_lent) | notifying
            }
        }
    }

    #[inline]
    pub(super) fn of_word(word: u64) -> Self {
        let is_lent = word & LENT != 0;
        if word & SEVERAL != 0 {
            Self::Several
        } else if word & READY != 0 {
            Self::Ready
        } else if word & FLYING == 0 {
            Self::Idle { is_lent }
        } else {
            let kind = match (word & KIND_MASK) >> KIND_SHIFT {
                0 => Kind::Read,
                1 => Kind::Write,
                2 => Kind::Receive,
                3 => Kind::Send,
                _ => Kind::Other,
            };
            let page = |shift: u32| (word >> shift & PAGE_MASK) as usize;
            let (from, to) = (page(FROM_SHIFT), page(TO_SHIFT));
            Self::Flying { is_lent, flight: Flight { kind, is_notifying: word & NOTIFYING != 0, from, to } }
        }
    }
}

/// The word of a run after a change on these pages of it, and what they count as then. None where a word cannot say it,
/// or the change is wrong.
///
/// An operation has the same bits in the word from its beginning to its end, so each change is a comparison with them.
/// The plain version reads a [`State`] from the word, changes that, and makes a word of it.
#[inline(always)]
pub(super) fn changed(word: u64, change: Change, pages: &Range<usize>) -> Option<(u64, Shift)> {
    let lent = word & LENT;
    let held = if lent == 0 { Class::Leased } else { Class::Lent };
    let (before, after, from, to) = match change {
        Change::Begin(kind) => (0, flying(kind, pages), held, Class::InFlight(kind)),
        Change::End(kind) => (flying(kind, pages), 0, Class::InFlight(kind), held),
        Change::AwaitNotification(kind) => {
            let flying = flying(kind, pages);
            (flying, flying | NOTIFYING, Class::InFlight(kind), Class::Notifying)
        }
        Change::EndNotification => {
            // Whichever kind it is.
            let flying = flying(Kind::ALL[0], pages) & !KIND_MASK | word & KIND_MASK;
            (flying | NOTIFYING, 0, Class::Notifying, held)
        }
    };
    (word == before | lent).then_some((after | lent, Shift { from, to, pages: pages.len() }))
}

/// The bits of one operation on these pages of a run.
#[inline(always)]
fn flying(kind: Kind, pages: &Range<usize>) -> u64 {
    FLYING | (kind as u64) << KIND_SHIFT | (pages.start as u64) << FROM_SHIFT | (pages.end as u64) << TO_SHIFT
}

/// What is done to the operations on some pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Begin(Kind),
    End(Kind),
    /// The result is out, and the notification is to come.
    AwaitNotification(Kind),
    EndNotification,
}

/// Who holds a run, and every operation on it.
#[derive(Debug, Default)]
pub(super) struct Sharers {
    /// Segments that have bytes on it; of these, how many are frozen, and lent.
    holders: u16,
    frozen: u16,
    lent: u16,
    /// From the first page of the run to its last, each at least one page and unlike its neighbours.
    stretches: Vec<Stretch>,
}

/// Pages on which the same operations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// Its first page, and the one after its last, as the run counts them.
    start: usize,
    end: usize,
    /// Operations of each kind.
    flights: [u32; Kind::COUNT],
    /// Zero-copy sends whose result is out and whose notification is to come.
    notifying: u32,
}

impl Stretch {
    fn meets(&self, pages: &Range<usize>) -> bool {
        self.start < pages.end && pages.start < self.end
    }

    /// What its pages count as, where those that the kernel does not have count as `held`.
    fn class(&self, held: Class) -> Class {
        if self.notifying > 0 {
            return Class::Notifying;
        }
        let kind = Kind::ALL.into_iter().find(|kind| self.flights[*kind as usize] > 0);
        kind.map_or(held, Class::InFlight)
    }

    fn is_with_kernel(&self) -> bool {
        self.notifying > 0 || self.flights.iter().any(|flights| *flights > 0)
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Begin(kind) => self.flights[kind as usize] += 1,
            Change::End(kind) => self.flights[kind as usize] -= 1,
            Change::AwaitNotification(kind) => {
                self.flights[kind as usize] -= 1;
                self.notifying += 1;
            }
            Change::EndNotification => self.notifying -= 1,
        }
    }

    /// Panics before anything has changed.
    fn check(&self, change: Change, page: usize) {
        match change {
            Change::Begin(kind) => assert!(
                self.flights[kind as usize] < u32::MAX,
                "page {page} has more operations in flight than a ring can hold"
            ),
            Change::End(kind) => {
                assert!(self.flights[kind as usize] > 0, "page {page} ends a flight that never began");
            }
            Change::AwaitNotification(kind) => assert!(
                self.flights[kind as usize] > 0,
                "page {page} awaits the notification of an operation that never began"
            ),
            Change::EndNotification => {
                assert!(self.notifying > 0, "page {page} has a notification that nobody awaits");
            }
        }
    }
}

impl Sharers {
    /// Takes over what the word of a run of so many pages said.
    pub(super) fn take_over(&mut self, state: State, pages: usize) {
        let (is_lent, flight) = match state {
            State::Idle { is_lent } => (is_lent, None),
            State::Flying { is_lent, flight } => (is_lent, Some(flight)),
            State::Ready | State::Several => return,
        };
        self.holders = 1;
        self.frozen = 0;
        self.lent = u16::from(is_lent);
        self.stretches.clear();
        self.stretches.push(Stretch { start: 0, end: pages, flights: [0; Kind::COUNT], notifying: 0 });
        if let Some(Flight { kind, is_notifying, from, to }) = flight {
            // It is counted already.
            let _counts = self.change(from..to, Change::Begin(kind), 0);
            if is_notifying {
                let _counts = self.change(from..to, Change::AwaitNotification(kind), 0);
            }
        }
    }

    /// What its word can say of it again, if it can.
    pub(super) fn simple(&self) -> Option<State> {
        let is_simple = self.holders == 1 && self.frozen == 0 && !self.is_with_kernel();
        is_simple.then_some(State::Idle { is_lent: self.lent > 0 })
    }

    pub(super) fn is_with_kernel(&self) -> bool {
        self.stretches.iter().any(Stretch::is_with_kernel)
    }

    pub(super) fn holders(&self) -> usize {
        usize::from(self.holders)
    }

    pub(super) fn add_holder(&mut self, hold: Hold) -> Counts {
        self.recount(|sharers| {
            sharers.holders += 1;
            sharers.of(hold).into_iter().for_each(|count| *count += 1);
        })
    }

    pub(super) fn remove_holder(&mut self, hold: Hold) -> Counts {
        self.recount(|sharers| {
            sharers.holders -= 1;
            sharers.of(hold).into_iter().for_each(|count| *count -= 1);
        })
    }

    /// One of the holders holds in another way.
    pub(super) fn rehold(&mut self, from: Hold, to: Hold) -> Counts {
        self.recount(|sharers| {
            sharers.of(from).into_iter().for_each(|count| *count -= 1);
            sharers.of(to).into_iter().for_each(|count| *count += 1);
        })
    }

    /// Changes the operations on these pages of the run; `first` is the number of its first page, for who reads what is
    /// wrong.
    pub(super) fn change(&mut self, pages: Range<usize>, change: Change, first: usize) -> Counts {
        for stretch in self.stretches.iter().filter(|stretch| stretch.meets(&pages)) {
            stretch.check(change, first + stretch.start.max(pages.start));
        }
        let held = self.held_class();
        let mut counts = Counts::default();
        self.cut(pages.start);
        self.cut(pages.end);
        for stretch in self.stretches.iter_mut().filter(|stretch| stretch.meets(&pages)) {
            let from = stretch.class(held);
            stretch.apply(change);
            counts.shift(Shift { from, to: stretch.class(held), pages: stretch.end - stretch.start });
        }
        self.stretches.dedup_by(|next, stretch| {
            let is_alike = next.flights == stretch.flights && next.notifying == stretch.notifying;
            if is_alike {
                stretch.end = next.end;
            }
            is_alike
        });
        counts
    }

    /// A stretch is to begin at this page.
    fn cut(&mut self, page: usize) {
        if let Some(at) = self.stretches.iter().position(|stretch| stretch.start < page && page < stretch.end) {
            let second = Stretch { start: page, ..self.stretches[at] };
            self.stretches[at].end = page;
            self.stretches.insert(at + 1, second);
        }
    }

    /// Changes who holds it, and tells what its pages count as then.
    fn recount(&mut self, change: impl FnOnce(&mut Self)) -> Counts {
        let before = self.held_class();
        change(self);
        let after = self.held_class();
        let mut counts = Counts::default();
        for stretch in &self.stretches {
            let pages = stretch.end - stretch.start;
            counts.shift(Shift { from: stretch.class(before), to: stretch.class(after), pages });
        }
        counts
    }

    /// What its pages count as that the kernel does not have.
    fn held_class(&self) -> Class {
        match self {
            Self { holders: 0, .. } => Class::Free,
            Self { lent: 1.., .. } => Class::Lent,
            Self { frozen: 1.., .. } => Class::Shared,
            _ => Class::Leased,
        }
    }

    fn of(&mut self, hold: Hold) -> Option<&mut u16> {
        match hold {
            Hold::Exclusive => None,
            Hold::Frozen => Some(&mut self.frozen),
            Hold::Lent => Some(&mut self.lent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_all_that_a_state_does() {
        let mut states = vec![State::Ready, State::Several, State::FRESH, State::Idle { is_lent: true }];
        for kind in Kind::ALL {
            for (is_lent, is_notifying) in [(false, false), (false, true), (true, false), (true, true)] {
                let flight = Flight { kind, is_notifying, from: (1 << 18) - 1, to: 1 << 18 };
                states.push(State::Flying { is_lent, flight });
            }
        }
        for state in states {
            assert_eq!(State::of_word(state.to_word()), state);
        }
    }

    #[test]
    fn stretches_are_as_few_as_the_operations_on_them_tell_apart() {
        let mut sharers = Sharers::default();
        sharers.take_over(State::FRESH, 100);
        assert_eq!(sharers.add_holder(Hold::Exclusive), Counts::default());
        let read = Class::InFlight(Kind::Read);
        let began = sharers.change(10..20, Change::Begin(Kind::Read), 0);
        let to_read = |pages| Counts::from(Shift { from: Class::Leased, to: read, pages });
        assert_eq!(began, to_read(10));
        let more = sharers.change(15..30, Change::Begin(Kind::Read), 0);
        assert_eq!((more, sharers.stretches.len()), (to_read(10), 5));
        let ended = sharers.change(10..20, Change::End(Kind::Read), 0);
        assert_eq!(
            (ended, sharers.stretches.len()),
            (Counts::from(Shift { from: read, to: Class::Leased, pages: 5 }), 3)
        );
        assert!(sharers.is_with_kernel() && sharers.simple().is_none());
        sharers.change(15..30, Change::End(Kind::Read), 0);
        assert_eq!((sharers.stretches.len(), sharers.simple()), (1, None), "it has two holders");
        sharers.remove_holder(Hold::Exclusive);
        assert_eq!(sharers.simple(), Some(State::FRESH));
    }

    #[test]
    #[should_panic(expected = "page 21 ends a flight that never began")]
    fn a_flight_ends_on_the_pages_where_it_began() {
        let mut sharers = Sharers::default();
        sharers.take_over(State::FRESH, 4);
        sharers.change(0..1, Change::Begin(Kind::Read), 20);
        sharers.change(0..2, Change::End(Kind::Read), 20);
    }
}
