//! Which rings have the arena registered, and if none has, why.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

#[derive(Debug, Default)]
pub(super) struct Registration {
    /// I7: one entry for each ring that was built with this registry and not dropped since.
    rings: Vec<u32>,
    refusal: Option<String>,
}

impl Registration {
    pub(super) fn add(&mut self, ring_id: u32) {
        if !self.rings.contains(&ring_id) {
            self.rings.push(ring_id);
        }
    }

    pub(super) fn remove(&mut self, ring_id: u32) {
        self.rings.retain(|known| *known != ring_id);
    }

    /// Keeps why a ring could not register the arena, and gives it back the first time, to be said.
    pub(super) fn refuse(&mut self, bytes: usize, error: &io::Error) -> Option<String> {
        let reason = refusal(bytes, error);
        let is_first = self.refusal.is_none();
        self.refusal = Some(reason.clone());
        is_first.then_some(reason)
    }

    pub(super) fn is_on(&self, ring_id: u32) -> bool {
        self.rings.contains(&ring_id)
    }

    pub(super) fn is_anywhere(&self) -> bool {
        !self.rings.is_empty()
    }

    pub(super) fn reason(&self) -> Option<String> {
        if self.is_anywhere() {
            return None;
        }
        Some(self.refusal.clone().unwrap_or_else(|| {
            "no living ring has registered these pages; build a runtime with this registry to register them".to_owned()
        }))
    }
}

/// What the kernel's answer to a registration means, and what to do about it.
fn refusal(bytes: usize, error: &io::Error) -> String {
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
    fn registration_is_known_per_ring_and_the_reason_only_when_there_is_none() {
        let mut registration = Registration::default();
        assert!(registration.reason().is_some_and(|reason| reason.contains("no living ring")));
        assert!(registration.refuse(4096, &io::Error::from(Errno::NOMEM)).is_some());
        assert!(registration.refuse(4096, &io::Error::from(Errno::NOMEM)).is_none(), "it is said once");
        assert!(!registration.is_anywhere());
        assert!(registration.reason().is_some_and(|reason| reason.contains("RLIMIT_MEMLOCK")));
        registration.add(3);
        registration.add(3);
        assert_eq!((registration.is_on(3), registration.is_on(4), registration.reason()), (true, false, None));
        registration.remove(3);
        assert!(!registration.is_on(3) && !registration.is_anywhere());
    }
}
