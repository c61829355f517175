//! Descriptors: none is forged, none is used after it was closed, none is left behind.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ringmain::{Completion, Encoded, Fd, FdHold, Operation, PollFlags, Sqe, Submission, Wait, ops};

use super::foreign::each_ring;
use super::*;

/// Claims a descriptor whatever it was that it asked for.
struct Claim(FdHold, Ask);

#[derive(Clone, Copy, Debug)]
enum Ask {
    Nop,
    Poll,
    Write,
}

impl Operation for Claim {
    type Output = (io::Result<u32>, Option<OwnedFd>);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        match self.1 {
            Ask::Nop => sqe.nop(),
            Ask::Poll => sqe.poll(self.0.as_fd(), PollFlags::OUT),
            Ask::Write => sqe.write(self.0.as_fd(), b"x", None),
        }
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        (completion.result(), completion.take_descriptor())
    }
}

#[test]
fn a_count_is_never_a_descriptor() {
    let (driver, _entered) = kernel();
    let (_reader, writer) = pipe();
    let writer = Fd::new(writer);
    for ask in [Ask::Nop, Ask::Poll, Ask::Write] {
        let (result, forged) = finish(&driver, &mut Submission::new(Claim(writer.hold(), ask)));
        assert!(result.is_ok(), "{ask:?}: {result:?}");
        assert!(forged.is_none(), "{ask:?} answered {result:?}, which is no descriptor");
        if let Ok((result, forged)) = driver.attempt(Claim(writer.hold(), ask)) {
            assert!(result.is_ok() && forged.is_none(), "{ask:?} at once: {result:?}");
        }
    }
}

/// Takes a connection and looks at nothing.
struct Careless(FdHold);

impl Operation for Careless {
    type Output = ();

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        sqe.accept(self.0.as_fd())
    }

    fn decode(self, _: Completion) {}
}

#[test]
fn a_descriptor_that_nobody_takes_is_closed() {
    let (driver, _entered) = kernel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Fd::new(listener.into());
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(HANG)).unwrap();
    finish(&driver, &mut Submission::new(Careless(listener.hold())));
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the other end was closed");

    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(HANG)).unwrap();
    assert!(driver.attempt(Careless(listener.hold())).is_ok(), "a connection is waiting");
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the other end was closed");
}

#[test]
fn a_completion_owns_what_it_created_wherever_it_is_taken() {
    struct Keep(FdHold);
    impl Operation for Keep {
        type Output = Completion;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.accept(self.0.as_fd())
        }
        fn decode(self, completion: Completion) -> Completion {
            completion
        }
    }
    let (driver, script, _entered) = scripted();
    let (_reader, writer) = pipe();
    let (made_reader, made) = pipe();
    let listener = Fd::new(writer);
    let mut accept = Submission::new(Keep(listener.hold()));
    assert!(poll(&mut accept).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete_with_descriptor(pending(&script, ACCEPT), made, 0);
    let mut completion = finish(&driver, &mut accept);
    drop(accept);
    assert!(!is_at_end(&made_reader));
    let taken = completion.take_descriptor().unwrap();
    assert!(completion.take_descriptor().is_none(), "it is given once");
    drop(completion);
    assert!(!is_at_end(&made_reader), "it belongs to who took it");
    drop(taken);
    assert!(is_at_end(&made_reader));
}

/// A close that is refused after the descriptor was handed in.
struct Regrets(Option<OwnedFd>);

impl Operation for Regrets {
    type Output = io::Result<u32>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let _encoded = sqe.close(self.0.take().expect("encoded once"))?;
        Err(io::Error::other("on second thoughts"))
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()
    }
}

#[test]
fn a_close_that_never_reaches_the_kernel_closes_all_the_same() {
    each_ring(|driver| {
        let (reader, writer) = pipe();
        let refused = finish(driver, &mut Submission::new(Regrets(Some(writer))));
        assert_eq!(refused.unwrap_err().to_string(), "on second thoughts");
        assert!(is_at_end(&reader), "a close that is refused closes");

        let (reader, writer) = pipe();
        assert!(driver.attempt(Regrets(Some(writer))).is_ok_and(|result| result.is_err()));
        assert!(is_at_end(&reader), "an attempt to close that is refused closes");

        let (reader, writer) = pipe();
        let mut cancelled = ops::close(writer);
        assert!(poll(&mut cancelled).is_pending());
        let error = finish(driver, &mut cancelled.cancel()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(ECANCELED));
        assert!(is_at_end(&reader), "a close that is cancelled in the queue closes");

        let (reader, writer) = pipe();
        let mut dropped = ops::close(writer);
        assert!(poll(&mut dropped).is_pending());
        drop(dropped);
        assert!(is_at_end(&reader), "a close that is dropped in the queue closes");

        let (reader, writer) = pipe();
        drop(ops::close(writer));
        assert!(is_at_end(&reader), "a close that was never polled closes");
    });
}

/// A close that the ring alone can do, attempted; it can also panic when the descriptor was handed in.
struct CloseNow(Option<OwnedFd>, bool);

impl Operation for CloseNow {
    type Output = io::Result<u32>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        match self.0.take() {
            Some(fd) => {
                let encoded = sqe.close(fd)?;
                assert!(!self.1, "boom");
                Ok(encoded)
            }
            None => Err(io::Error::other("it is closed")),
        }
    }

    fn decode(self, mut completion: Completion) -> Self::Output {
        completion.result()
    }
}

#[test]
fn an_attempted_close_leaves_no_descriptor_behind() {
    each_ring(|driver| {
        let (reader, writer) = pipe();
        drop(driver.attempt(CloseNow(Some(writer), false)));
        assert!(is_at_end(&reader));
        for attempted in [true, false] {
            let (reader, writer) = pipe();
            let panics = CloseNow(Some(writer), true);
            let said = panic_of(|| match attempted {
                true => assert!(driver.attempt(panics).is_ok()),
                false => assert!(poll(&mut Submission::new(panics)).is_ready()),
            });
            assert_eq!(said, "boom");
            assert!(is_at_end(&reader));
        }
    });
}

#[test]
fn a_close_that_says_cancelled_unasked_has_released_its_number() {
    // A file system in user space may answer a flush with any error; closing once more would hit the next owner.
    let (driver, script, _entered) = scripted();
    let (reader, writer) = pipe();
    let mut close = ops::close(writer);
    assert!(poll(&mut close).is_pending());
    driver.turn(Wait::No).unwrap();
    script.complete(script.pending()[0].entry.user_data, -ECANCELED);
    assert_eq!(finish(&driver, &mut close).unwrap_err().raw_os_error(), Some(ECANCELED));
    assert!(!is_at_end(&reader), "the played kernel has closed nothing, and nobody else may");

    let (reader, writer) = pipe();
    let mut close = ops::close(writer);
    assert!(poll(&mut close).is_pending());
    driver.turn(Wait::No).unwrap();
    let mut close = close.cancel();
    script.complete(script.pending()[0].entry.user_data, -ECANCELED);
    assert_eq!(finish(&driver, &mut close).unwrap_err().raw_os_error(), Some(ECANCELED));
    assert!(is_at_end(&reader), "it was cancelled before it ran");
}

#[test]
fn a_close_in_the_kernel_is_done_once() {
    // Were it done twice, the second would hit whoever has the number by then.
    let (driver, _entered) = kernel();
    for _ in 0..64 {
        let (reader, writer) = pipe();
        let number = writer.as_raw_fd();
        finish(&driver, &mut ops::close(writer)).unwrap();
        assert!(is_at_end(&reader));
        let (next_reader, next_writer) = pipe();
        let next = [next_reader.as_raw_fd(), next_writer.as_raw_fd()];
        finish(&driver, &mut ops::nop()).unwrap();
        for (fd, number_now) in [(&next_reader, next[0]), (&next_writer, next[1])] {
            assert!(rustix::io::fcntl_getfd(fd).is_ok(), "{number_now} (after {number}) belongs to its new owner");
        }
    }
}

#[test]
fn a_handle_gives_its_descriptor_up_only_when_nothing_holds_it() {
    let (driver, _entered) = kernel();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    let reader = reader.into_owned().expect_err("the kernel reads from it");
    let second = reader.clone();
    drop(read);
    let reader = reader.into_owned().expect_err("the kernel has not let go of it");
    settle(&driver);
    let reader = reader.into_owned().expect_err("there is another handle");
    drop(second);
    let owned = reader.into_owned().expect("nobody else has it");
    assert!(rustix::io::fcntl_getfd(&owned).is_ok());
}

#[test]
fn a_number_is_not_free_while_the_kernel_works_on_it() {
    let (driver, _entered) = kernel();
    let (reader, _writer) = pipe();
    let number = reader.as_raw_fd();
    let reader = Fd::new(reader);
    let mut read = take(&reader, 8);
    assert!(poll(&mut read).is_pending());
    driver.turn(Wait::No).unwrap();
    drop(reader);
    let others: Vec<_> = (0..16).map(|_| pipe()).collect();
    let numbers: Vec<i32> = others.iter().flat_map(|(a, b)| [a.as_raw_fd(), b.as_raw_fd()]).collect();
    assert!(!numbers.contains(&number), "its number was given away while a read was in flight on it");
    let (result, _) = finish(&driver, &mut read);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(ECANCELED), "the last handle ended it");
}
