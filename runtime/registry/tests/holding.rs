//! Who has a page, and what it counts as.

use super::*;

/// Leased, shared, lent, in flight, awaiting a notification.
fn held(registry: &Registry) -> [usize; 5] {
    let now = registry.snapshot();
    assert_eq!(parts(registry).0, now.pages_free);
    [now.pages_leased, now.pages_shared, now.pages_lent, now.pages_in_flight, now.pages_notifying]
}

#[test]
fn a_page_of_many_holders_counts_as_the_last_of_them_in_order() {
    let registry = registry(1);
    let mut leased = registry.try_lease(4096).expect("the page is free");
    let (frozen, mut lent) = (leased.split_off(1000), leased.split_off(500));
    assert_eq!(held(&registry), [1, 0, 0, 0, 0]);
    let frozen = frozen.freeze();
    assert_eq!(held(&registry), [0, 1, 0, 0, 0]);
    lent.lend();
    assert_eq!(held(&registry), [0, 0, 1, 0, 0]);
    let at = address(&mut leased);
    registry.arena.begin_flight(Kind::Send, at, 500);
    assert_eq!(held(&registry), [0, 0, 0, 1, 0]);
    registry.arena.begin_flight(Kind::Send, at, 500);
    registry.arena.await_notification(Kind::Send, at, 500);
    assert_eq!(held(&registry), [0, 0, 0, 0, 1]);
    registry.arena.end_notification(at, 500);
    assert_eq!(held(&registry), [0, 0, 0, 1, 0]);
    registry.arena.end_flight(Kind::Send, at, 500);
    lent.unlend();
    assert_eq!(held(&registry), [0, 1, 0, 0, 0]);
    drop(frozen);
    assert_eq!(held(&registry), [1, 0, 0, 0, 0]);
    drop((leased, lent));
    assert_eq!(held(&registry), [0; 5]);
}

#[test]
fn parts_of_a_lent_lease_are_lent_until_each_is_taken_back() {
    let registry = registry(2);
    let mut rest = registry.try_lease(2 * 4096).expect("the pages are free");
    rest.lend();
    let mut front = rest.split_to(100);
    front.unlend();
    assert_eq!(held(&registry), [0, 0, 2, 0, 0], "the first page is cut, and one part is still lent");
    let (front, mut rest) = front.unsplit(rest).expect_err("only one of them is lent");
    rest.unlend();
    assert_eq!(held(&registry), [2, 0, 0, 0, 0]);
    drop(front.unsplit(rest).expect("they are neighbours"));
    assert_eq!(held(&registry), [0; 5]);
}

#[test]
fn pages_in_flight_are_told_apart_by_what_is_done_with_them() {
    let registry = registry(5);
    let kinds = [Kind::Read, Kind::Write, Kind::Receive, Kind::Send, Kind::Other];
    let mut leases: Vec<_> = kinds.iter().map(|_| registry.try_lease(4096).expect("one page each")).collect();
    for (kind, lease) in kinds.into_iter().zip(&mut leases) {
        registry.arena.begin_flight(kind, address(lease), 4096);
    }
    let now = registry.snapshot();
    let flying = now.in_flight;
    assert_eq!([flying.read, flying.write, flying.receive, flying.send, flying.other], [1; 5]);
    assert_eq!((now.pages_in_flight, now.pages_in_flight_max), (5, 5));
    registry.arena.begin_flight(Kind::Read, address(&mut leases[1]), 4096);
    assert_eq!((registry.snapshot().in_flight.read, registry.snapshot().in_flight.write), (2, 0), "a read comes first");
    registry.arena.end_flight(Kind::Read, address(&mut leases[1]), 4096);
    for (kind, lease) in kinds.into_iter().zip(&mut leases) {
        registry.arena.end_flight(kind, address(lease), 4096);
    }
    let now = registry.snapshot();
    assert_eq!((now.pages_in_flight, now.pages_in_flight_max, now.pages_held_max), (0, 5, 5));
    drop(leases);
    assert_eq!((registry.snapshot().pages_held_max, registry.snapshot().pages_free), (5, 5));
}

#[test]
fn waits_are_counted_with_their_time() {
    let registry = registry(1);
    assert_eq!((registry.snapshot().waits, registry.snapshot().chunks_mapped), (0, 1));
    let held = registry.try_lease(1).expect("the page is free");
    let (mut lease, woken) = waiting(&registry, 1);
    assert_eq!((registry.snapshot().waiting, registry.snapshot().waits), (1, 0));
    drop(held);
    let now = registry.snapshot();
    assert_eq!((now.waiting, now.waits, now.wait_total), (0, 1, now.wait_max));
    assert!(!now.wait_max.is_zero());
    drop(granted(&mut lease, &woken));
}

#[test]
fn a_lease_that_is_never_given_back_is_known_by_the_place_that_took_it() {
    let registry = registry(3);
    let line = line!() + 1;
    let mut forgotten = registry.try_lease(2 * 4096).expect("the pages are free");
    let back = forgotten.split_off(4096);
    let later = block_on(registry.lease(10)).expect("a page is free");
    drop(back);
    std::mem::forget(forgotten);
    let holders = registry.holders();
    if cfg!(debug_assertions) {
        let lines: Vec<_> = holders.iter().map(|holder| (holder.place.line(), holder.bytes)).collect();
        assert_eq!(lines, [(line, 4096), (line + 2, 10)]);
        assert!(holders[0].to_string().starts_with(&format!("{}:{line}: 4096 bytes for ", file!())), "{}", holders[0]);
    } else {
        assert!(holders.is_empty(), "a release build keeps no list");
    }
    drop(later);
    assert_eq!(held(&registry), [1, 0, 0, 0, 0]);
}
