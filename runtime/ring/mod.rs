//! The ring: submissions out, completions in. The only code that touches memory shared with the kernel.
//!
//! A closed set of implementations stands behind [`Ring`]: the kernel's, and a scripted one that a test plays. Both
//! take an entry only as [`Lent`], which a body hands out while it holds the operation, or as [`Encoded`], while
//! everything it names is still borrowed: so the functions here are safe to call.
#![allow(unsafe_code, reason = "hands entries to the kernel, with the proof that their memory is held")]

mod attempt;
pub(crate) mod buf_ring;
mod kernel;
mod scripted;
pub(crate) mod setup;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buf_ring::BufRing;
pub(crate) use kernel::KernelRing;
pub(crate) use scripted::ScriptedRing;
pub use scripted::{Pending, Script};

use super::body::Lent;
use super::registry::Arena;
use super::sqe::Encoded;

/// One completion as it came from the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

/// How long a turn may wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Submit and collect what is ready; never sleep.
    No,
    /// Sleep until one completion is there, or until the given time has passed. `None`: no limit.
    Until(Option<Duration>),
}

/// A ring, real or played.
pub(crate) enum Ring {
    Kernel(Box<KernelRing>),
    Scripted(ScriptedRing),
    /// Shut down: nothing can be pushed, and nothing will come.
    Closed,
}

impl Ring {
    /// Try one entry at once, as a plain system call that does not wait. A count, or a negated errno: `-EAGAIN` where
    /// it would have waited.
    pub(crate) fn attempt(&mut self, encoded: &Encoded<'_>) -> i32 {
        let entry = &encoded.frame().entry;
        match self {
            Self::Kernel(ring) => {
                // SAFETY: I1. `Encoded` borrows all that the entry names for as long as this call lasts, and a system
                // call that does not wait has let go of it when it returns. Guarded by
                // `an_attempt_reads_into_the_buffer_or_leaves_it`.
                unsafe { ring.attempt(entry) }
            }
            Self::Scripted(ring) => ring.attempt(entry),
            Self::Closed => -libc::ECANCELED,
        }
    }

    /// Whether completions found the queue full and wait in the kernel's overflow list.
    pub(crate) fn is_overflowing(&self) -> bool {
        match self {
            Self::Kernel(ring) => ring.is_overflowing(),
            Self::Scripted(ring) => ring.more_work(),
            Self::Closed => false,
        }
    }

    /// Register the chunks that a registry begins with, in their order, in a table that has no other entries.
    pub(crate) fn register_first(&mut self, arena: &Arc<Arena>) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => {
                let regions: Vec<_> = (0..arena.first_chunks()).map(|chunk| arena.region(chunk)).collect();
                // SAFETY: I4, I5. The driver keeps the registry for as long as the ring, and leaks its pages if the
                // kernel does not let go of one; these chunks stay mapped. Guarded by `a_lease_outlives_its_runtime`.
                unsafe { ring.register_buffers(&regions) }
            }
            Self::Scripted(ring) => ring.register(arena.first_chunks()),
            Self::Closed => Ok(()),
        }
    }

    /// Register a table of so many entries, which name nothing yet.
    pub(crate) fn register_sparse(&mut self, entries: usize) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.register_sparse(entries),
            Self::Scripted(ring) => ring.register(0),
            Self::Closed => Ok(()),
        }
    }

    /// Have an entry of a sparse table name a chunk, which this ring has pinned. When the kernel lets go of it, later,
    /// a completion carries the tag, unless that is 0.
    pub(crate) fn set_entry(&mut self, arena: &Arc<Arena>, chunk: usize, tag: u64) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => {
                // SAFETY: I4, I5. As above; a chunk stays mapped for as long as a ring has it pinned, which is until
                // the completion with the tag. Guarded by `a_chunk_is_given_back_only_when_every_ring_has_let_go`.
                unsafe { ring.update_buffer(chunk, Some(arena.region(chunk)), tag) }
            }
            Self::Scripted(ring) => ring.set_entry(chunk, tag),
            Self::Closed => Ok(()),
        }
    }

    /// Have an entry of a sparse table name nothing. The kernel lets go when no operation uses it any more.
    pub(crate) fn clear_entry(&mut self, chunk: usize) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => {
                // SAFETY: I4. No memory is named. Guarded by `a_chunk_is_given_back_only_when_every_ring_has_let_go`.
                unsafe { ring.update_buffer(chunk, None, 0) }
            }
            Self::Scripted(ring) => {
                ring.clear_entry(chunk);
                Ok(())
            }
            Self::Closed => Ok(()),
        }
    }

    /// Take the first entries of another ring's table, which is of the same registry and stays open meanwhile: into a
    /// sparse table, or into none.
    pub(crate) fn clone_first(&mut self, source: RawFd, entries: usize, into_sparse: bool) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.clone_buffers(source, entries, into_sparse),
            Self::Scripted(_) | Self::Closed => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The ring's descriptor, by which another ring can clone its table.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        match self {
            Self::Kernel(ring) => Some(ring.as_raw_fd()),
            Self::Scripted(_) | Self::Closed => None,
        }
    }

    /// Take the registration back. Nothing may be in flight.
    pub(crate) fn unregister(&mut self) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.unregister_buffers(),
            Self::Scripted(_) | Self::Closed => Ok(()),
        }
    }

    /// Lend a ring of buffers: from now on entries may name it as group `id`, and get of its buffers.
    pub(crate) fn lend(&mut self, id: u16, buffers: &Rc<BufRing>, incremental: bool) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => {
                // SAFETY: I1, I4, I5. The group that has this ring keeps it, and every buffer in it, until a completion
                // names that or the ring is taken back, and leaks both if the kernel does not let go. Guarded by
                // `a_dropped_lent_receive_keeps_its_page_with_the_kernel`.
                unsafe { ring.register_buffer_ring(buffers, id, incremental) }
            }
            Self::Scripted(ring) => ring.lend(id, buffers, incremental),
            Self::Closed => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    /// Take a ring of buffers back. Nothing that may use it may be in flight.
    pub(crate) fn unlend(&mut self, id: u16) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.unregister_buffer_ring(id),
            Self::Scripted(ring) => ring.unlend(id),
            Self::Closed => Ok(()),
        }
    }

    /// Have the kernel signal this eventfd whenever there is something to collect.
    pub(crate) fn register_eventfd(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.register_eventfd(eventfd),
            Self::Scripted(_) | Self::Closed => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a ring that is scripted or shut down signals no eventfd",
            )),
        }
    }

    /// The time, by the clock that timers go by.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::Kernel(ring) => ring.now(),
            Self::Scripted(ring) => ring.now(),
            Self::Closed => Instant::now(),
        }
    }

    /// That clock, to keep.
    pub(crate) fn clock(&self) -> Box<dyn Fn() -> Instant> {
        match self {
            Self::Kernel(_) | Self::Closed => Box::new(Instant::now),
            Self::Scripted(ring) => Box::new(ring.clock()),
        }
    }
}

/// What a turn does with a ring: one of the kernel by itself, so that nothing in its turn asks which ring it is of, or any.
pub(crate) trait Queues {
    type Reaping<'a>: Iterator<Item = Cqe>
    where
        Self: 'a;

    /// Entries that can be staged before the next enter.
    fn space(&self) -> usize;

    /// Entries staged and not yet taken by the kernel.
    fn staged(&self) -> usize;

    /// Stage one entry for the next enter. There must be space.
    fn stage(&mut self, lent: Lent<'_>);

    /// One system call: submit what is staged, run what the kernel has deferred, and sleep if asked to.
    fn enter(&mut self, wait: Wait) -> io::Result<()>;

    /// Take the completions that are there, one by one.
    fn reap(&mut self) -> Self::Reaping<'_>;

    /// Whether completions can be taken without an enter.
    fn is_ready(&mut self) -> bool;

    /// Whether only an enter brings what is ready: deferred work, or completions that found the queue full.
    fn more_work(&self) -> bool;
}

impl Queues for KernelRing {
    type Reaping<'a> = kernel::Reaping<'a>;

    #[inline(always)]
    fn space(&self) -> usize {
        Self::space(self)
    }

    #[inline(always)]
    fn staged(&self) -> usize {
        Self::staged(self)
    }

    #[inline(always)]
    fn stage(&mut self, lent: Lent<'_>) {
        // SAFETY: I1, I2. A `Lent` is made by a body that holds the operation, unmoved, until the final completion of this
        // very entry, or for an entry that names no memory. Guarded by `dropping_a_read_keeps_its_buffer`.
        unsafe { self.push(lent.entry()) }
    }

    #[inline(always)]
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.submit(wait)
    }

    #[inline(always)]
    fn reap(&mut self) -> kernel::Reaping<'_> {
        Self::reap(self)
    }

    #[inline(always)]
    fn is_ready(&mut self) -> bool {
        Self::is_ready(self)
    }

    #[inline(always)]
    fn more_work(&self) -> bool {
        Self::more_work(self)
    }
}

impl Queues for Ring {
    type Reaping<'a> = Reaping<'a>;

    fn space(&self) -> usize {
        match self {
            Self::Kernel(ring) => ring.space(),
            Self::Scripted(ring) => ring.space(),
            Self::Closed => 0,
        }
    }

    fn staged(&self) -> usize {
        match self {
            Self::Kernel(ring) => ring.staged(),
            Self::Scripted(ring) => ring.staged(),
            Self::Closed => 0,
        }
    }

    fn stage(&mut self, lent: Lent<'_>) {
        match self {
            Self::Kernel(ring) => ring.stage(lent),
            Self::Scripted(ring) => ring.push(*lent.entry()),
            Self::Closed => panic!("an entry was pushed into a ring that has shut down"),
        }
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => Queues::enter(&mut **ring, wait),
            Self::Scripted(ring) => ring.enter(wait).map(|_taken| ()),
            Self::Closed if wait == Wait::No => Ok(()),
            Self::Closed => Err(io::Error::other("the runtime of this ring has shut down; nothing will ever come")),
        }
    }

    fn reap(&mut self) -> Reaping<'_> {
        match self {
            Self::Kernel(ring) => Reaping::Kernel(ring.reap()),
            Self::Scripted(ring) => Reaping::Scripted(ring),
            Self::Closed => Reaping::Closed,
        }
    }

    fn is_ready(&mut self) -> bool {
        match self {
            Self::Kernel(ring) => ring.is_ready(),
            Self::Scripted(ring) => ring.is_ready(),
            Self::Closed => false,
        }
    }

    fn more_work(&self) -> bool {
        match self {
            Self::Kernel(ring) => ring.more_work(),
            Self::Scripted(ring) => ring.more_work(),
            Self::Closed => false,
        }
    }
}

/// The completions that are there, while they are taken.
pub(crate) enum Reaping<'a> {
    Kernel(kernel::Reaping<'a>),
    Scripted(&'a mut ScriptedRing),
    Closed,
}

impl Iterator for Reaping<'_> {
    type Item = Cqe;

    #[inline]
    fn next(&mut self) -> Option<Cqe> {
        match self {
            Self::Kernel(queue) => queue.next(),
            Self::Scripted(ring) => ring.reap(),
            Self::Closed => None,
        }
    }
}
