use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::BufResult;
use crate::runtime::{Answer, Completion, Driver, Encoded, Fd, FdHold, IoBuf, Opcode, Operation, Sqe, Submission};

/// `send_zc(socket, buffer)`: sends on a connected socket from the buffer's own pages. Never raises `SIGPIPE`.
///
/// Its output is the result, and the buffer on its way back: a [`Released`], which is ready when the network has let go
/// of the pages. For TCP that is when the peer has acknowledged them. All of the bytes are sent, in order; the count is
/// smaller only when an error or a cancel came after some of them, and the next send then meets that error.
///
/// A lease of the runtime's registry is named by its registered pages and costs no pinning; any other memory is pinned
/// for the send and is charged to `RLIMIT_MEMLOCK` until it is released.
///
/// What is *not* promised: that nothing is copied. A send shorter than [`Config::zero_copy_min`] bytes is a plain one, and
/// so is one on a socket that cannot do it (a Unix one) or whose notifications say that the kernel copies all the same
/// (loopback): the socket remembers, and asks again after 64 MiB. A plain send's buffer is released at once.
/// [`Metrics`] counts all three kinds.
///
/// Two sends of one stream that are in flight together may tear each other; the handles of [`net`](super::net) do not
/// let that happen, this function does. One that is only waiting to be released is not in flight in that sense.
///
/// # Cancel safety
/// A send that is dropped may have sent some of its bytes or all. [`cancel`](SendZc::cancel) tells how many. Dropping a
/// [`Released`] loses nothing but the buffer: the runtime keeps it until it is released, then a lease returns to the
/// registry.
///
/// # Errors
/// Those of `send(2)`, but for `EAGAIN`. Out of memory for pinning (`ENOMEM`), the send is a plain one.
///
/// # Panics
/// As any operation: when polled again after it has ended, or inside another runtime than the one it started in.
///
/// # Kernel
/// `IORING_OP_SEND_ZC`, Linux 6.0, used from 6.2, which can report copies. Without it, a plain send.
///
/// # Examples
/// ```
/// use ringmain::{Driver, net::{TcpListener, TcpStream}, ops};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap())?;
///     let client = TcpStream::connect(listener.local_addr()?).await?;
///     let server = listener.accept().await?;
///
///     let mut page = Driver::current().registry().lease(4096).await?;
///     page.as_capacity_mut()[..4].copy_from_slice(b"ring");
///     page.set_len(4);
///     let (sent, released) = ops::send_zc(&client, page).await;
///     let (count, received) = server.recv(Vec::with_capacity(64)).await;
///     assert_eq!((sent?, count?, &received[..]), (4, 4, &b"ring"[..]));
///
///     let page = released.await; // to be written to again
///     assert_eq!(&page[..], b"ring");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// `io_uring_enter(2)`, `IORING_OP_SEND_ZC`, `IORING_SEND_ZC_REPORT_USAGE`;
/// `Documentation/networking/msg_zerocopy.rst`.
///
/// [`Config::zero_copy_min`]: crate::Config::zero_copy_min
/// [`Metrics`]: crate::Metrics
#[doc(alias = "IORING_OP_SEND_ZC")]
#[doc(alias = "MSG_ZEROCOPY")]
pub fn send_zc<B: IoBuf>(socket: &impl AsRef<Fd>, buffer: B) -> SendZc<B> {
    SendZc::new(socket.as_ref().hold(), buffer)
}

/// `send_vectored_zc(socket, buffers)`: as [`send_zc()`], from several buffers in order.
///
/// The threshold is that of all their bytes together. Leases are named by their registered pages where they lie in one
/// registered buffer and the kernel takes that; elsewhere they are pinned as any memory is.
///
/// # Cancel safety
/// As [`send_zc()`].
///
/// # Errors
/// As [`send_zc()`]; `InvalidInput` for no buffer, or for more than 1,024 (`UIO_MAXIOV`).
///
/// # Kernel
/// `IORING_OP_SENDMSG_ZC`, Linux 6.1; from registered pages, 6.15. Without it, a plain send.
///
/// # Examples
/// ```
/// use ringmain::{net::UnixStream, ops};
///
/// ringmain::Runtime::new()?.block_on(async {
///     let (ours, theirs) = UnixStream::pair()?;
///     let (sent, released) = ops::send_vectored_zc(&ours, vec!["head", "body"]).await;
///     let (count, received) = theirs.recv(Vec::with_capacity(64)).await;
///     assert_eq!((sent?, count?, &received[..]), (8, 8, &b"headbody"[..]));
///     assert_eq!(released.await, ["head", "body"]);
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "IORING_OP_SENDMSG_ZC")]
pub fn send_vectored_zc<B: IoBuf>(socket: &impl AsRef<Fd>, buffers: Vec<B>) -> SendZc<Parts<B>> {
    SendZc::new(socket.as_ref().hold(), Parts(buffers))
}

/// What [`send_zc()`] and [`send_vectored_zc`] send: a buffer, or [`Parts`].
///
/// Sealed.
pub trait Payload: sealed::Payload {}

impl<P: sealed::Payload> Payload for P {}

/// Several buffers that are sent as one.
#[derive(Debug)]
pub struct Parts<B>(Vec<B>);

/// The future of [`send_zc()`] and [`send_vectored_zc`]: the result, and the memory on its way back.
#[must_use = "nothing is sent before it is awaited"]
pub struct SendZc<P: Payload> {
    fd: FdHold,
    stage: Stage<P>,
    cancelled: bool,
}

enum Stage<P: Payload> {
    Fresh(P),
    Sharing(Submission<Shared<P>>),
    /// The kernel shares no pages on this socket, and is about to give them back.
    Refused(Submission<Shared<P>>),
    Copying(Submission<Copied<P>>),
    Finished,
}

/// The memory of a zero-copy send, on its way back.
///
/// A future: ready when the kernel has let go of the pages, for good. Nothing has to be polled for that to come about,
/// and dropping this gives the memory to the runtime to drop then.
///
/// # Panics
/// When polled again after it was ready, or inside another runtime than the one of the send.
#[must_use = "the buffer goes back to where it came from when this is dropped"]
pub struct Released<P: Payload> {
    stage: Release<P>,
}

enum Release<P: Payload> {
    Back(P),
    Waiting(Submission<Shared<P>>),
    Finished,
}

// Neither the memory nor a submission lies pinned in these.
impl<P: Payload> Unpin for SendZc<P> {}
impl<P: Payload> Unpin for Released<P> {}

impl<P: Payload> SendZc<P> {
    fn new(fd: FdHold, payload: P) -> Self {
        Self { fd, stage: Stage::Fresh(payload), cancelled: false }
    }

    /// `cancel()`: asks for the end; await what this returns for what was sent.
    ///
    /// A race with success is won by success. A send that was never polled ends with `ECANCELED` and the kernel never
    /// sees it.
    pub fn cancel(mut self) -> Self {
        self.request_cancel();
        self
    }

    /// As [`cancel`](Self::cancel), for a send that lies inside a larger future.
    pub fn request_cancel(&mut self) {
        self.cancelled = true;
        match &mut self.stage {
            Stage::Sharing(submission) | Stage::Refused(submission) => submission.request_cancel(),
            Stage::Copying(submission) => submission.request_cancel(),
            Stage::Fresh(_) | Stage::Finished => {}
        }
    }

    /// The first step: zero-copy where it may pay.
    fn begin(&self, payload: P) -> Stage<P> {
        let driver = Driver::current();
        let bytes = payload.bytes();
        // An empty region lies in no registered buffer.
        let least = driver.config().zero_copy_min.max(1) as usize;
        if bytes >= least && driver.setup().supports(P::OPCODE) && self.fd.zero_copy().asks(bytes) {
            let mut submission = Submission::new(Shared { fd: self.fd.clone(), payload });
            if self.cancelled {
                submission.request_cancel();
            }
            return Stage::Sharing(submission);
        }
        driver.metrics().sends_plain.add(1);
        self.copy(payload)
    }

    fn copy(&self, payload: P) -> Stage<P> {
        let mut submission = Submission::new(Copied { fd: self.fd.clone(), payload });
        if self.cancelled {
            submission.request_cancel();
        }
        Stage::Copying(submission)
    }

    /// The plain send after a refusal, if there is still a runtime to make it.
    fn copy_instead(&mut self, refused: io::Result<usize>, payload: P) -> Option<<Self as Future>::Output> {
        let Some(driver) = Driver::try_current() else {
            return Some((refused, Released { stage: Release::Back(payload) }));
        };
        driver.metrics().sends_plain.add(1);
        // What was pending when the last handle went has been cancelled; this begins to wait only now.
        self.cancelled |= self.fd.is_hung_up();
        self.stage = self.copy(payload);
        None
    }

    /// Whether the socket or the kernel has said that it shares no pages, and a plain send is to do it.
    fn is_refused(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            // A kernel before 6.2 does not know what it is asked to report. If the send itself is wrong, the plain one
            // says so once more.
            Some(libc::EOPNOTSUPP | libc::EINVAL) => self.fd.zero_copy().refuse(),
            // As many pages are pinned as the user may pin.
            Some(libc::ENOMEM) => self.fd.zero_copy().learn(true),
            _ => return false,
        }
        true
    }
}

impl<P: Payload> Future for SendZc<P> {
    type Output = (io::Result<usize>, Released<P>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.stage, Stage::Finished) {
                Stage::Fresh(payload) => this.stage = this.begin(payload),
                Stage::Sharing(mut submission) => match submission.poll_answer(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Sharing(submission);
                        return Poll::Pending;
                    }
                    Poll::Ready(Answer::Early(Err(error))) if this.is_refused(&error) => {
                        this.stage = Stage::Refused(submission);
                    }
                    Poll::Ready(Answer::Early(result)) => {
                        let result = result.map(|count| count as usize);
                        return Poll::Ready((result, Released { stage: Release::Waiting(submission) }));
                    }
                    Poll::Ready(Answer::Output((Err(error), payload))) if this.is_refused(&error) => {
                        if let Some(output) = this.copy_instead(Err(error), payload) {
                            return Poll::Ready(output);
                        }
                    }
                    Poll::Ready(Answer::Output((result, payload))) => {
                        return Poll::Ready((result, Released { stage: Release::Back(payload) }));
                    }
                },
                Stage::Refused(mut submission) => match Pin::new(&mut submission).poll(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Refused(submission);
                        return Poll::Pending;
                    }
                    Poll::Ready((refused, payload)) => {
                        if let Some(output) = this.copy_instead(refused, payload) {
                            return Poll::Ready(output);
                        }
                    }
                },
                Stage::Copying(mut submission) => match Pin::new(&mut submission).poll(cx) {
                    Poll::Pending => {
                        this.stage = Stage::Copying(submission);
                        return Poll::Pending;
                    }
                    Poll::Ready((result, payload)) => {
                        return Poll::Ready((result, Released { stage: Release::Back(payload) }));
                    }
                },
                Stage::Finished => panic!("this send has ended and was polled again"),
            }
        }
    }
}

impl<P: Payload> Future for Released<P> {
    type Output = P::Buffer;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<P::Buffer> {
        let this = self.get_mut();
        let payload = match std::mem::replace(&mut this.stage, Release::Finished) {
            Release::Back(payload) => payload,
            Release::Waiting(mut submission) => match Pin::new(&mut submission).poll(cx) {
                Poll::Pending => {
                    this.stage = Release::Waiting(submission);
                    return Poll::Pending;
                }
                Poll::Ready((_told_already, payload)) => payload,
            },
            Release::Finished => panic!("this memory was given back and was polled for again"),
        };
        Poll::Ready(payload.into_buffer())
    }
}

impl<P: Payload> fmt::Debug for SendZc<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendZc").field("fd", &self.fd).field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

impl<P: Payload> fmt::Debug for Released<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released").field("is_back", &matches!(self.stage, Release::Back(_))).finish()
    }
}

/// A send whose memory the kernel may keep after its result.
struct Shared<P> {
    fd: FdHold,
    payload: P,
}

impl<P: Payload> Operation for Shared<P> {
    type Output = BufResult<P>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        let encoded = self.payload.share(&self.fd, sqe)?;
        Ok(encoded.teaching(self.fd.zero_copy()))
    }

    fn decode(self, mut completion: Completion) -> BufResult<P> {
        (completion.result().map(|count| count as usize), self.payload)
    }
}

/// The plain send that stands in for it.
struct Copied<P> {
    fd: FdHold,
    payload: P,
}

impl<P: Payload> Operation for Copied<P> {
    type Output = BufResult<P>;

    fn encode<'op>(&'op mut self, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
        self.payload.copy(&self.fd, sqe)
    }

    fn decode(self, mut completion: Completion) -> BufResult<P> {
        (completion.result().map(|count| count as usize), self.payload)
    }
}

mod sealed {
    use super::*;

    pub trait Payload: 'static {
        /// What the caller gave, and gets back.
        type Buffer;

        const OPCODE: Opcode;

        /// How many bytes there are to send.
        fn bytes(&self) -> usize;

        /// Describe the zero-copy send.
        fn share<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>>;

        /// Describe the plain send.
        fn copy<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>>;

        fn into_buffer(self) -> Self::Buffer;
    }

    impl<B: IoBuf> Payload for B {
        type Buffer = B;
        const OPCODE: Opcode = Opcode::SendZc;

        fn bytes(&self) -> usize {
            IoBuf::bytes(self).len()
        }

        fn share<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.send_zc(fd.as_fd(), IoBuf::bytes(self))
        }

        fn copy<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.send_all(fd.as_fd(), IoBuf::bytes(self))
        }

        fn into_buffer(self) -> B {
            self
        }
    }

    impl<B: IoBuf> Payload for Parts<B> {
        type Buffer = Vec<B>;
        const OPCODE: Opcode = Opcode::SendmsgZc;

        fn bytes(&self) -> usize {
            self.0.iter().map(|part| part.bytes().len()).fold(0, usize::saturating_add)
        }

        fn share<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            sqe.sendmsg_zc(fd.as_fd(), self.0.iter().map(IoBuf::bytes))
        }

        fn copy<'op>(&'op self, fd: &'op FdHold, sqe: Sqe<'op>) -> io::Result<Encoded<'op>> {
            if !self.0.is_empty() && Payload::bytes(self) == 0 {
                // A message without vectors is one for datagrams.
                return sqe.nop();
            }
            sqe.sendmsg_all(fd.as_fd(), self.0.iter().map(IoBuf::bytes))
        }

        fn into_buffer(self) -> Vec<B> {
            self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Config, Wait};

    #[test]
    fn a_kernel_without_zero_copy_sends_is_asked_for_plain_ones() {
        let config = Config::default().pages(4).zero_copy_min(1);
        let unknown = [Opcode::SendZc, Opcode::SendmsgZc];
        let (driver, script) = Driver::scripted_without(&unknown, &config).unwrap();
        let _entered = driver.enter();
        let socket = Fd::new(std::fs::File::open("/dev/null").unwrap().into());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut one = send_zc(&socket, "bytes");
        let mut several = send_vectored_zc(&socket, vec!["by", "tes"]);
        assert!(Pin::new(&mut one).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut several).poll(&mut cx).is_pending());
        driver.turn(Wait::No).unwrap();
        let opcodes: Vec<u8> = script.pending().iter().map(|pending| pending.entry.opcode).collect();
        assert_eq!(opcodes, [Opcode::Send.code(), Opcode::Sendmsg.code()]);
        for pending in script.pending() {
            script.complete(pending.entry.user_data, 5);
        }
        driver.turn(Wait::No).unwrap();
        let Poll::Ready((result, mut released)) = Pin::new(&mut several).poll(&mut cx) else { panic!("it is over") };
        assert_eq!(result.unwrap(), 5);
        assert_eq!(Pin::new(&mut released).poll(&mut cx), Poll::Ready(vec!["by", "tes"]));
    }
}
