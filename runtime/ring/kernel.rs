//! The kernel's ring: the one place that names the `io-uring` crate's ring and makes its system calls.
//!
//! The crate maps the queues and moves entries through them. Two things are done here instead. The enter: the
//! crate keeps a registered ring descriptor in a value it makes anew for each submit, and asks for deferred work
//! only if it sees some, so both would be lost. And nothing is hidden: `EINTR`, `EAGAIN`, `EBUSY` and a short
//! submit are facts that the driver answers, once, for everybody.
//!
//! Invariants: I1 ownership and I2 address are what [`KernelRing::push`] asks of its caller; I5 shutdown is its
//! caller's too, since dropping the ring unmaps it while the kernel may still hold memory; I6 thread is kept by
//! the ring being neither `Send` nor `Sync`; I7 bound by an assertion on the free entries.

#![allow(unsafe_code, reason = "memory shared with the kernel, and the io_uring system calls")]

use std::ffi::{c_long, c_ulong, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use io_uring::types::{CloneBuffersFlags, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, EnterFlags, IoUring, Probe, SubmissionQueue, Submitter, squeue};

use super::attempt::attempt;
use super::buf_ring::BufRing;
use super::setup::{self, Setup, Size};
use super::{Cqe, Wait};
use crate::runtime::config::{CPUS_MAX, Config};
use crate::runtime::entry::Entry;
use crate::runtime::error::{BuildError, Demand};
use crate::runtime::opcode::{Opcode, OpcodeSet};

/// `IORING_REGISTER_RING_FDS` and its counterpart (`include/uapi/linux/io_uring.h`), which the crate keeps to itself.
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;
const REGISTER_IOWQ_AFF: u32 = 17;

/// `IOU_PBUF_RING_INC`: a buffer is used from its front until all of it is.
const PBUF_RING_INC: u16 = 2;

/// The longest wait asked of the kernel at once; the driver comes back for more. About 31 years.
const WAIT_MAX: Duration = Duration::from_secs(1_000_000_000);

const _: () = assert!(size_of::<Entry>() == size_of::<squeue::Entry>(), "an entry is as large as the crate's");
const _: () = assert!(align_of::<Entry>() == align_of::<squeue::Entry>(), "an entry is aligned as the crate's");

/// A ring of the kernel, used by the thread that built it.
///
/// The two queues are kept, each with its own copy of both ends, and share them with the kernel around an enter. The
/// plain version makes a view of a queue for each look at it, which reads both ends and writes one.
pub(crate) struct KernelRing {
    submitter: Submitter<'static>,
    submissions: SubmissionQueue<'static>,
    completions: CompletionQueue<'static>,
    descriptor: RawFd,
    /// Index of the ring in the thread's table of registered rings, where it has one.
    index: Option<u32>,
    /// What an enter names the ring by: that index, or the descriptor.
    name: c_long,
    /// The flags of an enter that does not wait, and of one that does.
    enter_flags: EnterFlags,
    wait_flags: EnterFlags,
    opcodes: OpcodeSet,
    /// The last field, so that it is dropped after all that points into it.
    _mapped: Mapped,
    /// I6: with SINGLE_ISSUER the kernel refuses every other thread, and the index is this thread's.
    thread: PhantomData<*const ()>,
}

/// The crate's ring, at an address of its own, while its queues are in use.
struct Mapped(NonNull<IoUring>);

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: I2, I5: the pointer came from the box that `KernelRing::over` leaked, and this is the last field of a
        // ring to be dropped, so that no queue points there any more. Tested by
        // `a_dropped_ring_leaves_the_table_of_its_thread`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The completion queue while it is drained: the kernel gets the places back with the drop.
pub(crate) struct Reaping<'a>(&'a mut CompletionQueue<'static>);

impl Iterator for Reaping<'_> {
    type Item = Cqe;

    #[inline]
    fn next(&mut self) -> Option<Cqe> {
        let completion = self.0.next()?;
        Some(Cqe { user_data: completion.user_data(), result: completion.result(), flags: completion.flags() })
    }
}

impl Drop for Reaping<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.sync();
    }
}

/// The kernel's `struct io_uring_rsrc_update`, as registering a ring descriptor takes it.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

impl KernelRing {
    /// Builds the best ring that the configuration and the kernel allow, on this thread and for it, and proves that
    /// it works with one operation that does nothing.
    pub(crate) fn build(config: &Config) -> Result<(KernelRing, Setup), BuildError> {
        KernelRing::build_from(setup::rungs(config.mode), config)
    }

    fn build_from(rungs: &[u32], config: &Config) -> Result<(KernelRing, Setup), BuildError> {
        config.validate()?;
        let asked = Size { entries: config.entries, completions: config.completions };
        let (ring, flags) = setup::step_down(rungs, asked, open).map_err(|(least, error)| {
            let mut doing =
                format!("set up a ring of {} submissions and {} completions", asked.entries, asked.completions);
            if least != asked {
                doing += &format!(" or one of {} and {}", least.entries, least.completions);
            }
            BuildError::refused(Demand { doing, bytes: asked.bytes() }, error)
        })?;

        let features = setup::features(ring.params());
        if features & setup::FEAT_NODROP == 0 {
            return Err(BuildError::unsupported_kernel("keep every completion (IORING_FEAT_NODROP)"));
        }
        if features & setup::FEAT_EXT_ARG == 0 {
            return Err(BuildError::unsupported_kernel("wait for a limited time (IORING_FEAT_EXT_ARG)"));
        }
        let opcodes = probe(&ring).map_err(|error| refused("ask which opcodes there are", error))?;
        let got = Size { entries: ring.params().sq_entries(), completions: ring.params().cq_entries() };
        let mut ring = KernelRing::over(ring, opcodes);
        if features & setup::FEAT_NO_IOWAIT != 0 {
            ring.wait_flags |= EnterFlags::NO_IOWAIT;
        }
        let workers = ring.limit_workers(config)?;
        ring.pin_workers(config)?;
        if let Some(index) = ring.register_descriptor() {
            ring.index = Some(index);
            ring.name = c_long::from(index);
            ring.enter_flags |= EnterFlags::REGISTERED_RING;
            ring.wait_flags |= EnterFlags::REGISTERED_RING;
        }
        ring.prove().map_err(|error| refused("complete an operation that does nothing", error))?;
        let is_descriptor_registered = ring.index.is_some();
        Ok((ring, Setup { flags, features, asked, got, opcodes, is_descriptor_registered, workers }))
    }

    fn over(ring: IoUring, opcodes: OpcodeSet) -> KernelRing {
        let ring = NonNull::from(Box::leak(Box::new(ring)));
        let mapped = Mapped(ring);
        // SAFETY: I2: the allocation stays where it is until `mapped` is dropped, which is after the queues, and nothing
        // else refers to it. Tested by `a_dropped_ring_leaves_the_table_of_its_thread`.
        let ring: &'static mut IoUring = unsafe { &mut *ring.as_ptr() };
        let descriptor = ring.as_raw_fd();
        let (submitter, submissions, completions) = ring.split();
        KernelRing {
            submitter,
            submissions,
            completions,
            descriptor,
            index: None,
            name: c_long::from(descriptor),
            // Deferred work is only run by an enter that asks for events, so each of them asks.
            enter_flags: EnterFlags::GETEVENTS,
            wait_flags: EnterFlags::GETEVENTS,
            opcodes,
            _mapped: mapped,
            thread: PhantomData,
        }
    }

    /// Entries that can be pushed before the next enter.
    #[inline]
    pub(crate) fn space(&self) -> usize {
        self.submissions.capacity() - self.submissions.len()
    }

    /// Entries pushed that the kernel has not consumed.
    #[inline]
    pub(crate) fn staged(&self) -> usize {
        self.submissions.len()
    }

    /// Stages one entry: the kernel sees it at the next enter.
    ///
    /// # Safety
    ///
    /// I1, I2: every address in `entry`, and every descriptor, must stay valid and untouched by others, where it
    /// is, until the final completion of this entry has been reaped.
    ///
    /// # Panics
    ///
    /// If there is no space: I7, an entry pushed over another would be lost with its memory held for ever.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: &Entry) {
        // SAFETY: both types are 64 plain bytes in the kernel's order, alike in size and alignment (asserted above).
        // Tested by `every_ring_carries_an_operation_there_and_back`.
        let entry = unsafe { std::mem::transmute::<Entry, squeue::Entry>(*entry) };
        // SAFETY: I1, I2 by this function's contract. Tested by `every_ring_carries_an_operation_there_and_back`.
        let pushed = unsafe { self.submissions.push(&entry) };
        assert!(pushed.is_ok(), "the submission queue is full: enter the ring before pushing again");
    }

    /// Runs one entry at once as a plain call that does not wait, past the ring; see the module `attempt`.
    ///
    /// # Safety
    ///
    /// I1, I2: every address in `entry` must be valid until this returns, for the length and in the direction that
    /// the entry gives.
    pub(crate) unsafe fn attempt(&mut self, entry: &Entry) -> i32 {
        // SAFETY: I1, I2 by this function's contract, which is the same.
        // Tested by `an_attempt_receives_what_was_sent`.
        unsafe { attempt(entry) }
    }

    /// Submits everything staged, lets the kernel do its deferred work, and waits as told; the number consumed.
    ///
    /// Once the limit of the wait has passed it is `Ok`. A short count leaves the rest staged.
    ///
    /// # Errors
    ///
    /// `EINTR`, `EAGAIN`, `EBUSY` and the like as the kernel gives them; nothing was consumed then.
    #[inline]
    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<usize> {
        let staged = self.submissions.len();
        self.submit(wait)?;
        Ok(staged - self.submissions.len())
    }

    /// As [`enter`](Self::enter), where what was consumed shows in what is staged.
    #[inline(always)]
    pub(super) fn submit(&mut self, wait: Wait) -> io::Result<()> {
        self.submissions.sync();
        let entered = match wait {
            Wait::No => self.enter_raw(0, self.enter_flags, ptr::null(), 0),
            Wait::Until(None) => self.enter_raw(1, self.wait_flags, ptr::null(), 0),
            Wait::Until(Some(limit)) => self.enter_until(limit),
        };
        // What the kernel took is read from the queue: a count would have to be guessed where a wait failed.
        self.submissions.sync();
        if entered { Ok(()) } else { refusal() }
    }

    /// Drains the completion queue: those that are there now.
    ///
    /// The head is advanced once, at the end. Completions the kernel keeps aside come with the next enter; see
    /// [`more_work`](Self::more_work).
    #[inline]
    pub(crate) fn reap(&mut self) -> Reaping<'_> {
        self.completions.sync();
        Reaping(&mut self.completions)
    }

    /// Whether the kernel knows this opcode.
    pub(crate) fn supports(&self, opcode: u8) -> bool {
        self.opcodes.contains(opcode)
    }
}

impl KernelRing {
    /// The clock the runtime goes by; another ring may have its own.
    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    /// Whether a completion is there to be taken.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        self.completions.sync();
        !self.completions.is_empty()
    }

    /// Whether an enter would bring more at once: deferred work, or completions kept aside.
    #[inline]
    pub(crate) fn more_work(&self) -> bool {
        self.submissions.taskrun() || self.submissions.cq_overflow()
    }

    /// Whether completions found the queue full and wait in the kernel's overflow list; an enter brings them.
    pub(crate) fn is_overflowing(&self) -> bool {
        self.submissions.cq_overflow()
    }

    /// Registers memory for READ_FIXED and WRITE_FIXED: one entry per region, numbered in order.
    ///
    /// # Errors
    ///
    /// `ENOMEM` over `RLIMIT_MEMLOCK`, `EBUSY` if something is registered already, `EFAULT` for memory that cannot be
    /// pinned.
    ///
    /// # Safety
    ///
    /// I4, I5: each region must stay mapped until it is unregistered and the last operation on it has completed.
    pub(crate) unsafe fn register_buffers(&mut self, regions: &[(NonNull<u8>, usize)]) -> io::Result<()> {
        let vectors: Vec<libc::iovec> =
            regions.iter().map(|(start, len)| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: *len }).collect();
        // SAFETY: I4, I5 by this function's contract; the vectors are read before the call returns.
        // Tested by `registered_memory_is_read_into`.
        unsafe { self.submitter.register_buffers(&vectors) }
    }

    /// Registers a table of so many entries that name nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL` before Linux 5.19, `EBUSY` if something is registered already.
    pub(crate) fn register_sparse(&mut self, entries: usize) -> io::Result<()> {
        let entries = u32::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.submitter.register_buffers_sparse(entries)
    }

    /// Has an entry of the table name other memory, or none. Operations that are issued from here on see it; the
    /// memory that it named is let go of with the last that was issued before, and then a completion carries the tag
    /// that it was set with, unless that is 0.
    ///
    /// # Safety
    ///
    /// I4, I5: the region must stay mapped until the kernel has let go of it.
    pub(crate) unsafe fn update_buffer(
        &mut self,
        index: usize,
        region: Option<(NonNull<u8>, usize)>,
        tag: u64,
    ) -> io::Result<()> {
        let index = u32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let (base, len) = region.map_or((ptr::null_mut(), 0), |(start, len)| (start.as_ptr(), len));
        let vector = libc::iovec { iov_base: base.cast(), iov_len: len };
        // SAFETY: I4, I5 by this function's contract; vector and tag are read before the call returns.
        // Tested by `a_cleared_buffer_is_let_go_of_with_its_tag`.
        unsafe { self.submitter.register_buffers_update(index, &[vector], Some(&[tag])) }
    }

    /// Takes the first entries of another ring's table, with the memory that is pinned already.
    ///
    /// # Errors
    ///
    /// `EINVAL` before Linux 6.12 (6.13 into a sparse table) and if the two rings are not of one user, `EEXIST` if the
    /// other ring is bound to another thread.
    pub(crate) fn clone_buffers(&mut self, source: RawFd, entries: usize, into_sparse: bool) -> io::Result<()> {
        let entries = u32::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        if into_sparse {
            self.submitter.register_buffers_clone_offset(source, 0, 0, entries, CloneBuffersFlags::DST_REPLACE)
        } else {
            self.submitter.register_buffers_clone(source)
        }
    }

    /// Takes the registration back. With operations in flight on it an older kernel waits for them, and a newer one
    /// returns at once and keeps their pages until they complete; so the caller completes them first.
    pub(crate) fn unregister_buffers(&mut self) -> io::Result<()> {
        self.submitter.unregister_buffers()
    }

    /// Lends a ring of buffers to the entries that name it as group `id`.
    ///
    /// # Errors
    ///
    /// `EINVAL` from a kernel that has no such rings, or no incremental ones; `ENOMEM` over `RLIMIT_MEMLOCK`; `EEXIST`
    /// if the number is taken.
    ///
    /// # Safety
    ///
    /// I1, I4, I5: the ring, and each buffer in it, must stay mapped and untouched by others until the ring is
    /// unregistered and the last operation on it has completed, or, a buffer, until a completion names it for good.
    pub(crate) unsafe fn register_buffer_ring(
        &mut self,
        buffers: &BufRing,
        id: u16,
        incremental: bool,
    ) -> io::Result<()> {
        let flags = if incremental { PBUF_RING_INC } else { 0 };
        // SAFETY: I1, I4, I5 by this function's contract. Tested by
        // `a_dropped_lent_receive_keeps_its_page_with_the_kernel`.
        unsafe { self.submitter.register_buf_ring_with_flags(buffers.address(), buffers.places(), id, flags) }
    }

    /// Takes a ring of buffers back: from here on the kernel chooses none of them for any operation.
    pub(crate) fn unregister_buffer_ring(&mut self, id: u16) -> io::Result<()> {
        self.submitter.unregister_buf_ring(id)
    }

    /// Has the kernel signal `eventfd` for every completion, and for deferred work to be done.
    pub(crate) fn register_eventfd(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.submitter.register_eventfd(eventfd.as_raw_fd())
    }
}

impl KernelRing {
    /// The enter with a limit to its wait.
    #[inline(never)]
    fn enter_until(&self, limit: Duration) -> bool {
        let time = Timespec::from(limit.min(WAIT_MAX));
        let arguments = SubmitArgs::new().timespec(&time);
        let flags = self.wait_flags | EnterFlags::EXT_ARG;
        self.enter_raw(1, flags, ptr::from_ref(&arguments).cast(), size_of::<SubmitArgs<'_, '_>>())
    }

    /// Whether the kernel let it happen; if not, the thread's `errno` says why.
    #[inline]
    fn enter_raw(&self, wait_for: c_long, flags: EnterFlags, argument: *const c_void, argument_size: usize) -> bool {
        let flags = c_long::from(flags.bits());
        let to_submit = self.submissions.len();
        // SAFETY: I1, I2: what the staged entries name is valid by the contract of `push`; the argument is null or
        // lives on the caller's frame with the size given; I6: the index is this thread's.
        // Tested by `a_limited_wait_ends_by_itself` and `every_ring_carries_an_operation_there_and_back`.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.name, to_submit, wait_for, flags, argument, argument_size)
        };
        result >= 0
    }

    /// One NOP there and back: a filter may allow the set-up of a ring and forbid its use.
    fn prove(&mut self) -> io::Result<()> {
        let entry = Entry { opcode: Opcode::Nop.code(), ..Entry::default() };
        // SAFETY: I1, I2: a NOP names no memory and no descriptor. Tested by
        // `every_ring_carries_an_operation_there_and_back`.
        unsafe { self.push(&entry) };
        loop {
            match self.enter(Wait::Until(None)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            match self.reap().last().map(|completion| completion.result) {
                Some(0) => return Ok(()),
                Some(error) => return Err(io::Error::from_raw_os_error(-error)),
                None => {}
            }
        }
    }

    /// Enters the ring into the thread's table. A full table or an older kernel is no error: the enter then names
    /// the ring by its descriptor.
    fn register_descriptor(&self) -> Option<u32> {
        // An offset of u32::MAX lets the kernel choose a place, which it writes back.
        let data = u64::try_from(self.descriptor).expect("an open descriptor is not negative");
        let mut update = RingFdUpdate { offset: u32::MAX, reserved: 0, data };
        // SAFETY: I2: one record of the kernel's layout, on this frame, written before the call returns.
        // Tested by `a_seventeenth_ring_works_by_its_descriptor`.
        match unsafe { self.register_raw(REGISTER_RING_FDS, (&raw mut update).cast(), 1) } {
            Ok(()) => Some(update.offset),
            Err(error) => {
                tracing::debug!(%error, "the ring is named by its descriptor");
                None
            }
        }
    }

    /// Sets the limits that the configuration gives, and reads those that hold.
    fn limit_workers(&self, config: &Config) -> Result<Option<[u32; 2]>, BuildError> {
        let asked = [config.iowq_bounded, config.iowq_unbounded];
        // Zero leaves a limit as it is; the call answers those that held before.
        let mut limits = asked.map(|limit| limit.unwrap_or(0));
        match self.submitter.register_iowq_max_workers(&mut limits) {
            Ok(()) => Ok(Some([asked[0].unwrap_or(limits[0]), asked[1].unwrap_or(limits[1])])),
            Err(error) if asked != [None, None] => Err(refused("limit the kernel's worker threads", error)),
            Err(_) => Ok(None),
        }
    }

    fn pin_workers(&self, config: &Config) -> Result<(), BuildError> {
        const BITS: usize = c_ulong::BITS as usize;
        let Some(cpus) = &config.iowq_affinity else {
            return Ok(());
        };
        let mut mask: [c_ulong; CPUS_MAX / BITS] = [0; CPUS_MAX / BITS];
        for cpu in cpus {
            mask[cpu / BITS] |= 1 << (cpu % BITS);
        }
        // SAFETY: I2: the mask lives on this frame, has the size given, and is only read.
        // Tested by `workers_are_limited_and_pinned_as_configured`.
        let pinned = unsafe { self.register_raw(REGISTER_IOWQ_AFF, (&raw mut mask).cast(), size_of_val(&mask)) };
        pinned.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => BuildError::invalid_config(format!(
                "iowq_affinity is {cpus:?}, and the kernel refuses it: name CPUs that this process may use (see \
                 `taskset -p $$`); Linux 5.14 or newer is needed"
            )),
            _ => refused("pin the kernel's worker threads", error),
        })
    }

    /// `io_uring_register(2)`, for what the crate does not offer.
    ///
    /// # Safety
    ///
    /// `argument` must point to what `opcode` takes, `count` of it, until this returns.
    unsafe fn register_raw(&self, opcode: u32, argument: *mut c_void, count: usize) -> io::Result<()> {
        let ring = c_long::from(self.descriptor);
        // SAFETY: by this function's contract. Tested by `a_seventeenth_ring_works_by_its_descriptor`.
        let result = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, c_long::from(opcode), argument, count) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What an enter came to that the kernel did not let happen, by the `errno` that it has left.
#[cold]
fn refusal() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ETIME) { Ok(()) } else { Err(error) }
}

impl AsRawFd for KernelRing {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        // The thread's table holds the ring open: left there, it would outlive its descriptor until the thread ends.
        let mut update = RingFdUpdate { offset: index, reserved: 0, data: 0 };
        // SAFETY: I2: one record of the kernel's layout, on this frame. Tested by
        // `a_dropped_ring_leaves_the_table_of_its_thread`.
        if let Err(error) = unsafe { self.register_raw(UNREGISTER_RING_FDS, (&raw mut update).cast(), 1) } {
            tracing::warn!(%error, index, "a ring stays in its thread's table until the thread ends");
        }
    }
}

/// Builds a ring of exactly this flag set.
fn open(flags: u32, size: Size) -> io::Result<(IoUring, u32)> {
    let mut builder = IoUring::builder();
    // A child of a fork must not share the queues.
    builder.dontfork();
    for (flag, set) in [
        (setup::CLAMP, io_uring::Builder::setup_clamp as fn(&mut io_uring::Builder) -> &mut io_uring::Builder),
        (setup::SUBMIT_ALL, io_uring::Builder::setup_submit_all),
        (setup::COOP_TASKRUN, io_uring::Builder::setup_coop_taskrun),
        (setup::TASKRUN_FLAG, io_uring::Builder::setup_taskrun_flag),
        (setup::SINGLE_ISSUER, io_uring::Builder::setup_single_issuer),
        (setup::DEFER_TASKRUN, io_uring::Builder::setup_defer_taskrun),
        (setup::NO_SQARRAY, io_uring::Builder::setup_no_sqarray),
    ] {
        if flags & flag != 0 {
            set(&mut builder);
        }
    }
    if flags & setup::CQSIZE != 0 {
        builder.setup_cqsize(size.completions);
    }
    Ok((builder.build(size.entries)?, flags))
}

fn probe(ring: &IoUring) -> io::Result<OpcodeSet> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    Ok(OpcodeSet::collect(|code| probe.is_supported(code)))
}

fn refused(doing: &str, error: io::Error) -> BuildError {
    BuildError::refused(Demand { doing: doing.to_owned(), bytes: 0 }, error)
}

#[cfg(test)]
mod tests;
