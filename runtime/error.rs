//! Why a runtime could not be built, in a sentence that says what to do.
//!
//! The kernel gives one error number for several causes: `EPERM` is a sysctl, a seccomp filter or a security
//! module; `ENOSYS` an old kernel or a filter; `ENOMEM` a limit or real shortage. [`BuildError`] tells them
//! apart by what the machine says about itself at that moment. Only what truly means "not available here" is
//! reported so: a shortage stays a shortage.

use std::error::Error;
use std::fmt;
use std::io;

use super::facts::{Facts, Limit};

/// Why a runtime could not be built.
///
/// Its `Display` form is a sentence with the command that helps; [`source`](Error::source) is the kernel's own
/// error, where there was one.
///
/// # Examples
///
/// ```
/// use ringmain::diagnose;
///
/// if let Some(error) = diagnose().error() {
///     if error.is_seccomp() {
///         eprintln!("is this a container? {error}");
///     }
/// }
/// ```
///
/// # References
///
/// `io_uring_setup(2)`, ERRORS; `Documentation/admin-guide/sysctl/kernel.rst`, `io_uring_disabled`.
#[derive(Debug)]
pub struct BuildError {
    cause: Cause,
    source: Option<io::Error>,
}

#[derive(Debug, PartialEq, Eq)]
enum Cause {
    InvalidConfig(String),
    UnsupportedKernel { doing: String, release: String },
    Sysctl { level: u32 },
    Seccomp { doing: String, errno: i32 },
    Policy { doing: String, errno: i32 },
    Memlock { doing: String, bytes: u64, limit: Limit },
    Memory { doing: String },
    ProcessDescriptors { doing: String, limit: Limit },
    SystemDescriptors { doing: String },
    Other { doing: String },
}

/// What was being done when the kernel refused: the rest of "cannot ...", and the bytes it would have taken.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) doing: String,
    pub(crate) bytes: u64,
}

impl BuildError {
    /// The kernel is too old, or was built without io_uring.
    #[must_use]
    pub fn is_unsupported_kernel(&self) -> bool {
        matches!(self.cause, Cause::UnsupportedKernel { .. })
    }

    /// A policy of this machine forbids io_uring: a sysctl, a seccomp filter, or a security module.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.cause, Cause::Sysctl { .. } | Cause::Seccomp { .. } | Cause::Policy { .. })
    }

    /// A seccomp filter forbids io_uring, as the default profiles of container engines do.
    #[must_use]
    pub fn is_seccomp(&self) -> bool {
        matches!(self.cause, Cause::Seccomp { .. })
    }

    /// The sysctl `kernel.io_uring_disabled` forbids io_uring to this process.
    #[must_use]
    pub fn is_disabled_by_sysctl(&self) -> bool {
        matches!(self.cause, Cause::Sysctl { .. })
    }

    /// `RLIMIT_MEMLOCK` is too small.
    #[must_use]
    pub fn is_memlock_limit(&self) -> bool {
        matches!(self.cause, Cause::Memlock { .. })
    }

    /// The [`Config`](crate::Config) contradicts itself, or asks for what this machine does not have.
    #[must_use]
    pub fn is_invalid_config(&self) -> bool {
        matches!(self.cause, Cause::InvalidConfig(_))
    }

    /// The process or the system has no descriptor left.
    #[must_use]
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self.cause, Cause::ProcessDescriptors { .. } | Cause::SystemDescriptors { .. })
    }

    /// A configuration that cannot be, and the sentence that says why.
    pub(crate) fn invalid_config(sentence: String) -> BuildError {
        BuildError { cause: Cause::InvalidConfig(sentence), source: None }
    }

    /// A kernel that built a ring which lacks something the runtime cannot do without.
    pub(crate) fn unsupported_kernel(doing: &str) -> BuildError {
        let release = Facts::gather().release;
        BuildError { cause: Cause::UnsupportedKernel { doing: doing.to_owned(), release }, source: None }
    }

    /// A refusal by the kernel, classified by the facts of this machine.
    pub(crate) fn refused(demand: Demand, source: io::Error) -> BuildError {
        let cause = match source.raw_os_error() {
            Some(errno) => classify(errno, &Facts::gather(), demand),
            None => Cause::Other { doing: demand.doing },
        };
        BuildError { cause, source: Some(source) }
    }
}

/// Tells the causes of one error number apart. Pure, so that every row can be tested on any machine.
fn classify(errno: i32, facts: &Facts, demand: Demand) -> Cause {
    let Demand { doing, bytes } = demand;
    match errno {
        libc::EPERM => match facts.io_uring_disabled {
            Some(level @ 2..) => Cause::Sysctl { level },
            Some(level @ 1) if !facts.is_privileged_for_rings() => Cause::Sysctl { level },
            _ if facts.is_filtered() => Cause::Seccomp { doing, errno },
            // A capability seen here may be one of a user namespace, which the kernel does not count.
            Some(level @ 1) => Cause::Sysctl { level },
            _ => Cause::Policy { doing, errno },
        },
        libc::EACCES if facts.is_filtered() => Cause::Seccomp { doing, errno },
        libc::EACCES => Cause::Policy { doing, errno },
        libc::ENOSYS if facts.is_filtered() => Cause::Seccomp { doing, errno },
        libc::ENOSYS | libc::EINVAL => Cause::UnsupportedKernel { doing, release: facts.release.clone() },
        libc::ENOMEM if is_over_memlock(facts, bytes) => Cause::Memlock { doing, bytes, limit: facts.memlock },
        libc::ENOMEM => Cause::Memory { doing },
        libc::EMFILE => Cause::ProcessDescriptors { doing, limit: facts.nofile },
        libc::ENFILE => Cause::SystemDescriptors { doing },
        _ => Cause::Other { doing },
    }
}

/// Whether the limit is the cause. What the user has locked elsewhere counts too and cannot be seen, so a demand
/// below the limit may be over it; where it applies at all it is far likelier than a kernel out of memory.
fn is_over_memlock(facts: &Facts, bytes: u64) -> bool {
    bytes > 0 && !facts.is_memlock_exempt() && facts.memlock.soft.is_some()
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::InvalidConfig(sentence) => f.write_str(sentence),
            Cause::UnsupportedKernel { doing, release } => write!(
                f,
                "cannot {doing}: this kernel ({release}) is too old or built without io_uring; run Linux 5.11 or newer \
                 with CONFIG_IO_URING=y"
            ),
            Cause::Sysctl { level: 1 } => f.write_str(
                "the sysctl kernel.io_uring_disabled is 1, which leaves io_uring to CAP_SYS_ADMIN and to the group \
                 kernel.io_uring_group; run `sysctl -w kernel.io_uring_disabled=0`, or `sysctl -w \
                 kernel.io_uring_group=GID` with a group of this process",
            ),
            Cause::Sysctl { level } => write!(
                f,
                "the sysctl kernel.io_uring_disabled is {level}, which forbids io_uring to every process; run \
                 `sysctl -w kernel.io_uring_disabled=0`"
            ),
            Cause::Seccomp { doing, errno } => write!(
                f,
                "cannot {doing}: a seccomp filter answers {}; allow io_uring_setup, io_uring_enter and \
                 io_uring_register in it: `docker run --security-opt seccomp=PROFILE.json` (or `seccomp=unconfined`, \
                 to be sure that it is the cause), a Localhost seccompProfile in Kubernetes, or SystemCallFilter= in \
                 a systemd unit",
                errno_name(*errno)
            ),
            Cause::Policy { doing, errno } => write!(
                f,
                "cannot {doing}: the kernel answers {}, and neither a seccomp filter nor the sysctl \
                 kernel.io_uring_disabled explains it; look for a denial of SELinux, AppArmor or another \
                 security module in `journalctl -k`",
                errno_name(*errno)
            ),
            Cause::Memlock { doing, bytes, limit } => write!(
                f,
                "cannot {doing}: it locks {bytes} bytes, and RLIMIT_MEMLOCK, to which everything this user has locked \
                 counts, is {} (soft) and {} (hard); raise it with `ulimit -l {}`, or with LimitMEMLOCK= in a systemd \
                 unit",
                Bytes(limit.soft),
                Bytes(limit.hard),
                // `ulimit -l` counts in KiB. Twice the demand on top, as other programs of the user lock memory too.
                limit.soft.unwrap_or(0).saturating_add(bytes.saturating_mul(2)).div_ceil(1024)
            ),
            Cause::Memory { doing } => write!(
                f,
                "cannot {doing}: the kernel is out of memory; free some, raise the memory limit of the control group \
                 (MemoryMax=), or make the Config smaller"
            ),
            Cause::ProcessDescriptors { doing, limit } => write!(
                f,
                "cannot {doing}: the process has no descriptor left, and RLIMIT_NOFILE is {} (soft) and {} (hard); \
                 raise it with `ulimit -n`, or with LimitNOFILE= in a systemd unit",
                Count(limit.soft),
                Count(limit.hard)
            ),
            Cause::SystemDescriptors { doing } => write!(
                f,
                "cannot {doing}: the system has no descriptor left; close some, or raise `sysctl -w fs.file-max`"
            ),
            Cause::Other { doing } => {
                write!(f, "cannot {doing}")?;
                match &self.source {
                    Some(source) => write!(f, ": {source}; see what `ringmain::diagnose()` reports"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> io::Error {
        let kind = match &error.cause {
            Cause::InvalidConfig(_) => io::ErrorKind::InvalidInput,
            Cause::UnsupportedKernel { .. } => io::ErrorKind::Unsupported,
            Cause::Sysctl { .. } | Cause::Seccomp { .. } | Cause::Policy { .. } => io::ErrorKind::PermissionDenied,
            Cause::Memlock { .. } | Cause::Memory { .. } => io::ErrorKind::OutOfMemory,
            Cause::ProcessDescriptors { .. } | Cause::SystemDescriptors { .. } | Cause::Other { .. } => {
                error.source.as_ref().map_or(io::ErrorKind::Other, io::Error::kind)
            }
        };
        io::Error::new(kind, error)
    }
}

fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOSYS => "ENOSYS",
        _ => "an error",
    }
}

/// A limit in bytes, as people read it.
pub(crate) struct Bytes(pub(crate) Option<u64>);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unlimited"),
            Some(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

/// A limit in things, as people read it.
pub(crate) struct Count(pub(crate) Option<u64>);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("unlimited"),
            Some(count) => write!(f, "{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::facts::ThreadStatus;

    const MIB: u64 = 1 << 20;

    /// A machine on which nothing is in the way: an ordinary user, no filter, roomy limits.
    fn open_machine() -> Facts {
        Facts {
            release: "6.1.0".to_owned(),
            machine: "x86_64".to_owned(),
            io_uring_disabled: Some(0),
            io_uring_group: Some(-1),
            thread: Some(ThreadStatus { seccomp: Some(0), capabilities: 0, groups: vec![1000] }),
            memlock: Limit { soft: Some(8 * MIB), hard: Some(8 * MIB) },
            nofile: Limit { soft: Some(1024), hard: Some(20_000) },
            pipe_max_size: Some(MIB),
            pipe_user_pages_soft: Some(16_384),
        }
    }

    fn with(change: impl FnOnce(&mut Facts, &mut ThreadStatus)) -> Facts {
        let mut facts = open_machine();
        let mut thread = facts.thread.take().expect("the machine has a thread");
        change(&mut facts, &mut thread);
        Facts { thread: Some(thread), ..facts }
    }

    fn error(errno: i32, facts: &Facts) -> BuildError {
        let demand = Demand { doing: "set up a ring".to_owned(), bytes: MIB };
        BuildError { cause: classify(errno, facts, demand), source: Some(io::Error::from_raw_os_error(errno)) }
    }

    #[test]
    fn eperm_is_told_apart_by_sysctl_filter_and_policy() {
        const SYS_ADMIN: u64 = 1 << 21;
        let all = with(|facts, thread| (facts.io_uring_disabled, thread.capabilities) = (Some(2), SYS_ADMIN));
        assert!(error(libc::EPERM, &all).is_disabled_by_sysctl());
        let user = with(|facts, thread| (facts.io_uring_disabled, thread.seccomp) = (Some(1), Some(2)));
        assert!(error(libc::EPERM, &user).is_disabled_by_sysctl());
        let admin = with(|facts, thread| {
            (facts.io_uring_disabled, thread.capabilities, thread.seccomp) = (Some(1), SYS_ADMIN, Some(2));
        });
        assert!(error(libc::EPERM, &admin).is_seccomp());
        let member = with(|facts, thread| {
            (facts.io_uring_disabled, facts.io_uring_group, thread.seccomp) = (Some(1), Some(1000), Some(2));
        });
        assert!(error(libc::EPERM, &member).is_seccomp());
        let namespace_admin =
            with(|facts, thread| (facts.io_uring_disabled, thread.capabilities) = (Some(1), SYS_ADMIN));
        assert!(error(libc::EPERM, &namespace_admin).is_disabled_by_sysctl());
        let filtered = with(|_, thread| thread.seccomp = Some(2));
        assert!(error(libc::EPERM, &filtered).is_seccomp());
        let old_and_filtered = with(|facts, thread| (facts.io_uring_disabled, thread.seccomp) = (None, Some(2)));
        assert!(error(libc::EPERM, &old_and_filtered).is_seccomp());
        let unexplained = error(libc::EPERM, &open_machine());
        assert!(!unexplained.is_seccomp() && !unexplained.is_disabled_by_sysctl() && unexplained.is_forbidden());
        assert!(unexplained.to_string().contains("security module"), "{unexplained}");
    }

    #[test]
    fn eacces_is_a_filter_or_a_policy() {
        assert!(error(libc::EACCES, &with(|_, thread| thread.seccomp = Some(2))).is_seccomp());
        let policy = error(libc::EACCES, &open_machine());
        assert!(policy.is_forbidden() && !policy.is_seccomp());
    }

    #[test]
    fn enosys_is_an_old_kernel_or_a_filter() {
        assert!(error(libc::ENOSYS, &with(|_, thread| thread.seccomp = Some(2))).is_seccomp());
        let old = error(libc::ENOSYS, &open_machine());
        assert!(old.is_unsupported_kernel() && !old.is_forbidden());
        assert!(old.to_string().contains("6.1.0"), "{old}");
    }

    #[test]
    fn einval_after_the_last_flag_set_is_an_old_kernel() {
        assert!(error(libc::EINVAL, &open_machine()).is_unsupported_kernel());
    }

    #[test]
    fn enomem_is_the_memlock_limit_or_real_shortage() {
        const IPC_LOCK: u64 = 1 << 14;
        let small = |facts: &mut Facts| facts.memlock = Limit { soft: Some(65_536), hard: Some(131_072) };
        let limited = error(libc::ENOMEM, &with(|facts, _| small(facts)));
        assert!(limited.is_memlock_limit());
        for words in ["65536 bytes (soft)", "131072 bytes (hard)", "1048576 bytes", "ulimit -l 2112", "LimitMEMLOCK="] {
            assert!(limited.to_string().contains(words), "{limited} should say {words}");
        }
        let exempt = with(|facts, thread| {
            small(facts);
            thread.capabilities = IPC_LOCK;
        });
        assert!(!error(libc::ENOMEM, &exempt).is_memlock_limit());
        let used_up_elsewhere = error(libc::ENOMEM, &open_machine());
        assert!(used_up_elsewhere.is_memlock_limit());
        let unlimited = with(|facts, _| facts.memlock = Limit { soft: None, hard: None });
        let short = error(libc::ENOMEM, &unlimited);
        assert!(!short.is_memlock_limit() && !short.is_forbidden() && !short.is_unsupported_kernel());
        assert!(short.to_string().contains("MemoryMax="), "{short}");
        let nothing_locked = Demand { doing: "ask".to_owned(), bytes: 0 };
        assert_eq!(classify(libc::ENOMEM, &open_machine(), nothing_locked), Cause::Memory { doing: "ask".to_owned() });
    }

    #[test]
    fn a_shortage_of_descriptors_is_never_taken_for_a_missing_kernel() {
        let process = error(libc::EMFILE, &open_machine());
        assert!(process.is_out_of_descriptors() && !process.is_unsupported_kernel() && !process.is_forbidden());
        assert!(process.to_string().contains("1024 (soft) and 20000 (hard)"), "{process}");
        assert!(process.to_string().contains("ulimit -n"), "{process}");
        let system = error(libc::ENFILE, &open_machine());
        assert!(system.is_out_of_descriptors());
        assert!(system.to_string().contains("fs.file-max"), "{system}");
    }

    #[test]
    fn every_policy_says_the_command_that_helps() {
        let two = error(libc::EPERM, &with(|facts, _| facts.io_uring_disabled = Some(2))).to_string();
        assert!(two.contains("sysctl -w kernel.io_uring_disabled=0"), "{two}");
        let one = error(libc::EPERM, &with(|facts, _| facts.io_uring_disabled = Some(1))).to_string();
        assert!(one.contains("kernel.io_uring_group"), "{one}");
        let filter = error(libc::EPERM, &with(|_, thread| thread.seccomp = Some(2))).to_string();
        assert!(filter.contains("--security-opt seccomp="), "{filter}");
    }

    #[test]
    fn a_machine_without_procfs_still_gets_a_sentence() {
        let facts = Facts { thread: None, io_uring_disabled: None, io_uring_group: None, ..open_machine() };
        let refused = error(libc::EPERM, &facts);
        assert!(refused.is_forbidden());
        assert!(refused.to_string().starts_with("cannot set up a ring"), "{refused}");
    }

    #[test]
    fn the_source_is_what_the_kernel_said() {
        let refused = error(libc::EPERM, &open_machine());
        let source = refused.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.and_then(io::Error::raw_os_error), Some(libc::EPERM));
        assert!(BuildError::invalid_config("no".to_owned()).source().is_none());
    }

    #[test]
    fn as_an_io_error_the_kind_survives() {
        assert_eq!(io::Error::from(error(libc::EPERM, &open_machine())).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(io::Error::from(error(libc::EINVAL, &open_machine())).kind(), io::ErrorKind::Unsupported);
        assert_eq!(io::Error::from(error(libc::ENOMEM, &open_machine())).kind(), io::ErrorKind::OutOfMemory);
        let config = BuildError::invalid_config("no".to_owned());
        assert_eq!(io::Error::from(config).kind(), io::ErrorKind::InvalidInput);
    }
}
