//! Where each lease was taken, to find the one that is never given back. In debug builds; a release build keeps nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `Holder` - a lease that has not been given back, from [`Registry::holders`](super::Registry::holders).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Where it was asked for.
    pub place: &'static Location<'static>,
    /// Its length. A lease that was split is listed once for each part.
    pub bytes: usize,
    /// How long ago it was taken.
    pub age: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} bytes for {:?}", self.place.file(), self.place.line(), self.bytes, self.age)
    }
}

#[derive(Debug, Default)]
pub(super) struct Holders {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    held: BTreeMap<u64, Held>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    place: &'static Location<'static>,
    bytes: usize,
    since: Instant,
}

/// Whether leases are listed.
const IS_KEPT: bool = cfg!(debug_assertions);

impl Holders {
    /// A lease was taken; the number it is known by.
    pub(super) fn add(&self, place: &'static Location<'static>, bytes: usize) -> u64 {
        if !IS_KEPT {
            return 0;
        }
        self.list().insert(Held { place, bytes, since: Instant::now() })
    }

    /// A lease was cut, and keeps so many bytes; the number of the other part.
    pub(super) fn split(&self, id: u64, kept: usize, rest: usize) -> u64 {
        if !IS_KEPT {
            return 0;
        }
        let mut list = self.list();
        let held = list.held.get_mut(&id).expect("a lease is listed until it is dropped");
        held.bytes = kept;
        let rest = Held { bytes: rest, ..*held };
        list.insert(rest)
    }

    /// A lease has so many bytes now.
    pub(super) fn resize(&self, id: u64, bytes: usize) {
        if IS_KEPT && let Some(held) = self.list().held.get_mut(&id) {
            held.bytes = bytes;
        }
    }

    /// A lease was given back.
    pub(super) fn remove(&self, id: u64) {
        if IS_KEPT {
            self.list().held.remove(&id);
        }
    }

    /// Those that were not, the oldest first.
    pub(super) fn list_all(&self) -> Vec<Holder> {
        let list = self.list();
        let held = list.held.values().filter(|held| held.bytes > 0);
        let mut holders: Vec<_> =
            held.map(|held| Holder { place: held.place, bytes: held.bytes, age: held.since.elapsed() }).collect();
        drop(list);
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.age));
        holders
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn insert(&mut self, held: Held) -> u64 {
        self.next += 1;
        self.held.insert(self.next, held);
        self.next
    }
}
