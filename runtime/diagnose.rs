//! What this machine allows and why: for the person who reads "Operation not permitted" and needs to know whose.

use std::fmt;

use super::config::Config;
use super::error::{BuildError, Bytes, Count};
use super::facts::Facts;
use super::opcode::Opcode;
use super::ring::KernelRing;
use super::ring::setup::Setup;

/// `diagnose()`: builds a ring as a runtime would, drops it, and reports what was found.
///
/// It never panics and needs no privilege; where io_uring is forbidden it says by what. Nothing is left behind. It
/// makes io_uring system calls, which the crate otherwise does not before a runtime is built.
///
/// # Examples
///
/// ```
/// let diagnosis = ringmain::diagnose();
/// println!("{diagnosis}");
/// ```
///
/// # References
///
/// `io_uring_setup(2)`, `proc_sys_fs(5)`, `getrlimit(2)`, `seccomp(2)`.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let outcome = KernelRing::build(&Config::default()).map(|(_, setup)| setup);
    Diagnosis { facts: Facts::gather(), outcome }
}

/// `is_supported(opcode)`: whether a ring can be built here and its kernel knows `opcode`.
///
/// It builds a small ring, asks, and drops it: some tens of microseconds, and no lasting effect. A program that
/// asks often keeps the answer, or asks a [`Setup`].
///
/// # Examples
///
/// ```
/// use ringmain::{Opcode, is_supported};
///
/// if !is_supported(Opcode::Tee) {
///     eprintln!("without {}: {}", Opcode::Tee, Opcode::Tee.without());
/// }
/// ```
///
/// # References
///
/// `io_uring_register(2)`, `IORING_REGISTER_PROBE`.
#[must_use]
pub fn is_supported(opcode: Opcode) -> bool {
    KernelRing::build(&Config::default().entries(8).completions(16)).is_ok_and(|(ring, _)| ring.supports(opcode.code()))
}

/// What [`diagnose`] found; its `Display` form is a report of some thirty lines.
///
/// # Examples
///
/// ```
/// let diagnosis = ringmain::diagnose();
/// assert_eq!(diagnosis.is_usable(), diagnosis.error().is_none());
/// ```
#[derive(Debug)]
pub struct Diagnosis {
    facts: Facts,
    outcome: Result<Setup, BuildError>,
}

impl Diagnosis {
    /// Whether a ring could be built and worked.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.outcome.is_ok()
    }

    /// What the ring was built as, if it was.
    #[must_use]
    pub fn setup(&self) -> Option<&Setup> {
        self.outcome.as_ref().ok()
    }

    /// Why no ring could be built, if none could.
    #[must_use]
    pub fn error(&self) -> Option<&BuildError> {
        self.outcome.as_ref().err()
    }
}

/// Columns that names take: the longest is that of an opcode, and a space follows it.
const WIDTH: usize = 28;

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = &self.facts;
        row(f, "kernel", format_args!("{} ({})", facts.release, facts.machine))?;
        row(f, "io_uring_disabled", Sysctl(facts))?;
        row(f, "seccomp", Seccomp(facts))?;
        let exempt = if facts.is_memlock_exempt() { "; not charged here, by CAP_IPC_LOCK" } else { "" };
        let memlock = facts.memlock;
        row(f, "RLIMIT_MEMLOCK", format_args!("soft {}, hard {}{exempt}", Bytes(memlock.soft), Bytes(memlock.hard)))?;
        row(f, "RLIMIT_NOFILE", format_args!("soft {}, hard {}", Count(facts.nofile.soft), Count(facts.nofile.hard)))?;
        row(f, "pipe-max-size", Known(facts.pipe_max_size, "bytes"))?;
        row(f, "pipe-user-pages-soft", Known(facts.pipe_user_pages_soft, "pages (0 is no limit)"))?;
        match &self.outcome {
            Ok(setup) => report(f, setup),
            Err(error) => row(f, "ring", format_args!("no: {error}")),
        }
    }
}

fn report(f: &mut fmt::Formatter<'_>, setup: &Setup) -> fmt::Result {
    let reduced = if setup.is_reduced() { " (reduced: memory or RLIMIT_MEMLOCK is short)" } else { "" };
    let sizes = format_args!("{} submissions, {} completions{reduced}", setup.entries(), setup.completions());
    row(f, "ring", format_args!("yes: {sizes}"))?;
    row(f, "mode", format_args!("{:?}", setup.mode()))?;
    row(f, "flags", setup.flags().collect::<Vec<_>>().join(" "))?;
    row(f, "features", setup.features().collect::<Vec<_>>().join(" "))?;
    let descriptor =
        if setup.is_descriptor_registered() { "registered" } else { "not registered: a look-up per enter" };
    row(f, "ring descriptor", descriptor)?;
    match setup.worker_limits() {
        Some((bounded, unbounded)) => {
            row(f, "worker threads", format_args!("at most {bounded} for regular files, {unbounded} for the rest"))?;
        }
        None => row(f, "worker threads", "limits cannot be read before Linux 5.15")?,
    }
    row(f, "opcodes", format_args!("{} known to the kernel; used here:", setup.opcode_count()))?;
    for opcode in Opcode::ALL {
        let name = format!("  {opcode}");
        if setup.supports(*opcode) {
            writeln!(f, "{name:<WIDTH$}yes")?;
        } else {
            writeln!(f, "{name:<WIDTH$}no, it needs Linux {}: {}", opcode.since(), opcode.without())?;
        }
    }
    Ok(())
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "{name:<WIDTH$}{value}")
}

/// The sysctl and what it means for this process.
struct Sysctl<'a>(&'a Facts);

impl fmt::Display for Sysctl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.io_uring_disabled {
            None => f.write_str("absent: the kernel has no such sysctl (Linux 6.6), or /proc is not readable"),
            Some(0) => f.write_str("0: every process may build a ring"),
            Some(1) if self.0.is_privileged_for_rings() => f.write_str("1: privileged processes only, and this one is"),
            Some(1) => f.write_str("1: privileged processes only, and this one is not"),
            Some(level) => write!(f, "{level}: no process may build a ring"),
        }
    }
}

/// The seccomp mode and what it means.
struct Seccomp<'a>(&'a Facts);

impl fmt::Display for Seccomp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.thread.as_ref().and_then(|thread| thread.seccomp) {
            None => f.write_str("unknown: the kernel was built without it, or /proc is not readable"),
            Some(0) => f.write_str("0: no filter"),
            Some(1) => f.write_str("1: strict, only read, write and exit are allowed"),
            Some(mode) => write!(f, "{mode}: a filter decides which system calls are allowed"),
        }
    }
}

/// A number from `/proc` with its unit.
struct Known(Option<u64>, &'static str);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number} {}", self.1),
            None => f.write_str("unknown: /proc is not readable"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_every_fact_and_every_opcode() {
        let diagnosis = diagnose();
        let report = diagnosis.to_string();
        for name in
            ["kernel", "io_uring_disabled", "seccomp", "RLIMIT_MEMLOCK", "RLIMIT_NOFILE", "pipe-max-size", "ring"]
        {
            assert!(report.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{report}");
        }
        if diagnosis.is_usable() {
            for opcode in Opcode::ALL {
                let start = format!("  {} ", opcode.name());
                assert!(report.lines().any(|line| line.starts_with(&start)), "{opcode} is missing in\n{report}");
            }
        }
    }

    #[test]
    fn a_refusal_is_reported_with_its_sentence() {
        let outcome = Err(BuildError::invalid_config("entries is 0: set it between 1 and 32768".to_owned()));
        let diagnosis = Diagnosis { facts: Facts::gather(), outcome };
        assert!(!diagnosis.is_usable());
        assert!(diagnosis.setup().is_none());
        assert!(diagnosis.to_string().contains("no: entries is 0"), "{diagnosis}");
    }

    #[test]
    fn asking_for_an_opcode_leaves_no_descriptor_behind() {
        let setup = diagnose();
        let descriptors = || {
            let directory = std::fs::read_dir("/proc/self/fd").expect("procfs is mounted");
            let links = directory.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            links.filter(|link| link.to_string_lossy().contains("io_uring")).count()
        };
        // Other tests build rings meanwhile, so the count is of many questions, not of one.
        for _ in 0..300 {
            let supported = is_supported(Opcode::Splice);
            assert_eq!(Some(supported), setup.setup().map(|setup| setup.supports(Opcode::Splice)).or(Some(false)));
        }
        assert!(descriptors() < 150, "{} rings are open", descriptors());
    }
}
