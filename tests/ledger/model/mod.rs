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
mod kernel;
mod leases;
mod rings;
mod tenants;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;

use ringmain::{Config, FixedBuf, Registry};
use rustix::io::Errno;

use flights::{Flight, Phase, What};
use kernel::{Posted, Said};
use leases::Waiter;
use rings::Ring;
use tenants::{Claim, Form, PAGE, Pages, Tenant, span_of};

/// What the registry begins with, and what it may grow by: one chunk.
const PAGES: usize = 8;
const GROWN: usize = 512;
/// Pages that are lent at once, where a script has receives into such.
const LENT: u16 = 2;
/// Tenants; further ones are skipped.
const TENANTS_MAX: usize = 32;

// `include/uapi/linux/io_uring.h`.
const ASYNC_CANCEL: u8 = 14;

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
    play.end(shape >> 4 & 7);
}

struct Play {
    rings: Vec<Ring>,
    registry: Registry,
    /// The addresses of each chunk that there can be.
    chunks: Vec<Range<usize>>,
    tenants: Vec<Tenant>,
    flights: Vec<Flight>,
    waiters: VecDeque<Waiter>,
    next_tenant: usize,
    next_mark: u8,
    /// What the registry grows by is refused by the kernel.
    refuses: bool,
    /// What it has grown by was given back, and some ring has not let go of it.
    is_draining: bool,
    /// Pages are lent. Which ones is not said, so what depends on that is not foretold while there are any.
    lends: bool,
    null: OwnedFd,
}

impl Play {
    fn new(shape: u8) -> Self {
        let grows = shape & 1 == 0;
        let (registers, refuses) = (shape & 2 == 0, shape & 4 != 0);
        let config = Config::default()
            .entries(128)
            .completions(256)
            .pages(PAGES as u32)
            .pages_max(if grows { PAGES + GROWN } else { PAGES } as u32)
            .register_pages(registers)
            .lent([(PAGE as u32, LENT)])
            .zero_copy_min(1);
        let mut rings = vec![Ring::new(&config, None, registers, refuses)];
        let registry = rings[0].driver.registry().clone();
        if shape & 128 != 0 {
            rings.push(Ring::new(&config, Some(registry.clone()), registers, refuses));
        }
        let mut play = Self {
            rings,
            registry,
            chunks: Vec::new(),
            tenants: Vec::new(),
            flights: Vec::new(),
            waiters: VecDeque::new(),
            next_tenant: 0,
            next_mark: 0,
            refuses,
            is_draining: false,
            lends: shape & 8 != 0,
            null: std::fs::File::open("/dev/null").expect("there is a null device").into(),
        };
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
            19..=21 => self.answer(pick % self.rings.len(), pick / self.rings.len(), detail),
            22 if pick.is_multiple_of(4) => self.shrink(),
            23 | 24 if self.lends => self.start(What::Receive, pick, detail),
            26 if pick.is_multiple_of(2) => {
                let ring = pick / 2 % self.rings.len();
                self.rings[ring].hold(detail.is_multiple_of(2));
            }
            _ => self.turn(pick % self.rings.len()),
        }
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
        if self.is_draining {
            // Several leases that did not fit together may have had it back for nothing.
            self.registry.shrink();
        }
        self.tenants.iter_mut().for_each(Tenant::check);
        let pages = self.pages();
        let counts = self.registry.snapshot();
        let unseen = self.unseen(&counts);
        pages.check(&counts, unseen);
        let is_grown = counts.pages_total > PAGES;
        assert_eq!(counts.pages_total, PAGES + usize::from(is_grown) * GROWN, "it grows by its chunk");
        assert!(is_grown || !self.uses_grown(&pages), "pages that somebody has are there");
        assert_eq!(counts.pages_free, counts.pages_total - pages.held() - unseen - counts.pages_lent);
        let lenders = if self.lends { self.rings.len() } else { 0 };
        let lent_max = lenders * usize::from(LENT);
        assert!(counts.pages_lent <= lent_max, "pages that the kernel picks from");
        let hidden = counts.waiting - self.waiters.len();
        assert!(hidden <= lenders, "leases that wait");
        assert!(counts.pages_held_max >= pages.held() && counts.pages_in_flight_max >= pages.with_kernel());
        if cfg!(debug_assertions) {
            let known = self.tenants.iter().map(|tenant| tenant.span.len()).filter(|bytes| *bytes > 0);
            let listed = known.chain(vec![PAGE; self.brought() + counts.pages_lent]);
            let holders = self.registry.holders();
            assert_eq!(holders.len(), listed.clone().count(), "each lease is listed once");
            assert_eq!(holders.iter().map(|holder| holder.bytes).sum::<usize>(), listed.sum(), "with its length");
        }
        let stale = self.rings.iter().map(|ring| ring.driver.metrics().stale.get()).sum::<u64>();
        assert_eq!(stale, 0, "every completion has an operation");
    }

    /// Bring everything home, in one of three ways, and see that nothing is left.
    fn end(mut self, how: u8) {
        self.rings.iter_mut().for_each(|ring| ring.hold(false));
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
        for Ring { driver, .. } in &self.rings {
            assert_eq!((driver.operations_active(), driver.slots_used()), (0, 0), "nothing is left");
        }
        let counts = self.registry.snapshot();
        assert_eq!(counts.pages_free + counts.pages_lent, counts.pages_total, "every page is back");
        if self.lends {
            self.rings.iter_mut().for_each(Ring::shut_down);
            self.is_draining = false;
        }
        let counts = self.registry.snapshot();
        assert_eq!(counts.pages_free, counts.pages_total, "every page is back");
        self.shrink();
        for ring in 0..self.rings.len() {
            if !self.rings[ring].is_closed {
                self.turn(ring);
            }
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
            for ring in 0..self.rings.len() {
                self.turn(ring);
                self.serve();
                self.check();
                for at in (0..self.rings[ring].script.pending().len()).rev() {
                    self.answer(ring, at, 255);
                }
            }
        }
        let left = self.flights.iter().filter(|flight| flight.phase != Phase::Gone).count();
        assert_eq!(left, 0, "what the kernel answers has to end");
    }

    /// Shut all rings down, with kernels that end what is cancelled.
    fn shutdown(&mut self) {
        let cancelled = -Errno::CANCELED.raw_os_error();
        for ring in 0..self.rings.len() {
            self.rings[ring].shut_down();
            self.is_draining &= self.rings.iter().any(|ring| ring.is_pinning);
            for posted in std::mem::take(&mut self.rings[ring].posted) {
                self.settle(posted);
            }
            for id in (0..self.flights.len()).filter(|id| self.flights[*id].ring == ring).collect::<Vec<_>>() {
                match self.flights[id].phase {
                    Phase::Queued | Phase::Starved => self.flights[id].phase = Phase::Done(cancelled),
                    Phase::Pushed | Phase::Notified | Phase::Answered(_) => {
                        self.settle(Posted { flight: id, result: cancelled, what: Said::Last });
                    }
                    Phase::Fresh | Phase::Done(_) | Phase::Gone => {}
                }
            }
            self.serve();
            self.check();
        }
    }
}
