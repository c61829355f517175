//! Random scripts, played on the registry and on a model of it: one list of holders per page, searched from the start.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;

const PAGES: usize = 21;
const ENTRY_PAGES: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    TryLease {
        bytes: usize,
    },
    Wait {
        bytes: usize,
    },
    /// Polls the waiter with this index, modulo their number; the others pick likewise.
    Poll {
        waiter: usize,
    },
    CancelWait {
        waiter: usize,
    },
    Split {
        lease: usize,
        at: usize,
        keep_front: bool,
    },
    Drop {
        lease: usize,
    },
    Begin {
        lease: usize,
        from: usize,
        len: usize,
    },
    End {
        flight: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 1..3 * PAGE_BYTES, 1 => 1..=ENTRY_PAGES * PAGE_BYTES];
    let byte = 0..ENTRY_PAGES * PAGE_BYTES + 1;
    let at = prop_oneof![byte.clone(), byte.prop_map(|at| at / PAGE_BYTES * PAGE_BYTES)];
    prop_oneof![
        3 => bytes.clone().prop_map(|bytes| Step::TryLease { bytes }),
        3 => bytes.prop_map(|bytes| Step::Wait { bytes }),
        3 => any::<usize>().prop_map(|waiter| Step::Poll { waiter }),
        1 => any::<usize>().prop_map(|waiter| Step::CancelWait { waiter }),
        3 => (any::<usize>(), at.clone(), any::<bool>())
            .prop_map(|(lease, at, keep_front)| Step::Split { lease, at, keep_front }),
        4 => any::<usize>().prop_map(|lease| Step::Drop { lease }),
        3 => (any::<usize>(), at.clone(), at).prop_map(|(lease, from, len)| Step::Begin { lease, from, len }),
        3 => any::<usize>().prop_map(|flight| Step::End { flight }),
    ]
}

/// What the registry should know, with a list where it has an index.
struct Model {
    holders: [Vec<u8>; PAGES],
    flights: [usize; PAGES],
    waiting: VecDeque<(u8, usize)>,
    /// First page of what a waiter was granted and has not fetched.
    granted: BTreeMap<u8, usize>,
}

impl Model {
    fn take(&mut self, id: u8, bytes: usize) -> Option<usize> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let first = (0..PAGES).find(|first| {
            let end = first + pages;
            end <= PAGES
                && first / ENTRY_PAGES == (end - 1) / ENTRY_PAGES
                && self.holders[*first..end].iter().all(Vec::is_empty)
        })?;
        self.holders[first..first + pages].iter_mut().for_each(|holders| holders.push(id));
        Some(first)
    }

    fn remove(&mut self, id: u8) {
        self.holders.iter_mut().for_each(|holders| holders.retain(|holder| *holder != id));
        self.serve();
    }

    fn serve(&mut self) {
        while let Some((id, bytes)) = self.waiting.front().copied() {
            let Some(first) = self.take(id, bytes) else {
                return;
            };
            self.granted.insert(id, first);
            self.waiting.pop_front();
        }
    }

    fn parts(&self) -> (usize, usize, usize) {
        let free = self.holders.iter().filter(|holders| holders.is_empty()).count();
        let in_flight = self.flights.iter().filter(|flights| **flights > 0).count();
        (free, PAGES - free - in_flight, in_flight)
    }
}

/// A lease, with the number that all of its bytes have.
struct Held {
    id: u8,
    buf: FixedBuf,
    /// Offset of its first byte in the arena.
    start: usize,
    flights: usize,
}

impl Held {
    fn pages(&self) -> Range<usize> {
        pages_of(&(self.start..self.start + self.buf.capacity()))
    }
}

struct Waiter {
    id: u8,
    bytes: usize,
    lease: Lease,
    woken: Arc<Woken>,
}

struct Script {
    registry: Registry,
    base: usize,
    model: Model,
    held: Vec<Held>,
    waiters: Vec<Waiter>,
    /// Whose bytes, and which.
    in_flight: Vec<(u8, Range<usize>)>,
    next_id: u8,
}

impl Script {
    fn new() -> Self {
        let registry = with_entry_pages(PAGES, ENTRY_PAGES);
        let base = registry.entries().next().expect("there is an entry").0.addr().get();
        let model = Model {
            holders: [const { Vec::new() }; PAGES],
            flights: [0; PAGES],
            waiting: VecDeque::new(),
            granted: BTreeMap::new(),
        };
        Self { registry, base, model, held: Vec::new(), waiters: Vec::new(), in_flight: Vec::new(), next_id: 0 }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::TryLease { bytes } => {
                let id = self.id();
                let expected = if self.model.waiting.is_empty() { self.model.take(id, bytes) } else { None };
                let lease = self.registry.try_lease(bytes);
                assert_eq!(lease.is_some(), expected.is_some(), "a lease of {bytes} bytes");
                if let Some((buf, first)) = lease.zip(expected) {
                    self.hold(id, buf, bytes, first);
                }
            }
            Step::Wait { bytes } => {
                let id = self.id();
                let (mut lease, woken) = (self.registry.lease(bytes), Arc::new(Woken::default()));
                let expected = if self.model.waiting.is_empty() { self.model.take(id, bytes) } else { None };
                match (poll(&mut lease, &woken), expected) {
                    (Poll::Ready(buf), Some(first)) => self.hold(id, buf.expect("that can be granted"), bytes, first),
                    (Poll::Pending, None) => {
                        self.model.waiting.push_back((id, bytes));
                        self.waiters.push(Waiter { id, bytes, lease, woken });
                    }
                    (outcome, expected) => panic!("{outcome:?}, where the model says {expected:?}"),
                }
            }
            Step::Poll { waiter } => {
                let Some(at) = pick(waiter, self.waiters.len()) else {
                    return;
                };
                let Waiter { id, bytes, lease, woken } = &mut self.waiters[at];
                let (id, bytes) = (*id, *bytes);
                match (poll(lease, woken), self.model.granted.remove(&id)) {
                    (Poll::Ready(buf), Some(first)) => {
                        self.hold(id, buf.expect("that can be granted"), bytes, first);
                        self.waiters.remove(at);
                    }
                    (Poll::Pending, None) => {}
                    (outcome, expected) => panic!("{outcome:?}, where the model says {expected:?}"),
                }
            }
            Step::CancelWait { waiter } => {
                let Some(at) = pick(waiter, self.waiters.len()) else {
                    return;
                };
                let waiter = self.waiters.remove(at);
                self.model.granted.remove(&waiter.id);
                self.model.waiting.retain(|(id, _)| *id != waiter.id);
                self.model.remove(waiter.id);
            }
            Step::Split { lease, at, keep_front } => {
                let id = self.id();
                let Some(which) = pick(lease, self.held.len()) else {
                    return;
                };
                let held = &mut self.held[which];
                if held.flights > 0 {
                    return;
                }
                let at = at % (held.buf.capacity() + 1);
                let (start, cut) = (held.start, held.start + at);
                let mut other = if keep_front { held.buf.split_off(at) } else { held.buf.split_to(at) };
                other.as_capacity_mut().fill(id);
                let other_start = if keep_front { cut } else { start };
                held.start = if keep_front { start } else { cut };
                let other = Held { id, buf: other, start: other_start, flights: 0 };
                // Not `remove`: a cut frees no page, so nobody is served.
                let old = held.id;
                self.model.holders.iter_mut().for_each(|holders| holders.retain(|holder| *holder != old));
                held.pages().for_each(|page| self.model.holders[page].push(old));
                other.pages().for_each(|page| self.model.holders[page].push(id));
                self.held.push(other);
            }
            Step::Drop { lease } => {
                let Some(which) = pick(lease, self.held.len()) else {
                    return;
                };
                if self.held[which].flights == 0 {
                    let held = self.held.swap_remove(which);
                    self.release(held);
                }
            }
            Step::Begin { lease, from, len } => {
                let Some(which) = pick(lease, self.held.len()) else {
                    return;
                };
                let held = &mut self.held[which];
                let from = from % (held.buf.capacity() + 1);
                let len = len % (held.buf.capacity() - from + 1);
                let bytes = held.start + from..held.start + from + len;
                held.flights += 1;
                self.registry.begin_flight(Kind::Read, self.base + bytes.start, len);
                pages_of(&bytes).for_each(|page| self.model.flights[page] += 1);
                self.in_flight.push((held.id, bytes));
            }
            Step::End { flight } => {
                let Some(which) = pick(flight, self.in_flight.len()) else {
                    return;
                };
                let (id, bytes) = self.in_flight.swap_remove(which);
                self.registry.end_flight(Kind::Read, self.base + bytes.start, bytes.len());
                pages_of(&bytes).for_each(|page| self.model.flights[page] -= 1);
                let held = self.held.iter_mut().find(|held| held.id == id).expect("a lease in flight is held");
                held.flights -= 1;
            }
        }
    }

    fn check(&mut self) {
        assert_eq!(parts(&self.registry), self.model.parts());
        for held in &mut self.held {
            assert_eq!(address(&mut held.buf), self.base + held.start, "no lease ever moves");
            assert!(held.pages().all(|page| self.model.holders[page].contains(&held.id)));
        }
        for waiter in &self.waiters {
            let granted = self.model.granted.contains_key(&waiter.id);
            assert_eq!(waiter.woken.times() > 0, granted, "who was granted pages, and nobody else, was woken");
        }
    }

    fn end(mut self) {
        while !self.in_flight.is_empty() {
            self.play(Step::End { flight: 0 });
        }
        while !self.waiters.is_empty() || !self.held.is_empty() {
            self.play(Step::Drop { lease: 0 });
            self.play(Step::Poll { waiter: 0 });
            self.check();
        }
        assert_eq!(parts(&self.registry), (PAGES, 0, 0), "all pages are free at the end");
        let longest = self.registry.try_lease(ENTRY_PAGES * PAGE_BYTES);
        assert!(longest.is_some(), "and in one piece");
    }

    fn hold(&mut self, id: u8, mut buf: FixedBuf, bytes: usize, first_page: usize) {
        assert_eq!((buf.len(), buf.capacity()), (0, bytes));
        buf.as_capacity_mut().fill(id);
        self.held.push(Held { id, buf, start: first_page * PAGE_BYTES, flights: 0 });
    }

    fn release(&mut self, mut held: Held) {
        assert!(held.buf.as_capacity_mut().iter().all(|byte| *byte == held.id), "nobody else wrote to its bytes");
        drop(held.buf);
        self.model.remove(held.id);
    }

    fn id(&mut self) -> u8 {
        self.next_id = self.next_id.checked_add(1).expect("a script has fewer steps than there are marks");
        self.next_id
    }
}

fn pick(index: usize, len: usize) -> Option<usize> {
    index.checked_rem(len)
}

proptest! {
    #![proptest_config(Config { cases: 192, failure_persistence: None, ..Config::default() })]

    #[test]
    fn leases_never_overlap_and_counts_always_sum(steps in prop::collection::vec(step(), 1..120)) {
        let mut script = Script::new();
        for step in steps {
            script.play(step);
            script.check();
        }
        script.end();
    }
}
