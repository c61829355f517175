//! Which flags a ring is built with: stepping down from the best set to one the kernel takes.
//!
//! An unknown flag is answered with `EINVAL`, a forbidden ring with `EPERM`, a ring too large with `ENOMEM`.
//! Only the first says "try fewer flags", and only the last "try smaller"; anything else is final. No version
//! number is looked at: distributions carry features back and take them out. The walk is a function over a
//! closure that tries one flag set, so a test can play any kernel.

use std::fmt;
use std::io;

use io_uring::Parameters;

use crate::runtime::config::{Config, RingMode};
use crate::runtime::opcode::{Opcode, OpcodeSet};

// Set-up flags, by the kernel's numbers (`include/uapi/linux/io_uring.h`), with the version each came with.
pub(crate) const CQSIZE: u32 = 1 << 3; // 5.5
pub(crate) const CLAMP: u32 = 1 << 4; // 5.6
pub(crate) const SUBMIT_ALL: u32 = 1 << 7; // 5.18
pub(crate) const COOP_TASKRUN: u32 = 1 << 8; // 5.19
pub(crate) const TASKRUN_FLAG: u32 = 1 << 9; // 5.19
pub(crate) const SINGLE_ISSUER: u32 = 1 << 12; // 6.0
pub(crate) const DEFER_TASKRUN: u32 = 1 << 13; // 6.1
pub(crate) const NO_SQARRAY: u32 = 1 << 16; // 6.6

const FLAG_NAMES: [(u32, &str); 8] = [
    (SINGLE_ISSUER, "SINGLE_ISSUER"),
    (DEFER_TASKRUN, "DEFER_TASKRUN"),
    (COOP_TASKRUN, "COOP_TASKRUN"),
    (TASKRUN_FLAG, "TASKRUN_FLAG"),
    (NO_SQARRAY, "NO_SQARRAY"),
    (SUBMIT_ALL, "SUBMIT_ALL"),
    (CLAMP, "CLAMP"),
    (CQSIZE, "CQSIZE"),
];

// Feature bits, by the kernel's numbers; the runtime cannot do without the first two.
pub(crate) const FEAT_NODROP: u32 = 1 << 1; // 5.5: completions beyond the queue are kept, not lost
pub(crate) const FEAT_EXT_ARG: u32 = 1 << 8; // 5.11: an enter can be given a time limit
pub(crate) const FEAT_RECVSEND_BUNDLE: u32 = 1 << 14; // 6.10: one completion for several consecutive lent buffers
pub(crate) const FEAT_NO_IOWAIT: u32 = 1 << 17; // 6.15: an idle wait is not accounted as waiting for a disk

/// A feature: its bit, its name, and the question that the `io-uring` crate answers about it.
type Feature = (u32, &'static str, fn(&Parameters) -> bool);

const FEATURES: [Feature; 16] = [
    (1 << 0, "SINGLE_MMAP", Parameters::is_feature_single_mmap),
    (FEAT_NODROP, "NODROP", Parameters::is_feature_nodrop),
    (1 << 2, "SUBMIT_STABLE", Parameters::is_feature_submit_stable),
    (1 << 3, "RW_CUR_POS", Parameters::is_feature_rw_cur_pos),
    (1 << 4, "CUR_PERSONALITY", Parameters::is_feature_cur_personality),
    (1 << 5, "FAST_POLL", Parameters::is_feature_fast_poll),
    (1 << 6, "POLL_32BITS", Parameters::is_feature_poll_32bits),
    (1 << 7, "SQPOLL_NONFIXED", Parameters::is_feature_sqpoll_nonfixed),
    (FEAT_EXT_ARG, "EXT_ARG", Parameters::is_feature_ext_arg),
    (1 << 9, "NATIVE_WORKERS", Parameters::is_feature_native_workers),
    (1 << 10, "RSRC_TAGS", Parameters::is_feature_resource_tagging),
    (1 << 11, "CQE_SKIP", Parameters::is_feature_skip_cqe_on_success),
    (1 << 12, "LINKED_FILE", Parameters::is_feature_linked_file),
    (FEAT_RECVSEND_BUNDLE, "RECVSEND_BUNDLE", Parameters::is_feature_recvsend_bundle),
    (1 << 15, "MIN_TIMEOUT", Parameters::is_feature_min_timeout),
    (FEAT_NO_IOWAIT, "NO_IOWAIT", Parameters::is_feature_no_iowait),
];

/// The feature bits of a ring just built.
pub(crate) fn features(params: &Parameters) -> u32 {
    FEATURES.iter().filter(|(_, _, has)| has(params)).fold(0, |bits, (bit, _, _)| bits | bit)
}

const SIZED: u32 = CLAMP | CQSIZE;
const DEFER: u32 = SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG | SUBMIT_ALL | SIZED;
const COOP: u32 = COOP_TASKRUN | TASKRUN_FLAG | SUBMIT_ALL | SIZED;

/// Every flag set, best first. A kernel-side submission thread is in none of them: it burns a core.
pub(crate) const RUNGS: [u32; 6] = [DEFER | NO_SQARRAY, DEFER, COOP | SINGLE_ISSUER, COOP, SUBMIT_ALL | SIZED, SIZED];

/// The part of [`RUNGS`] that a mode allows.
pub(crate) fn rungs(mode: RingMode) -> &'static [u32] {
    match mode {
        RingMode::Auto => &RUNGS,
        RingMode::Defer => &RUNGS[..2],
        RingMode::Coop => &RUNGS[2..4],
        RingMode::Plain => &RUNGS[4..],
    }
}

/// The sizes of the two queues, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) entries: u32,
    pub(crate) completions: u32,
}

impl Size {
    /// A ring below this is not worth having: one that small which does not fit means the machine is out of memory.
    const LEAST: Size = Size { entries: 8, completions: 16 };

    /// Half of both, or `None` at the least. Completions stay at least twice the entries.
    fn halved(self) -> Option<Size> {
        let half = Size {
            entries: (self.entries / 2).max(Self::LEAST.entries).min(self.entries),
            completions: (self.completions / 2).max(Self::LEAST.completions).min(self.completions),
        };
        (half != self).then_some(half)
    }

    /// Bytes of kernel memory: 64 for a submission and its 4-byte index, 16 for a completion, one page of header.
    pub(crate) fn bytes(self) -> u64 {
        4096 + u64::from(self.entries) * (64 + 4) + u64::from(self.completions) * 16
    }
}

/// Walks down `rungs` with `attempt` until one flag set is taken.
///
/// `EINVAL` leads to the next set and `ENOMEM` to half the size; any other error ends the walk, and so does
/// the last set or the least size. The error comes with the size that was refused.
pub(crate) fn step_down<R>(
    rungs: &[u32],
    mut size: Size,
    mut attempt: impl FnMut(u32, Size) -> io::Result<R>,
) -> Result<R, (Size, io::Error)> {
    let mut rungs = rungs.iter().copied().peekable();
    loop {
        let Some(&flags) = rungs.peek() else {
            return Err((size, io::Error::from_raw_os_error(libc::EINVAL)));
        };
        let error = match attempt(flags, size) {
            Ok(ring) => return Ok(ring),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINVAL) => {
                rungs.next();
            }
            Some(libc::ENOMEM) => match size.halved() {
                Some(half) => size = half,
                None => return Err((size, error)),
            },
            _ => return Err((size, error)),
        }
    }
}

/// What a ring was built as: the flags the kernel took, the sizes it gave, and what it can do.
///
/// # Examples
///
/// ```
/// use ringmain::{Opcode, diagnose};
///
/// if let Some(setup) = diagnose().setup() {
///     println!("{} entries, flags {:?}", setup.entries(), setup.flags().collect::<Vec<_>>());
///     println!("splice in the ring: {}", setup.supports(Opcode::Splice));
/// }
/// ```
///
/// # References
///
/// `io_uring_setup(2)`.
#[derive(Clone, Debug)]
pub struct Setup {
    pub(crate) flags: u32,
    pub(crate) features: u32,
    pub(crate) asked: Size,
    pub(crate) got: Size,
    pub(crate) opcodes: OpcodeSet,
    pub(crate) is_descriptor_registered: bool,
    pub(crate) workers: Option<[u32; 2]>,
}

impl Setup {
    /// A scripted ring takes every opcode, as a kernel would that knows them all.
    pub(crate) fn scripted(config: &Config) -> Self {
        let size = Size { entries: config.entries, completions: config.completions };
        Self {
            flags: 0,
            features: FEAT_RECVSEND_BUNDLE,
            asked: size,
            got: size,
            opcodes: OpcodeSet::collect(|_| true),
            is_descriptor_registered: false,
            workers: None,
        }
    }

    /// The mode chosen: never [`RingMode::Auto`].
    #[must_use]
    pub fn mode(&self) -> RingMode {
        match self.flags {
            flags if flags & DEFER_TASKRUN != 0 => RingMode::Defer,
            flags if flags & COOP_TASKRUN != 0 => RingMode::Coop,
            _ => RingMode::Plain,
        }
    }

    /// Names of the set-up flags the kernel took, without their `IORING_SETUP_`.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> + use<> {
        flag_names(self.flags)
    }

    /// Names of the features the kernel reports, without their `IORING_FEAT_`.
    pub fn features(&self) -> impl Iterator<Item = &'static str> + use<> {
        let features = self.features;
        FEATURES.iter().filter(move |(bit, _, _)| features & bit != 0).map(|(_, name, _)| *name)
    }

    /// Submissions the ring holds.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.got.entries
    }

    /// Completions the ring holds.
    #[must_use]
    pub fn completions(&self) -> u32 {
        self.got.completions
    }

    /// Whether the ring is smaller than the configuration asked for, because memory or `RLIMIT_MEMLOCK` was short.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.got.entries < self.asked.entries || self.got.completions < self.asked.completions
    }

    /// Whether the kernel knows this opcode.
    #[must_use]
    pub fn supports(&self, opcode: Opcode) -> bool {
        self.opcodes.contains(opcode.code())
    }

    /// Whether one receive can fill several lent buffers (`IORING_RECVSEND_BUNDLE`, Linux 6.10).
    #[must_use]
    pub fn has_receive_bundles(&self) -> bool {
        self.features & FEAT_RECVSEND_BUNDLE != 0
    }

    /// How many opcodes the kernel knows, those this crate does not use included.
    #[must_use]
    pub fn opcode_count(&self) -> u32 {
        self.opcodes.len()
    }

    /// Whether the thread's enter calls name the ring by a registered index (Linux 5.18), which saves a look-up.
    ///
    /// A thread has room for 16 such rings; a further one works by its descriptor.
    #[must_use]
    pub fn is_descriptor_registered(&self) -> bool {
        self.is_descriptor_registered
    }

    /// The limits of the kernel's worker threads, for regular files and for the rest; `None` before Linux 5.15.
    #[must_use]
    pub fn worker_limits(&self) -> Option<(u32, u32)> {
        self.workers.map(|[bounded, unbounded]| (bounded, unbounded))
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.flags().collect::<Vec<_>>().join("|");
        write!(f, "{} submissions, {} completions, {flags}", self.got.entries, self.got.completions)
    }
}

fn flag_names(flags: u32) -> impl Iterator<Item = &'static str> {
    FLAG_NAMES.iter().filter(move |(bit, _)| flags & bit != 0).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Size = Size { entries: 256, completions: 4096 };

    /// A kernel that does not know the flags in `unknown` and has room for rings up to `room` bytes.
    fn kernel(unknown: u32, room: u64) -> impl FnMut(u32, Size) -> io::Result<(u32, Size)> {
        move |flags, size| match () {
            () if flags & unknown != 0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            () if size.bytes() > room => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            () => Ok((flags, size)),
        }
    }

    #[test]
    fn a_new_kernel_takes_the_full_set() {
        let (flags, size) = step_down(&RUNGS, ASKED, kernel(0, u64::MAX)).expect("nothing is in the way");
        assert_eq!((flags, size), (RUNGS[0], ASKED));
    }

    #[test]
    fn any_optional_flag_may_be_unknown() {
        for (unknown, expected) in [
            (NO_SQARRAY, RUNGS[1]),
            (DEFER_TASKRUN, RUNGS[2]),
            (SINGLE_ISSUER, RUNGS[3]),
            (SINGLE_ISSUER | COOP_TASKRUN, RUNGS[4]),
            (TASKRUN_FLAG, RUNGS[4]),
            (SUBMIT_ALL, RUNGS[5]),
            (COOP_TASKRUN, RUNGS[0]),
        ] {
            let (flags, size) = step_down(&RUNGS, ASKED, kernel(unknown, u64::MAX)).expect("a set without it is left");
            assert_eq!(flags, expected, "{:?}", flag_names(unknown).collect::<Vec<_>>());
            assert_eq!(size, ASKED, "an unknown flag says nothing about the size");
        }
    }

    #[test]
    fn a_kernel_without_the_last_set_is_refused_as_invalid() {
        let (_, error) = step_down(&RUNGS, ASKED, kernel(CLAMP, u64::MAX)).expect_err("no set is left");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_ring_too_large_is_halved_until_it_fits() {
        let room = Size { entries: 64, completions: 1024 };
        let (flags, size) = step_down(&RUNGS, ASKED, kernel(0, room.bytes())).expect("a quarter fits");
        assert_eq!((flags, size), (RUNGS[0], room));
    }

    #[test]
    fn halving_keeps_its_relation_and_ends_at_the_least() {
        let mut tried = Vec::new();
        let (size, error) = step_down(&RUNGS, ASKED, |_, size| {
            tried.push(size);
            Err::<(), _>(io::Error::from_raw_os_error(libc::ENOMEM))
        })
        .expect_err("no size fits");
        assert_eq!((size, error.raw_os_error()), (Size::LEAST, Some(libc::ENOMEM)));
        assert!(tried.iter().all(|size| size.completions >= 2 * size.entries), "{tried:?}");
        assert_eq!(tried.len(), 9, "{tried:?}");
    }

    #[test]
    fn a_ring_asked_below_the_least_is_not_made_larger() {
        let asked = Size { entries: 1, completions: 2 };
        let (size, _) = step_down(&RUNGS, asked, |_, _| Err::<(), _>(io::Error::from_raw_os_error(libc::ENOMEM)))
            .expect_err("no size fits");
        assert_eq!(size, asked);
    }

    #[test]
    fn a_refusal_for_other_reasons_is_final() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EMFILE, libc::ENFILE, libc::EACCES] {
            let mut attempts = 0;
            let (size, error) = step_down(&RUNGS, ASKED, |_, _| {
                attempts += 1;
                Err::<(), _>(io::Error::from_raw_os_error(errno))
            })
            .expect_err("refused");
            assert_eq!((attempts, size, error.raw_os_error()), (1, ASKED, Some(errno)));
        }
    }

    #[test]
    fn no_set_asks_for_a_submission_thread() {
        const SQPOLL: u32 = 1 << 1;
        assert!(RUNGS.iter().all(|flags| flags & SQPOLL == 0));
    }

    #[test]
    fn each_rung_differs_and_each_flag_has_a_name() {
        for (place, flags) in RUNGS.iter().enumerate() {
            assert!(!RUNGS[..place].contains(flags), "rung {place} is there twice");
            let named = FLAG_NAMES.iter().filter(|(bit, _)| flags & bit != 0).fold(0, |all, (bit, _)| all | bit);
            assert_eq!(named, *flags);
        }
    }
}
