//! Operations written elsewhere, in safe code: each opcode's method once, on memory that the operation owns. They are
//! also the other half of the `compile_fail` tests of those methods: the same shape, with nothing wrong in it.

use std::ffi::CString;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use futures::StreamExt;
use ringmain::{
    Completion, Encoded, EncodedMultishot, Fd, FdHold, Fill, FixedBuf, Mode, Multishot, MultishotOperation,
    MultishotSqe, OFlags, Operation, PollFlags, SpliceFlags, Sqe, Submission, Wait,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use socket2::SockAddr;

use super::*;

/// One operation that can be any.
enum Any {
    Nop,
    Read(OwnedFd, [u8; 4]),
    Readv(Rc<OwnedFd>, Vec<Box<[u8]>>),
    ReadFixed(FdHold, Fill<FixedBuf>),
    ReadvFixed(FdHold, Vec<FixedBuf>),
    Recv(FdHold, Box<[u8; 4]>),
    Peek(FdHold, Box<[u8; 4]>),
    Write(OwnedFd, String),
    Writev(OwnedFd, [Rc<[u8]>; 2]),
    WriteFixed(FdHold, FixedBuf),
    WritevFixed(FdHold, Vec<FixedBuf>),
    Send(FdHold, &'static str),
    SendAll(FdHold, Box<str>),
    SendZc(FdHold, Vec<u8>),
    SendmsgAll(FdHold, [String; 2]),
    SendmsgZc(FdHold, [Vec<u8>; 2]),
    Splice(FdHold, FdHold),
    Tee(FdHold, FdHold),
    Poll(FdHold),
    Accept(FdHold),
    Connect(FdHold, SockAddr),
    Shutdown(FdHold),
    Openat(Option<OwnedFd>, CString),
    Close(Option<OwnedFd>),
    Fsync(OwnedFd),
}

impl Operation for Any {
    type Output = (io::Result<u32>, Option<OwnedFd>, Self);

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        match self {
            Self::Nop => sqe.nop(),
            Self::Read(fd, bytes) => sqe.read((*fd).as_fd(), &mut bytes[..], None),
            Self::Readv(fd, parts) => sqe.readv((*fd).as_fd(), parts.iter_mut().map(|part| &mut part[..]), None),
            Self::ReadvFixed(fd, parts) => {
                sqe.readv_fixed((*fd).as_fd(), parts.iter_mut().map(FixedBuf::as_capacity_mut), None)
            }
            Self::ReadFixed(fd, fill) => sqe.read_fixed((*fd).as_fd(), fill, None),
            Self::Recv(fd, bytes) => sqe.recv((*fd).as_fd(), &mut bytes[..]),
            Self::Peek(fd, bytes) => sqe.peek((*fd).as_fd(), &mut bytes[..]),
            Self::Write(fd, text) => sqe.write((*fd).as_fd(), text.as_bytes(), None),
            Self::Writev(fd, parts) => sqe.writev((*fd).as_fd(), parts.iter().map(|part| &part[..]), None),
            Self::WriteFixed(fd, lease) => sqe.write_fixed((*fd).as_fd(), lease, None),
            Self::WritevFixed(fd, parts) => sqe.writev_fixed((*fd).as_fd(), parts.iter().map(|part| &part[..]), None),
            Self::Send(fd, text) => sqe.send((*fd).as_fd(), text.as_bytes()),
            Self::SendAll(fd, text) => sqe.send_all((*fd).as_fd(), text.as_bytes()),
            Self::SendmsgAll(fd, parts) => sqe.sendmsg_all((*fd).as_fd(), parts.iter().map(|part| part.as_bytes())),
            Self::SendmsgZc(fd, parts) => sqe.sendmsg_zc((*fd).as_fd(), parts.iter().map(|part| &part[..])),
            Self::SendZc(fd, bytes) => sqe.send_zc((*fd).as_fd(), bytes),
            Self::Splice(from, to) => sqe.splice((*from).as_fd(), None, (*to).as_fd(), None, 64, SpliceFlags::NONBLOCK),
            Self::Tee(from, to) => sqe.tee((*from).as_fd(), (*to).as_fd(), 64, SpliceFlags::NONBLOCK),
            Self::Poll(fd) => sqe.poll((*fd).as_fd(), PollFlags::IN),
            Self::Accept(fd) => sqe.accept((*fd).as_fd()),
            Self::Connect(fd, address) => sqe.connect((*fd).as_fd(), address),
            Self::Shutdown(fd) => sqe.shutdown((*fd).as_fd(), Shutdown::Write),
            Self::Openat(dir, path) => {
                let dir = dir.as_ref().map(AsFd::as_fd);
                sqe.openat(dir, path, OFlags::RDONLY, Mode::empty())
            }
            Self::Close(fd) => sqe.close(fd.take().ok_or_else(|| io::Error::other("closed already"))?),
            Self::Fsync(fd) => sqe.fsync((*fd).as_fd(), true),
        }
    }

    fn decode(mut self, mut completion: Completion) -> Self::Output {
        let result = completion.result();
        let created = completion.take_descriptor();
        if let Self::ReadFixed(fd, fill) = self {
            let (finished, lease) = fill.finish(completion);
            assert_eq!(finished.ok(), result.as_ref().ok().map(|count| *count as usize));
            self = Self::WriteFixed(fd, lease);
        }
        (result, created, self)
    }
}

fn run(driver: &Driver, any: Any) -> (u32, Option<OwnedFd>, Any) {
    let (result, created, any) = finish(driver, &mut Submission::new(any));
    (result.unwrap(), created, any)
}

#[test]
fn every_method_takes_what_the_operation_owns() {
    let (driver, _entered) = kernel();
    let (reader, writer) = pipe();
    let shared = Fd::new(reader.try_clone().unwrap());
    assert_eq!(run(&driver, Any::Nop).0, 0);

    assert_eq!(run(&driver, Any::Write(writer.try_clone().unwrap(), "ring".into())).0, 4);
    let (4, None, Any::Read(_, bytes)) = run(&driver, Any::Read(reader.try_clone().unwrap(), [0; 4])) else { panic!() };
    assert_eq!(&bytes, b"ring");

    let parts = [Rc::from(&b"abc"[..]), Rc::from(&b"de"[..])];
    assert_eq!(run(&driver, Any::Writev(writer.try_clone().unwrap(), parts)).0, 5);
    let parts: Vec<Box<[u8]>> = vec![vec![0; 2].into(), vec![0; 8].into()];
    let (5, None, Any::Readv(_, parts)) = run(&driver, Any::Readv(Rc::new(reader.try_clone().unwrap()), parts)) else {
        panic!()
    };
    assert_eq!((&parts[0][..], &parts[1][..3]), (&b"ab"[..], &b"cde"[..]));

    let to = Fd::new(writer.try_clone().unwrap());
    let mut lease = driver.registry().try_lease(64).unwrap();
    lease.as_capacity_mut()[..5].copy_from_slice(b"pages");
    lease.set_len(5);
    let (5, None, Any::WriteFixed(_, lease)) = run(&driver, Any::WriteFixed(to.hold(), lease)) else { panic!() };
    assert_eq!(run(&driver, Any::Poll(shared.hold())).0 & 1, 1, "POLLIN");
    let back = run(&driver, Any::ReadFixed(shared.hold(), Fill::new(lease)));
    let (5, None, Any::WriteFixed(_, lease)) = back else { panic!() };
    assert_eq!(&lease[..], b"pages");
    let parts = vec![lease, driver.registry().try_lease(64).unwrap()];
    let (5, None, Any::WritevFixed(_, parts)) = run(&driver, Any::WritevFixed(to.hold(), parts)) else { panic!() };
    let (5, None, Any::ReadvFixed(_, mut parts)) = run(&driver, Any::ReadvFixed(shared.hold(), parts)) else {
        panic!()
    };
    assert_eq!(&parts[0].as_capacity_mut()[..5], b"pages");

    // A pipe to a pipe, and shared with a third.
    let (second_reader, second_writer) = pipe();
    let second = Fd::new(second_writer);
    assert_eq!(run(&driver, Any::Write(writer.try_clone().unwrap(), "page".into())).0, 4);
    assert_eq!(run(&driver, Any::Tee(shared.hold(), second.hold())).0, 4);
    assert_eq!(run(&driver, Any::Splice(shared.hold(), second.hold())).0, 4);
    let mut twice = [0; 16];
    assert_eq!(rustix::io::read(&second_reader, &mut twice).unwrap(), 8);
    assert_eq!(&twice[..8], b"pagepage");

    let (result, None, Any::Close(None)) = run(&driver, Any::Close(Some(writer))) else { panic!() };
    assert_eq!(result, 0);
}

#[test]
fn every_method_on_sockets_and_files_takes_what_the_operation_owns() {
    let (driver, _entered) = kernel();
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Fd::new(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap())
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = SockAddr::from(listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let listener = Fd::new(listener.into());
    let client = socket();
    assert_eq!(run(&driver, Any::Connect(client.hold(), address)).0, 0);
    let (_, Some(server), _) = run(&driver, Any::Accept(listener.hold())) else { panic!("a connection") };
    let server = Fd::new(server);
    assert_eq!(run(&driver, Any::Send(client.hold(), "ping")).0, 4);
    let (4, None, Any::Peek(_, bytes)) = run(&driver, Any::Peek(server.hold(), Box::new([0; 4]))) else { panic!() };
    assert_eq!(&bytes[..], b"ping", "and it stays");
    let (4, None, Any::Recv(_, bytes)) = run(&driver, Any::Recv(server.hold(), Box::new([0; 4]))) else { panic!() };
    assert_eq!(&bytes[..], b"ping");
    assert_eq!(run(&driver, Any::SendZc(server.hold(), b"pong".to_vec())).0, 4);
    assert_eq!(run(&driver, Any::Recv(client.hold(), Box::new([0; 4]))).0, 4);
    assert_eq!(run(&driver, Any::SendmsgZc(server.hold(), [b"po".to_vec(), b"ng".to_vec()])).0, 4);
    assert_eq!(run(&driver, Any::Recv(client.hold(), Box::new([0; 4]))).0, 4);
    assert_eq!(run(&driver, Any::SendmsgAll(server.hold(), ["po".into(), "ng".into()])).0, 4);
    assert_eq!(run(&driver, Any::Recv(client.hold(), Box::new([0; 4]))).0, 4);
    assert_eq!(run(&driver, Any::SendAll(server.hold(), "pong".into())).0, 4);
    let (4, None, Any::Recv(_, bytes)) = run(&driver, Any::Recv(client.hold(), Box::new([0; 4]))) else { panic!() };
    assert_eq!(&bytes[..], b"pong");
    assert_eq!(run(&driver, Any::Shutdown(client.hold())).0, 0);
    assert_eq!(run(&driver, Any::Recv(server.hold(), Box::new([0; 4]))).0, 0, "the end of the stream");

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"text").unwrap();
    let dir: OwnedFd = std::fs::File::open(folder.path()).unwrap().into();
    let (_, Some(file), _) = run(&driver, Any::Openat(Some(dir), CString::new("file").unwrap())) else {
        panic!("a file")
    };
    assert_eq!(run(&driver, Any::Fsync(file.try_clone().unwrap())).0, 0);
    assert_eq!(run(&driver, Any::Read(file, [0; 4])).0, 4);
}

/// Events, or connections, without end.
enum Many {
    Events(FdHold),
    Connections(FdHold),
}

impl MultishotOperation for Many {
    type Item = io::Result<Option<OwnedFd>>;

    fn encode<'op>(&'op self, sqe: MultishotSqe<'op>) -> io::Result<EncodedMultishot<'op>> {
        match self {
            Self::Events(fd) => sqe.poll((*fd).as_fd(), PollFlags::IN),
            Self::Connections(fd) => sqe.accept((*fd).as_fd()),
        }
    }

    fn item(&self, mut completion: Completion) -> Self::Item {
        completion.result().map(|_| completion.take_descriptor())
    }
}

#[test]
fn every_multishot_method_takes_what_the_operation_owns() {
    let (driver, _entered) = kernel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Fd::new(listener.into());
    let mut events = Multishot::new(Many::Events(listener.hold()));
    let mut connections = Multishot::new(Many::Connections(listener.hold()));
    assert!(poll(&mut events.next()).is_pending());
    for _ in 0..3 {
        let client = std::net::TcpStream::connect(address).unwrap();
        let made = finish(&driver, &mut connections.next()).expect("it has no end").unwrap().expect("a descriptor");
        let server = std::net::TcpStream::from(made);
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    }
    assert!(finish(&driver, &mut events.next()).expect("it has no end").unwrap().is_none(), "events are no descriptor");
    drop((events, connections));
    settle(&driver);
}

#[test]
fn an_operation_of_any_size_and_alignment_comes_back_whole() {
    #[repr(align(4096))]
    struct Large([u8; 8192]);
    #[repr(align(64))]
    struct Empty;
    struct Sized<T>(T, #[expect(dead_code, reason = "its count tells how many are left")] Rc<()>);
    impl<T: 'static> Operation for Sized<T> {
        type Output = T;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            assert!(std::ptr::from_ref(&self.0).is_aligned());
            sqe.nop()
        }
        fn decode(self, _: Completion) -> T {
            self.0
        }
    }
    let (driver, _entered) = kernel();
    let alive = Rc::new(());
    for _ in 0..3 {
        // In turns, so that one place has had every kind.
        let Large(bytes) = finish(&driver, &mut Submission::new(Sized(Large([3; 8192]), Rc::clone(&alive))));
        assert!(bytes.iter().all(|byte| *byte == 3));
        let Empty = finish(&driver, &mut Submission::new(Sized(Empty, Rc::clone(&alive))));
        assert_eq!(finish(&driver, &mut Submission::new(Sized([7u8; 200], Rc::clone(&alive)))), [7; 200]);
        let mut orphan = Submission::new(Sized(Large([3; 8192]), Rc::clone(&alive)));
        assert!(poll(&mut orphan).is_pending());
        driver.turn(Wait::No).unwrap();
        drop(orphan);
        settle(&driver);
    }
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn one_description_is_one_entry_or_an_error_with_the_operation_handed_back() {
    struct Choosy(FdHold, Option<Box<[u8]>>, bool);
    impl Operation for Choosy {
        type Output = (io::Result<u32>, Option<Box<[u8]>>);
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            if self.2 {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not like this"));
            }
            sqe.write(self.0.as_fd(), self.1.as_deref().unwrap_or_default(), None)
        }
        fn decode(self, mut completion: Completion) -> Self::Output {
            (completion.result(), self.1)
        }
    }
    let (driver, script, _entered) = scripted();
    let (_reader, writer) = pipe();
    let writer = Fd::new(writer);
    let mut refused = Submission::new(Choosy(writer.hold(), Some(vec![1, 2, 3].into()), true));
    let Poll::Ready((result, buffer)) = poll(&mut refused) else { panic!("refused at once") };
    assert_eq!(result.unwrap_err().to_string(), "not like this");
    assert_eq!(buffer.as_deref(), Some(&[1, 2, 3][..]));
    driver.turn(Wait::No).unwrap();
    assert_eq!((script.pending().len(), driver.slots_used()), (0, 0));

    let mut accepted = Submission::new(Choosy(writer.hold(), Some(vec![1, 2, 3].into()), false));
    assert!(poll(&mut accepted).is_pending());
    assert!(poll(&mut accepted).is_pending());
    driver.turn(Wait::No).unwrap();
    assert_eq!(script.pending().len(), 1);
}

#[test]
fn arguments_that_would_reach_further_are_refused() {
    struct Gift(FdHold, SpliceFlags);
    impl Operation for Gift {
        type Output = io::Result<u32>;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.splice(self.0.as_fd(), None, self.0.as_fd(), None, usize::MAX, self.1)
        }
        fn decode(self, mut completion: Completion) -> Self::Output {
            completion.result()
        }
    }
    struct Vectors(FdHold, Vec<Vec<u8>>);
    impl Operation for Vectors {
        type Output = io::Result<u32>;
        fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.readv(self.0.as_fd(), self.1.iter_mut().map(|part| &mut part[..]), None)
        }
        fn decode(self, mut completion: Completion) -> Self::Output {
            completion.result()
        }
    }
    let (driver, script, _entered) = scripted();
    let (reader, _writer) = pipe();
    let reader = Fd::new(reader);
    // GIFT, and the bit by which the ring takes the input for a slot of its table of files.
    for flags in [SpliceFlags::GIFT, SpliceFlags::from_bits_retain(1 << 31), SpliceFlags::all()] {
        let error = finish(&driver, &mut Submission::new(Gift(reader.hold(), flags))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{flags:?}");
    }
    for count in [0, 1025] {
        let vectors = Vectors(reader.hold(), vec![vec![0; 1]; count]);
        let error = finish(&driver, &mut Submission::new(vectors)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{count} vectors");
    }
    let with_an_empty_one = Vectors(reader.hold(), vec![vec![0; 1], Vec::new()]);
    let error = finish(&driver, &mut Submission::new(with_an_empty_one)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!((script.pending().len(), driver.slots_used()), (0, 0));
}
