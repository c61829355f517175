//! Random scripts of what can be done with pages, played on a registry under a driver whose kernel is scripted, and on
//! a naive model beside it.
//!
//! A script is a string of bytes, three to a step after a first one, so that a property test and a fuzzer drive the same
//! interpreter. The model keeps a list of tenants and a list of operations; the state of every page is worked out from
//! them anew after each step.
//!
//! What it claims then: no byte has two writers (every lease bears a mark of its own, and keeps it); no page is leased
//! while an operation that names it has not had its last completion, whatever became of its future; each operation
//! reaches the kernel with the addresses of its own lease, and names the chunk where they lie; the snapshot is the
//! model's, and sums to the whole; who waits for pages gets them in turn, and as soon as they are there. At the end all
//! is free, and what the registry had grown by is given back.

mod flights;
mod tenants;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ringmain::{Config, Driver, Entered, Fd, FixedBuf, LeaseMany, Registry, Script, Snapshot, Wait};
use rustix::io::Errno;

use flights::{Came, Flight, Phase, What};
use tenants::{Claim, Form, Memory, PAGE, Pages, Tenant, pages_of, span_of};

/// What the registry begins with, and what it may grow by: one chunk.
const PAGES: usize = 8;
const GROWN: usize = 512;
/// Pages that are lent at once, where a script has receives into such.
const LENT: u16 = 2;
/// Operations whose futures exist at once, tenants, and waiters; further ones are skipped.
const FLIGHTS_MAX: usize = 16;
const TENANTS_MAX: usize = 32;
const WAITERS_MAX: usize = 6;
/// The longest lease that an operation takes: the played kernel writes byte by byte.
const TRANSFER_MAX: usize = 3 * PAGE;

// `include/uapi/linux/io_uring.h`.
const ASYNC_CANCEL: u8 = 14;
const CQE_MORE: u32 = 1 << 1;
const CQE_NOTIFICATION: u32 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = i32::MIN;

/// Play a script to its end, and then the end of everything.
///
/// # Panics
/// If registry and model differ.
pub(crate) fn play(script: &[u8]) {
    let (shape, steps) = script.split_first().unwrap_or((&0, &[]));
    let mut play = Play::new(*shape);
    play.check();
    for step in steps.chunks_exact(3) {
        play.step(step[0], step[1].into(), step[2].into());
        play.serve();
        play.check();
    }
    play.end(shape >> 4);
}

struct Play {
    driver: Rc<Driver>,
    script: Script,
    _entered: Entered,
    registry: Registry,
    /// The addresses of each chunk that there can be.
    chunks: Vec<Range<usize>>,
    tenants: Vec<Tenant>,
    flights: Vec<Flight>,
    waiters: VecDeque<Waiter>,
    /// Flights that are queued, in order.
    backlog: Vec<usize>,
    posted: Vec<Posted>,
    orders_seen: u64,
    next_tenant: usize,
    next_mark: u8,
    /// Whether the ring has each chunk in its table.
    registered: [bool; 2],
    /// What the registry grows by is refused by the kernel.
    refuses: bool,
    /// What it has grown by stays until the ring, which has or may have it in its table, has let go of it.
    is_pinned: bool,
    /// What it has grown by was given back, and the ring has not let go of it.
    is_draining: bool,
    /// Pages are lent. Which ones is not said, so what depends on that is not foretold while there are any.
    lends: bool,
    null: OwnedFd,
}

struct Waiter {
    lens: Vec<usize>,
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

/// What the played kernel has said and the driver has not heard.
struct Posted {
    flight: usize,
    result: i32,
    more: bool,
}

impl Play {
    fn new(shape: u8) -> Self {
        let grows = shape & 1 == 0;
        let config = Config::default()
            .entries(128)
            .completions(256)
            .pages(PAGES as u32)
            .pages_max(if grows { PAGES + GROWN } else { PAGES } as u32)
            .register_pages(shape & 2 == 0)
            .lent([(PAGE as u32, LENT)])
            .zero_copy_min(1);
        let (driver, script) = Driver::scripted(&config).expect("a scripted driver needs no kernel");
        let mut play = Self {
            registry: driver.registry().clone(),
            _entered: driver.enter(),
            driver,
            script,
            chunks: Vec::new(),
            tenants: Vec::new(),
            flights: Vec::new(),
            waiters: VecDeque::new(),
            backlog: Vec::new(),
            posted: Vec::new(),
            orders_seen: 0,
            next_tenant: 0,
            next_mark: 0,
            registered: [shape & 2 == 0, false],
            refuses: shape & 4 != 0,
            is_pinned: false,
            is_draining: false,
            lends: shape & 8 != 0,
            null: std::fs::File::open("/dev/null").expect("there is a null device").into(),
        };
        if play.refuses {
            play.script.refuse_memory(Some(Errno::NOMEM.raw_os_error()));
        }
        let lens = [PAGES * PAGE, GROWN * PAGE];
        let mut whole: Vec<FixedBuf> = lens[..1 + usize::from(grows)]
            .iter()
            .map(|len| play.registry.try_lease(*len).expect("a lease takes a whole chunk"))
            .collect();
        play.chunks = whole.iter_mut().map(span_of).collect();
        play
    }

    fn step(&mut self, code: u8, pick: usize, detail: usize) {
        match code % 28 {
            0 | 1 => self.try_lease(pick, detail),
            2 => self.try_many(pick, detail),
            3 => self.wait(vec![self.length(pick)]),
            4 => self.wait(vec![self.length(pick); 1 + detail % 3]),
            5 if !self.waiters.is_empty() => drop(self.waiters.remove(pick % self.waiters.len())),
            6 => self.split(pick, detail),
            7 => self.unsplit(pick, detail),
            8 => self.freeze(pick),
            9 => self.narrow(pick, detail),
            10 => self.thaw(pick),
            11 | 12 => self.release(pick, detail),
            13 => self.start(What::Read, pick, detail),
            14 => self.start([What::Write, What::Send][detail % 2], pick, detail / 2),
            15 => self.start([What::Readv, What::Writev][detail % 2], pick, detail / 2),
            16 => self.with_future(pick, Self::poll),
            17 => self.with_future(pick, Self::drop_future),
            18 => self.with_future(pick, Self::cancel),
            19..=21 => self.answer(pick, detail),
            22 if pick.is_multiple_of(4) => self.shrink(),
            23 | 24 if self.lends => self.start(What::Receive, pick, detail),
            _ => self.turn(),
        }
    }

    /// A length in bytes, small or large, at the borders of pages and not.
    fn length(&self, pick: usize) -> usize {
        let longest = self.chunks.iter().map(Range::len).max().expect("there is a chunk");
        [1, 100, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 5, PAGES * PAGE, longest][pick % 8]
    }

    /// The rule: as many free pages in a row, at a multiple of the alignment, in one chunk.
    fn fits(&self, bytes: usize, align: usize) -> bool {
        let held = self.pages();
        let pages = bytes.div_ceil(PAGE);
        self.chunks.iter().map(pages_of).any(|chunk| {
            let mut starts = chunk.clone().filter(|page| (page * PAGE).is_multiple_of(align));
            starts.any(|start| held.are_free(start..start + pages))
        })
    }

    /// Whether there are pages of which the model does not know where they are.
    fn is_vague(&self) -> bool {
        let counts = self.registry.snapshot();
        counts.pages_lent > 0 || counts.waiting > self.waiters.len() || self.unseen(&counts) > 0
    }

    /// Pages that receives have brought, and that nobody has taken.
    fn brought(&self) -> usize {
        self.flights.iter().filter(|flight| flight.has_unseen()).count()
    }

    /// Leased pages that nobody has seen: the lender, as it waits, may have been granted one beside.
    fn unseen(&self, counts: &Snapshot) -> usize {
        let unseen = self.brought();
        let leased = self.pages().count(Claim::Leased) + unseen;
        unseen + usize::from(self.lends && counts.pages_leased == leased + 1)
    }

    fn try_lease(&mut self, pick: usize, detail: usize) {
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

    fn try_many(&mut self, pick: usize, detail: usize) {
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
    fn fit_together(&self, lens: &[usize]) -> bool {
        if self.is_vague() {
            return false;
        }
        let free = self.chunks.iter().map(|chunk| pages_of(chunk).len()).sum::<usize>() - self.pages().held();
        match lens {
            [one] => self.fits(*one, 1),
            _ => lens.iter().all(|len| *len <= PAGE) && lens.len() <= free,
        }
    }

    fn wait(&mut self, lens: Vec<usize>) {
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
    fn serve(&mut self) {
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
    fn admit(&mut self, lease: FixedBuf, bytes: usize) {
        assert_eq!((lease.capacity(), lease.len()), (bytes, 0));
        self.adopt(lease);
    }

    fn adopt(&mut self, mut lease: FixedBuf) {
        lease.set_len(lease.capacity());
        let span = span_of(&mut lease);
        let chunk = self.chunks.iter().position(|chunk| chunk.start <= span.start && span.end <= chunk.end);
        let chunk = chunk.expect("a lease lies in one chunk");
        self.is_draining &= chunk == 0;
        let held = self.pages();
        assert!(held.are_free(pages_of(&span)), "a page is leased though it is not free");
        self.settle_in(span, Form::Lease(lease));
    }

    fn settle_in(&mut self, span: Range<usize>, form: Form) {
        let mark = self.fresh_mark();
        let mut tenant = Tenant { id: self.next_tenant, span, mark, form };
        tenant.stamp();
        self.tenants.push(tenant);
        self.next_tenant += 1;
    }

    /// A byte that nobody bears; what the kernel has still to write counts.
    fn fresh_mark(&mut self) -> u8 {
        loop {
            self.next_mark = self.next_mark.wrapping_add(1);
            if self.tenants.iter().all(|tenant| tenant.mark != self.next_mark) {
                return self.next_mark;
            }
        }
    }

    /// One of the tenants for which this holds.
    fn pick(&self, pick: usize, predicate: impl Fn(&Tenant) -> bool) -> Option<usize> {
        let places: Vec<usize> = (0..self.tenants.len()).filter(|at| predicate(&self.tenants[*at])).collect();
        Some(places[pick.checked_rem(places.len())?])
    }

    fn place(&self, id: usize) -> usize {
        self.tenants.iter().position(|tenant| tenant.id == id).expect("what an operation has is somebody's")
    }

    fn split(&mut self, pick: usize, detail: usize) {
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

    fn unsplit(&mut self, pick: usize, detail: usize) {
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

    fn freeze(&mut self, pick: usize) {
        let Some(at) = self.pick(pick, Tenant::is_idle_lease) else { return };
        let tenant = &mut self.tenants[at];
        if let Form::Lease(lease) = std::mem::replace(&mut tenant.form, Form::Away) {
            tenant.form = Form::Shared { parts: vec![lease.freeze()], away: 0 };
        }
    }

    /// One reader more, of a part; or a part is cut in two, or joined.
    fn narrow(&mut self, pick: usize, detail: usize) {
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

    fn thaw(&mut self, pick: usize) {
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

    fn release(&mut self, pick: usize, detail: usize) {
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

    fn start(&mut self, what: What, pick: usize, detail: usize) {
        if self.flights.iter().filter(|flight| flight.future.is_some()).count() >= FLIGHTS_MAX {
            return;
        }
        let buffers = if matches!(what, What::Readv | What::Writev) { 1 + detail % 3 } else { 1 };
        let buffers = if what == What::Receive { 0 } else { buffers };
        let (mut memory, mut regions) = (Vec::new(), Vec::new());
        for number in 0..buffers {
            let fills = matches!(what, What::Read | What::Readv);
            let is_fit = |tenant: &Tenant| match &tenant.form {
                _ if tenant.span.len() > TRANSFER_MAX => false,
                Form::Lease(_) => !tenant.span.is_empty(),
                Form::Away => false,
                Form::Shared { parts, .. } => !fills && parts.last().is_some_and(|part| !part.is_empty()),
            };
            let Some(at) = self.pick(pick + number, is_fit) else { break };
            let tenant = &mut self.tenants[at];
            let mut region = tenant.span.clone();
            memory.push(match std::mem::replace(&mut tenant.form, Form::Away) {
                Form::Lease(mut lease) => {
                    if fills {
                        lease.clear();
                    }
                    Memory::Lease(lease)
                }
                Form::Shared { mut parts, away } => {
                    let part = parts.pop().expect("there is a part");
                    region = part.as_ptr_range().start.addr()..part.as_ptr_range().end.addr();
                    tenant.form = Form::Shared { parts, away: away + 1 };
                    Memory::Shared(part)
                }
                Form::Away => panic!("what an operation has is not picked"),
            });
            regions.push((tenant.id, region));
        }
        if !memory.is_empty() || what == What::Receive {
            let fd = Fd::new(self.null.try_clone().expect("there are descriptors"));
            self.flights.push(Flight::new(what, fd, memory, regions));
            self.poll(self.flights.len() - 1);
        }
    }

    /// Do this with one of the operations whose futures exist.
    fn with_future(&mut self, pick: usize, action: impl FnOnce(&mut Self, usize)) {
        let ids: Vec<usize> = (0..self.flights.len()).filter(|id| self.flights[*id].future.is_some()).collect();
        if !ids.is_empty() {
            action(self, ids[pick % ids.len()]);
        }
    }

    fn poll(&mut self, id: usize) {
        let is_closed = self.is_closed();
        let flight = &mut self.flights[id];
        let refused = matches!(flight.phase, Phase::Done(result) if flight.is_refused(result));
        if refused {
            (flight.phase, flight.plain, flight.user_data) = (Phase::Fresh, true, None);
        }
        let expected = match flight.phase {
            Phase::Fresh if flight.cancelled || is_closed => Some(-Errno::CANCELED.raw_os_error()),
            Phase::Fresh => None,
            Phase::Answered(result) if !flight.told && !flight.is_refused(result) => Some(result),
            Phase::Done(result) => Some(result),
            _ => None,
        };
        let came = flight.poll();
        match (came, expected) {
            (Came::Received(result), _) => self.receive(id, result, expected),
            (Came::Nothing, None) if flight.phase == Phase::Fresh => {
                flight.phase = Phase::Queued;
                self.backlog.push(id);
                self.flights[id].named = self.name(id);
            }
            (Came::Nothing, None) => {}
            (Came::Told(result), Some(expected)) if !flight.told => {
                assert_result(&result, expected);
                flight.told = true;
                if let Phase::Fresh = flight.phase {
                    flight.phase = Phase::Done(expected);
                }
            }
            (Came::Back(memory), Some(_)) if flight.told => self.give_back(id, vec![memory]),
            (Came::Ended(result, memory), Some(expected)) => {
                assert_result(&result, expected);
                self.give_back(id, memory);
            }
            (came, expected) => panic!("{:?} while {:?} gives {came:?}, not {expected:?}", flight.what, flight.phase),
        }
    }

    /// A page that a receive has brought, or how it ended.
    fn receive(&mut self, id: usize, result: std::io::Result<Option<FixedBuf>>, expected: Option<i32>) {
        let flight = &mut self.flights[id];
        // One that waits for a page ends at once when it is cancelled, which may be at its next turn.
        let cancelled = flight.phase == Phase::Starved && flight.cancelled;
        let expected = expected.unwrap_or_else(|| {
            assert!(cancelled, "a receive is done too early: {result:?}");
            -Errno::CANCELED.raw_os_error()
        });
        (flight.phase, flight.fd) = (Phase::Gone, None);
        let brought = flight.brought;
        match result {
            Ok(Some(page)) => {
                let (mark, count) = brought.expect("the kernel has brought something");
                assert_eq!((page.len(), page.capacity(), expected), (count, PAGE, count as i32));
                assert!(page.iter().all(|byte| *byte == mark), "the bytes that came are in their place");
                if self.tenants.len() < TENANTS_MAX {
                    self.adopt(page);
                }
            }
            Ok(None) => assert_eq!(expected, 0, "it is the end"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(-expected), "the kernel's errno"),
        }
    }

    /// The chunk that an operation names: the one where all of its bytes lie, if the ring has that in its table.
    fn name(&self, id: usize) -> Option<usize> {
        let flight = &self.flights[id];
        let lies_in = |chunk: &Range<usize>| {
            flight.regions.iter().all(|(_, region)| chunk.start <= region.start && region.end <= chunk.end)
        };
        let chunk = self.chunks.iter().position(lies_in)?;
        (self.registered[chunk] && !flight.plain && !flight.regions.is_empty()).then_some(chunk)
    }

    /// The program has these again, as the operation leaves them.
    fn give_back(&mut self, id: usize, memory: Vec<Memory>) {
        let flight = &mut self.flights[id];
        (flight.phase, flight.fd, flight.future) = (Phase::Gone, None, None);
        let regions = std::mem::take(&mut flight.regions);
        let (brought, mut left) = flight.brought.unwrap_or((0, 0));
        let fills = matches!(flight.what, What::Read | What::Readv);
        assert_eq!(memory.len(), regions.len(), "all of it comes back");
        for (memory, (tenant, region)) in memory.into_iter().zip(regions) {
            let at = self.place(tenant);
            let fresh = self.fresh_mark();
            let tenant = &mut self.tenants[at];
            match memory {
                Memory::Shared(part) => {
                    assert_eq!(part.as_ptr().addr()..part.as_ptr().addr() + part.len(), region);
                    let Form::Shared { parts, away } = &mut tenant.form else { panic!("what is shared stays so") };
                    parts.push(part);
                    *away -= 1;
                }
                Memory::Lease(mut lease) => {
                    assert_eq!(span_of(&mut lease), region);
                    if fills {
                        let here = left.min(region.len());
                        left -= here;
                        assert_eq!(lease.len(), here, "what came is visible, and no more");
                        assert!(lease.iter().all(|byte| *byte == brought), "the bytes that came are in their place");
                        let rest = &lease.as_capacity_mut()[here..];
                        assert!(rest.iter().all(|byte| *byte == tenant.mark), "and nothing else was written");
                        tenant.mark = fresh;
                    }
                    lease.set_len(lease.capacity());
                    tenant.form = Form::Lease(lease);
                    tenant.stamp();
                }
            }
        }
    }

    /// Nobody wants these back any more, and the kernel has let go of them.
    fn let_go(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        (flight.phase, flight.fd) = (Phase::Gone, None);
        for (tenant, _) in std::mem::take(&mut flight.regions) {
            let at = self.place(tenant);
            let is_last = match &mut self.tenants[at].form {
                Form::Shared { parts, away } => {
                    *away -= 1;
                    parts.is_empty() && *away == 0
                }
                Form::Away => true,
                Form::Lease(_) => panic!("an operation's lease is in somebody else's hands"),
            };
            if is_last {
                self.tenants.swap_remove(at);
            }
        }
    }

    fn drop_future(&mut self, id: usize) {
        self.flights[id].future = None;
        if !matches!(self.flights[id].phase, Phase::Pushed | Phase::Answered(_)) {
            self.backlog.retain(|queued| *queued != id);
            self.let_go(id);
        }
    }

    fn cancel(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        if flight.request_cancel() {
            flight.cancelled = true;
            if matches!(flight.phase, Phase::Queued | Phase::Starved) {
                flight.phase = Phase::Done(-Errno::CANCELED.raw_os_error());
                self.backlog.retain(|queued| *queued != id);
            }
        }
    }

    /// Let the played kernel answer one of the entries that it has.
    fn answer(&mut self, pick: usize, detail: usize) {
        let pending = self.script.pending();
        let ours: Vec<_> = pending.iter().filter(|pending| pending.entry.opcode != ASYNC_CANCEL).collect();
        let Some(entry) = pick.checked_rem(ours.len()).map(|at| ours[at].entry) else { return };
        let user_data = entry.user_data;
        let is_its = |flight: &Flight| flight.user_data == Some(user_data) && flight.phase != Phase::Gone;
        let id = self.flights.iter().position(is_its).expect("the kernel has only entries of operations");
        let has_answered = matches!(self.flights[id].phase, Phase::Answered(_))
            || self.posted.iter().any(|posted| posted.flight == id);
        if has_answered {
            let result = if detail.is_multiple_of(4) { COPIED } else { 0 };
            self.script.complete_with(user_data, result, CQE_NOTIFICATION);
            self.posted.push(Posted { flight: id, result, more: false });
            return;
        }
        let mark = self.fresh_mark();
        let flight = &mut self.flights[id];
        if flight.what == What::Receive {
            let room = self.script.lent(user_data).first().map(|(_, room)| *room);
            let result = match (detail % 8, room) {
                (0..=4, Some(room)) => {
                    let count = room.min(1 + detail * 31);
                    flight.brought = Some((mark, count));
                    self.script.complete_with_lent(user_data, &vec![mark; count], 0);
                    count as i32
                }
                (0..=4, None) => -Errno::NOBUFS.raw_os_error(),
                (5, _) => -Errno::IO.raw_os_error(),
                (6, _) => -Errno::CANCELED.raw_os_error(),
                _ => 0,
            };
            if result <= 0 {
                self.script.complete(user_data, result);
            }
            self.posted.push(Posted { flight: id, result, more: false });
            return;
        }
        let fills = matches!(flight.what, What::Read | What::Readv);
        let bad = |errno: Errno| -errno.raw_os_error();
        let most = i32::try_from(flight.bytes()).expect("a transfer is short");
        let result = match detail % 8 {
            0..=2 => most,
            3 | 4 => most.min(1 + detail as i32 * 31),
            5 => bad(Errno::IO),
            6 => bad(Errno::CANCELED),
            _ if flight.what == What::Send => bad(Errno::NOMEM),
            _ => 0,
        };
        let more = flight.what == What::Send && !flight.plain && detail < 192;
        if fills && result >= 0 {
            flight.brought = Some((mark, result as usize));
            self.script.complete_with_bytes(user_data, &vec![mark; result as usize]);
        } else {
            self.script.complete_with(user_data, result, if more { CQE_MORE } else { 0 });
        }
        self.posted.push(Posted { flight: id, result, more });
    }

    fn turn(&mut self) {
        let is_grown = self.is_grown();
        self.driver.turn(Wait::No).expect("nothing of this is fatal");
        if self.is_draining {
            (self.is_draining, self.is_pinned, self.registered[1]) = (false, false, false);
            assert!(self.lends || !self.is_grown(), "memory goes when the ring has let go of it");
        } else if is_grown {
            self.is_pinned = self.registered[0];
            self.registered[1] = self.is_pinned && !self.refuses;
        }
        for id in &self.backlog {
            self.flights[*id].phase = Phase::Pushed;
        }
        for posted in std::mem::take(&mut self.posted) {
            self.settle(posted);
        }
        self.see_entries();
    }

    fn settle(&mut self, Posted { flight: id, result, more }: Posted) {
        let flight = &mut self.flights[id];
        flight.phase = match flight.phase {
            Phase::Pushed if more => Phase::Answered(result),
            Phase::Pushed if flight.is_starved(result) && flight.cancelled => {
                Phase::Done(-Errno::CANCELED.raw_os_error())
            }
            Phase::Pushed if flight.is_starved(result) => Phase::Starved,
            Phase::Pushed => Phase::Done(result),
            Phase::Answered(result) => Phase::Done(result),
            phase => panic!("{:?} was answered while {phase:?}", flight.what),
        };
        if flight.future.is_none() && !more {
            // An orphan does not wait for a page.
            self.let_go(id);
        }
    }

    /// What the played kernel was given is what was queued, in its order, each with its own addresses.
    fn see_entries(&mut self) {
        let pending = self.script.pending();
        let mut queued = std::mem::take(&mut self.backlog).into_iter();
        for new in pending.iter().filter(|pending| pending.order >= self.orders_seen) {
            let entry = new.entry;
            if entry.opcode == ASYNC_CANCEL {
                self.script.complete(entry.user_data, -Errno::NOENT.raw_os_error());
                continue;
            }
            let is_again =
                |flight: &Flight| flight.phase == Phase::Starved && flight.user_data == Some(entry.user_data);
            if let Some(again) = self.flights.iter_mut().find(|flight| is_again(flight)) {
                again.phase = Phase::Pushed;
                continue;
            }
            let id = queued.next().expect("the kernel gets only what was queued");
            let flight = &mut self.flights[id];
            flight.user_data = Some(entry.user_data);
            assert!(flight.opcodes().contains(&entry.opcode), "{:?} is opcode {}", flight.what, entry.opcode);
            if let (What::Read | What::Write | What::Send, [(_, first)]) = (flight.what, &flight.regions[..]) {
                assert_eq!((entry.addr as usize, entry.len as usize), (first.start, first.len()), "its own bytes");
            }
            let named = Flight::names_buffer(&entry).then_some(usize::from(entry.buf_index));
            // Where lent pages keep a chunk, or bring it back, is not foretold.
            let is_vague = self.lends && named.or(flight.named) == Some(1);
            assert!(
                named == flight.named || is_vague,
                "it names the chunk where its bytes lie, once the ring has that"
            );
        }
        assert_eq!(queued.next(), None, "all that was queued is with the kernel");
        self.orders_seen = pending.iter().map(|pending| pending.order + 1).max().unwrap_or(0).max(self.orders_seen);
    }

    fn shrink(&mut self) {
        let expected = self.is_grown() && !self.is_draining && !self.uses_grown(&self.pages());
        let shrinks = self.registry.shrink() == 1;
        assert!(shrinks == expected || self.lends, "a chunk that is all free is given back");
        self.is_draining |= shrinks && self.is_pinned;
        if shrinks && !self.lends {
            assert_eq!(self.is_grown(), self.is_draining, "memory stays while the ring has it in its table");
        }
    }

    fn is_grown(&self) -> bool {
        self.registry.snapshot().pages_total > PAGES
    }

    fn uses_grown(&self, pages: &Pages) -> bool {
        self.chunks.get(1).is_some_and(|grown| !pages.are_free(pages_of(grown)))
    }

    fn is_closed(&self) -> bool {
        self.orders_seen == u64::MAX
    }

    /// The state of each page, worked out anew.
    fn pages(&self) -> Pages {
        let mut pages = Pages::new(&self.chunks);
        for tenant in self.tenants.iter().filter(|tenant| !tenant.span.is_empty()) {
            let is_shared = matches!(tenant.form, Form::Shared { .. });
            pages.claim(&tenant.span, if is_shared { Claim::Shared } else { Claim::Leased });
        }
        for flight in &self.flights {
            if let Some(claim) = flight.claim() {
                flight.regions.iter().for_each(|(_, region)| pages.claim(region, claim));
            }
        }
        pages
    }

    fn check(&mut self) {
        self.tenants.iter_mut().for_each(Tenant::check);
        let pages = self.pages();
        let counts = self.registry.snapshot();
        let unseen = self.unseen(&counts);
        pages.check(&counts, unseen);
        let is_grown = counts.pages_total > PAGES;
        assert_eq!(counts.pages_total, PAGES + usize::from(is_grown) * GROWN, "it grows by its chunk");
        assert!(is_grown || !self.uses_grown(&pages), "pages that somebody has are there");
        assert_eq!(counts.pages_free, counts.pages_total - pages.held() - unseen - counts.pages_lent);
        let lent_max = if self.lends { LENT.into() } else { 0 };
        assert!(counts.pages_lent <= lent_max, "pages that the kernel picks from");
        let hidden = counts.waiting - self.waiters.len();
        assert!(hidden <= usize::from(self.lends), "leases that wait");
        assert!(counts.pages_held_max >= pages.held() && counts.pages_in_flight_max >= pages.with_kernel());
        if cfg!(debug_assertions) {
            let known = self.tenants.iter().map(|tenant| tenant.span.len()).filter(|bytes| *bytes > 0);
            let listed = known.chain(vec![PAGE; self.brought() + counts.pages_lent]);
            let holders = self.registry.holders();
            assert_eq!(holders.len(), listed.clone().count(), "each lease is listed once");
            assert_eq!(holders.iter().map(|holder| holder.bytes).sum::<usize>(), listed.sum(), "with its length");
        }
        assert_eq!(self.driver.metrics().stale.get(), 0, "every completion has an operation");
    }

    /// Bring everything home, in one of three ways, and see that nothing is left.
    fn end(mut self, how: u8) {
        match how % 3 {
            0 => self.drain(),
            1 => {
                while let Some(id) = self.flights.iter().position(|flight| flight.future.is_some()) {
                    self.drop_future(id);
                    self.serve();
                }
                self.check();
                self.drain();
            }
            _ => self.shutdown(),
        }
        while let Some(id) = self.flights.iter().position(|flight| flight.future.is_some()) {
            self.poll(id);
            self.serve();
            self.check();
        }
        self.waiters.clear();
        self.tenants.clear();
        self.check();
        assert_eq!((self.driver.operations_active(), self.driver.slots_used()), (0, 0), "nothing is left");
        let counts = self.registry.snapshot();
        assert_eq!(counts.pages_free + counts.pages_lent, counts.pages_total, "every page is back");
        if self.lends {
            self.driver.shutdown();
            self.shut();
        }
        let counts = self.registry.snapshot();
        assert_eq!(counts.pages_free, counts.pages_total, "every page is back");
        self.shrink();
        if !self.is_closed() {
            self.turn();
            self.turn();
        }
        assert_eq!(self.registry.snapshot().pages_total, PAGES, "what it had grown by is given back");
        assert_eq!(self.registry.try_lease(PAGES * PAGE).map(|lease| lease.capacity()), Some(PAGES * PAGE));
    }

    fn drain(&mut self) {
        for _ in 0..8 {
            while let Some(id) = self
                .flights
                .iter()
                .position(|flight| flight.future.is_some() && matches!(flight.phase, Phase::Fresh | Phase::Done(_)))
            {
                self.poll(id);
                self.serve();
            }
            while let Some(id) =
                self.flights.iter().position(|flight| flight.phase == Phase::Starved && !flight.cancelled)
            {
                self.cancel(id);
                self.poll(id);
            }
            self.check();
            self.turn();
            self.serve();
            self.check();
            for at in (0..self.script.pending().len()).rev() {
                self.answer(at, 255);
            }
        }
        let left = self.flights.iter().filter(|flight| flight.phase != Phase::Gone).count();
        assert_eq!(left, 0, "what the kernel answers has to end");
    }

    /// Shut down, with a kernel that ends what is cancelled.
    fn shutdown(&mut self) {
        self.script.play(|kernel| {
            for pending in kernel.pending() {
                let result = if pending.entry.opcode == ASYNC_CANCEL { 0 } else { -Errno::CANCELED.raw_os_error() };
                kernel.complete(pending.entry.user_data, result);
            }
        });
        self.driver.shutdown();
        self.script.play(|_| {});
        self.shut();
        self.backlog.clear();
        let cancelled = -Errno::CANCELED.raw_os_error();
        for posted in std::mem::take(&mut self.posted) {
            self.settle(posted);
        }
        for id in 0..self.flights.len() {
            match self.flights[id].phase {
                Phase::Queued | Phase::Starved => self.flights[id].phase = Phase::Done(cancelled),
                Phase::Pushed | Phase::Answered(_) => {
                    self.settle(Posted { flight: id, result: cancelled, more: false })
                }
                Phase::Fresh | Phase::Done(_) | Phase::Gone => {}
            }
        }
        self.serve();
        self.check();
    }
}

impl Play {
    /// The driver has ended, and its ring has let go of all memory.
    fn shut(&mut self) {
        self.orders_seen = u64::MAX;
        (self.registered, self.is_pinned, self.is_draining) = ([false; 2], false, false);
    }
}

impl Waiter {
    fn poll(&mut self) -> Poll<std::io::Result<Vec<FixedBuf>>> {
        Pin::new(&mut self.lease).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.woken))))
    }
}

fn assert_result(result: &std::io::Result<usize>, expected: i32) {
    match result {
        Ok(count) => assert_eq!(i32::try_from(*count), Ok(expected), "the kernel's count"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(-expected), "the kernel's errno"),
    }
}
