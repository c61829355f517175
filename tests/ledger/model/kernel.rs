//! What a script does with operations, and what the played kernel answers.

use std::io;
use std::ops::Range;

use ringmain::{Fd, FixedBuf, Wait};
use rustix::io::Errno;

use super::flights::{Came, Flight, Phase, What};
use super::tenants::{Form, Memory, PAGE, Tenant, span_of};
use super::{ASYNC_CANCEL, Play, TENANTS_MAX};

/// Operations whose futures exist at once; further ones are skipped.
const FLIGHTS_MAX: usize = 16;
/// The longest lease that an operation takes: the played kernel writes byte by byte.
const TRANSFER_MAX: usize = 3 * PAGE;

// `include/uapi/linux/io_uring.h`.
const CQE_MORE: u32 = 1 << 1;
const CQE_NOTIFICATION: u32 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = i32::MIN;

/// What the played kernel has said and the driver has not heard.
pub(super) struct Posted {
    pub(super) flight: usize,
    pub(super) result: i32,
    pub(super) what: Said,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The last of an operation.
    Last,
    /// The result of a send, whose notification is to come.
    Result,
    /// The notification of a send, whose result is to come.
    Notification,
}

impl Play {
    pub(super) fn start(&mut self, what: What, pick: usize, detail: usize) {
        if self.flights.iter().filter(|flight| flight.future.is_some()).count() >= FLIGHTS_MAX {
            return;
        }
        let buffers = if matches!(what, What::Readv | What::Writev) { 1 + detail % 3 } else { 1 };
        let buffers = if what == What::Receive { 0 } else { buffers };
        let (mut memory, mut regions) = (Vec::new(), Vec::new());
        for number in 0..buffers {
            let fills = matches!(what, What::Read | What::Readv);
            let is_fit = |tenant: &Tenant| match &tenant.form {
                _ if tenant.span.len() > TRANSFER_MAX => false,
                Form::Lease(_) => !tenant.span.is_empty(),
                Form::Away => false,
                Form::Shared { parts, .. } => !fills && parts.last().is_some_and(|part| !part.is_empty()),
            };
            let Some(at) = self.pick(pick + number, is_fit) else { break };
            let tenant = &mut self.tenants[at];
            let mut region = tenant.span.clone();
            memory.push(match std::mem::replace(&mut tenant.form, Form::Away) {
                Form::Lease(mut lease) => {
                    if fills {
                        lease.clear();
                    }
                    Memory::Lease(lease)
                }
                Form::Shared { mut parts, away } => {
                    let part = parts.pop().expect("there is a part");
                    region = part.as_ptr_range().start.addr()..part.as_ptr_range().end.addr();
                    tenant.form = Form::Shared { parts, away: away + 1 };
                    Memory::Shared(part)
                }
                Form::Away => panic!("what an operation has is not picked"),
            });
            regions.push((tenant.id, region));
        }
        if !memory.is_empty() || what == What::Receive {
            let fd = Fd::new(self.null.try_clone().expect("there are descriptors"));
            let ring = detail / 6 % self.rings.len();
            self.flights.push(Flight::new(what, ring, fd, memory, regions));
            self.poll(self.flights.len() - 1);
        }
    }

    /// Do this with one of the operations whose futures exist.
    pub(super) fn with_future(&mut self, pick: usize, action: impl FnOnce(&mut Self, usize)) {
        let ids: Vec<usize> = (0..self.flights.len()).filter(|id| self.flights[*id].future.is_some()).collect();
        if !ids.is_empty() {
            action(self, ids[pick % ids.len()]);
        }
    }

    pub(super) fn poll(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        let ring = &mut self.rings[flight.ring];
        let _entered = ring.driver.enter();
        let refused = matches!(flight.phase, Phase::Done(result) if flight.is_refused(result));
        if refused {
            (flight.phase, flight.plain, flight.user_data) = (Phase::Fresh, true, None);
        }
        let expected = match flight.phase {
            Phase::Fresh if flight.cancelled || ring.is_closed => Some(-Errno::CANCELED.raw_os_error()),
            Phase::Fresh => None,
            Phase::Answered(result) if !flight.told && !flight.is_refused(result) => Some(result),
            Phase::Done(result) => Some(result),
            _ => None,
        };
        let came = flight.poll();
        match (came, expected) {
            (Came::Received(result), _) => self.receive(id, result, expected),
            (Came::Nothing, None) if flight.phase == Phase::Fresh => {
                flight.phase = Phase::Queued;
                ring.backlog.push(id);
                self.flights[id].named = self.name(id);
            }
            (Came::Nothing, None) => {}
            (Came::Told(result), Some(expected)) if !flight.told => {
                assert_result(&result, expected);
                flight.told = true;
                if let Phase::Fresh = flight.phase {
                    flight.phase = Phase::Done(expected);
                }
            }
            (Came::Back(memory), Some(_)) if flight.told => self.give_back(id, vec![memory]),
            (Came::Ended(result, memory), Some(expected)) => {
                assert_result(&result, expected);
                self.give_back(id, memory);
            }
            (came, expected) => panic!("{:?} while {:?} gives {came:?}, not {expected:?}", flight.what, flight.phase),
        }
    }

    /// A page that a receive has brought, or how it ended.
    pub(super) fn receive(&mut self, id: usize, result: io::Result<Option<FixedBuf>>, expected: Option<i32>) {
        let flight = &mut self.flights[id];
        // One that waits for a page ends at once when it is cancelled, which may be at its next turn.
        let cancelled = flight.phase == Phase::Starved && flight.cancelled;
        let expected = expected.unwrap_or_else(|| {
            assert!(cancelled, "a receive is done too early: {result:?}");
            -Errno::CANCELED.raw_os_error()
        });
        (flight.phase, flight.fd) = (Phase::Gone, None);
        let brought = flight.brought;
        match result {
            Ok(Some(page)) => {
                let (mark, count) = brought.expect("the kernel has brought something");
                assert_eq!((page.len(), page.capacity(), expected), (count, PAGE, count as i32));
                assert!(page.iter().all(|byte| *byte == mark), "the bytes that came are in their place");
                if self.tenants.len() < TENANTS_MAX {
                    self.adopt(page);
                }
            }
            Ok(None) => assert_eq!(expected, 0, "it is the end"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(-expected), "the kernel's errno"),
        }
    }

    /// The chunk that an operation names: the one where all of its bytes lie, if the ring has that in its table.
    pub(super) fn name(&self, id: usize) -> Option<usize> {
        let flight = &self.flights[id];
        let lies_in = |chunk: &Range<usize>| {
            flight.regions.iter().all(|(_, region)| chunk.start <= region.start && region.end <= chunk.end)
        };
        let chunk = self.chunks.iter().position(lies_in)?;
        (self.rings[flight.ring].registered[chunk] && !flight.plain && !flight.regions.is_empty()).then_some(chunk)
    }

    /// The program has these again, as the operation leaves them.
    pub(super) fn give_back(&mut self, id: usize, memory: Vec<Memory>) {
        let flight = &mut self.flights[id];
        (flight.phase, flight.fd, flight.future) = (Phase::Gone, None, None);
        let regions = std::mem::take(&mut flight.regions);
        let (brought, mut left) = flight.brought.unwrap_or((0, 0));
        let fills = matches!(flight.what, What::Read | What::Readv);
        assert_eq!(memory.len(), regions.len(), "all of it comes back");
        for (memory, (tenant, region)) in memory.into_iter().zip(regions) {
            let at = self.place(tenant);
            let fresh = self.fresh_mark();
            let tenant = &mut self.tenants[at];
            match memory {
                Memory::Shared(part) => {
                    assert_eq!(part.as_ptr().addr()..part.as_ptr().addr() + part.len(), region);
                    let Form::Shared { parts, away } = &mut tenant.form else { panic!("what is shared stays so") };
                    parts.push(part);
                    *away -= 1;
                }
                Memory::Lease(mut lease) => {
                    assert_eq!(span_of(&mut lease), region);
                    if fills {
                        let here = left.min(region.len());
                        left -= here;
                        assert_eq!(lease.len(), here, "what came is visible, and no more");
                        assert!(lease.iter().all(|byte| *byte == brought), "the bytes that came are in their place");
                        let rest = &lease.as_capacity_mut()[here..];
                        assert!(rest.iter().all(|byte| *byte == tenant.mark), "and nothing else was written");
                        tenant.mark = fresh;
                    }
                    lease.set_len(lease.capacity());
                    tenant.form = Form::Lease(lease);
                    tenant.stamp();
                }
            }
        }
    }

    /// Nobody wants these back any more, and the kernel has let go of them.
    pub(super) fn let_go(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        (flight.phase, flight.fd) = (Phase::Gone, None);
        for (tenant, _) in std::mem::take(&mut flight.regions) {
            let at = self.place(tenant);
            let is_last = match &mut self.tenants[at].form {
                Form::Shared { parts, away } => {
                    *away -= 1;
                    parts.is_empty() && *away == 0
                }
                Form::Away => true,
                Form::Lease(_) => panic!("an operation's lease is in somebody else's hands"),
            };
            if is_last {
                self.tenants.swap_remove(at);
            }
        }
    }

    pub(super) fn drop_future(&mut self, id: usize) {
        self.flights[id].future = None;
        if !matches!(self.flights[id].phase, Phase::Pushed | Phase::Notified | Phase::Answered(_)) {
            self.unqueue(id);
            self.let_go(id);
        }
    }

    pub(super) fn cancel(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        if flight.request_cancel() {
            flight.cancelled = true;
            if matches!(flight.phase, Phase::Queued | Phase::Starved) {
                flight.phase = Phase::Done(-Errno::CANCELED.raw_os_error());
                self.unqueue(id);
            }
        }
    }

    fn unqueue(&mut self, id: usize) {
        self.rings[self.flights[id].ring].backlog.retain(|queued| *queued != id);
    }

    /// Let the played kernel answer one of the entries that it has.
    pub(super) fn answer(&mut self, ring: usize, pick: usize, detail: usize) {
        let script = self.rings[ring].script.clone();
        let pending = script.pending();
        let ours: Vec<_> = pending.iter().filter(|pending| pending.entry.opcode != ASYNC_CANCEL).collect();
        let Some(entry) = pick.checked_rem(ours.len()).map(|at| ours[at].entry) else { return };
        let user_data = entry.user_data;
        let is_its =
            |flight: &Flight| flight.ring == ring && flight.user_data == Some(user_data) && flight.phase != Phase::Gone;
        let id = self.flights.iter().position(is_its).expect("the kernel has only entries of operations");
        // What it has said and the driver has not heard counts as well.
        let heard = match self.flights[id].phase {
            Phase::Answered(_) => Some(Said::Result),
            Phase::Notified => Some(Said::Notification),
            _ => self.rings[ring].posted.iter().find(|posted| posted.flight == id).map(|posted| posted.what),
        };
        let report = if detail.is_multiple_of(4) { COPIED } else { 0 };
        let shares = self.flights[id].what == What::Send && !self.flights[id].plain;
        if heard == Some(Said::Result) || shares && heard.is_none() && detail / 8 % 8 == 3 {
            script.complete_with(user_data, report, CQE_NOTIFICATION);
            let what = if heard.is_some() { Said::Last } else { Said::Notification };
            self.rings[ring].posted.push(Posted { flight: id, result: report, what });
            return;
        }
        let mark = self.fresh_mark();
        let flight = &mut self.flights[id];
        if flight.what == What::Receive {
            let room = script.lent(user_data).first().map(|(_, room)| *room);
            let result = match (detail % 8, room) {
                (0..=4, Some(room)) => {
                    let count = room.min(1 + detail * 31);
                    flight.brought = Some((mark, count));
                    script.complete_with_lent(user_data, &vec![mark; count], 0);
                    count as i32
                }
                (0..=4, None) => -Errno::NOBUFS.raw_os_error(),
                (5, _) => -Errno::IO.raw_os_error(),
                (6, _) => -Errno::CANCELED.raw_os_error(),
                _ => 0,
            };
            if result <= 0 {
                script.complete(user_data, result);
            }
            self.rings[ring].posted.push(Posted { flight: id, result, what: Said::Last });
            return;
        }
        let fills = matches!(flight.what, What::Read | What::Readv);
        let bad = |errno: Errno| -errno.raw_os_error();
        let most = i32::try_from(flight.bytes()).expect("a transfer is short");
        let result = match detail % 8 {
            0..=2 => most,
            3 | 4 => most.min(1 + detail as i32 * 31),
            5 => bad(Errno::IO),
            6 => bad(Errno::CANCELED),
            _ if flight.what == What::Send => bad(Errno::NOMEM),
            _ => 0,
        };
        // A send that fails at once has no notification.
        let more = shares && (detail < 192 || heard.is_some());
        if fills && result >= 0 {
            flight.brought = Some((mark, result as usize));
            script.complete_with_bytes(user_data, &vec![mark; result as usize]);
        } else {
            script.complete_with(user_data, result, if more { CQE_MORE } else { 0 });
        }
        let what = if more && heard.is_none() { Said::Result } else { Said::Last };
        self.rings[ring].posted.push(Posted { flight: id, result, what });
    }

    pub(super) fn turn(&mut self, at: usize) {
        let (is_grown, was_draining) = (self.is_grown(), self.is_draining);
        let ring = &mut self.rings[at];
        ring.driver.turn(Wait::No).expect("nothing of this is fatal");
        ring.follow(is_grown, self.is_draining, self.refuses);
        self.is_draining &= self.rings.iter().any(|ring| ring.is_pinning);
        // Several leases that do not fit together may have the registry grow all the same, when pages come back.
        let is_vague = self.lends || self.waiters.front().is_some_and(|first| first.lens.len() > 1);
        if !is_vague {
            let goes = was_draining && !self.is_draining;
            assert_eq!(self.is_grown(), is_grown && !goes, "memory goes when all rings have let go of it");
        }
        for id in &self.rings[at].backlog {
            self.flights[*id].phase = Phase::Pushed;
        }
        for posted in std::mem::take(&mut self.rings[at].posted) {
            self.settle(posted);
        }
        self.see_entries(at);
    }

    pub(super) fn settle(&mut self, Posted { flight: id, result, what }: Posted) {
        let flight = &mut self.flights[id];
        flight.phase = match (flight.phase, what) {
            (Phase::Pushed, Said::Result) => Phase::Answered(result),
            (Phase::Pushed, Said::Notification) => Phase::Notified,
            (Phase::Pushed, Said::Last) if flight.is_starved(result) && flight.cancelled => {
                Phase::Done(-Errno::CANCELED.raw_os_error())
            }
            (Phase::Pushed, Said::Last) if flight.is_starved(result) => Phase::Starved,
            (Phase::Pushed | Phase::Notified, Said::Last) => Phase::Done(result),
            (Phase::Answered(result), Said::Last) => Phase::Done(result),
            (phase, what) => panic!("{:?} has {what:?} while {phase:?}", flight.what),
        };
        if flight.future.is_none() && what == Said::Last {
            // An orphan does not wait for a page.
            self.let_go(id);
        }
    }

    /// What the played kernel was given is what was queued, in its order, each with its own addresses.
    fn see_entries(&mut self, at: usize) {
        let ring = &mut self.rings[at];
        let pending = ring.script.pending();
        let mut queued = std::mem::take(&mut ring.backlog).into_iter();
        for new in pending.iter().filter(|pending| pending.order >= ring.orders_seen) {
            let entry = new.entry;
            if entry.opcode == ASYNC_CANCEL {
                ring.script.complete(entry.user_data, -Errno::NOENT.raw_os_error());
                continue;
            }
            let is_again = |flight: &Flight| {
                flight.ring == at && flight.phase == Phase::Starved && flight.user_data == Some(entry.user_data)
            };
            if let Some(again) = self.flights.iter_mut().find(|flight| is_again(flight)) {
                again.phase = Phase::Pushed;
                continue;
            }
            let id = queued.next().expect("the kernel gets only what was queued");
            let flight = &mut self.flights[id];
            flight.user_data = Some(entry.user_data);
            assert!(flight.opcodes().contains(&entry.opcode), "{:?} is opcode {}", flight.what, entry.opcode);
            if let (What::Read | What::Write | What::Send, [(_, first)]) = (flight.what, &flight.regions[..]) {
                assert_eq!((entry.addr as usize, entry.len as usize), (first.start, first.len()), "its own bytes");
            }
            let named = Flight::names_buffer(&entry).then_some(usize::from(entry.buf_index));
            // Where lent pages keep a chunk, or bring it back, is not foretold.
            let is_vague = self.lends && named.or(flight.named) == Some(1);
            assert!(
                named == flight.named || is_vague,
                "it names the chunk where its bytes lie, once the ring has that"
            );
        }
        assert_eq!(queued.next(), None, "all that was queued is with the kernel");
        ring.orders_seen = pending.iter().map(|pending| pending.order + 1).max().unwrap_or(0).max(ring.orders_seen);
    }

    pub(super) fn place(&self, id: usize) -> usize {
        self.tenants.iter().position(|tenant| tenant.id == id).expect("what an operation has is somebody's")
    }
}

fn assert_result(result: &io::Result<usize>, expected: i32) {
    match result {
        Ok(count) => assert_eq!(i32::try_from(*count), Ok(expected), "the kernel's count"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(-expected), "the kernel's errno"),
    }
}
