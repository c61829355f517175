//! Many completions: items in order, a late consumer, the end.

use super::*;

#[test]
fn a_multishot_delivers_every_item() {
    let rig = Rig::new();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (fd, peer) = descriptor();
        rig.script.complete_with_descriptor(key, fd, abi::MORE);
        peers.push(peer);
    }
    rig.turn();
    assert_eq!((rig.counts(), rig.wakes()), ((1, 1), 1), "one wake for all that came together");
    for peer in peers {
        let (_, fd) = ready(rig.next(&mut stream)).unwrap();
        drop(fd.expect("an accept gives a descriptor"));
        assert!(is_closed(peer), "items come in order");
    }
    assert!(rig.next(&mut stream).is_pending());
    rig.script.complete(key, -libc::EMFILE);
    rig.turn();
    assert_eq!((rig.counts(), rig.wakes()), ((0, 1), 2));
    assert_eq!(errno(ready(rig.next(&mut stream)).unwrap().0), libc::EMFILE);
    assert!(ready(rig.next(&mut stream)).is_none());
    assert!(ready(rig.next(&mut stream)).is_none(), "a stream that has ended stays so");
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn a_multishot_whose_consumer_is_late_is_paused_and_armed_again() {
    let rig = Rig::with(&Config::default().entries(256).completions(4096));
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    for _ in 0..ITEMS_MAX {
        rig.script.complete_with_descriptor(key, null(), abi::MORE);
    }
    rig.turn();
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::ACCEPT, abi::ASYNC_CANCEL], "its queue is full");
    // One more was under way.
    rig.script.complete_with_descriptor(key, null(), abi::MORE);
    rig.script.complete(key, -libc::ECANCELED);
    rig.script.complete(rig.last().user_data, 0);
    rig.turn();
    assert_eq!((rig.counts(), rig.script.pending().len()), ((0, 1), 0), "paused: the kernel holds nothing");
    for _ in 0..=ITEMS_MAX {
        assert!(ready(rig.next(&mut stream)).unwrap().0.is_ok(), "the pause itself is no item");
    }
    assert!(rig.next(&mut stream).is_pending());
    assert_eq!(rig.counts(), (1, 1));
    rig.turn();
    assert_eq!((rig.opcodes(), rig.last().user_data), (vec![abi::ACCEPT], key), "armed again");
    rig.script.complete_with_descriptor(key, null(), abi::MORE);
    rig.turn();
    assert!(ready(rig.next(&mut stream)).unwrap().1.is_some());
    stream.cancel();
    rig.turn();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!(errno(ready(rig.next(&mut stream)).unwrap().0), libc::ECANCELED, "the program's own cancel is an item");
    assert!(ready(rig.next(&mut stream)).is_none());
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn cancelling_a_paused_multishot_ends_it() {
    let rig = Rig::new();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    for _ in 0..ITEMS_MAX {
        rig.script.complete_with_descriptor(key, null(), abi::MORE);
    }
    rig.turn();
    stream.cancel();
    rig.turn();
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    for _ in 0..ITEMS_MAX {
        assert!(ready(rig.next(&mut stream)).unwrap().0.is_ok());
    }
    assert_eq!(errno(ready(rig.next(&mut stream)).unwrap().0), libc::ECANCELED);
    assert!(ready(rig.next(&mut stream)).is_none());
}

#[test]
fn dropping_a_stream_closes_the_descriptors_that_nobody_took() {
    let rig = Rig::new();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    let (fd, early) = descriptor();
    rig.script.complete_with_descriptor(key, fd, abi::MORE);
    rig.turn();
    drop(stream);
    assert!(is_closed(early), "an item that was in the queue");
    rig.turn();
    assert_eq!(rig.opcodes(), [abi::ACCEPT, abi::ASYNC_CANCEL]);
    let (fd, late) = descriptor();
    rig.script.complete_with_descriptor(key, fd, abi::MORE);
    rig.turn();
    assert!(is_closed(late), "an item that came after the drop");
    assert_eq!((rig.counts(), rig.alive()), ((1, 1), 1));
    rig.script.complete(key, -libc::ECANCELED);
    rig.turn();
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn dropping_a_stream_that_has_ended_closes_what_is_left_in_it() {
    let rig = Rig::new();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    rig.turn();
    let key = rig.last().user_data;
    let (fd, peer) = descriptor();
    rig.script.complete_with_descriptor(key, fd, abi::MORE);
    rig.script.complete(key, -libc::EMFILE);
    rig.turn();
    assert_eq!(rig.counts(), (0, 1));
    drop(stream);
    assert!(is_closed(peer));
    assert_eq!((rig.counts(), rig.alive()), ((0, 0), 0));
}

#[test]
fn cancelling_a_queued_multishot_ends_it_without_the_kernel() {
    let rig = Rig::new();
    let mut stream = rig.stream();
    assert!(rig.next(&mut stream).is_pending());
    stream.cancel();
    assert!(ready(rig.next(&mut stream)).is_none());
    rig.turn();
    assert_eq!((rig.counts(), rig.alive(), rig.script.pending().len()), ((0, 0), 0, 0));
}
