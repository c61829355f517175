//! Which rings have this registry, and why one could not register it.

use std::io;
use std::os::fd::RawFd;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::rings::RingSlot;

#[derive(Debug, Default)]
pub(super) struct Registration {
    /// I7: one for each ring that was built with this registry and not dropped since.
    rings: Vec<Attached>,
    refusal: Option<String>,
}

#[derive(Debug)]
struct Attached {
    slot: RingSlot,
    /// From which another ring can clone the table, while it is attached.
    source: Option<RawFd>,
}

impl Registration {
    /// A place for one more ring, if there is one left.
    pub(super) fn attach(&mut self) -> Option<RingSlot> {
        let slot = RingSlot::first_free(|slot| self.rings.iter().any(|ring| ring.slot == slot))?;
        self.rings.push(Attached { slot, source: None });
        Some(slot)
    }

    pub(super) fn detach(&mut self, slot: RingSlot) {
        self.rings.retain(|ring| ring.slot != slot);
    }

    /// The table of this ring has the chunks that the registry began with, until it is detached.
    pub(super) fn set_source(&mut self, slot: RingSlot, ring_fd: RawFd) {
        self.rings.iter_mut().filter(|ring| ring.slot == slot).for_each(|ring| ring.source = Some(ring_fd));
    }

    pub(super) fn clear_source(&mut self, slot: RingSlot) {
        self.rings.iter_mut().filter(|ring| ring.slot == slot).for_each(|ring| ring.source = None);
    }

    /// A ring from which the table can be cloned while this is borrowed.
    pub(super) fn source(&self) -> Option<RawFd> {
        self.rings.iter().find_map(|ring| ring.source)
    }

    pub(super) fn is_attached(&self) -> bool {
        !self.rings.is_empty()
    }

    /// Keeps why a ring could not register memory, and gives it back the first time, to be said.
    pub(super) fn refuse(&mut self, reason: String) -> Option<String> {
        let is_first = self.refusal.is_none();
        self.refusal = Some(reason.clone());
        is_first.then_some(reason)
    }

    pub(super) fn reason(&self) -> String {
        self.refusal.clone().unwrap_or_else(|| {
            "no living ring has registered these pages; build a runtime with this registry to register them".to_owned()
        })
    }
}

/// What the kernel's answer to a registration means, and what to do about it.
pub(super) fn refusal(bytes: usize, error: &io::Error) -> String {
    let kib = bytes.div_ceil(1024);
    if error.raw_os_error() != Some(Errno::NOMEM.raw_os_error()) {
        return format!("the kernel refused to register {kib} KiB ({error}); operations use them unregistered");
    }
    // `IORING_REGISTER_BUFFERS` charges pinned pages to the user, not to the process, and skips the limit for
    // CAP_IPC_LOCK. What the user's other processes have pinned cannot be read from here.
    let limit = match getrlimit(Resource::Memlock).current {
        Some(limit) => format!("{} KiB", limit / 1024),
        None => "unlimited".to_owned(),
    };
    let pinned = pinned_kib().map_or_else(|error| format!("an unknown amount ({error})"), |kib| format!("{kib} KiB"));
    format!(
        "registering needs {kib} KiB of locked memory; RLIMIT_MEMLOCK allows this user {limit}, of which this process \
         has pinned {pinned} and the user's other processes may have pinned more; raise the limit (`ulimit -l`, \
         LimitMEMLOCK=), grant CAP_IPC_LOCK or ask for fewer pages; operations use them unregistered"
    )
}

/// The memory that this process has pinned (`VmPin` of proc_pid_status(5), in KiB).
fn pinned_kib() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmPin:")?.trim().strip_suffix("kB")?.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no VmPin line"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_lack_of_memory_names_need_limit_and_use() {
        let reason = refusal(64 * 1024, &io::Error::from(Errno::NOMEM));
        let limit = match getrlimit(Resource::Memlock).current {
            Some(limit) => format!("allows this user {} KiB", limit / 1024),
            None => "allows this user unlimited".to_owned(),
        };
        assert!(reason.contains("needs 64 KiB"), "{reason}");
        assert!(reason.contains(&limit), "{reason}");
        assert!(reason.contains(&format!("pinned {} KiB", pinned_kib().expect("VmPin is there"))), "{reason}");
    }

    #[test]
    fn another_refusal_keeps_the_words_of_the_kernel() {
        let reason = refusal(4096, &io::Error::from(Errno::OPNOTSUPP));
        assert!(reason.contains("4 KiB") && reason.contains("not supported"), "{reason}");
    }

    #[test]
    fn a_refusal_is_said_once_and_kept() {
        let mut registration = Registration::default();
        assert!(registration.reason().contains("no living ring"));
        assert_eq!(registration.refuse("why".to_owned()), Some("why".to_owned()));
        assert_eq!(registration.refuse("why else".to_owned()), None, "it is said once");
        assert_eq!(registration.reason(), "why else");
    }

    #[test]
    fn a_table_is_cloned_from_a_ring_that_is_attached() {
        let mut registration = Registration::default();
        let (one, other) = (registration.attach(), registration.attach());
        let (one, other) = (one.expect("there is a place"), other.expect("there is another"));
        assert_ne!(one, other);
        assert_eq!(registration.source(), None);
        registration.set_source(other, 7);
        assert_eq!(registration.source(), Some(7));
        registration.clear_source(other);
        assert_eq!(registration.source(), None, "it is about to close");
        registration.detach(other);
        assert_eq!(registration.attach(), Some(other));
        registration.detach(one);
        registration.detach(other);
        assert!(!registration.is_attached());
    }
}
