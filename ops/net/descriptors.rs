//! Descriptors that go from process to process over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::{Stream, Unix};
use crate::ops::{readable, writable};

/// The most descriptors that one message carries (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;

/// What one receive has brought: [`Stream::recv_descriptors`].
#[derive(Debug)]
pub struct ReceivedDescriptors {
    /// How many bytes have come; 0 at the end of the peer's sending.
    pub count: usize,
    /// What came with them: owned, and close-on-exec. Those that nobody takes out are closed.
    pub descriptors: Vec<OwnedFd>,
    /// Whether some that came have been closed, as there was no room for them or no number (`MSG_CTRUNC`).
    pub is_truncated: bool,
}

impl Stream<Unix> {
    /// `send_descriptors(bytes, descriptors)`: sends bytes, or the first of them, and descriptors with them
    /// (`SCM_RIGHTS`).
    ///
    /// All the descriptors go with the first byte, or none; the count says how many bytes the kernel has taken, and
    /// what is left is for [`send_all`](Self::send_all). The receiver gets descriptors of its own for the same open
    /// files: what is sent is still the sender's, and may be closed as soon as this has ended.
    ///
    /// # Cancel safety
    /// Dropping it before it has ended means that nothing was sent.
    ///
    /// # Errors
    /// * `InvalidInput`: no byte for the descriptors to go with, or more than 253 descriptors.
    /// * `ETOOMANYREFS`: too many descriptors of this user's are on their way and not yet received (`unix(7)`).
    /// * Those of `sendmsg(2)`, but for `EAGAIN`: `EPIPE` without a signal when the peer has gone.
    ///
    /// # Kernel
    /// `sendmsg(2)`, which does not wait; the waiting is done in the ring.
    ///
    /// # Examples
    /// ```
    /// use ringmain::net::UnixStream;
    /// use std::io::{Read, Write};
    /// use std::os::fd::AsFd;
    ///
    /// let (reader, mut writer) = std::io::pipe()?;
    /// ringmain::Runtime::new()?.block_on(async {
    ///     let (mut old, new) = UnixStream::pair()?;
    ///     old.send_descriptors(b"here", &[reader.as_fd()]).await?;
    ///     drop(reader);
    ///
    ///     let mut bytes = [0; 16];
    ///     let received = new.recv_descriptors(&mut bytes, 1).await?;
    ///     assert_eq!((received.count, received.is_truncated), (4, false));
    ///     let reader = std::io::PipeReader::from(received.descriptors.into_iter().next().expect("it came"));
    ///     writer.write_all(b"handed over")?;
    ///     drop(writer);
    ///     assert_eq!(std::io::read_to_string(reader)?, "handed over");
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # References
    /// `unix(7)`, `cmsg(3)`.
    #[doc(alias = "SCM_RIGHTS")]
    pub async fn send_descriptors(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Err(refusal("descriptors go with a byte at least; send one with them"));
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(refusal("one message carries at most 253 descriptors; send the others with another one"));
        }
        loop {
            match try_send(&*self, bytes, descriptors) {
                Err(Errno::AGAIN) => writable(self).await?,
                outcome => return outcome.map_err(io::Error::from),
            };
        }
    }

    /// `recv_descriptors(bytes, descriptors_max)`: receives what comes next, and the descriptors that come with it.
    ///
    /// Waits for one byte at least. A receive ends before bytes that other descriptors came with, so that each is known
    /// by its bytes. What exceeds `descriptors_max` (253 at most) is closed, and said by
    /// [`is_truncated`](ReceivedDescriptors::is_truncated). A plain [`recv`](Self::recv) closes all that would come.
    ///
    /// A descriptor can be of anything: see what it is before using it, unless the peer is trusted.
    ///
    /// # Cancel safety
    /// Dropping it before it has ended means that nothing was received.
    ///
    /// # Errors
    /// * `InvalidInput`: no room for bytes.
    /// * Those of `recvmsg(2)`, but for `EAGAIN`.
    ///
    /// # Kernel
    /// `recvmsg(2)`, which does not wait; the waiting is done in the ring. Out of descriptors (`RLIMIT_NOFILE`), it
    /// brings those that there were numbers for, and is truncated.
    ///
    /// # References
    /// `unix(7)`, `cmsg(3)`.
    pub async fn recv_descriptors(&self, bytes: &mut [u8], descriptors_max: usize) -> io::Result<ReceivedDescriptors> {
        if bytes.is_empty() {
            return Err(refusal("the buffer has no room, and a result of 0 would read as the end; give it a byte"));
        }
        loop {
            match try_recv(self, bytes, descriptors_max.min(DESCRIPTORS_MAX)) {
                Err(Errno::AGAIN) => readable(self).await?,
                outcome => return outcome.map_err(io::Error::from),
            };
        }
    }
}

fn try_send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for as many as may go");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
}

fn try_recv(socket: impl AsFd, bytes: &mut [u8], wanted: usize) -> rustix::io::Result<ReceivedDescriptors> {
    // The room is always for all that can come: what is too much is known by its number, and closed here.
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags))?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let is_truncated = received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > wanted;
    descriptors.truncate(wanted);
    Ok(ReceivedDescriptors { count: received.bytes, descriptors, is_truncated })
}

fn refusal(sentence: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence)
}
