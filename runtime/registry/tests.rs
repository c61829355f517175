//! The registry without a ring: claims one by one, then random scripts against a model that is too simple to be wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use super::magazines::Magazines;
use super::mapping::Mapping;
use super::*;

mod flights;
mod holding;
mod growing;
mod model;

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll(lease: &mut Lease, woken: &Arc<Woken>) -> Poll<io::Result<FixedBuf>> {
    Pin::new(lease).poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// A lease that has taken its place in the queue.
fn waiting(registry: &Registry, len: usize) -> (Lease, Arc<Woken>) {
    let (mut lease, woken) = (registry.lease(len), Arc::new(Woken::default()));
    assert!(poll(&mut lease, &woken).is_pending(), "{len} bytes are not free");
    (lease, woken)
}

fn granted(lease: &mut Lease, woken: &Arc<Woken>) -> FixedBuf {
    match poll(lease, woken) {
        Poll::Ready(granted) => granted.expect("the length is one that can be granted"),
        Poll::Pending => panic!("the lease still waits"),
    }
}

/// Blocks this thread on a future.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

fn registry(pages: usize) -> Registry {
    Registry::new(pages).expect("a small mapping is granted")
}

/// With chunks of this many pages, for claims about their borders.
fn with_chunk_pages(pages: usize, pages_max: usize, chunk_pages: usize) -> Registry {
    let layout = Layout::with_chunk_pages(pages, pages_max, chunk_pages).expect("a sound bound");
    // Small magazines, but some.
    let magazines = Magazines::with_pages_max(pages, pages / 3);
    Registry::of(Arena::with_magazines(layout, Duration::MAX, magazines).expect("a small mapping is granted"))
}

/// Address and length in pages of each chunk that the registry begins with.
fn chunks(registry: &Registry) -> Vec<(usize, usize)> {
    let region = |chunk| registry.arena.region(chunk);
    (0..registry.arena.first_chunks()).map(region).map(|(at, len)| (at.addr().get(), len / PAGE_BYTES)).collect()
}

/// What a ring does that registers all that the registry begins with.
fn registering(registry: &Registry) -> RingPages {
    let pages = registry.attach(true);
    let slot = pages.slot().expect("there is a place");
    for chunk in 0..registry.arena.first_chunks() {
        registry.arena.pin(chunk, slot);
        registry.arena.set_registered(chunk, slot);
    }
    pages
}

/// What operations of a ring do with bytes of the registry, by their addresses.
impl Arena {
    fn span(&self, addr: usize, len: usize) -> Span {
        self.find(addr, len, None).expect("these bytes lie in the registry, and in one chunk of it")
    }

    fn begin_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.ground.ledger.begin_flight(kind, &self.span(addr, len).pages);
    }

    fn end_flight(&self, kind: Kind, addr: usize, len: usize) {
        self.ground.ledger.end_flight(kind, &self.span(addr, len).pages);
    }

    fn await_notification(&self, kind: Kind, addr: usize, len: usize) {
        self.ground.ledger.await_notification(kind, &self.span(addr, len).pages);
    }

    fn end_notification(&self, addr: usize, len: usize) {
        self.ground.ledger.end_notification(&self.span(addr, len).pages);
    }
}

impl RingPages {
    /// The index by which an operation of this ring names these bytes.
    fn entry_of(&self, addr: usize, len: usize) -> Option<u16> {
        self.find(addr, len)?.index()
    }
}

fn address(buf: &mut FixedBuf) -> usize {
    buf.as_capacity_mut().as_ptr().addr()
}

/// Free, with the program, with the kernel.
fn parts(registry: &Registry) -> (usize, usize, usize) {
    let now = registry.snapshot();
    let program = now.pages_leased + now.pages_shared + now.pages_lent;
    let kernel = now.pages_in_flight + now.pages_notifying;
    assert_eq!(now.pages_total, now.pages_free + program + kernel);
    (now.pages_free, program, kernel)
}

#[test]
fn handles_and_leases_can_be_sent_and_moved() {
    fn is_shared<T: Send + Sync + Clone + Unpin>() {}
    fn is_sent<T: Send + Unpin>() {}
    is_shared::<Registry>();
    is_sent::<FixedBuf>();
    is_sent::<Lease>();
}

#[test]
fn a_fresh_arena_is_zeroed_and_aligned() {
    for (pages, align) in [(1, 4096), (3, 4 * 4096), (511, 2 << 20), (512, 2 << 20), (1537, 2 << 20)] {
        let registry = registry(pages);
        let mut all = registry.try_lease(pages * PAGE_BYTES).expect("all of it is free");
        assert!(address(&mut all).is_multiple_of(align) && all.alignment() >= align, "{pages} pages");
        assert!(all.as_capacity_mut().iter().all(|byte| *byte == 0), "{pages} pages are zero");
    }
}

#[test]
fn a_registry_of_no_page_or_too_many_is_refused_with_a_sentence() {
    for (pages, hint) in
        [(0, "at least one page"), (usize::MAX, "16384 entries"), ((16 << 40) / 4096 + 1, "16384 entries")]
    {
        let error = Registry::new(pages).expect_err("that many pages cannot be");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[test]
fn a_dropped_mapping_is_unmapped() {
    /// What the process has mapped, in pages (proc_pid_statm(5)).
    fn mapped_pages() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm is readable");
        statm.split(' ').next().and_then(|size| size.parse().ok()).expect("statm begins with the size")
    }
    // So large that what other tests map meanwhile does not matter; never touched, so that it costs nothing.
    let bytes = 2 << 30;
    let pages = (bytes / rustix::param::page_size()) as u64;
    let before = mapped_pages();
    let mapping = Mapping::reserve(bytes, 2 << 20).expect("address space is granted");
    assert!(mapped_pages() > before + pages / 2);
    drop(mapping);
    assert!(mapped_pages() < before + pages / 2);
}

#[test]
fn f11_registered_memory_stays_where_it_is_whatever_is_done_with_leases() {
    let registry = registry(4);
    let ring = registering(&registry);
    let mut lease = registry.try_lease(3 * 4096).expect("the pages are free");
    let at = address(&mut lease);
    let mut lease = Box::new([lease]);
    assert_eq!(address(&mut lease[0]), at, "moving a lease moves no byte");
    let [lease] = *lease;
    let shared = lease.freeze();
    assert_eq!(shared.as_ptr().addr(), at);
    drop(shared);
    registry.shrink();
    let mut all = registry.try_lease(4 * 4096).expect("all is free");
    all.as_capacity_mut().fill(1);
    assert_eq!((ring.entry_of(at, 1), address(&mut all)), (Some(0), registry.arena.region(0).0.addr().get()));
}

#[test]
fn a_leaked_arena_outlives_every_handle() {
    let (kept, dropped) = (registry(1), registry(1));
    let (weak_kept, weak_dropped) = (Arc::downgrade(&kept.arena), Arc::downgrade(&dropped.arena));
    kept.leak();
    drop((kept, dropped));
    assert!(weak_dropped.upgrade().is_none(), "nobody has it");
    assert!(weak_kept.upgrade().is_some(), "its memory stays mapped");
}

#[test]
fn f01_sixteen_leases_of_a_page_are_aligned_and_fit_sixteen_pages() {
    let registry = registry(16);
    let mut leases: Vec<_> = (0..16).map(|_| registry.try_lease(4096).expect("one page each")).collect();
    assert!(leases.iter_mut().all(|lease| address(lease).is_multiple_of(4096)));
    assert_eq!(parts(&registry), (0, 16, 0));
    assert!(registry.try_lease(1).is_none());
    assert_eq!(registry.arena.region(0).1, 16 * 4096, "what is registered is 64 KiB and not a byte more");
    assert_eq!(registry.arena.chunks(), 1);
}

#[test]
fn f03_a_lease_outlives_its_registry() {
    let registry = registry(2);
    let ring = registering(&registry);
    let mut lease = registry.try_lease(8192).expect("both pages are free");
    let mut back = lease.split_off(5000);
    assert!(lease.is_registered());
    registry.arena.forget_ring(ring.slot().expect("it registers"));
    drop(registry);
    lease.as_capacity_mut().fill(7);
    back.as_capacity_mut().fill(8);
    lease.set_len(5000);
    assert!(lease.iter().all(|byte| *byte == 7));
    assert!(!lease.is_registered());
    let registry = lease.registry();
    drop(lease);
    assert_eq!(parts(&registry), (1, 1, 0), "the handle that a lease gives is the same registry");
}

#[test]
fn f07_a_lease_has_exactly_the_bytes_asked_for() {
    let registry = registry(4);
    let mut lease = registry.try_lease(5000).expect("two pages are free");
    assert_eq!((lease.len(), lease.capacity(), lease.as_capacity_mut().len()), (0, 5000, 5000));
    assert_eq!(parts(&registry), (2, 2, 0));
    assert!(catch_unwind(AssertUnwindSafe(|| lease.set_len(5001))).is_err(), "not the rest of the page");
    assert!(catch_unwind(AssertUnwindSafe(|| lease.split_off(5001))).is_err());
    assert_eq!(lease.len(), 0, "a refused length changes nothing");
}

#[test]
fn f07_an_operation_beyond_the_registered_memory_is_refused() {
    let registry = with_chunk_pages(8, 8, 4);
    let base = chunks(&registry)[0].0;
    assert!(registry.contains(base, 4 * 4096) && registry.contains(base + 4 * 4096, 4 * 4096));
    assert!(!registry.contains(base + 3 * 4096, 4097), "no operation crosses an entry");
    assert!(!registry.contains(base - 1, 2) && !registry.contains(base + 8 * 4096 - 1, 2));
    assert!(!registry.contains(base, usize::MAX));
    assert!(catch_unwind(|| registry.arena.begin_flight(Kind::Read, base + 8 * 4096 - 1, 2)).is_err());
    assert_eq!(parts(&registry), (8, 0, 0));
}

#[test]
fn f12_the_visible_length_is_what_was_set_last() {
    let registry = registry(1);
    let mut lease = registry.try_lease(100).expect("the page is free");
    lease.as_capacity_mut().fill(1);
    lease.set_len(100);
    lease.truncate(10);
    assert_eq!(lease[..], [1; 10]);
    lease.truncate(50);
    assert_eq!(lease.len(), 10, "truncating never lengthens");
    lease[3] = 9;
    assert_eq!(lease.as_ref()[3], 9);
    lease.clear();
    assert!(lease.is_empty());
    drop(lease);
    let fresh = registry.try_lease(100).expect("the page is free");
    assert!(fresh.is_empty(), "a new lease shows nothing of an old one");
}

#[test]
fn f14_a_registry_without_a_ring_works_and_says_why_it_is_not_registered() {
    let registry = registry(16);
    registry.set_refused(16 * 4096, &io::Error::from(rustix::io::Errno::NOMEM));
    let lease = registry.lease(4096);
    let lease = block_on(lease).expect("leasing needs no registration");
    assert!(!lease.is_registered() && !registry.is_registered());
    let reason = registry.unregistered_reason().expect("there is a reason");
    assert!(reason.contains("64 KiB") && reason.contains("RLIMIT_MEMLOCK"), "{reason}");
    let ring = registering(&registry);
    assert_eq!((registry.is_registered(), registry.unregistered_reason()), (true, None));
    drop(ring);
}

#[test]
fn chunks_cover_the_arena_and_no_lease_crosses_one() {
    let registry = with_chunk_pages(10, 10, 4);
    let base = chunks(&registry)[0].0;
    assert_eq!(chunks(&registry), [(base, 4), (base + 4 * 4096, 4), (base + 8 * 4096, 2)]);
    let ring = registering(&registry);
    let last = base + 10 * 4096 - 1;
    assert_eq!([base, base + 4 * 4096, last].map(|addr| ring.entry_of(addr, 1)), [Some(0), Some(1), Some(2)]);
    assert_eq!([base - 1, last + 1].map(|addr| ring.entry_of(addr, 1)), [None, None]);

    let mut leases: Vec<_> = (0..2).map(|_| registry.try_lease(3 * 4096).expect("one fits each chunk")).collect();
    assert!(registry.try_lease(3 * 4096).is_none(), "four pages are free, in three chunks");
    let of: Vec<_> = leases.iter_mut().map(|lease| ring.entry_of(address(lease), 1)).collect();
    assert_eq!(of, [Some(0), Some(1)]);
}

#[test]
fn a_lease_that_can_never_be_granted_is_refused_with_a_sentence() {
    let registry = with_chunk_pages(10, 10, 4);
    for (len, hint) in
        [(0, "at least one byte"), (4 * 4096 + 1, "16384 bytes (4 pages)"), (usize::MAX, "never be granted")]
    {
        assert!(registry.try_lease(len).is_none());
        let error = block_on(registry.lease(len)).expect_err("that cannot be granted");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_eq!(block_on(registry.lease(4 * 4096)).expect("the longest lease").capacity(), 4 * 4096);
}

#[test]
fn a_page_cut_in_two_counts_once_and_is_free_with_its_last_part() {
    let registry = registry(2);
    let mut front = registry.try_lease(8192).expect("both pages are free");
    let mut back = front.split_off(4100);
    let middle = back.split_to(10);
    let nothing = back.split_off(back.capacity());
    assert_eq!([front.capacity(), middle.capacity(), back.capacity(), nothing.capacity()], [4100, 10, 4082, 0]);
    assert_eq!(parts(&registry), (0, 2, 0));
    drop(front);
    assert_eq!(parts(&registry), (1, 1, 0), "the second page has two holders left");
    drop(back);
    assert_eq!(parts(&registry), (1, 1, 0));
    drop(middle);
    assert_eq!(parts(&registry), (2, 0, 0), "a part without bytes holds no page");
    drop(nothing);
    assert_eq!(parts(&registry), (2, 0, 0));
}

#[test]
fn a_page_in_flight_counts_once_whoever_else_has_it() {
    let registry = registry(3);
    let mut front = registry.try_lease(2 * 4096).expect("the pages are free");
    let mut back = front.split_off(4196);
    let (front_at, back_at) = (address(&mut front), address(&mut back));
    registry.arena.begin_flight(Kind::Read, front_at, front.capacity());
    registry.arena.begin_flight(Kind::Read, back_at, back.capacity());
    assert_eq!(parts(&registry), (1, 0, 2), "two operations on the page that is cut");
    registry.arena.end_flight(Kind::Read, front_at, front.capacity());
    assert_eq!(parts(&registry), (1, 1, 1), "the second page is in flight, though a leased part is on it");
    drop(front);
    assert_eq!(parts(&registry), (2, 0, 1));
    registry.arena.begin_flight(Kind::Read, back_at, 0);
    registry.arena.end_flight(Kind::Read, back_at, back.capacity());
    assert_eq!(parts(&registry), (2, 1, 0), "an operation on no byte has no page");
}

#[test]
fn a_page_that_the_kernel_has_is_never_given_to_the_next() {
    let registry = registry(1);
    let mut lease = registry.try_lease(4096).expect("the page is free");
    let addr = address(&mut lease);
    registry.arena.begin_flight(Kind::Read, addr, 4096);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(lease))).is_err(), "an operation owns its lease");
    registry.arena.end_flight(Kind::Read, addr, 4096);
    assert!(registry.try_lease(1).is_none(), "the page stays out of use");
}

#[test]
fn who_waits_first_is_served_first_whatever_the_size() {
    let registry = registry(4);
    let mut held: Vec<_> = (0..4).map(|_| registry.try_lease(4096).expect("one page each")).collect();
    let (mut large, large_woken) = waiting(&registry, 3 * 4096);
    let (mut small, small_woken) = waiting(&registry, 4096);
    held.pop();
    assert!(registry.try_lease(1).is_none(), "a page is free, but somebody waits");
    assert!(poll(&mut small, &small_woken).is_pending(), "and the large lease comes first");
    held.pop();
    assert_eq!((large_woken.times(), small_woken.times(), parts(&registry)), (0, 0, (2, 2, 0)));
    held.pop();
    assert_eq!((large_woken.times(), small_woken.times()), (1, 0));
    assert_eq!(parts(&registry), (0, 4, 0), "what was granted is leased, before it is polled");
    let large = granted(&mut large, &large_woken);
    drop(large);
    assert_eq!(small_woken.times(), 1);
    drop(granted(&mut small, &small_woken));
    drop(held);
    assert_eq!(parts(&registry), (4, 0, 0));
}

#[test]
fn equal_waiters_are_served_in_the_order_of_their_first_poll() {
    let registry = registry(1);
    let mut held = registry.try_lease(4096).expect("the page is free");
    let mut last = registry.lease(4096);
    let mut queue: Vec<_> = (0..50).map(|_| waiting(&registry, 4096)).collect();
    let last_woken = Arc::new(Woken::default());
    assert!(poll(&mut last, &last_woken).is_pending());
    for turn in 0..50 {
        drop(held);
        let woken: Vec<_> = queue.iter().map(|(_, woken)| woken.times()).collect();
        assert_eq!(woken.iter().sum::<usize>(), turn + 1);
        let (lease, woken) = &mut queue[turn];
        held = granted(lease, woken);
    }
    assert_eq!(last_woken.times(), 0);
    drop(held);
    drop(granted(&mut last, &last_woken));
}

#[test]
fn a_cancelled_wait_gives_up_its_place() {
    let registry = registry(2);
    let held = registry.try_lease(4096).expect("a page is free");
    let (large, _) = waiting(&registry, 2 * 4096);
    let (mut small, small_woken) = waiting(&registry, 4096);
    drop(large);
    assert_eq!(small_woken.times(), 1, "nothing holds it back any more");
    drop(granted(&mut small, &small_woken));
    drop(held);
    assert_eq!(parts(&registry), (2, 0, 0));
}

#[test]
fn a_grant_that_nobody_saw_goes_to_the_next() {
    let registry = registry(1);
    let held = registry.try_lease(4096).expect("the page is free");
    let (first, first_woken) = waiting(&registry, 4096);
    let (mut second, second_woken) = waiting(&registry, 4096);
    drop(held);
    assert_eq!((first_woken.times(), second_woken.times()), (1, 0));
    drop(first);
    assert_eq!(second_woken.times(), 1);
    drop(granted(&mut second, &second_woken));
    assert_eq!(parts(&registry), (1, 0, 0));
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    let registry = registry(1);
    let held = registry.try_lease(4096).expect("the page is free");
    let (mut lease, early) = waiting(&registry, 4096);
    let late = Arc::new(Woken::default());
    assert!(poll(&mut lease, &late).is_pending());
    drop(held);
    assert_eq!((early.times(), late.times()), (0, 1));
}

#[test]
fn a_lease_that_is_polled_after_it_was_ready_panics() {
    let registry = registry(1);
    let (mut lease, woken) = (registry.lease(1), Arc::new(Woken::default()));
    let _held = granted(&mut lease, &woken);
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut lease, &woken))).is_err());
    drop(lease);
    assert_eq!(parts(&registry), (0, 1, 0));
}

#[test]
fn a_waker_may_use_the_registry_and_a_panic_in_one_silences_no_other() {
    struct Rude(Registry, AtomicBool);
    impl Wake for Rude {
        fn wake(self: Arc<Self>) {
            // Would never return if it were called under the lock.
            self.1.store(self.0.snapshot().pages_free == 0, Ordering::SeqCst);
            panic!("a waker that panics");
        }
    }
    let registry = registry(2);
    let held = registry.try_lease(2 * 4096).expect("both pages are free");
    let rude = Arc::new(Rude(registry.clone(), AtomicBool::new(false)));
    let mut first = registry.lease(4096);
    let waker = Waker::from(Arc::clone(&rude));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    let (mut second, second_woken) = waiting(&registry, 4096);

    assert!(catch_unwind(AssertUnwindSafe(|| drop(held))).is_err());
    assert!(rude.1.load(Ordering::SeqCst), "both were granted before the first was woken");
    assert_eq!(second_woken.times(), 1);
    drop(granted(&mut second, &second_woken));
    drop(first);
    assert_eq!(parts(&registry), (2, 0, 0), "the registry goes on");
}

#[test]
fn leases_cross_threads_and_counts_still_sum() {
    cross_threads(&registry(6));
    // And with two pages that each thread keeps ready.
    cross_threads(&with_chunk_pages(6, 6, 8));
}

fn cross_threads(registry: &Registry) {
    const THREADS: u8 = 4;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let (free, leased, in_flight) = parts(registry);
                assert!(free <= 6 && leased <= 6 && in_flight <= 6);
                thread::yield_now();
            }
        });
        let workers: Vec<_> = (1..=THREADS)
            .map(|mark| {
                scope.spawn(move || {
                    for turn in 0..300 {
                        // At most 3 of 6 pages each, so that the threads have to wait for each other.
                        let len = 1 + (turn * 1237 + usize::from(mark) * 4099) % (3 * 4096);
                        let mut front = block_on(registry.lease(len)).expect("that can be granted");
                        front.as_capacity_mut().fill(mark);
                        let mut back = front.split_off(len / 2);
                        let addr = address(&mut back);
                        registry.arena.begin_flight(Kind::Read, addr, back.capacity());
                        assert!(front.as_capacity_mut().iter().all(|byte| *byte == mark));
                        drop(front);
                        registry.arena.end_flight(Kind::Read, addr, back.capacity());
                        // The other half is released by a thread of its own now and then.
                        let mut check = move || assert!(back.as_capacity_mut().iter().all(|byte| *byte == mark));
                        if turn % 50 == 0 { scope.spawn(check).join().expect("no byte was changed") } else { check() }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::SeqCst);
        watcher.join().expect("the counts always sum");
        assert!(ended.iter().all(Result::is_ok), "no lease was touched by another");
    });
    assert_eq!(parts(registry), (6, 0, 0));
}

#[test]
fn parts_of_a_lease_are_joined_again_and_strangers_come_back() {
    let registry = with_chunk_pages(8, 8, 4);
    let mut front = registry.try_lease(3 * 4096).expect("the pages are free");
    front.set_len(3 * 4096);
    let mut back = front.split_off(5000);
    let last = back.split_off(4096);
    assert_eq!(parts(&registry), (5, 3, 0));
    let (front, last) = front.unsplit(last).expect_err("the middle is missing");
    let whole = front.unsplit(back).expect("they are neighbours").unsplit(last).expect("and so are these");
    assert_eq!((whole.len(), whole.capacity()), (3 * 4096, 3 * 4096));
    drop(whole);
    assert_eq!(parts(&registry), (8, 0, 0), "no page keeps a holder of the parts");

    let last_of_one = registry.try_lease(4 * 4096).expect("the first entry is free");
    let first_of_next = registry.try_lease(4096).expect("the second entry is free");
    assert!(last_of_one.unsplit(first_of_next).is_err(), "no lease crosses an entry");
    let mut front = registry.try_lease(100).expect("a page is free");
    let mut back = front.split_off(50);
    back.set_len(1);
    assert!(front.unsplit(back).is_err(), "hidden bytes would come before visible ones");
    assert_eq!(parts(&registry), (8, 0, 0));
}

#[test]
fn a_frozen_lease_has_many_readers_and_is_exclusive_again_with_the_last() {
    let registry = registry(2);
    let mut lease = registry.try_lease(5000).expect("the pages are free");
    lease.as_capacity_mut()[..10].copy_from_slice(b"0123456789");
    lease.set_len(10);
    let mut head = lease.freeze();
    let mut tail = head.split_off(4);
    let middle = tail.split_to(3);
    assert_eq!((&head[..], &middle[..], &tail[..]), (&b"0123"[..], &b"456"[..], &b"789"[..]));
    let reader = thread::spawn({
        let middle = middle.clone();
        move || middle[..] == b"456"[..]
    });
    assert!(reader.join().expect("the reader ends"));
    let (head, tail) = head.unsplit(tail).expect_err("the middle is missing");
    drop(tail);
    let joined = head.unsplit(middle).expect("they are neighbours");
    assert_eq!(&joined[..], b"0123456");
    let part = joined.slice(2..=4);
    let lease = part.try_into_exclusive().expect("it is the only holder");
    assert_eq!((&lease[..], lease.capacity()), (&b"234"[..], 4998));
    assert_eq!(parts(&registry), (0, 2, 0));
    drop(lease);
    assert_eq!(parts(&registry), (2, 0, 0));
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_of_a_lease_come_back_as_a_lease_and_hold_its_page() {
    use bytes::Bytes;
    let (registry, other) = (registry(1), registry(1));
    let mut lease = registry.try_lease(10).expect("the page is free");
    lease.as_capacity_mut().copy_from_slice(b"0123456789");
    lease.set_len(10);
    let bytes = Bytes::from(lease.freeze());
    let bytes = other.share(bytes).expect_err("it lies in another registry");
    let shared = registry.share(bytes.slice(2..8)).expect("it lies here").slice(1..);
    drop(bytes);
    assert_eq!((&shared[..], parts(&registry)), (&b"34567"[..], (0, 1, 0)));
    let shared = shared.try_into_exclusive().expect_err("who else has the bytes is not known");
    let bytes = Bytes::from(shared);
    assert_eq!(&bytes[..], b"34567");
    let owned = Bytes::from_owner(other.try_lease(1).expect("the page is free"));
    assert!(registry.share(owned).is_err());
    drop(bytes);
    assert_eq!(parts(&registry), (1, 0, 0));
}

#[test]
fn a_run_that_a_thread_keeps_ready_is_free_and_nobody_waits_for_it() {
    let registry = with_chunk_pages(6, 6, 8);
    let mut leases: Vec<_> = (0..6).map(|_| registry.try_lease(4096).expect("one page each")).collect();
    let kept = address(leases.last_mut().expect("there are six"));
    leases.pop();
    assert_eq!(parts(&registry), (1, 5, 0), "kept by this thread, and free");
    thread::scope(|scope| {
        let other = scope.spawn(|| registry.try_lease(4096).map(|mut lease| address(&mut lease)));
        assert_eq!(other.join().expect("the thread ends"), Some(kept), "another thread gets it rather than nothing");
    });
    let mut again = registry.try_lease(4096).expect("it is free");
    assert_eq!(address(&mut again), kept);
    let (mut waiter, woken) = waiting(&registry, 2 * 4096);
    drop(leases.pop());
    assert!(registry.try_lease(4096).is_none(), "not past who waits");
    drop(again);
    assert_eq!(woken.times(), 1);
    drop((granted(&mut waiter, &woken), leases));
    assert!(registry.try_lease(6 * 4096).is_some(), "what is kept stands in nobody's way");
}
