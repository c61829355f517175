//! What this machine says about itself: the limits and policies that decide whether a ring can be built.
//!
//! The kernel answers a refused `io_uring_setup` with a bare error number. Which of sysctl, seccomp, limit or
//! kernel it was can only be told from facts gathered beside it. They are read here, once, so that
//! judging them (in `error.rs`) and showing them (in `diagnose.rs`) are pure functions over one value.

use rustix::process::{Resource, getrlimit};

/// Bit of `CAP_IPC_LOCK` in a capability set (`include/uapi/linux/capability.h`).
const CAP_IPC_LOCK: u32 = 14;
/// Bit of `CAP_SYS_ADMIN` in a capability set (`include/uapi/linux/capability.h`).
const CAP_SYS_ADMIN: u32 = 21;

/// A soft and a hard limit; `None` stands for unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) soft: Option<u64>,
    pub(crate) hard: Option<u64>,
}

/// The facts. A field is `None` where the machine does not say: no `/proc`, or a kernel without that file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Kernel release, as `uname -r` prints it. Shown, never compared: features are probed.
    pub(crate) release: String,
    /// Machine name, as `uname -m` prints it.
    pub(crate) machine: String,
    /// `/proc/sys/kernel/io_uring_disabled`; the file exists since Linux 6.6.
    pub(crate) io_uring_disabled: Option<u32>,
    /// `/proc/sys/kernel/io_uring_group`; -1 means no group.
    pub(crate) io_uring_group: Option<i64>,
    /// What the calling thread is allowed to do.
    pub(crate) thread: Option<ThreadStatus>,
    /// `RLIMIT_MEMLOCK`, bytes.
    pub(crate) memlock: Limit,
    /// `RLIMIT_NOFILE`, descriptors.
    pub(crate) nofile: Limit,
    /// `/proc/sys/fs/pipe-max-size`, bytes.
    pub(crate) pipe_max_size: Option<u64>,
    /// `/proc/sys/fs/pipe-user-pages-soft`, pages; 0 means no limit.
    pub(crate) pipe_user_pages_soft: Option<u64>,
}

impl Facts {
    /// Reads everything; what cannot be read is left out, because it is needed most where `/proc` is restricted.
    pub(crate) fn gather() -> Facts {
        let system = rustix::system::uname();
        // A filter and capabilities belong to a thread, so the thread's own file is asked first.
        let status = read("/proc/thread-self/status").or_else(|| read("/proc/self/status"));
        Facts {
            release: system.release().to_string_lossy().into_owned(),
            machine: system.machine().to_string_lossy().into_owned(),
            io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled"),
            io_uring_group: number("/proc/sys/kernel/io_uring_group"),
            thread: status.as_deref().map(ThreadStatus::parse),
            memlock: limit(Resource::Memlock),
            nofile: limit(Resource::Nofile),
            pipe_max_size: number("/proc/sys/fs/pipe-max-size"),
            pipe_user_pages_soft: number("/proc/sys/fs/pipe-user-pages-soft"),
        }
    }

    /// Whether a seccomp filter (mode 2) or strict mode (1) is on.
    pub(crate) fn is_filtered(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.seccomp.is_some_and(|mode| mode != 0))
    }

    /// Whether this thread passes `io_uring_disabled = 1`: by `CAP_SYS_ADMIN`, or by the group the sysctl names.
    pub(crate) fn is_privileged_for_rings(&self) -> bool {
        let Some(thread) = &self.thread else {
            return false;
        };
        let group = self.io_uring_group.and_then(|group| u32::try_from(group).ok());
        thread.has(CAP_SYS_ADMIN) || group.is_some_and(|group| thread.groups.contains(&group))
    }

    /// Whether memory this thread pins is not charged to `RLIMIT_MEMLOCK`.
    pub(crate) fn is_memlock_exempt(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.has(CAP_IPC_LOCK))
    }
}

/// The lines of `/proc/thread-self/status` that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadStatus {
    /// `Seccomp:` 0 no filter, 1 strict, 2 filter; absent where the kernel was built without it.
    pub(crate) seccomp: Option<u32>,
    /// `CapEff:`, the effective capabilities.
    pub(crate) capabilities: u64,
    /// The file-system group of `Gid:` and every group of `Groups:`: those the kernel's `in_group_p` looks at.
    pub(crate) groups: Vec<u32>,
}

impl ThreadStatus {
    fn parse(text: &str) -> ThreadStatus {
        let mut status = ThreadStatus::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name {
                "Seccomp" => status.seccomp = value.parse().ok(),
                "CapEff" => status.capabilities = u64::from_str_radix(value, 16).unwrap_or(0),
                "Gid" => status.groups.extend(value.split_whitespace().nth(3).and_then(|gid| gid.parse::<u32>().ok())),
                "Groups" => status.groups.extend(value.split_whitespace().filter_map(|gid| gid.parse::<u32>().ok())),
                _ => {}
            }
        }
        status
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number<N: std::str::FromStr>(path: &str) -> Option<N> {
    read(path)?.trim().parse().ok()
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit { soft: limit.current, hard: limit.maximum }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tproxy\nGid:\t1\t2\t3\t4\nGroups:\t20 30 \nCapEff:\t0000000000204000\nSeccomp:\t2\n";

    #[test]
    fn the_status_file_is_read_line_by_line() {
        let status = ThreadStatus::parse(STATUS);
        assert_eq!(status.seccomp, Some(2));
        assert_eq!(status.groups, [4, 20, 30]);
        assert!(status.has(CAP_IPC_LOCK));
        assert!(status.has(CAP_SYS_ADMIN));
        assert!(!status.has(0));
    }

    #[test]
    fn a_status_without_the_lines_says_nothing() {
        assert_eq!(ThreadStatus::parse("Name:\tproxy\n"), ThreadStatus::default());
    }

    #[test]
    fn a_group_of_the_thread_passes_the_sysctl() {
        let mut facts = Facts::gather();
        facts.thread = Some(ThreadStatus { groups: vec![30], ..ThreadStatus::default() });
        facts.io_uring_group = Some(30);
        assert!(facts.is_privileged_for_rings());
        facts.io_uring_group = Some(-1);
        assert!(!facts.is_privileged_for_rings());
    }

    #[test]
    fn the_release_is_what_the_kernel_prints() {
        let printed = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs is mounted");
        assert_eq!(Facts::gather().release, printed.trim());
    }
}
