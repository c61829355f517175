//! Operations that overlap on slices of frozen leases, against a model that has a record for each page.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;

const PAGES: usize = 48;
const KINDS: [Kind; 5] = [Kind::Read, Kind::Receive, Kind::Write, Kind::Send, Kind::Other];

#[derive(Clone, Debug)]
enum Step {
    Begin {
        part: usize,
        kind: usize,
        from: usize,
        len: usize,
    },
    Notify {
        flight: usize,
    },
    End {
        flight: usize,
    },
    /// Another slice of a part, which holds the same pages.
    Slice {
        part: usize,
        from: usize,
        len: usize,
    },
    Drop {
        part: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (pick, byte) = (any::<usize>(), 0..PAGES * PAGE_BYTES);
    prop_oneof![
        5 => (pick, 0..5_usize, byte.clone(), byte.clone())
            .prop_map(|(part, kind, from, len)| Step::Begin { part, kind, from, len }),
        2 => pick.prop_map(|flight| Step::Notify { flight }),
        4 => pick.prop_map(|flight| Step::End { flight }),
        2 => (pick, byte.clone(), byte).prop_map(|(part, from, len)| Step::Slice { part, from, len }),
        1 => pick.prop_map(|part| Step::Drop { part }),
    ]
}

/// A slice of the frozen lease of this number.
struct Part {
    lease: usize,
    bytes: SharedBuf,
}

struct Flight {
    lease: usize,
    kind: usize,
    addr: usize,
    len: usize,
    is_notifying: bool,
}

#[derive(Clone, Default)]
struct Page {
    holders: usize,
    flights: [usize; 5],
    notifying: usize,
}

struct Script {
    registry: Registry,
    base: usize,
    /// The pages of each frozen lease, and how many parts it has.
    leases: Vec<(Range<usize>, usize)>,
    parts: Vec<Part>,
    flights: Vec<Flight>,
    pages: Vec<Page>,
}

impl Script {
    /// A lease that is cut at these bytes, each piece frozen.
    fn new(cuts: &[usize]) -> Self {
        let registry = registry(PAGES);
        let base = chunks(&registry)[0].0;
        let mut whole = registry.try_lease(PAGES * PAGE_BYTES - 100).expect("all is free");
        let mut script =
            Self { registry, base, leases: Vec::new(), parts: Vec::new(), flights: Vec::new(), pages: Vec::new() };
        script.pages.resize(PAGES, Page::default());
        let mut pieces = Vec::new();
        for cut in cuts {
            let rest = whole.split_off(cut % (whole.capacity() + 1));
            pieces.push(std::mem::replace(&mut whole, rest));
        }
        pieces.push(whole);
        for mut piece in pieces.into_iter().filter(|piece| piece.capacity() > 0) {
            let start = address(&mut piece) - base;
            let pages = pages_of(&(start..start + piece.capacity()));
            script.pages[pages.clone()].iter_mut().for_each(|page| page.holders += 1);
            piece.set_len(piece.capacity());
            script.parts.push(Part { lease: script.leases.len(), bytes: piece.freeze() });
            script.leases.push((pages, 1));
        }
        script
    }

    fn pages(&mut self, addr: usize, len: usize) -> &mut [Page] {
        let start = addr - self.base;
        &mut self.pages[pages_of(&(start..start + len))]
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Begin { part, kind, from, len } => {
                let Some(at) = part.checked_rem(self.parts.len()) else { return };
                let Part { lease, bytes } = &self.parts[at];
                let from = from % (bytes.len() + 1);
                let len = len % (bytes.len() - from + 1);
                let (lease, addr) = (*lease, bytes.as_ptr().addr() + from);
                self.registry.arena.begin_flight(KINDS[kind], addr, len);
                self.pages(addr, len).iter_mut().for_each(|page| page.flights[kind] += 1);
                self.flights.push(Flight { lease, kind, addr, len, is_notifying: false });
            }
            Step::Notify { flight } => {
                let Some(at) = flight.checked_rem(self.flights.len()) else { return };
                let Flight { kind, addr, len, ref mut is_notifying, .. } = self.flights[at];
                if !std::mem::replace(is_notifying, true) {
                    self.registry.arena.await_notification(KINDS[kind], addr, len);
                    for page in self.pages(addr, len) {
                        page.flights[kind] -= 1;
                        page.notifying += 1;
                    }
                }
            }
            Step::End { flight } => {
                if let Some(at) = flight.checked_rem(self.flights.len()) {
                    self.end(at);
                }
            }
            Step::Slice { part, from, len } => {
                let Some(at) = part.checked_rem(self.parts.len()) else { return };
                let Part { lease, bytes } = &self.parts[at];
                let from = from % (bytes.len() + 1);
                let len = len % (bytes.len() - from + 1);
                let (lease, bytes) = (*lease, bytes.clone().slice(from..from + len));
                self.leases[lease].1 += 1;
                self.parts.push(Part { lease, bytes });
            }
            Step::Drop { part } => {
                let Some(at) = part.checked_rem(self.parts.len()) else { return };
                let lease = self.parts[at].lease;
                // An operation has a part of its own.
                if self.leases[lease].1 > 1 || self.flights.iter().all(|flight| flight.lease != lease) {
                    self.drop_part(at);
                }
            }
        }
    }

    fn end(&mut self, at: usize) {
        let Flight { kind, addr, len, is_notifying, .. } = self.flights.swap_remove(at);
        if is_notifying {
            self.registry.arena.end_notification(addr, len);
            self.pages(addr, len).iter_mut().for_each(|page| page.notifying -= 1);
        } else {
            self.registry.arena.end_flight(KINDS[kind], addr, len);
            self.pages(addr, len).iter_mut().for_each(|page| page.flights[kind] -= 1);
        }
    }

    fn drop_part(&mut self, at: usize) {
        let (pages, parts) = &mut self.leases[self.parts.swap_remove(at).lease];
        *parts -= 1;
        if *parts == 0 {
            self.pages[pages.clone()].iter_mut().for_each(|page| page.holders -= 1);
        }
    }

    fn check(&self) {
        let mut expected = Snapshot { pages_total: PAGES, ..Snapshot::default() };
        for page in &self.pages {
            let first_kind = (0..KINDS.len()).find(|kind| page.flights[*kind] > 0);
            if page.notifying > 0 {
                expected.pages_notifying += 1;
            } else if let Some(kind) = first_kind {
                expected.pages_in_flight += 1;
                let flying = &mut expected.in_flight;
                *[&mut flying.read, &mut flying.receive, &mut flying.write, &mut flying.send, &mut flying.other]
                    [kind] += 1;
            } else if page.holders > 0 {
                expected.pages_shared += 1;
            } else {
                expected.pages_free += 1;
            }
        }
        let now = self.registry.snapshot();
        let who = |s: &Snapshot| {
            let rest = [s.pages_total, s.pages_free, s.pages_leased, s.pages_shared, s.pages_lent, s.pages_notifying];
            (rest, s.pages_in_flight, s.in_flight)
        };
        assert_eq!(who(&now), who(&expected));
        assert!(now.pages_in_flight_max >= now.pages_in_flight + now.pages_notifying);
    }
}

proptest! {
    #![proptest_config(Config { cases: 256, failure_persistence: None, ..Config::default() })]

    #[test]
    fn overlapping_flights_count_as_a_record_for_each_page_would(
        cuts in prop::collection::vec(0..20 * PAGE_BYTES, 0..6),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut script = Script::new(&cuts);
        let mut most = 0;
        for step in &steps {
            script.play(step);
            script.check();
            most = most.max(script.pages.iter().filter(|p| p.notifying > 0 || p.flights != [0; 5]).count());
        }
        prop_assert_eq!(script.registry.snapshot().pages_in_flight_max, most);
        while !script.flights.is_empty() {
            script.end(0);
            script.check();
        }
        while !script.parts.is_empty() {
            script.drop_part(0);
            script.check();
        }
        prop_assert!(script.registry.try_lease(PAGES * PAGE_BYTES).is_some(), "all is free, and in one piece");
    }
}

#[test]
fn a_lease_that_the_kernel_has_cannot_be_cut() {
    let registry = registry(4);
    let mut lease = registry.try_lease(4 * 4096).expect("the pages are free");
    let at = address(&mut lease);
    registry.arena.begin_flight(Kind::Read, at + 4096, 4096);
    assert!(catch_unwind(AssertUnwindSafe(|| lease.split_off(2 * 4096))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| registry.arena.end_flight(Kind::Read, at, 4096))).is_err());
    registry.arena.end_flight(Kind::Read, at + 4096, 4096);
    drop(lease.split_off(2 * 4096));
    assert_eq!(parts(&registry), (2, 2, 0));
    assert!(
        catch_unwind(|| registry.arena.begin_flight(Kind::Read, at + 2 * 4096, 1)).is_err(),
        "nobody holds it, so no operation can"
    );
}

#[test]
fn the_most_pages_held_at_once_is_exact_whichever_threads_take_and_give_them_back() {
    let registry = registry(64);
    for round in 1..=3 {
        let taken: Vec<_> = (0..4)
            .map(|_| {
                let taker =
                    || (0..round * 2).map(|_| registry.try_lease(4096).expect("it is free")).collect::<Vec<_>>();
                thread::scope(|scope| scope.spawn(taker).join().expect("the thread ends"))
            })
            .collect();
        assert_eq!(registry.snapshot().pages_held_max, 4 * round * 2);
        // Given back by another thread than took them.
        drop(taken);
        assert_eq!(parts(&registry), (64, 0, 0));
    }
    drop(registry.try_lease(23 * 4096));
    assert_eq!(registry.snapshot().pages_held_max, 24);
    drop(registry.try_lease(25 * 4096));
    assert_eq!(registry.snapshot().pages_held_max, 25);
}
