//! Growing by chunks, and giving them back.

use super::*;

fn growing(pages: u32, pages_max: u32) -> Registry {
    Registry::with_config(&Config::default().pages(pages).pages_max(pages_max)).expect("a small mapping is granted")
}

fn total(registry: &Registry) -> usize {
    parts(registry);
    registry.snapshot().pages_total
}

#[test]
fn a_lease_that_does_not_fit_lets_the_registry_grow_up_to_its_bound_and_then_waits() {
    let registry = growing(512, 1100);
    assert_eq!((total(&registry), registry.arena.chunks()), (512, 3));
    let first = registry.try_lease(512 * 4096).expect("all of it is free");
    let second = registry.try_lease(4096).expect("it grows");
    assert_eq!((total(&registry), registry.snapshot().chunks_mapped), (1024, 2));
    assert!(registry.try_lease(512 * 4096).is_none(), "neither chunk has so much, and the last one is of 76 pages");
    assert_eq!(total(&registry), 1024, "so no growth would help");
    let last = registry.try_lease(384 * 4096).expect("the second has it");
    let rest = registry.try_lease(127 * 4096).expect("in several blocks, but in a row");
    let beyond = registry.try_lease(76 * 4096).expect("it grows to its bound");
    assert_eq!((total(&registry), registry.snapshot().pages_free), (1100, 0));
    let (mut lease, woken) = waiting(&registry, 1);
    drop(beyond);
    drop(granted(&mut lease, &woken));
    drop((first, second, last, rest));
    assert_eq!(registry.snapshot().pages_free, 1100);
}

#[test]
fn memory_that_it_has_grown_by_is_zero_and_is_given_back_when_it_is_all_free() {
    let registry = growing(1, 1025);
    let first = registry.try_lease(4096).expect("the page is free");
    for _ in 0..2 {
        let mut grown = registry.try_lease(512 * 4096).expect("it grows");
        assert!(grown.as_capacity_mut().iter().all(|byte| *byte == 0), "memory that comes again is zero again");
        grown.as_capacity_mut().fill(7);
        let back = grown.split_off(4096);
        drop(grown);
        assert_eq!((registry.shrink(), total(&registry)), (0, 513), "not all of it is free");
        drop(back);
        assert_eq!((registry.shrink(), total(&registry)), (1, 1));
    }
    drop(first);
    assert_eq!((registry.shrink(), total(&registry)), (0, 1), "what it began with stays");
}

#[test]
fn memory_that_is_long_unused_is_given_back_and_used_again_is_not() {
    let idle = Duration::from_secs(100);
    let config = Config::default().pages(1).pages_max(513).pages_idle(idle);
    let registry = Registry::with_config(&config).expect("a small mapping is granted");
    assert_eq!(registry.arena.next_trim(), None);
    drop(registry.try_lease(2 * 4096).expect("it grows"));
    let due = registry.arena.next_trim().expect("a chunk is all free");
    registry.arena.trim(due - Duration::from_millis(1));
    assert_eq!(total(&registry), 513);
    let used = registry.try_lease(2 * 4096).expect("it is there");
    assert_eq!(registry.arena.next_trim(), None);
    registry.arena.trim(due);
    assert_eq!(total(&registry), 513);
    drop(used);
    let due = registry.arena.next_trim().expect("it is all free again");
    registry.arena.trim(due);
    assert_eq!((total(&registry), registry.arena.next_trim()), (1, None));
}

#[test]
fn a_chunk_is_given_back_only_when_every_ring_has_let_go() {
    let registry = growing(1, 513);
    let rings = [registering(&registry), registering(&registry)];
    let slots = rings.clone().map(|ring| ring.slot().expect("it registers"));
    let mut lease = registry.try_lease(2 * 4096).expect("it grows");
    let addr = address(&mut lease);
    assert_eq!(rings.clone().map(|ring| ring.entry_of(addr, 1)), [None, None], "no ring has it registered yet");
    for slot in slots {
        assert_eq!(registry.arena.table_changes(slot), [TableChange::Register(1)]);
        assert_eq!(registry.arena.table_changes(slot), [], "a ring is told once");
        registry.arena.set_registered(1, slot);
    }
    assert_eq!(rings.clone().map(|ring| ring.entry_of(addr, 1)), [Some(1), Some(1)]);
    lease.as_capacity_mut().fill(7);
    drop(lease);
    let before = registry.arena.generation();
    assert_eq!(registry.shrink(), 1);
    assert_ne!(registry.arena.generation(), before, "each ring is told to look");
    assert_eq!(registry.arena.table_changes(slots[0]), [TableChange::Clear(1)]);
    registry.arena.unpin(1, slots[0]);
    assert_eq!(total(&registry), 513, "the other ring has it still");
    assert_eq!(registry.arena.table_changes(slots[1]), [TableChange::Clear(1)]);
    registry.arena.unpin(1, slots[1]);
    assert_eq!(total(&registry), 1);
    let mut again = registry.try_lease(2 * 4096).expect("it grows again");
    assert!(again.as_capacity_mut().iter().all(|byte| *byte == 0));
}

#[test]
fn a_chunk_that_is_being_given_back_is_used_before_anybody_waits_for_it() {
    let registry = growing(1, 513);
    let ring = registering(&registry);
    let slot = ring.slot().expect("it registers");
    drop(registry.try_lease(2 * 4096).expect("it grows"));
    assert_eq!(registry.arena.table_changes(slot), [TableChange::Register(1)]);
    registry.arena.set_registered(1, slot);
    assert_eq!(registry.shrink(), 1);
    assert_eq!(registry.arena.table_changes(slot), [TableChange::Clear(1)]);
    let mut lease = registry.try_lease(512 * 4096).expect("it is not given back yet");
    let addr = address(&mut lease);
    assert_eq!((ring.entry_of(addr, 1), registry.arena.table_changes(slot)), (None, vec![]), "still being cleared");
    registry.arena.unpin(1, slot);
    assert_eq!(total(&registry), 513);
    assert_eq!(registry.arena.table_changes(slot), [TableChange::Register(1)], "and is registered anew");
    assert_eq!(registry.snapshot().chunks_mapped, 2, "it kept its memory");
}

#[test]
fn a_ring_that_ends_lets_go_of_all_it_had() {
    let registry = growing(1, 513);
    let ring = registering(&registry);
    let slot = ring.slot().expect("it registers");
    drop(registry.try_lease(2 * 4096).expect("it grows"));
    assert_eq!(registry.arena.table_changes(slot), [TableChange::Register(1)]);
    assert_eq!((registry.shrink(), total(&registry)), (1, 513), "it is about to be registered");
    registry.arena.forget_ring(slot);
    registry.detach(slot);
    assert_eq!((total(&registry), registry.is_registered()), (1, false));
}

#[test]
fn a_lease_begins_where_it_was_asked_to() {
    let registry = growing(64, 64 + 2048);
    let mut held = Vec::new();
    for align in [1, 4096, 8192, 64 * 1024, 128 * 1024, 2 << 20, 2 << 20] {
        let mut lease = registry.try_lease_aligned(5 * 4096, align).expect("the registry grows where it has to");
        assert!(address(&mut lease).is_multiple_of(align) && lease.alignment() >= align.max(4096), "{align}");
        held.push(lease);
    }
    assert_eq!(parts(&registry).1, 7 * 5, "five pages use five, however they are aligned");
    assert!(registry.try_lease_aligned(1, 3).is_none());
    for align in [0, 3, 4 << 20] {
        let error = block_on(registry.lease_aligned(1, align)).expect_err("that is no alignment");
        assert!(error.to_string().contains("power of two up to 2097152"), "{error}");
    }
}

#[test]
fn many_are_leased_at_once_or_not_at_all() {
    let registry = registry(8);
    let held = registry.try_lease(5 * 4096).expect("the pages are free");
    assert!(registry.try_lease_many(&[4096, 4096, 4096, 4096]).is_none());
    assert_eq!(parts(&registry), (3, 5, 0), "nothing is kept of what fitted");
    assert_eq!(registry.try_lease_many(&[]).map(|none| none.len()), Some(0));
    let (mut many, woken) = (registry.lease_many(&[4096, 3 * 4096, 100]), Arc::new(Woken::default()));
    let mut poll_many = || Pin::new(&mut many).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken))));
    assert!(poll_many().is_pending());
    assert_eq!(parts(&registry), (3, 5, 0), "it waits without holding");
    let (mut small, small_woken) = waiting(&registry, 1);
    drop(held);
    assert_eq!((woken.times(), small_woken.times()), (1, 1), "in their order, and both fit now");
    let Poll::Ready(Ok(leases)) = poll_many() else { panic!("all are free") };
    assert_eq!(leases.iter().map(FixedBuf::capacity).collect::<Vec<_>>(), [4096, 3 * 4096, 100]);
    drop((leases, granted(&mut small, &small_woken)));
    assert_eq!(parts(&registry), (8, 0, 0));
    let error = block_on(registry.lease_many(&[5 * 4096, 4 * 4096])).expect_err("that cannot be granted at once");
    assert!(error.to_string().contains("these 2 leases of 9 pages together"), "{error}");
}

#[test]
fn many_that_can_never_fit_do_not_let_the_registry_grow() {
    let registry = growing(4, 4 + 512);
    let lens = [512 * 4096, 5 * 4096];
    assert!(registry.try_lease_many(&lens).is_none());
    assert_eq!(registry.snapshot().pages_total, 4, "it has not grown");
    let error = block_on(registry.lease_many(&lens)).expect_err("that cannot be granted at once");
    assert_eq!((error.kind(), registry.snapshot().pages_total), (io::ErrorKind::InvalidInput, 4));
}

#[test]
fn many_that_fit_only_a_grown_registry_let_it_grow() {
    let registry = growing(4, 4 + 512);
    let leases = block_on(registry.lease_many(&[4 * 4096, 512 * 4096])).expect("together they fit exactly");
    assert_eq!((leases.len(), registry.snapshot().pages_free), (2, 0));
}

#[test]
fn a_chunk_is_counted_as_a_whole_or_not_at_all_while_it_comes_and_goes() {
    let registry = growing(1, 513);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                drop(registry.try_lease(2 * 4096).expect("it grows"));
                assert_eq!(registry.shrink(), 1);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let now = total(&registry);
            assert!(now == 1 || now == 513, "{now} pages");
        }
    });
}
