//! A kernel that refuses a ring of buffers, or does not give one back.

use std::time::Duration;

use super::*;

/// A receive into buffers of at least so many bytes.
struct Sized(OwnedFd, usize);

impl Operation for Sized {
    type Output = Got;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let group = Driver::current().buffer_group(self.1, false)?;
        sqe.recv_lent(self.0.as_fd(), &group)
    }

    fn decode(self, completion: Completion) -> Got {
        got(completion)
    }
}

/// Groups of one page and of two, in a registry of two pages.
fn rig() -> Rig {
    let registry = crate::Registry::new(2).unwrap();
    let config = Config::default().entries(64).completions(4096).lent([(4096, 1), (8192, 1)]);
    let (driver, script) = Driver::build_scripted(&config, Some(&registry)).unwrap();
    let _entered = driver.enter();
    Rig { driver, script, _entered, wakes: Arc::default() }
}

impl Rig {
    fn poll_sized(&self, future: &mut Submission<Sized>) -> Poll<Got> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }

    /// A receive of two pages that has found none, for which the group of one page, which is idle, will have to rest.
    fn hungry(&self) -> (Submission<Sized>, u64) {
        drop(self.driver.buffer_group(1, false).unwrap());
        let mut receive = Submission::new(Sized(null(), 8192));
        assert!(self.poll_sized(&mut receive).is_pending());
        self.turn();
        let key = self.last();
        self.script.complete(key, -libc::ENOBUFS);
        self.turn();
        (receive, key)
    }
}

#[test]
fn a_ring_that_is_refused_when_its_group_has_rested_is_tried_again_each_second_for_who_waits() {
    let rig = rig();
    let (mut long, long_key) = rig.hungry();
    // Described before its group rests, and with the kernel after that.
    let mut small = Submission::new(One(null()));
    assert!(rig.poll(&mut small).is_pending());
    rig.script.refuse_rings(Some(libc::ENOMEM), None);
    rig.turn();
    let small_key = rig.last();
    rig.turn();
    rig.script.complete_with_lent(long_key, b"long", 0);
    rig.turn();
    drop(ready(rig.poll_sized(&mut long)));
    rig.script.complete(small_key, -libc::ENOBUFS);
    rig.turn();
    let asked = rig.script.rings_asked();
    for _ in 0..10 {
        rig.turn();
        assert_eq!(rig.opcodes(), [], "the kernel has no ring to receive into");
        assert!(!rig.driver.has_queued(), "a guest may sleep");
    }
    assert_eq!(rig.script.rings_asked(), asked, "nor is it asked in each turn");
    let until = |rig: &Rig| rig.driver.next_deadline().expect("nothing else would wake it") - rig.driver.now();
    assert!(until(&rig) <= Duration::from_secs(1));
    rig.script.advance(Duration::from_secs(1));
    rig.turn();
    rig.turn();
    assert_eq!(rig.script.rings_asked(), asked + 1, "asked again, and refused again");
    assert_eq!(until(&rig), Duration::from_secs(1));
    rig.script.refuse_rings(None, None);
    rig.script.advance(Duration::from_secs(1));
    for _ in 0..3 {
        rig.turn();
    }
    assert_eq!((rig.opcodes(), rig.last()), (vec![abi::RECV], small_key));
    assert_eq!(rig.driver.next_deadline(), None);
    rig.script.complete_with_lent(small_key, b"small", 0);
    rig.turn();
    assert_eq!(brought(ready(rig.poll(&mut small))), b"small");
}

#[test]
fn a_ring_that_the_kernel_keeps_is_asked_for_once_however_long_the_other_group_is_hungry() {
    let rig = rig();
    let (_long, _) = rig.hungry();
    rig.script.refuse_rings(None, Some(libc::EINVAL));
    let asked = rig.script.rings_asked();
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!(rig.script.rings_asked(), asked + 1);
    assert!(!rig.driver.has_queued(), "a guest may sleep");
    // Something has come into its buffer: it is another state, and is tried once more.
    let (mut small, key) = rig.receive();
    rig.script.complete_with_lent(key, b"small", 0);
    rig.turn();
    rig.script.refuse_rings(None, None);
    drop(ready(rig.poll(&mut small)));
    for _ in 0..3 {
        rig.turn();
    }
    assert_eq!(rig.opcodes(), [abi::RECV], "the long one has its pages");
}
