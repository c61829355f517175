//! Files that take less than they are given.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::rc::Rc;

use ringmain::ops::{self, fs::File};
use ringmain::{Fd, Opcode, Runtime};

use crate::child;
use crate::peers::{Random, pattern, without_hanging};
use crate::rings;

const EAGAIN: i32 = -11;
const POLLOUT: i32 = 4;

/// The played kernel takes some bytes of each write, or none and says `EAGAIN`.
#[test]
fn d01_short_writes_and_eagain_are_carried_on_from() {
    without_hanging(|| {
        for seed in 0..50 {
            let (runtime, script) = Runtime::builder().build_scripted().unwrap();
            let taken = Rc::new(RefCell::new(Vec::<(u64, u64)>::new()));
            let (refused, mut random) = (Rc::new(Cell::new(0)), Random::new(seed));
            script.play({
                let (taken, refused) = (Rc::clone(&taken), Rc::clone(&refused));
                move |kernel| {
                    for pending in kernel.pending() {
                        let entry = pending.entry;
                        if entry.opcode == Opcode::PollAdd.code() {
                            kernel.complete(entry.user_data, POLLOUT);
                        } else if entry.opcode == Opcode::Write.code() && random.below(3) == 0 {
                            refused.set(refused.get() + 1);
                            kernel.complete(entry.user_data, EAGAIN);
                        } else if entry.opcode == Opcode::Write.code() {
                            let count = 1 + random.below(u64::from(entry.len));
                            taken.borrow_mut().push((entry.off, count));
                            kernel.complete(entry.user_data, i32::try_from(count).unwrap());
                        }
                    }
                }
            });
            let file = File::from(tempfile::tempfile().unwrap());
            let content = pattern(seed, 524_288);
            let (result, content) = runtime.block_on(ops::write_all_at(&file, content, 1_000));
            assert_eq!((result.unwrap(), content.len()), (524_288, 524_288));
            let mut next = 1_000;
            for &(offset, count) in &*taken.borrow() {
                assert_eq!(offset, next, "a step has left a gap or written twice");
                next += count;
            }
            assert_eq!(next, 1_000 + 524_288);
            assert!(taken.borrow().len() > 1 && (seed > 0 || refused.get() > 0), "the script has played nothing");
        }
    });
}

#[test]
fn d01_a_write_that_makes_no_progress_is_an_error_and_not_a_spin() {
    without_hanging(|| {
        let (runtime, script) = Runtime::builder().build_scripted().unwrap();
        script.play(|kernel| {
            for pending in kernel.pending() {
                let accepted = if pending.order == 0 { 100 } else { 0 };
                kernel.complete(pending.entry.user_data, accepted);
            }
        });
        let file = File::from(tempfile::tempfile().unwrap());
        runtime.block_on(async {
            let mut write = ops::write_all_at(&file, vec![7; 4096], 0);
            let (result, content) = (&mut write).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::WriteZero);
            assert_eq!((write.count(), content.len()), (100, 4096), "the buffer comes back, and how far it came");
        });
    });
}

#[test]
fn d01_a_device_without_room_says_so() {
    without_hanging(|| {
        rings::each(|runtime| {
            let full = Fd::new(OpenOptions::new().write(true).open("/dev/full").unwrap().into());
            let (result, content) = runtime.block_on(ops::write_all(&full, vec![7; 4096]));
            assert_eq!((result.unwrap_err().kind(), content.len()), (ErrorKind::StorageFull, 4096));
        });
    });
}

#[test]
fn d01_a_disk_that_fills_up_ends_the_write_with_the_count_of_what_is_there() {
    child::below(&child::with_a_small_disk(64), || {
        without_hanging(|| {
            rings::each(|runtime| {
                let plain = std::fs::File::create("small/file").unwrap();
                let file = File::from(plain.try_clone().unwrap());
                runtime.block_on(async {
                    let mut write = ops::write_all_at(&file, pattern(1, 256 * 1024), 0);
                    let (result, content) = (&mut write).await;
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
                    let there = std::fs::read("small/file").unwrap();
                    assert!(!there.is_empty() && there == content[..there.len()]);
                    assert_eq!(write.count(), there.len(), "the count is what is on the disk");
                });
                std::fs::remove_file("small/file").unwrap();
            });
        });
    });
}
