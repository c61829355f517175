//! Lent pages: registry memory that the kernel may receive into before anybody knows who will get it.
//!
//! A plain receive holds its buffer for as long as it waits, so that a thousand idle connections hold a thousand
//! buffers. A *lent* one is described without memory: when data has come, the kernel takes the next buffer of a *group*,
//! and its completion says which. The buffer, a lease of the registry like any other, is then the completion's, and
//! whoever takes it from there returns its pages by dropping it.
//!
//! * `group`: one queue of buffers of one size, and who has each of them.
//! * [`Lender`]: the groups of one ring. They are made when they are first asked for.
//!
//! A group that has lent a buffer for good leases another from the registry at once. Where the registry has none, the
//! group runs *dry*: the kernel ends what finds no buffer by `ENOBUFS`, and its slot waits here, in the order in which
//! it came, without an entry in the kernel. The group then has a place of its own in the registry's queue for pages,
//! and the page that comes back wakes the driver, which queues as many of them again as there are buffers. No timer, and
//! no retry that could not succeed. Groups that nobody receives into give their buffers back for it.
//!
//! A number that the kernel gives back is believed only if it is one that it was lent, and for as many bytes as were
//! (I3): each use of a place has a number of its own, so that one given back twice is known.

mod group;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

pub(crate) use group::{Arrival, Group, Left};

use super::inflight::{Key, Slots};
use super::registry::Registry;
use super::ring::Ring;
use super::unpark::Unpark;

/// Memory of the registry that is lent to the kernel in pieces of one size, for receives that hold none while they wait.
///
/// A handle, from [`Driver::buffer_group`](crate::Driver::buffer_group). What describes a lent receive takes one, so
/// that none can be described without: the kernel refuses a multishot receive that has no group.
#[derive(Clone)]
pub struct BufferGroup {
    group: Rc<Group>,
}

impl BufferGroup {
    /// `buffer_bytes()`: the capacity of each buffer, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.group.bytes()
    }

    /// `is_incremental()`: whether one buffer serves several receives, each of which gets its front.
    #[must_use]
    pub fn is_incremental(&self) -> bool {
        self.group.is_incremental()
    }

    /// `available()`: how many buffers the kernel has now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.group.available()
    }

    #[cfg(test)]
    fn starved(&self) -> usize {
        self.group.starved()
    }

    pub(crate) fn id(&self) -> u16 {
        self.group.id()
    }

    /// Whether this is a group of that ring.
    pub(crate) fn is_of(&self, ring: u32) -> bool {
        self.group.ring_id() == ring
    }
}

impl fmt::Debug for BufferGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferGroup")
            .field("buffer_bytes", &self.buffer_bytes())
            .field("is_incremental", &self.is_incremental())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// What of a group was asked for: the size that the configuration has, and the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    bytes: usize,
    incremental: bool,
}

/// The groups of one ring.
pub(crate) struct Lender {
    ring_id: u32,
    registry: Registry,
    unpark: Arc<Unpark>,
    /// The sizes that the configuration has, ascending: bytes of a buffer, and how many.
    sizes: Vec<(usize, u16)>,
    /// What was asked for, and the group that serves it: one may serve two.
    groups: RefCell<Vec<(Asked, Rc<Group>)>>,
    /// Some slot waits for a buffer, or some group has buffers to give back.
    starving: Cell<bool>,
    /// When a ring of buffers that the kernel refused, and that slots wait for, is to be given to it again.
    next_try: Cell<Option<Instant>>,
    /// A group of whole buffers was made for one of incremental ones, and nobody has said so.
    fell_back: Cell<bool>,
}

impl Lender {
    pub(crate) fn new(ring_id: u32, registry: Registry, unpark: Arc<Unpark>, mut sizes: Vec<(usize, u16)>) -> Self {
        sizes.sort_unstable();
        Self {
            ring_id,
            registry,
            unpark,
            sizes,
            groups: RefCell::default(),
            starving: Cell::new(false),
            next_try: Cell::new(None),
            fell_back: Cell::new(false),
        }
    }

    /// To be called when nothing is borrowed: who listens to the log is foreign code.
    pub(crate) fn report(&self) {
        if self.fell_back.take() {
            tracing::debug!("no incremental buffers in this kernel: whole ones serve in their place");
        }
    }

    /// The group of the smallest buffers that have this many bytes; made now if it is not there.
    pub(crate) fn group(&self, ring: &mut Ring, bytes: usize, incremental: bool) -> io::Result<BufferGroup> {
        let Some(&(bytes, count)) = self.sizes.iter().find(|(size, _)| *size >= bytes) else {
            return Err(self.no_such_size(bytes));
        };
        let asked = Asked { bytes, incremental };
        if let Some(group) = self.find(asked) {
            group.lend_again(ring).map_err(refused)?;
            return Ok(BufferGroup { group });
        }
        // A registry that was given may be smaller than the configuration asks for, and one that grows has chunks.
        self.registry.check_lease(bytes)?;
        let id = u16::try_from(self.groups.borrow().len()).expect("a configuration has few sizes");
        let make = |incremental| Group::new(id, self.ring_id, bytes, count, incremental, &self.registry, &self.unpark);
        let group = match make(incremental)?.lend_to(ring) {
            Ok(group) => group,
            // An older kernel takes whole buffers only. What arrives is the same; it takes up more room.
            Err(error) if incremental && error.raw_os_error() == Some(libc::EINVAL) => {
                self.fell_back.set(true);
                let whole = Asked { bytes, incremental: false };
                match self.find(whole) {
                    Some(group) => group,
                    None => {
                        let group = make(false)?.lend_to(ring).map_err(refused)?;
                        self.groups.borrow_mut().push((whole, Rc::clone(&group)));
                        group
                    }
                }
            }
            Err(error) => return Err(refused(error)),
        };
        group.refill();
        self.groups.borrow_mut().push((asked, Rc::clone(&group)));
        Ok(BufferGroup { group })
    }

    /// The group of this number.
    pub(crate) fn by_id(&self, id: u16) -> Option<Rc<Group>> {
        self.groups.borrow().iter().map(|(_, group)| group).find(|group| group.id() == id).map(Rc::clone)
    }

    /// From now on a slot waits for a buffer of some group, or a group has buffers to give back.
    pub(crate) fn starve(&self) {
        self.starving.set(true);
    }

    /// Whether [`feed`](Self::feed) may have something to do.
    #[inline]
    pub(crate) fn is_starving(&self) -> bool {
        self.starving.get()
    }

    /// When [`feed`](Self::feed) will have something to do though nothing comes: a refused ring is tried again.
    #[inline]
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.next_try.get()
    }

    /// Whether [`feed`](Self::feed) has something to do now, and no completion need come first.
    pub(crate) fn is_due(&self, slots: &Slots) -> bool {
        let groups = self.groups.borrow();
        let is_hungry = || groups.iter().any(|(_, group)| group.is_hungry());
        let is_idle = || groups.iter().any(|(_, group)| group.is_idle(slots));
        self.is_starving() && (groups.iter().any(|(_, group)| group.is_due(slots)) || is_hungry() && is_idle())
    }

    /// Give those that wait what has come back: whose turn has come is queued. What has to be dropped is left for when
    /// nothing is borrowed.
    pub(crate) fn feed(&self, ring: &mut Ring, slots: &Slots, queue: &mut dyn FnMut(Key), leave: &mut dyn FnMut(Left)) {
        let groups = self.groups.borrow();
        let mut starving = false;
        for (_, group) in &*groups {
            starving |= group.feed(ring, slots, queue, leave);
        }
        // Buffers that nobody receives into must not stand in the way of those that somebody waits for: a long one
        // needs its pages in one piece.
        if starving && groups.iter().any(|(_, group)| group.is_hungry()) {
            groups.iter().filter(|(_, group)| group.is_idle(slots)).for_each(|(_, group)| group.rest(ring, leave));
        }
        self.next_try.set(groups.iter().filter_map(|(_, group)| group.next_try()).min());
        self.starving.set(starving);
    }

    /// The end of the ring (I5). With `leak` the kernel still holds operations, which may be filling a buffer: then
    /// neither the rings of buffers nor the buffers are ever freed. Others are left for when nothing is borrowed.
    pub(crate) fn close(&self, ring: &mut Ring, leak: bool, leave: &mut dyn FnMut(Left)) {
        for (_, group) in std::mem::take(&mut *self.groups.borrow_mut()) {
            group.close(ring, leak, leave);
        }
        self.next_try.set(None);
        self.starving.set(false);
    }

    fn find(&self, asked: Asked) -> Option<Rc<Group>> {
        self.groups.borrow().iter().find(|(there, _)| *there == asked).map(|(_, group)| Rc::clone(group))
    }

    fn no_such_size(&self, bytes: usize) -> io::Error {
        let largest = self.sizes.last().map_or(0, |(size, _)| *size);
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "no lent buffer has {bytes} bytes, the largest have {largest}: ask for less, or add a size with \
                 Config::lent"
            ),
        )
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender").field("sizes", &self.sizes).field("starving", &self.starving).finish_non_exhaustive()
    }
}

/// The kernel did not take a ring of buffers.
fn refused(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EINVAL) => "it needs Linux 5.19 or newer: receive into a buffer of your own instead",
        Some(libc::ENOMEM) => "raise RLIMIT_MEMLOCK (`ulimit -l`), to which its memory is charged",
        _ => return error,
    };
    let kind = if error.raw_os_error() == Some(libc::EINVAL) { io::ErrorKind::Unsupported } else { error.kind() };
    io::Error::new(kind, format!("the kernel refuses a ring of provided buffers ({error}); {advice}"))
}
