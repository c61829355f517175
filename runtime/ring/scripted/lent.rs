//! The played kernel's side of lent buffers.
//!
//! It takes buffers from the front of a ring, as the kernel does, and fills them; or it is told by a test to name any
//! number at all. A buffer that it has once named for good is none of its any more, so whatever a script does it writes
//! into nothing that it was not lent.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use super::{Cqe, Script, ScriptedRing, Shared, write};
use crate::runtime::abi;
use crate::runtime::entry::Entry;
use crate::runtime::ring::buf_ring::{BufRing, Offer};

/// One ring of buffers, as the played kernel sees it.
pub(super) struct PlayedGroup {
    ring: Rc<BufRing>,
    incremental: bool,
    /// The tail when it last looked.
    seen: u16,
    /// What it has and has not named yet, from front to back.
    buffers: VecDeque<Offer>,
}

impl PlayedGroup {
    /// Look what was put in since the last time.
    fn look(&mut self) {
        while self.seen != self.ring.tail() {
            self.buffers.push_back(self.ring.offered(self.seen));
            self.seen = self.seen.wrapping_add(1);
        }
    }

    /// The first `bytes` bytes of this buffer are used; whether the rest stays.
    fn advance(&mut self, at: usize, bytes: usize) -> bool {
        let offer = &mut self.buffers[at];
        if self.incremental && bytes < offer.len as usize {
            offer.address += bytes as u64;
            offer.len -= bytes as u32;
            return true;
        }
        self.buffers.remove(at);
        false
    }
}

/// What the played kernel answers when it is given a ring of buffers, or is to give one back.
#[derive(Debug, Default)]
pub(super) struct RingsRefused {
    lend: Option<i32>,
    unlend: Option<i32>,
    asked: u64,
}

impl RingsRefused {
    fn answer(&mut self, refusal: Option<i32>) -> io::Result<()> {
        self.asked += 1;
        refusal.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl Script {
    /// Let the played kernel refuse to be lent rings of buffers, or to give them back, with these errnos from now on, or
    /// take and give them again.
    pub fn refuse_rings(&self, lend: Option<i32>, unlend: Option<i32>) {
        let refused = &mut self.shared.borrow_mut().rings_refused;
        (refused.lend, refused.unlend) = (lend, unlend);
    }

    /// How often the played kernel was given a ring of buffers or asked for one, refusals included.
    pub fn rings_asked(&self) -> u64 {
        self.shared.borrow().rings_refused.asked
    }

    /// The buffers of the group that an entry names, as the played kernel has them, from front to back: number and length
    /// in bytes.
    ///
    /// # Panics
    /// If the entry is not pending, or names no group.
    pub fn lent(&self, user_data: u64) -> Vec<(u16, usize)> {
        let mut shared = self.shared.borrow_mut();
        let entry = shared.lent_entry(user_data);
        shared.group(&entry).buffers.iter().map(|offer| (offer.id, offer.len as usize)).collect()
    }

    /// Complete a receive into lent memory with these bytes, as the kernel does: in the front buffer of its group, or for
    /// a bundle in as many as it takes. To the flags that the kernel adds come those given.
    ///
    /// # Panics
    /// If the entry is not pending or names no group, or if the buffers have less room.
    pub fn complete_with_lent(&self, user_data: u64, bytes: &[u8], flags: u32) {
        let mut shared = self.shared.borrow_mut();
        let entry = shared.lent_entry(user_data);
        let is_bundle = entry.ioprio & abi::RECV_BUNDLE != 0;
        let group = shared.group(&entry);
        let mut left = bytes;
        let mut flags = flags | abi::BUFFER;
        for count in 0.. {
            let front = *group.buffers.front().expect("the group has no buffer with room for this: end it by ENOBUFS");
            if count == 0 {
                flags |= u32::from(front.id) << abi::BUFFER_SHIFT;
            }
            let here = left.len().min(front.len as usize);
            let region = Entry { opcode: abi::RECV, addr: front.address, len: front.len, ..Entry::default() };
            left[..here].iter().enumerate().for_each(|(at, byte)| write(&region, at, *byte));
            left = &left[here..];
            let stays = group.advance(0, here);
            if left.is_empty() {
                flags |= if stays { abi::BUFFER_MORE } else { 0 };
                break;
            }
            assert!(is_bundle, "a receive that is no bundle has one buffer, and that has less room");
        }
        let at = shared.find(user_data);
        let result = i32::try_from(bytes.len()).expect("a receive is shorter than 2 GiB");
        shared.answer(at, Cqe { user_data, result, flags });
    }
}

impl ScriptedRing {
    pub(crate) fn lend(&mut self, id: u16, ring: &Rc<BufRing>, incremental: bool) -> io::Result<()> {
        let mut shared = self.shared.borrow_mut();
        let refusal = shared.rings_refused.lend;
        shared.rings_refused.answer(refusal)?;
        let group = PlayedGroup { ring: Rc::clone(ring), incremental, seen: ring.tail(), buffers: VecDeque::new() };
        shared.groups.insert(id, group);
        Ok(())
    }

    pub(crate) fn unlend(&mut self, id: u16) -> io::Result<()> {
        let mut shared = self.shared.borrow_mut();
        let refusal = shared.rings_refused.unlend;
        shared.rings_refused.answer(refusal)?;
        shared.groups.remove(&id);
        Ok(())
    }
}

impl Shared {
    /// A completion that names a buffer, rightly or not, was made up by the test: what it names is not the played kernel's
    /// any more.
    pub(super) fn consume(&mut self, entry: &Entry, result: i32, flags: u32) {
        if entry.flags & abi::BUFFER_SELECT == 0 || flags & abi::BUFFER == 0 {
            return;
        }
        let id = (flags >> abi::BUFFER_SHIFT) as u16;
        let bytes = usize::try_from(result).unwrap_or(0);
        let group = self.group(entry);
        let named = group.buffers.iter().position(|offer| offer.id == id);
        let Some(mut at) = named else { return };
        let mut left = bytes;
        // Of a bundle all that it reaches.
        while let Some(offer) = group.buffers.get(at) {
            let here = left.min(offer.len as usize);
            left -= here;
            if left == 0 && flags & abi::BUFFER_MORE != 0 {
                at += usize::from(group.advance(at, here));
            } else {
                group.buffers.remove(at);
            }
            if left == 0 {
                return;
            }
        }
    }

    fn lent_entry(&mut self, user_data: u64) -> Entry {
        let at = self.find(user_data).expect("only a pending entry can take a lent buffer");
        let entry = self.pending[at].entry;
        assert!(entry.flags & abi::BUFFER_SELECT != 0, "opcode {} was described with its own memory", entry.opcode);
        entry
    }

    fn group(&mut self, entry: &Entry) -> &mut PlayedGroup {
        let group = self.groups.get_mut(&entry.buf_index).expect("an entry names a group that was lent");
        group.look();
        group
    }
}
