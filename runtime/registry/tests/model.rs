//! Random scripts, played on the registry and on a model of it: a list of holders, searched from the start.

use proptest::prelude::*;
use proptest::test_runner::Config;

use super::*;

/// Chunks of 8 and 2 pages to begin with, and of 8 and 3 to grow by.
const PAGES: usize = 10;
const PAGES_MAX: usize = 21;
const CHUNK_PAGES: usize = 8;
const CHUNKS: [Range<usize>; 4] = [0..8, 8..10, 16..24, 24..27];

/// Which one of several is meant: modulo their number.
type Pick = usize;

#[derive(Clone, Debug)]
enum Step {
    TryLease { bytes: usize, align: u32 },
    TryMany { lens: Vec<usize> },
    Wait { lens: Vec<usize>, drops_grant: bool },
    CancelWait { waiter: Pick },
    Split { lease: Pick, at: usize, keep_front: bool },
    Unsplit { lease: Pick, other: Pick },
    Lend { lease: Pick },
    Freeze { lease: Pick },
    Clone { lease: Pick, part: Pick, from: usize, len: usize },
    Thaw { lease: Pick },
    Drop { lease: Pick },
    Begin { lease: Pick, kind: u8, from: usize, len: usize },
    Notify { flight: Pick },
    End { flight: Pick },
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 1..3 * PAGE_BYTES, 1 => 1..=CHUNK_PAGES * PAGE_BYTES];
    let byte = 0..CHUNK_PAGES * PAGE_BYTES + 1;
    let at = prop_oneof![byte.clone(), byte.prop_map(|at| at / PAGE_BYTES * PAGE_BYTES)];
    let pick = any::<usize>();
    let lens =
        prop_oneof![3 => prop::collection::vec(bytes.clone(), 1), 1 => prop::collection::vec(1..2 * PAGE_BYTES, 2..5)];
    prop_oneof![
        3 => (bytes, 0..4_u32).prop_map(|(bytes, align)| Step::TryLease { bytes, align }),
        1 => lens.clone().prop_map(|lens| Step::TryMany { lens }),
        3 => (lens, prop::bool::weighted(0.2)).prop_map(|(lens, drops_grant)| Step::Wait { lens, drops_grant }),
        1 => pick.prop_map(|waiter| Step::CancelWait { waiter }),
        3 => (pick, at.clone(), any::<bool>())
            .prop_map(|(lease, at, keep_front)| Step::Split { lease, at, keep_front }),
        2 => (pick, pick).prop_map(|(lease, other)| Step::Unsplit { lease, other }),
        2 => pick.prop_map(|lease| Step::Lend { lease }),
        2 => pick.prop_map(|lease| Step::Freeze { lease }),
        2 => (pick, pick, at.clone(), at.clone())
            .prop_map(|(lease, part, from, len)| Step::Clone { lease, part, from, len }),
        2 => pick.prop_map(|lease| Step::Thaw { lease }),
        5 => pick.prop_map(|lease| Step::Drop { lease }),
        3 => (pick, 0..5_u8, at.clone(), at)
            .prop_map(|(lease, kind, from, len)| Step::Begin { lease, kind, from, len }),
        1 => pick.prop_map(|flight| Step::Notify { flight }),
        3 => pick.prop_map(|flight| Step::End { flight }),
        1 => Just(Step::Shrink),
    ]
}

/// One holder of bytes that are all its mark.
struct Held {
    mark: u8,
    bytes: Range<usize>,
    how: How,
    flights: usize,
}

enum How {
    Exclusive {
        buf: FixedBuf,
        is_lent: bool,
    },
    /// Parts of one frozen lease, with where each begins.
    Shared(Vec<(SharedBuf, usize)>),
}

struct Waiter {
    lens: Vec<usize>,
    lease: LeaseMany,
    woken: Arc<Woken>,
    drops_grant: bool,
}

struct Flight {
    mark: u8,
    bytes: Range<usize>,
    kind: Kind,
    is_notifying: bool,
}

struct Script {
    registry: Registry,
    base: usize,
    held: Vec<Held>,
    waiters: Vec<Waiter>,
    flights: Vec<Flight>,
    next_mark: u8,
}

const KINDS: [Kind; 5] = [Kind::Read, Kind::Receive, Kind::Write, Kind::Send, Kind::Other];

impl Script {
    fn new() -> Self {
        let registry = with_chunk_pages(PAGES, PAGES_MAX, CHUNK_PAGES);
        let base = chunks(&registry)[0].0;
        Self { registry, base, held: Vec::new(), waiters: Vec::new(), flights: Vec::new(), next_mark: 0 }
    }

    /// The rule: as many free pages in a row, at a multiple of the alignment.
    fn fits(&self, bytes: usize, align: usize) -> bool {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let is_free = |page: usize| self.held.iter().all(|held| !pages_of(&held.bytes).contains(&page));
        let has_run = |chunk: &Range<usize>| {
            let mut starts = chunk.clone().step_by(align);
            starts.any(|start| start + pages <= chunk.end && (start..start + pages).all(is_free))
        };
        CHUNKS.iter().any(has_run)
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::TryLease { bytes, align } => {
                let expected = self.waiters.is_empty() && self.fits(bytes, 1 << align);
                let lease = self.registry.try_lease_aligned(bytes, PAGE_BYTES << align);
                assert_eq!(lease.is_some(), expected, "a lease of {bytes} bytes");
                lease.into_iter().for_each(|buf| self.hold(buf, bytes));
            }
            Step::TryMany { lens } => {
                let leases = self.registry.try_lease_many(&lens);
                assert!(leases.is_none() || self.waiters.is_empty(), "who waits comes first");
                assert!(leases.is_some() || !self.waiters.is_empty() || !self.held.is_empty(), "all is free");
                self.hold_all(leases.unwrap_or_default(), &lens);
            }
            Step::Wait { lens, drops_grant } => {
                let (mut lease, woken) = (self.registry.lease_many(&lens), Arc::new(Woken::default()));
                let must_wait = !self.waiters.is_empty() || !lens.iter().all(|len| self.fits(*len, 1));
                match poll_many(&mut lease, &woken) {
                    Poll::Ready(leases) => {
                        assert!(!must_wait);
                        self.hold_all(leases.expect("they can be granted"), &lens);
                    }
                    Poll::Pending => {
                        assert!(must_wait || lens.len() > 1);
                        self.waiters.push(Waiter { lens, lease, woken, drops_grant });
                    }
                }
            }
            Step::CancelWait { waiter } => {
                if let Some(at) = pick(waiter, self.waiters.len()) {
                    drop(self.waiters.remove(at));
                }
            }
            Step::Split { lease, at, keep_front } => self.split(lease, at, keep_front),
            Step::Unsplit { lease, other } => self.unsplit(lease, other),
            Step::Lend { lease } => {
                if let Some(Held { how: How::Exclusive { buf, is_lent }, .. }) = self.idle(lease) {
                    if *is_lent {
                        buf.unlend()
                    } else {
                        buf.lend()
                    }
                    *is_lent = !*is_lent;
                }
            }
            Step::Freeze { lease } => self.freeze(lease),
            Step::Clone { lease, part, from, len } => {
                if let Some(Held { how: How::Shared(parts), .. }) = self.idle(lease) {
                    let (whole, start) = &parts[part % parts.len()];
                    let from = from % (whole.len() + 1);
                    let len = len % (whole.len() - from + 1);
                    let slice = (whole.clone().slice(from..from + len), start + from);
                    parts.push(slice);
                }
            }
            Step::Thaw { lease } => self.thaw(lease),
            Step::Drop { lease } => {
                let Some(at) = pick(lease, self.held.len()) else { return };
                match &mut self.held[at] {
                    Held { flights: 1.., .. } => {}
                    Held { how: How::Shared(parts), mark, .. } if parts.len() > 1 => {
                        let (part, _start) = parts.swap_remove(lease % parts.len());
                        assert!(part.iter().all(|byte| byte == mark), "a shared byte was changed");
                    }
                    _ => drop(self.held.swap_remove(at).checked()),
                }
            }
            Step::Begin { lease, kind, from, len } => {
                let Some(at) = pick(lease, self.held.len()) else { return };
                let held = &mut self.held[at];
                let from = from % (held.bytes.len() + 1);
                let len = len % (held.bytes.len() - from + 1);
                let bytes = held.bytes.start + from..held.bytes.start + from + len;
                held.flights += 1;
                let kind = KINDS[usize::from(kind)];
                self.registry.arena.begin_flight(kind, self.base + bytes.start, len);
                self.flights.push(Flight { mark: held.mark, bytes, kind, is_notifying: false });
            }
            Step::Notify { flight } => {
                let Some(at) = pick(flight, self.flights.len()) else { return };
                let flight = &mut self.flights[at];
                if !std::mem::replace(&mut flight.is_notifying, true) {
                    let (addr, len) = (self.base + flight.bytes.start, flight.bytes.len());
                    self.registry.arena.await_notification(flight.kind, addr, len);
                }
            }
            Step::End { flight } => {
                let Some(at) = pick(flight, self.flights.len()) else { return };
                let Flight { mark, bytes, kind, is_notifying } = self.flights.swap_remove(at);
                let addr = self.base + bytes.start;
                if is_notifying {
                    self.registry.arena.end_notification(addr, bytes.len());
                } else {
                    self.registry.arena.end_flight(kind, addr, bytes.len());
                }
                self.held.iter_mut().find(|held| held.mark == mark).expect("what is in flight is held").flights -= 1;
            }
            Step::Shrink => {
                self.registry.shrink();
                let is_used =
                    |chunk: &Range<usize>| self.held.iter().any(|held| overlaps(&pages_of(&held.bytes), chunk));
                let grown: usize = CHUNKS[2..].iter().filter(|chunk| is_used(chunk)).map(Range::len).sum();
                assert_eq!(self.registry.snapshot().pages_total, PAGES + grown);
            }
        }
    }

    fn split(&mut self, lease: Pick, at: usize, keep_front: bool) {
        let mark = self.next_mark + 1;
        let Some(Held { bytes, how: How::Exclusive { buf, is_lent }, .. }) = self.idle(lease) else { return };
        let at = at % (buf.capacity() + 1);
        let cut = bytes.start + at;
        let (front, back) = (bytes.start..cut, cut..bytes.end);
        let mut other = if keep_front { buf.split_off(at) } else { buf.split_to(at) };
        let (kept, rest) = if keep_front { (front, back) } else { (back, front) };
        *bytes = kept;
        other.as_capacity_mut().fill(mark);
        let other = Held { mark, bytes: rest, how: How::Exclusive { buf: other, is_lent: *is_lent }, flights: 0 };
        self.held.push(other);
        self.next_mark = mark;
    }

    fn unsplit(&mut self, lease: Pick, other: Pick) {
        let (Some(one), Some(two)) = (pick(lease, self.held.len()), pick(other, self.held.len())) else { return };
        let is_exclusive = |at: usize| matches!(self.held[at].how, How::Exclusive { .. }) && self.held[at].flights == 0;
        if one == two || !is_exclusive(one) || !is_exclusive(two) {
            return;
        }
        let (first, second) = (self.held.swap_remove(one.max(two)), self.held.swap_remove(one.min(two)));
        let How::Exclusive { buf: front, is_lent } = first.how else { return };
        let How::Exclusive { buf: back, is_lent: is_back_lent } = second.how else { return };
        let is_same_chunk = CHUNKS.iter().any(|chunk| {
            [&first.bytes, &second.bytes].iter().all(|b| pages_of(b).is_empty() || overlaps(&pages_of(b), chunk))
        });
        match front.unsplit(back) {
            Ok(mut buf) => {
                assert!(first.bytes.end == second.bytes.start && is_lent == is_back_lent && is_same_chunk);
                buf.as_capacity_mut().fill(first.mark);
                let bytes = first.bytes.start..second.bytes.end;
                self.held.push(Held { mark: first.mark, bytes, how: How::Exclusive { buf, is_lent }, flights: 0 });
            }
            Err((front, back)) => {
                let are_apart = first.bytes.end != second.bytes.start || is_lent != is_back_lent || !is_same_chunk;
                assert!(are_apart, "{:?} and {:?} are neighbours", first.bytes, second.bytes);
                self.held.push(Held { how: How::Exclusive { buf: front, is_lent }, ..first });
                self.held.push(Held { how: How::Exclusive { buf: back, is_lent: is_back_lent }, ..second });
            }
        }
    }

    fn freeze(&mut self, lease: Pick) {
        let Some(at) = pick(lease, self.held.len()) else { return };
        if self.held[at].flights > 0 || matches!(self.held[at].how, How::Shared(_)) {
            return;
        }
        let mut held = self.held.swap_remove(at);
        if let How::Exclusive { mut buf, .. } = held.how {
            buf.set_len(buf.capacity());
            held.how = How::Shared(vec![(buf.freeze(), held.bytes.start)]);
            self.held.push(held);
        }
    }

    fn thaw(&mut self, lease: Pick) {
        let Some(at) = pick(lease, self.held.len()) else { return };
        if self.held[at].flights > 0 || matches!(self.held[at].how, How::Exclusive { .. }) {
            return;
        }
        let mut held = self.held.swap_remove(at);
        let How::Shared(mut parts) = held.how else { return };
        let (part, start) = parts.pop().expect("a frozen lease has a part");
        match part.try_into_exclusive() {
            Ok(mut buf) => {
                assert!(parts.is_empty(), "there is another reader");
                buf.clear();
                held.bytes.start = start;
                held.how = How::Exclusive { buf, is_lent: false };
            }
            Err(part) => {
                assert!(!parts.is_empty(), "there is no other reader");
                parts.push((part, start));
                held.how = How::Shared(parts);
            }
        }
        self.held.push(held);
    }

    /// Sees what was granted, in the order of the queue; and that nobody waits who need not.
    fn settle(&mut self) {
        while let Some(first) = self.waiters.first() {
            if first.woken.times() == 0 {
                assert!(self.waiters.iter().all(|waiter| waiter.woken.times() == 0), "somebody was served out of turn");
                assert!(first.lens.len() > 1 || !self.fits(first.lens[0], 1), "the first one need not wait");
                return;
            }
            let Waiter { lens, mut lease, woken, drops_grant } = self.waiters.remove(0);
            if drops_grant {
                // Those behind it have their turn now, but what they got before has to be seen first.
                let left: Vec<_> = self.waiters.iter().take_while(|waiter| waiter.woken.times() > 0).collect();
                if left.is_empty() {
                    drop(lease);
                    continue;
                }
            }
            match poll_many(&mut lease, &woken) {
                Poll::Ready(leases) => self.hold_all(leases.expect("they can be granted"), &lens),
                Poll::Pending => panic!("woken for nothing"),
            }
        }
    }

    fn check(&mut self) {
        self.settle();
        let now = self.registry.snapshot();
        let mut expected = Snapshot::default();
        for page in 0..CHUNKS[3].end {
            let on = |bytes: &Range<usize>| pages_of(bytes).contains(&page);
            let mut holders = self.held.iter().filter(|held| on(&held.bytes)).peekable();
            if holders.peek().is_none() {
                continue;
            }
            let holders: Vec<_> = holders.collect();
            let flights: Vec<_> = self.flights.iter().filter(|flight| on(&flight.bytes)).collect();
            let first_kind = KINDS.iter().find(|kind| flights.iter().any(|f| !f.is_notifying && f.kind == **kind));
            let is_lent = |held: &&Held| matches!(held.how, How::Exclusive { is_lent: true, .. });
            if flights.iter().any(|flight| flight.is_notifying) {
                expected.pages_notifying += 1;
            } else if let Some(kind) = first_kind {
                expected.pages_in_flight += 1;
                *match kind {
                    Kind::Read => &mut expected.in_flight.read,
                    Kind::Write => &mut expected.in_flight.write,
                    Kind::Receive => &mut expected.in_flight.receive,
                    Kind::Send => &mut expected.in_flight.send,
                    Kind::Other => &mut expected.in_flight.other,
                } += 1;
            } else if holders.iter().copied().any(|held| is_lent(&held)) {
                expected.pages_lent += 1;
            } else if holders.iter().any(|held| matches!(held.how, How::Shared(_))) {
                expected.pages_shared += 1;
            } else {
                expected.pages_leased += 1;
            }
        }
        let who = |s: &Snapshot| {
            let program = [s.pages_leased, s.pages_shared, s.pages_lent];
            (program, s.pages_in_flight, s.pages_notifying, s.in_flight, s.waiting)
        };
        expected.waiting = self.waiters.len();
        assert_eq!(who(&now), who(&expected));
        let held = [now.pages_leased, now.pages_shared, now.pages_lent, now.pages_in_flight, now.pages_notifying];
        assert_eq!(now.pages_total, now.pages_free + held.iter().sum::<usize>());
        assert!((PAGES..=PAGES_MAX).contains(&now.pages_total));
        for held in &mut self.held {
            if let How::Exclusive { buf, .. } = &mut held.how {
                assert_eq!(address(buf), self.base + held.bytes.start, "no lease ever moves");
            }
        }
    }

    fn end(mut self) {
        while !self.flights.is_empty() {
            self.play(Step::End { flight: 0 });
        }
        while !self.waiters.is_empty() || !self.held.is_empty() {
            self.play(Step::Drop { lease: 0 });
            self.check();
        }
        self.registry.shrink();
        assert_eq!(
            parts(&self.registry),
            (PAGES, 0, 0),
            "all pages are free at the end, and no more than at the start"
        );
        let all: Vec<_> = CHUNKS.iter().map(|chunk| chunk.len() * PAGE_BYTES).collect();
        assert!(self.registry.try_lease_many(&all).is_some(), "and each chunk is in one piece");
    }

    /// The one that is meant, if no operation is on it.
    fn idle(&mut self, lease: Pick) -> Option<&mut Held> {
        let at = pick(lease, self.held.len())?;
        Some(&mut self.held[at]).filter(|held| held.flights == 0)
    }

    fn hold_all(&mut self, leases: Vec<FixedBuf>, lens: &[usize]) {
        leases.into_iter().zip(lens).for_each(|(buf, len)| self.hold(buf, *len));
    }

    fn hold(&mut self, mut buf: FixedBuf, len: usize) {
        assert_eq!((buf.len(), buf.capacity()), (0, len));
        let start = address(&mut buf) - self.base;
        let bytes = start..start + len;
        assert!(self.held.iter().all(|held| !overlaps(&pages_of(&held.bytes), &pages_of(&bytes))), "taken twice");
        self.next_mark += 1;
        buf.as_capacity_mut().fill(self.next_mark);
        self.held.push(Held { mark: self.next_mark, bytes, how: How::Exclusive { buf, is_lent: false }, flights: 0 });
    }
}

impl Held {
    /// Nobody else wrote to its bytes.
    fn checked(mut self) -> Self {
        let mark = self.mark;
        match &mut self.how {
            How::Exclusive { buf, .. } => assert!(buf.as_capacity_mut().iter().all(|byte| *byte == mark)),
            How::Shared(parts) => assert!(parts.iter().all(|(part, _)| part.iter().all(|byte| *byte == mark))),
        }
        self
    }
}

fn poll_many(lease: &mut LeaseMany, woken: &Arc<Woken>) -> Poll<io::Result<Vec<FixedBuf>>> {
    Pin::new(lease).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

fn pick(index: Pick, len: usize) -> Option<usize> {
    index.checked_rem(len)
}

proptest! {
    #![proptest_config(Config { cases: 256, failure_persistence: None, ..Config::default() })]

    #[test]
    fn leases_never_overlap_and_counts_always_sum(steps in prop::collection::vec(step(), 1..60)) {
        let mut script = Script::new();
        for step in steps {
            script.play(step);
            script.check();
        }
        script.end();
    }
}
