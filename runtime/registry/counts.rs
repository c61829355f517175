//! What a page counts as, and how many count as what.

use std::ops::AddAssign;

use super::snapshot::{InFlightPages, Snapshot};
use crate::runtime::abi;

/// What an operation does with the pages of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Receive,
    Send,
    Other,
}

impl Kind {
    pub(super) const COUNT: usize = 5;

    /// In the order in which they are looked for on a page that has several.
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Read, Self::Receive, Self::Write, Self::Send, Self::Other];

    /// What an entry of this opcode does with them.
    pub(crate) fn of(opcode: u8) -> Self {
        match opcode {
            abi::READ | abi::READV | abi::READ_FIXED | abi::READV_FIXED => Self::Read,
            abi::WRITE | abi::WRITEV | abi::WRITE_FIXED | abi::WRITEV_FIXED => Self::Write,
            abi::RECV => Self::Receive,
            abi::SEND | abi::SEND_ZC | abi::SENDMSG | abi::SENDMSG_ZC => Self::Send,
            _ => Self::Other,
        }
    }
}

/// What a page that has memory counts as: the last of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Free,
    Leased,
    Shared,
    Lent,
    InFlight(Kind),
    Notifying,
}

impl Class {
    const COUNT: usize = 5 + Kind::COUNT;

    #[inline(always)]
    fn index(self) -> usize {
        match self {
            Self::Free => 0,
            Self::Leased => 1,
            Self::Shared => 2,
            Self::Lent => 3,
            Self::Notifying => 4,
            Self::InFlight(kind) => 5 + kind as usize,
        }
    }

    fn is_with_kernel(self) -> bool {
        matches!(self, Self::InFlight(_) | Self::Notifying)
    }
}

/// How many pages count as what: a part of the whole, or a change of it, so that a number may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    classes: [isize; Class::COUNT],
    /// Of these, by [`HELD`] and [`WITH_KERNEL`], those whose most is remembered.
    pub(super) levels: [isize; LEVELS],
}

pub(super) const LEVELS: usize = 2;
/// Pages that are not free.
pub(super) const HELD: usize = 0;
/// Pages that the kernel has, in flight or awaiting a notification.
pub(super) const WITH_KERNEL: usize = 1;

/// So many pages count as another class than before: nearly every change is one of these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub(super) from: Class,
    pub(super) to: Class,
    pub(super) pages: usize,
}

impl Shift {
    /// By how much it changes the levels.
    #[inline(always)]
    pub(super) fn levels(&self) -> [isize; LEVELS] {
        let Self { from, to, pages } = *self;
        let change = |before: bool, after: bool| (isize::from(after) - isize::from(before)) * pages as isize;
        [change(from != Class::Free, to != Class::Free), change(from.is_with_kernel(), to.is_with_kernel())]
    }
}

impl Counts {
    #[inline(always)]
    pub(super) fn shift(&mut self, shift: Shift) {
        let Shift { from, to, pages } = shift;
        self.classes[from.index()] -= pages as isize;
        self.classes[to.index()] += pages as isize;
        self.levels.iter_mut().zip(shift.levels()).for_each(|(level, change)| *level += change);
    }

    /// So many pages more, or less, count as this.
    #[inline]
    pub(super) fn add(&mut self, class: Class, pages: isize) {
        self.classes[class.index()] += pages;
        self.levels[HELD] += if class == Class::Free { 0 } else { pages };
        self.levels[WITH_KERNEL] += if class.is_with_kernel() { pages } else { 0 };
    }

    /// Fills in who has the pages, of counts that are the whole.
    pub(super) fn tell(&self, snapshot: &mut Snapshot) {
        let of = |class: Class| {
            let pages = self.classes[class.index()];
            usize::try_from(pages).unwrap_or_else(|_| panic!("{pages} pages count as {class:?}"))
        };
        let flying = |kind| of(Class::InFlight(kind));
        snapshot.in_flight = InFlightPages {
            read: flying(Kind::Read),
            write: flying(Kind::Write),
            receive: flying(Kind::Receive),
            send: flying(Kind::Send),
            other: flying(Kind::Other),
        };
        snapshot.pages_in_flight = snapshot.in_flight.sum();
        snapshot.pages_free = of(Class::Free);
        snapshot.pages_leased = of(Class::Leased);
        snapshot.pages_shared = of(Class::Shared);
        snapshot.pages_lent = of(Class::Lent);
        snapshot.pages_notifying = of(Class::Notifying);
        snapshot.pages_total = snapshot.pages_free
            + snapshot.pages_leased
            + snapshot.pages_shared
            + snapshot.pages_lent
            + snapshot.pages_in_flight
            + snapshot.pages_notifying;
    }
}

impl From<Shift> for Counts {
    fn from(shift: Shift) -> Self {
        let mut counts = Self::default();
        counts.shift(shift);
        counts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.classes.iter_mut().zip(other.classes).for_each(|(mine, others)| *mine += others);
        self.levels.iter_mut().zip(other.levels).for_each(|(mine, others)| *mine += others);
    }
}
