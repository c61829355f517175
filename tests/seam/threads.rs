//! Threads: what belongs to a ring stays on its thread, by type; what may leave it does.

use std::thread;

use ringmain::{
    Completion, Driver, Encoded, Entered, Fd, FdHold, FixedBuf, Lease, Multishot, MultishotSqe, Registry, Runtime,
    Script, Sqe, Submission,
};

/// Does not compile for a type that has the trait: then two implementations give `check`, and neither is chosen.
macro_rules! is_not {
    ($trait:ident: $($type:ty),* $(,)?) => {
        $(const _: () = {
            trait Ambiguous<Which> {
                fn check() {}
            }
            impl<T: ?Sized> Ambiguous<()> for T {}
            struct HasIt;
            impl<T: ?Sized + $trait> Ambiguous<HasIt> for T {}
            let _check = <$type as Ambiguous<_>>::check;
        };)*
    };
}

fn may_leave<T: Send>() {}

/// An operation that is Send itself, so that what keeps its submission here is the submission.
type Free = super::foreign::Hooked;

struct Plain;

impl ringmain::Operation for Plain {
    type Output = ();
    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> std::io::Result<Encoded<'op>> {
        sqe.nop()
    }
    fn decode(self, _: Completion) {}
}

impl ringmain::MultishotOperation for Plain {
    type Item = ();
    fn encode<'op>(&'op self, _: MultishotSqe<'op>) -> std::io::Result<ringmain::EncodedMultishot<'op>> {
        Err(std::io::Error::other("never"))
    }
    fn item(&self, _: Completion) {}
}

is_not!(Send: Completion, Driver, Entered, Fd, FdHold, Runtime, Script, Submission<Plain>, Submission<Free>);
is_not!(Send: Multishot<Plain>, Sqe<'static>, Encoded<'static>, MultishotSqe<'static>, ringmain::Sleep);
is_not!(Sync: Completion, Driver, Entered, Fd, FdHold, Runtime, Script, Submission<Plain>, Sqe<'static>);
is_not!(Send: ringmain::JoinHandle<std::rc::Rc<()>>, ringmain::net::TcpStream);

#[test]
fn leases_and_registries_may_leave_their_thread_and_outlive_its_runtime() {
    may_leave::<FixedBuf>();
    may_leave::<Registry>();
    may_leave::<Lease>();
    may_leave::<ringmain::JoinHandle<u8>>();
    let registry = thread::spawn(|| Runtime::new().unwrap().driver().registry().clone()).join().unwrap();
    let mut lease = registry.try_lease(4096).unwrap();
    lease.as_capacity_mut().fill(7);
    lease.set_len(4096);
    let lease = thread::spawn(move || {
        assert!(lease.iter().all(|byte| *byte == 7));
        lease
    })
    .join()
    .unwrap();
    drop(registry);
    assert_eq!(lease.len(), 4096);
}

#[test]
fn a_lease_that_another_ring_registered_is_plain_memory_here() {
    // Registered on the ring of one thread, used on that of another: neither the index nor the count of flights fits.
    let registry = Runtime::new().unwrap().driver().registry().clone();
    thread::spawn(move || {
        let (driver, _entered) = super::kernel();
        let (reader, writer) = super::pipe();
        rustix::io::write(&writer, b"ring").unwrap();
        let reader = Fd::new(reader);
        let lease = registry.try_lease(64).unwrap();
        let (result, lease) = super::finish(&driver, &mut ringmain::ops::read(&reader, lease));
        assert_eq!((result.unwrap(), &lease[..]), (4, &b"ring"[..]));
        assert_eq!(registry.snapshot().pages_in_flight, 0);
    })
    .join()
    .unwrap();
}
