//! The kernel's table of registered buffers of this ring, kept in step with the registry.
//!
//! The chunks that a registry begins with are registered when the ring is built. Those that it grows by are registered,
//! and those that it gives back are cleared, in the next turn of each ring: until then operations on them are plain ones.
//! An entry is cleared with its *tag*, and only the completion that carries it says that the kernel has let go.

use std::io;
use std::time::Instant;

use super::Driver;
use super::turn::Core;
use crate::runtime::inflight::{is_tag, tag};
use crate::runtime::registry::{Registry, RingPages, TableChange};
use crate::runtime::ring::{Ring, Wait};

#[derive(Debug)]
pub(super) struct Table {
    pages: RingPages,
    /// Entries can be set one by one.
    is_sparse: bool,
    /// The registry's generation at the last look.
    seen: u64,
    /// Chunk and tag of each entry that was set, or is being cleared.
    entries: Vec<(usize, u64)>,
    /// Chunks that the kernel refused to register; they stay pinned until they are given back.
    refused: Vec<usize>,
    /// Made when there is some, as hardly any turn has.
    news: Option<Box<News>>,
    next_tag: u64,
}

/// What a turn has learnt of registered memory. The registry is told when nothing is borrowed, as it may log.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Chunks that the kernel has let go of.
    released: Vec<usize>,
    /// Bytes that it refused to register, and why.
    refused: Vec<(usize, io::Error)>,
    /// Why it keeps what it was to let go of.
    kept: Vec<io::Error>,
}

impl Table {
    /// Registers the pages with this ring, if it is to and can; says why if it cannot.
    pub(super) fn attach(registry: &Registry, ring: &mut Ring, registers: bool) -> Self {
        let pages = registry.attach(registers);
        let mut table = Self {
            pages,
            is_sparse: false,
            seen: 0,
            entries: Vec::new(),
            refused: Vec::new(),
            news: None,
            next_tag: 0,
        };
        let Some(slot) = table.pages.slot() else {
            if registers {
                registry.say_refused("too many rings share this registry; operations use it unregistered".to_owned());
            }
            return table;
        };
        let arena = table.pages.arena().clone();
        let first = arena.first_chunks();
        match table.register_first(registry, ring) {
            Ok(()) => {
                for chunk in 0..first {
                    arena.pin(chunk, slot);
                    arena.set_registered(chunk, slot);
                }
                if let Some(fd) = ring.raw_fd() {
                    registry.set_source(slot, fd);
                }
            }
            Err(error) => {
                registry.detach(slot);
                table.is_sparse = false;
                table.pages = registry.attach(false);
                registry.set_refused((0..first).map(|chunk| arena.region(chunk).1).sum(), &error);
            }
        }
        table
    }

    pub(super) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    pub(super) fn take_news(&mut self) -> Option<Box<News>> {
        self.news.take()
    }

    pub(super) fn pages(&self) -> &RingPages {
        &self.pages
    }

    /// Whether this completion says that the kernel has let go of registered memory.
    pub(super) fn is_released(&mut self, user_data: u64) -> bool {
        if !is_tag(user_data) {
            return false;
        }
        let Some(at) = self.entries.iter().position(|(_, tag)| *tag == user_data) else {
            return false;
        };
        let (chunk, _tag) = self.entries.swap_remove(at);
        self.news.get_or_insert_default().released.push(chunk);
        true
    }

    /// Operations name nothing by index from here on. Takes the registration back if nothing is in flight.
    pub(super) fn detach(&mut self, registry: &Registry, ring: &mut Ring, is_idle: bool) -> io::Result<()> {
        let Some(slot) = self.pages.slot() else {
            return Ok(());
        };
        self.is_sparse = false;
        self.pages.arena().set_unregistered(slot);
        // Before the ring is closed: nobody may clone from another ring that has got its number.
        registry.clear_source(slot);
        if !is_idle {
            // What the kernel still has stays pinned, and the place taken.
            return Ok(());
        }
        ring.unregister()
    }

    fn register_first(&mut self, registry: &Registry, ring: &mut Ring) -> io::Result<()> {
        let arena = self.pages.arena().clone();
        let first = arena.first_chunks();
        if first < arena.chunks() && ring.register_sparse(arena.chunks()).is_ok() {
            self.is_sparse = true;
            if let Some(Ok(())) = registry.with_source(|source| ring.clone_first(source, first, true)) {
                return Ok(());
            }
            let set = (0..first).try_for_each(|chunk| ring.set_entry(&arena, chunk, 0));
            return set.or_else(|error| ring.unregister().and(Err(error)));
        }
        // A kernel without sparse tables: what the registry grows by stays unregistered.
        if let Some(Ok(())) = registry.with_source(|source| ring.clone_first(source, first, false)) {
            return Ok(());
        }
        ring.register_first(&arena)
    }

    /// Whether the registry may ask for changes.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.is_sparse && self.pages.arena().generation() != self.seen
    }

    /// Makes the changes that the registry asks for.
    #[cold]
    fn sync(&mut self, ring: &mut Ring) {
        let Some(slot) = self.pages.slot() else {
            return;
        };
        let arena = self.pages.arena().clone();
        self.seen = arena.generation();
        for change in arena.table_changes(slot) {
            match change {
                TableChange::Register(chunk) => {
                    self.next_tag += 1;
                    let tag = tag(self.next_tag);
                    match ring.set_entry(&arena, chunk, tag) {
                        Ok(()) => {
                            self.entries.push((chunk, tag));
                            arena.set_registered(chunk, slot);
                        }
                        Err(error) => {
                            self.refused.push(chunk);
                            self.news.get_or_insert_default().refused.push((arena.region(chunk).1, error));
                        }
                    }
                }
                TableChange::Clear(chunk) => {
                    if let Err(error) = ring.clear_entry(chunk) {
                        self.news.get_or_insert_default().kept.push(error);
                    }
                }
            }
        }
        let Self { refused, news, .. } = self;
        refused.retain(|chunk| {
            let is_draining = arena.is_draining(*chunk);
            if is_draining {
                news.get_or_insert_default().released.push(*chunk);
            }
            !is_draining
        });
    }
}

impl Core {
    /// Brings the ring's table in step with the registry.
    pub(super) fn sync_table(&mut self) {
        if self.table.is_behind() {
            self.table.sync(&mut self.ring);
            self.outgoing.attention = true;
        }
    }
}

impl Driver {
    /// Gives back memory that is long unused, and wakes early enough to do so later.
    #[inline]
    pub(super) fn trim_pages(&self, wait: Wait) -> Wait {
        let arena = self.pages.arena();
        match arena.next_trim() {
            Some(due) => self.trim_pages_due(due, wait),
            None => wait,
        }
    }

    #[inline(never)]
    fn trim_pages_due(&self, due: Instant, wait: Wait) -> Wait {
        let arena = self.pages.arena();
        let now = self.now();
        if due <= now {
            arena.trim(now);
            // There may be more to come, or somebody to run who waited: the next turn sleeps.
            return Wait::No;
        }
        match wait {
            Wait::No => Wait::No,
            Wait::Until(limit) => Wait::Until(Some(limit.map_or(due - now, |limit| limit.min(due - now)))),
        }
    }

    /// Tells the registry what a turn has learnt.
    pub(super) fn tell_registry(&self, news: News) {
        let News { released, refused, kept } = news;
        for (bytes, error) in refused {
            self.registry.set_refused(bytes, &error);
        }
        for error in kept {
            tracing::warn!(%error, "memory that the registry has grown by stays registered and mapped");
        }
        if let Some(slot) = self.pages.slot() {
            released.into_iter().for_each(|chunk| self.pages.arena().unpin(chunk, slot));
        }
    }
}

/// The ring is gone, with all that it had registered.
pub(super) fn forget(registry: &Registry, pages: &RingPages) {
    if let Some(slot) = pages.slot() {
        pages.arena().forget_ring(slot);
        // Last, as another ring can have the place from here on, and what it registers there is not to be forgotten.
        registry.detach(slot);
    }
}
