//! A zero-copy send left alone at every moment of its life, on a played kernel: queued, waiting, answered, done.

use std::rc::Rc;
use std::time::Duration;

use ringmain::{Config, Driver, Wait, ops};
use rustix::io::Errno;

use super::{COPIED, MORE, Marked, NOTIFICATION, PAGE, Rig, null, poll, ready};

const CANCELLED: i32 = -Errno::CANCELED.raw_os_error();

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Fresh,
    Queued,
    Waiting,
    /// The result is there; the notification is not.
    Answered,
    /// The result was taken, and the memory is waited for.
    Releasing,
    Done,
}

const MOMENTS: [Moment; 6] =
    [Moment::Fresh, Moment::Queued, Moment::Waiting, Moment::Answered, Moment::Releasing, Moment::Done];

/// Let the kernel end whatever it still has: cancels, then the sends, of which a second result is not believed, then
/// their notifications.
fn end(rig: &Rig) {
    for round in 0..3 {
        for left in rig.script.pending() {
            match left.entry.opcode == super::SEND_ZC {
                true if round == 0 => rig.answer(left.entry, CANCELLED, MORE),
                true => rig.answer(left.entry, COPIED, NOTIFICATION),
                false => rig.answer(left.entry, 0, 0),
            }
        }
        rig.turn();
    }
    assert!(rig.script.pending().is_empty());
}

/// Runs through a send from a lease and lets go of it at a moment; returns whether the kernel still had its page then.
fn let_go(rig: &Rig, moment: Moment, let_go: impl FnOnce(&mut dyn FnMut())) -> bool {
    let free = |rig: &Rig| rig.driver.registry().snapshot().pages_free;
    let all = free(rig);
    let mut send = Some(ops::send_zc(&rig.socket, rig.lease(PAGE)));
    let mut released = None;
    if moment != Moment::Fresh {
        assert!(poll(send.as_mut().unwrap()).is_pending());
    }
    if !matches!(moment, Moment::Fresh | Moment::Queued) {
        rig.turn();
        let entry = rig.only();
        if moment != Moment::Waiting {
            rig.answer(entry, PAGE as i32, MORE);
        }
        if moment == Moment::Releasing {
            let (result, back) = ready(send.as_mut().unwrap());
            assert_eq!(result.unwrap(), PAGE);
            released = Some(back);
        }
        if moment == Moment::Done {
            rig.answer(entry, 0, NOTIFICATION);
        }
    }
    let_go(&mut || {
        send = None;
        released = None;
    });
    drop((send, released));
    let kept = free(rig) < all;
    assert_eq!(rig.driver.registry().try_lease(8 * PAGE).is_some(), !kept, "{moment:?}: a page that the kernel has");
    kept
}

#[test]
fn a_page_comes_back_when_the_kernel_has_let_go_and_not_before() {
    for moment in MOMENTS {
        let rig = Rig::new();
        let kept = let_go(&rig, moment, |drop| drop());
        let with_kernel = matches!(moment, Moment::Waiting | Moment::Answered | Moment::Releasing);
        assert_eq!(kept, with_kernel, "dropped when {moment:?}");
        // Nothing can be cancelled any more once there is a result.
        rig.turn();
        let cancels = rig.driver.metrics().cancels.get();
        assert_eq!(cancels, u64::from(moment == Moment::Waiting), "dropped when {moment:?}");
        end(&rig);
        assert_eq!(rig.driver.registry().snapshot().pages_free, 8, "dropped when {moment:?}");
        assert_eq!((rig.driver.operations_active(), rig.driver.slots_used()), (0, 0), "dropped when {moment:?}");
    }
}

#[test]
fn n05_the_buffer_comes_back_once_after_the_notification_if_there_is_to_be_one() {
    let error = |errno: Errno| -errno.raw_os_error();
    let outcomes = [
        (5, true),
        (error(Errno::PIPE), true),
        (error(Errno::CONNRESET), true),
        (error(Errno::CANCELED), true),
        (error(Errno::BADF), false),
        (error(Errno::NOTSOCK), true),
        (error(Errno::FAULT), false),
    ];
    for (outcome, is_notified) in outcomes {
        for in_one_turn in [false, true] {
            let rig = Rig::new();
            let token = Rc::new(());
            let mut send = ops::send_zc(&rig.socket, Marked::new(5, &token));
            let entry = rig.submit(&mut send);
            rig.script.complete_with(entry.user_data, outcome, if is_notified { MORE } else { 0 });
            if !in_one_turn {
                rig.turn();
                assert_eq!(rig.driver.operations_active(), usize::from(is_notified));
            }
            if is_notified {
                rig.script.complete_with(entry.user_data, COPIED, NOTIFICATION);
            }
            if in_one_turn {
                rig.turn();
            }
            let (result, mut released) = ready(&mut send);
            assert_eq!(result.map_or_else(|error| -error.raw_os_error().unwrap(), |count| count as i32), outcome);
            assert_eq!(poll(&mut released).is_pending(), is_notified && !in_one_turn, "{outcome}");
            rig.turn();
            if is_notified && !in_one_turn {
                assert_eq!(ready(&mut released).bytes.len(), 5);
            }
            drop(released);
            assert_eq!((Rc::strong_count(&token), rig.driver.slots_used()), (1, 0), "{outcome}");
        }
    }
}

#[test]
fn a_cancelled_send_says_what_it_sent_and_gives_its_buffer_back() {
    for moment in MOMENTS.into_iter().filter(|moment| !matches!(moment, Moment::Releasing)) {
        let rig = Rig::new();
        let token = Rc::new(());
        let mut send = ops::send_zc(&rig.socket, Marked::new(5, &token));
        if moment != Moment::Fresh {
            assert!(poll(&mut send).is_pending());
        }
        if !matches!(moment, Moment::Fresh | Moment::Queued) {
            rig.turn();
        }
        let entry = rig.script.pending().first().map(|pending| pending.entry);
        if matches!(moment, Moment::Answered | Moment::Done) {
            rig.answer(entry.unwrap(), 5, MORE);
        }
        if moment == Moment::Done {
            rig.answer(entry.unwrap(), 0, NOTIFICATION);
        }
        let mut send = send.cancel();
        rig.turn();
        if moment == Moment::Waiting {
            assert!(poll(&mut send).is_pending());
            rig.answer(entry.unwrap(), CANCELLED, MORE);
        }
        let (result, mut released) = ready(&mut send);
        match moment {
            Moment::Answered | Moment::Done => assert_eq!(result.unwrap(), 5),
            _ => assert_eq!(result.unwrap_err().raw_os_error(), Some(-CANCELLED), "{moment:?}"),
        }
        if matches!(moment, Moment::Waiting | Moment::Answered) {
            assert!(poll(&mut released).is_pending(), "{moment:?}");
            rig.answer(entry.unwrap(), 0, NOTIFICATION);
        }
        assert_eq!(ready(&mut released).bytes.len(), 5, "{moment:?}");
        end(&rig);
        assert_eq!((rig.driver.operations_active(), rig.driver.slots_used()), (0, 0), "{moment:?}");
    }
}

#[test]
fn a_send_that_is_cancelled_while_it_is_refused_is_not_made_plainly() {
    let rig = Rig::new();
    let mut send = ops::send_zc(&rig.socket, "bytes");
    let entry = rig.submit(&mut send);
    rig.answer(entry, -Errno::OPNOTSUPP.raw_os_error(), MORE);
    assert!(poll(&mut send).is_pending());
    let mut send = send.cancel();
    rig.answer(entry, 0, NOTIFICATION);
    let (result, mut released) = ready(&mut send);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(-CANCELLED));
    assert_eq!(ready(&mut released), "bytes");
}

#[test]
fn the_last_handle_ends_a_send_that_waits_and_not_one_that_is_answered() {
    let rig = Rig::new();
    let socket = null();
    let mut send = ops::send_zc(&socket, "bytes");
    let entry = rig.submit(&mut send);
    drop(socket);
    rig.turn();
    assert_eq!(rig.driver.metrics().cancels.get(), 1);
    rig.answer(entry, CANCELLED, MORE);
    rig.answer(entry, COPIED, NOTIFICATION);
    assert_eq!(ready(&mut send).0.unwrap_err().raw_os_error(), Some(-CANCELLED));
    end(&rig);

    let socket = null();
    let mut send = ops::send_zc(&socket, "bytes");
    let entry = rig.submit(&mut send);
    rig.answer(entry, 5, MORE);
    drop(socket);
    rig.turn();
    assert_eq!(rig.driver.metrics().cancels.get(), 1, "its bytes are on their way");
    let (result, mut released) = ready(&mut send);
    assert_eq!(result.unwrap(), 5);
    rig.answer(entry, 0, NOTIFICATION);
    assert_eq!(ready(&mut released), "bytes");
}

#[test]
fn a_runtime_that_ends_waits_for_notifications() {
    for dropped in [false, true] {
        let rig = Rig::new();
        let token = Rc::new(());
        let mut send = ops::send_zc(&rig.socket, Marked::new(5, &token));
        let entry = rig.submit(&mut send);
        rig.answer(entry, 5, MORE);
        let (result, released) = ready(&mut send);
        assert_eq!(result.unwrap(), 5);
        let mut released = Some(released);
        if dropped {
            released = None;
        }
        let mut enters = 0;
        rig.script.play(move |script| {
            enters += 1;
            for left in script.pending() {
                match left.entry.opcode == super::SEND_ZC {
                    true if enters > 2 => script.complete_with(left.entry.user_data, 0, NOTIFICATION),
                    true => {}
                    false => script.complete(left.entry.user_data, -Errno::NOENT.raw_os_error()),
                }
            }
        });
        rig.driver.shutdown();
        assert_eq!(rig.driver.operations_active(), 0);
        if let Some(mut released) = released {
            assert_eq!(ready(&mut released).bytes.len(), 5);
        }
        assert_eq!(Rc::strong_count(&token), 1);
    }
}

#[test]
fn memory_that_is_never_released_is_leaked_and_not_freed() {
    let config = Config::default().pages(8).zero_copy_min(1).shutdown_timeout(Duration::from_millis(50));
    let rig = Rig::with(config);
    let token = Rc::new(());
    let mut send = ops::send_zc(&rig.socket, Marked::new(5, &token));
    let entry = rig.submit(&mut send);
    rig.answer(entry, 5, MORE);
    drop(ready(&mut send));
    rig.driver.shutdown();
    drop(rig);
    assert_eq!(Rc::strong_count(&token), 2, "the kernel may still read it");
}

#[test]
fn answered_sends_count_against_the_bound_on_operations() {
    let (driver, script) = Driver::scripted(&Config::default().pages(8).operations(8).zero_copy_min(1)).unwrap();
    let _entered = driver.enter();
    let socket = null();
    let mut memory = Vec::new();
    for _ in 0..8 {
        let mut send = ops::send_zc(&socket, "bytes");
        assert!(poll(&mut send).is_pending());
        driver.turn(Wait::No).unwrap();
        let key = script.pending().last().unwrap().entry.user_data;
        script.complete_with(key, 5, MORE);
        driver.turn(Wait::No).unwrap();
        memory.push(ready(&mut send).1);
    }
    let mut ninth = ops::send_zc(&socket, "bytes");
    assert!(poll(&mut ninth).is_pending());
    driver.turn(Wait::No).unwrap();
    assert_eq!(script.pending().len(), 8, "it waits for a place");
    script.complete_with(script.pending()[0].entry.user_data, 0, NOTIFICATION);
    driver.turn(Wait::No).unwrap();
    assert!(poll(&mut ninth).is_pending());
    driver.turn(Wait::No).unwrap();
    assert_eq!(script.pending().len(), 8, "it has one");
    assert_eq!(ready(&mut memory[0]), "bytes");
}

/// The kernel promises no order: whichever of the two comes last is the end, and the count is the result's.
#[test]
fn a_notification_that_comes_before_the_result_is_kept_for_it() {
    for (report, copied) in [(0, 0), (COPIED, 1)] {
        for flags in [MORE, 0] {
            for in_one_turn in [false, true] {
                let rig = Rig::new();
                let mut send = ops::send_zc(&rig.socket, rig.lease(PAGE));
                let entry = rig.submit(&mut send);
                rig.script.complete_with(entry.user_data, report, NOTIFICATION);
                if !in_one_turn {
                    rig.turn();
                    assert!(poll(&mut send).is_pending(), "it has no result");
                    assert_eq!((rig.driver.operations_active(), rig.driver.slots_used()), (1, 1));
                    assert_eq!(rig.driver.registry().snapshot().pages_in_flight, 1);
                }
                rig.answer(entry, PAGE as i32, flags);
                let (result, mut released) = ready(&mut send);
                assert_eq!((result.unwrap(), ready(&mut released).len()), (PAGE, PAGE));
                let metrics = rig.driver.metrics();
                assert_eq!((metrics.sends_copied.get(), metrics.sends_zero_copy.get()), (copied, 1 - copied));
                assert_eq!((metrics.stale.get(), rig.driver.slots_used()), (0, 0));
                assert_eq!(rig.driver.registry().snapshot().pages_free, 8);
            }
        }
    }
}
