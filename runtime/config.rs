//! Every bound of a runtime in one place, each with its default, checked against its neighbours before anything
//! is built: a wrong number is a sentence at start, not a stall under load.

use std::time::Duration;

use super::error::BuildError;

/// The kernel's `IORING_MAX_ENTRIES`.
const ENTRIES_MAX: u32 = 32_768;
/// The kernel's `IORING_MAX_CQ_ENTRIES`.
const COMPLETIONS_MAX: u32 = 2 * ENTRIES_MAX;
/// Slots are named by 24-bit indices, and half of that space is kept in reserve.
const OPERATIONS_MAX: u32 = 1 << 23;
/// 64 GiB of 4 KiB pages: 64 registered regions of the 1 GiB the kernel allows for each.
const PAGES_MAX: u32 = 1 << 24;
/// The unit of the registry, in bytes.
const PAGE_BYTES: u32 = 4096;
/// The longest lease, and the longest buffer that the kernel describes by 32 bits and a margin.
const LENT_BYTES_MAX: u32 = 1 << 30;
/// The kernel's bound on the places of a ring of buffers.
const LENT_COUNT_MAX: u16 = 1 << 15;
/// The smallest pipe: one page.
const PIPE_SIZE_MIN: u32 = 4096;
/// The largest power of two that `F_SETPIPE_SZ` takes as its signed argument.
const PIPE_SIZE_MAX: u32 = 1 << 30;
/// Bits in the kernel's classic CPU mask, as `cpu_set_t` has them.
pub(crate) const CPUS_MAX: usize = 1024;

/// Which family of ring set-up flags to use.
///
/// # Examples
///
/// ```
/// use ringmain::{Config, RingMode};
///
/// let config = Config::default().mode(RingMode::Coop);
/// # let _ = config;
/// ```
///
/// # References
///
/// `io_uring_setup(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RingMode {
    /// The best the kernel takes: `Defer`, else `Coop`, else `Plain`.
    #[default]
    Auto,
    /// `IORING_SETUP_DEFER_TASKRUN` (Linux 6.1): completions are worked off only inside the runtime's own enter.
    Defer,
    /// `IORING_SETUP_COOP_TASKRUN` (Linux 5.19): completions wait for any system call of the thread.
    Coop,
    /// Neither: completions may interrupt the thread. Works on every kernel the crate supports.
    Plain,
}

/// The bounds of a runtime and its ring.
///
/// Every queue has one; the defaults suit a proxy with some thousand connections. A `Config` does nothing by
/// itself: no io_uring system call is made before something is built from it.
///
/// # Errors
///
/// Setters take any number. What does not fit together is refused with a sentence when the runtime is built
/// (see [`BuildError::is_invalid_config`]).
///
/// # Examples
///
/// ```
/// use ringmain::Config;
///
/// let config = Config::default().entries(64).completions(1024).ring_splices(4);
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) entries: u32,
    pub(crate) completions: u32,
    pub(crate) operations: u32,
    pub(crate) pages: u32,
    pub(crate) pages_max: Option<u32>,
    pub(crate) pages_idle: Duration,
    pub(crate) register_pages: bool,
    pub(crate) zero_copy_min: u32,
    pub(crate) lent: Option<Vec<(u32, u16)>>,
    pub(crate) pipes: u32,
    pub(crate) pipe_size: u32,
    pub(crate) ring_splices: u32,
    pub(crate) iowq_bounded: Option<u32>,
    pub(crate) iowq_unbounded: Option<u32>,
    pub(crate) iowq_affinity: Option<Vec<usize>>,
    pub(crate) tasks_per_turn: u32,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) mode: RingMode,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            entries: 256,
            completions: 4096,
            operations: 32_768,
            pages: 1024,
            pages_max: None,
            pages_idle: Duration::from_secs(60),
            register_pages: true,
            zero_copy_min: 32 << 10,
            lent: None,
            pipes: 64,
            pipe_size: 1 << 20,
            ring_splices: 8,
            iowq_bounded: None,
            iowq_unbounded: None,
            iowq_affinity: None,
            tasks_per_turn: 64,
            shutdown_timeout: Duration::from_secs(5),
            mode: RingMode::Auto,
        }
    }
}

impl Config {
    /// Submissions the ring holds before it is flushed: a power of two, at most 32,768. Default 256.
    ///
    /// It bounds a batch, not the operations in flight. Where memory or `RLIMIT_MEMLOCK` is short the ring is built
    /// smaller; [`Setup::entries`](crate::Setup::entries) tells the size got.
    #[must_use]
    pub fn entries(mut self, entries: u32) -> Config {
        self.entries = entries;
        self
    }

    /// Completions the ring holds before the kernel queues them aside: a power of two, at least twice
    /// [`entries`](Self::entries), at most 65,536. Default 4096.
    ///
    /// No completion is lost beyond it; each costs an allocation in the kernel.
    #[must_use]
    pub fn completions(mut self, completions: u32) -> Config {
        self.completions = completions;
        self
    }

    /// Operations the kernel may hold at once; more wait for their turn. At most 8,388,608. Default 32,768.
    #[must_use]
    pub fn operations(mut self, operations: u32) -> Config {
        self.operations = operations;
        self
    }

    /// Pages of 4 KiB that the registry begins with, mapped and registered when it is built, and keeps: at most
    /// 16,777,216. Default 1024, which is 4 MiB.
    #[must_use]
    pub fn pages(mut self, pages: u32) -> Config {
        self.pages = pages;
        self
    }

    /// Pages of 4 KiB that the registry may grow to: at least [`pages`](Self::pages), at most 16,777,216. Default: those,
    /// so that it does not grow.
    ///
    /// It grows when a lease does not fit, before anybody waits.
    #[must_use]
    pub fn pages_max(mut self, pages: u32) -> Config {
        self.pages_max = Some(pages);
        self
    }

    /// How long memory that the registry has grown by is all free before it is given back. Default 60 seconds.
    #[must_use]
    pub fn pages_idle(mut self, idle: Duration) -> Config {
        self.pages_idle = idle;
        self
    }

    /// Whether the pages are registered with the kernel, which pins them. Default true.
    ///
    /// Registered pages are charged to `RLIMIT_MEMLOCK` of the user unless the process has `CAP_IPC_LOCK`.
    #[must_use]
    pub fn register_pages(mut self, register_pages: bool) -> Config {
        self.register_pages = register_pages;
        self
    }

    /// Bytes from which a send that may be a zero-copy one is; shorter ones are plain. Default 32 KiB.
    ///
    /// Below some tens of KiB, copying is cheaper than to refer to the pages and be notified.
    #[must_use]
    pub fn zero_copy_min(mut self, bytes: u32) -> Config {
        self.zero_copy_min = bytes;
        self
    }

    /// Sizes of lent buffers: bytes of one, and how many of them the kernel has at once; each size a multiple of 4096, and
    /// all together no more than [`pages`](Self::pages). Default: up to 64 of 4 KiB and up to 16 of 64 KiB, no more than an
    /// eighth and a fourth of the pages.
    ///
    /// What receives into lent memory takes the smallest size that is large enough. The pages of a size are leased when it
    /// is first used, and once more if it is used incrementally too.
    #[must_use]
    pub fn lent(mut self, sizes: impl Into<Vec<(u32, u16)>>) -> Config {
        self.lent = Some(sizes.into());
        self
    }

    /// Pipes in use for relays at once; a direction that finds none copies until one is free. Default 64.
    #[must_use]
    pub fn pipes(mut self, pipes: u32) -> Config {
        self.pipes = pipes;
        self
    }

    /// Bytes asked for each such pipe: a power of two from 4096 to 1 GiB. Default 1 MiB.
    ///
    /// The kernel may give less (`/proc/sys/fs/pipe-max-size`, `pipe-user-pages-soft`); the size got is used.
    #[must_use]
    pub fn pipe_size(mut self, bytes: u32) -> Config {
        self.pipe_size = bytes;
        self
    }

    /// Splices handed to the kernel's worker threads at once; each may occupy a thread. Default 8.
    #[must_use]
    pub fn ring_splices(mut self, ring_splices: u32) -> Config {
        self.ring_splices = ring_splices;
        self
    }

    /// Worker threads the kernel may use for operations on regular files. Default: the kernel's own limit.
    ///
    /// # Kernel
    ///
    /// Linux 5.15; on an older one building fails if this is set.
    #[must_use]
    pub fn iowq_bounded(mut self, workers: u32) -> Config {
        self.iowq_bounded = Some(workers);
        self
    }

    /// Worker threads the kernel may use for everything else, splices included: at least
    /// [`ring_splices`](Self::ring_splices). Default: the kernel's own limit.
    ///
    /// A splice that is ready waits behind blocked ones once the limit is reached.
    ///
    /// # Kernel
    ///
    /// Linux 5.15; on an older one building fails if this is set.
    #[must_use]
    pub fn iowq_unbounded(mut self, workers: u32) -> Config {
        self.iowq_unbounded = Some(workers);
        self
    }

    /// CPUs, by number, that the kernel's worker threads run on. Default: those of the thread.
    ///
    /// # Kernel
    ///
    /// Linux 5.14; on an older one building fails if this is set.
    #[must_use]
    pub fn iowq_affinity(mut self, cpus: impl Into<Vec<usize>>) -> Config {
        self.iowq_affinity = Some(cpus.into());
        self
    }

    /// The most tasks that are polled between two visits to the kernel; fewer where it has less to do than is queued for it.
    /// Default 64.
    #[must_use]
    pub fn tasks_per_turn(mut self, tasks: u32) -> Config {
        self.tasks_per_turn = tasks;
        self
    }

    /// How long a shutdown waits for the kernel to let go of what is in flight; what it still holds then is
    /// leaked, never freed. Default 5 seconds.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Config {
        self.shutdown_timeout = timeout;
        self
    }

    /// The family of set-up flags. Default [`RingMode::Auto`].
    #[must_use]
    pub fn mode(mut self, mode: RingMode) -> Config {
        self.mode = mode;
        self
    }

    /// Checks every bound alone and against its neighbours.
    pub(crate) fn validate(&self) -> Result<(), BuildError> {
        power_of_two("entries", self.entries, 1, ENTRIES_MAX)?;
        power_of_two("completions", self.completions, 2, COMPLETIONS_MAX)?;
        if self.completions < 2 * self.entries {
            return invalid(format!(
                "completions is {} but entries is {}: one batch with its cancels must fit, so set completions to {} or \
                 more",
                self.completions,
                self.entries,
                2 * self.entries
            ));
        }
        within("operations", self.operations, 1, OPERATIONS_MAX)?;
        within("pages", self.pages, 1, PAGES_MAX)?;
        if let Some(pages_max) = self.pages_max {
            within("pages_max", pages_max, 1, PAGES_MAX)?;
            if pages_max < self.pages {
                return invalid(format!(
                    "pages_max is {pages_max} but pages is {}: the registry begins with that many, so raise pages_max or \
                     lower pages",
                    self.pages
                ));
            }
        }
        self.validate_lent()?;
        within("pipes", self.pipes, 1, u32::MAX)?;
        power_of_two("pipe_size", self.pipe_size, PIPE_SIZE_MIN, PIPE_SIZE_MAX)?;
        within("tasks_per_turn", self.tasks_per_turn, 1, u32::MAX)?;
        self.validate_workers()
    }

    /// Bytes of a lent buffer, and how many, of each size.
    pub(crate) fn lent_sizes(&self) -> Vec<(usize, u16)> {
        if let Some(sizes) = &self.lent {
            return sizes.iter().map(|(bytes, count)| (*bytes as usize, *count)).collect();
        }
        let small = (self.pages / 8).clamp(1, 64);
        let large = (self.pages / 64).min(16);
        let mut sizes = vec![(PAGE_BYTES as usize, small as u16)];
        if large > 0 {
            sizes.push((16 * PAGE_BYTES as usize, large as u16));
        }
        sizes
    }

    fn validate_lent(&self) -> Result<(), BuildError> {
        let sizes = self.lent.as_deref().unwrap_or_default();
        let mut pages = 0u64;
        for &(bytes, count) in sizes {
            if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || bytes > LENT_BYTES_MAX {
                return invalid(format!(
                    "lent has buffers of {bytes} bytes: set it to a multiple of {PAGE_BYTES}, at most {LENT_BYTES_MAX}"
                ));
            }
            if count == 0 || count > LENT_COUNT_MAX {
                return invalid(format!(
                    "lent has {count} buffers of {bytes} bytes: set their number between 1 and {LENT_COUNT_MAX}"
                ));
            }
            if sizes.iter().filter(|(other, _)| *other == bytes).count() > 1 {
                return invalid(format!("lent has two entries of {bytes} bytes: add their numbers up"));
            }
            pages += u64::from(bytes / PAGE_BYTES) * u64::from(count);
        }
        let most = self.pages_max.unwrap_or(self.pages);
        if pages > u64::from(most) {
            return invalid(format!(
                "lent takes {pages} pages but pages is {most} at most: raise pages to {pages} or more, or lend fewer \
                 buffers"
            ));
        }
        Ok(())
    }

    fn validate_workers(&self) -> Result<(), BuildError> {
        within("ring_splices", self.ring_splices, 1, u32::MAX)?;
        if self.ring_splices > self.operations {
            return invalid(format!(
                "ring_splices is {} but operations is {}: a splice is an operation, so raise operations or lower \
                 ring_splices",
                self.ring_splices, self.operations
            ));
        }
        // To the kernel, zero means "leave it"; a user who writes zero means something else.
        for (name, workers) in [("iowq_bounded", self.iowq_bounded), ("iowq_unbounded", self.iowq_unbounded)] {
            if let Some(workers) = workers {
                within(name, workers, 1, u32::MAX)?;
            }
        }
        if let Some(unbounded) = self.iowq_unbounded.filter(|unbounded| *unbounded < self.ring_splices) {
            return invalid(format!(
                "iowq_unbounded is {unbounded} but ring_splices is {}: a ready splice would wait behind blocked ones, \
                 so raise iowq_unbounded or lower ring_splices",
                self.ring_splices
            ));
        }
        match self.iowq_affinity.as_deref() {
            Some([]) => invalid("iowq_affinity is empty: name at least one CPU, or leave it unset".to_owned()),
            Some(cpus) => match cpus.iter().find(|cpu| **cpu >= CPUS_MAX) {
                Some(cpu) => invalid(format!("iowq_affinity names CPU {cpu}: name CPUs from 0 to {}", CPUS_MAX - 1)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}

fn power_of_two(name: &str, value: u32, min: u32, max: u32) -> Result<(), BuildError> {
    within(name, value, min, max)?;
    if value.is_power_of_two() {
        return Ok(());
    }
    let above = value.next_power_of_two();
    invalid(format!("{name} is {value}, which is not a power of two: set it to {} or {above}", above / 2))
}

fn within(name: &str, value: u32, min: u32, max: u32) -> Result<(), BuildError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    invalid(format!("{name} is {value}: set it between {min} and {max}"))
}

fn invalid(sentence: String) -> Result<(), BuildError> {
    Err(BuildError::invalid_config(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert!(Config::default().validate().is_ok());
    }

    #[test]
    fn the_limits_themselves_are_valid() {
        let least = Config::default()
            .entries(1)
            .completions(2)
            .operations(1)
            .pages(1)
            .pipes(1)
            .pipe_size(4096)
            .ring_splices(1)
            .iowq_bounded(1)
            .iowq_unbounded(1)
            .iowq_affinity([0])
            .tasks_per_turn(1)
            .shutdown_timeout(Duration::ZERO);
        assert!(least.validate().is_ok());
        let most = Config::default()
            .entries(32_768)
            .completions(65_536)
            .operations(1 << 23)
            .pages(1 << 24)
            .pipe_size(1 << 30)
            .iowq_affinity([1023]);
        assert!(most.validate().is_ok());
    }

    /// Each row breaks one rule; its sentence must name the values that clash.
    #[test]
    fn each_bound_is_refused_with_the_values_that_clash() {
        let sound = Config::default;
        let rows: [(Config, &[&str]); 26] = [
            (sound().entries(0), &["entries is 0"]),
            (sound().entries(100), &["entries is 100", "64 or 128"]),
            (sound().entries(65_536), &["entries is 65536", "32768"]),
            (sound().completions(3000), &["completions is 3000", "2048 or 4096"]),
            (sound().completions(131_072), &["completions is 131072", "65536"]),
            (sound().entries(256).completions(256), &["completions is 256", "entries is 256", "512"]),
            (sound().operations(0), &["operations is 0"]),
            (sound().operations((1 << 23) + 1), &["operations is 8388609", "8388608"]),
            (sound().pages(0), &["pages is 0"]),
            (sound().pages((1 << 24) + 1), &["pages is 16777217"]),
            (sound().pages_max((1 << 24) + 1), &["pages_max is 16777217"]),
            (sound().pages_max(1023), &["pages_max is 1023", "pages is 1024"]),
            (sound().lent([(5000, 1)]), &["5000 bytes", "4096"]),
            (sound().lent([(4096, 0)]), &["0 buffers of 4096", "32768"]),
            (sound().lent([(4096, 40_000)]), &["40000 buffers of 4096", "32768"]),
            (sound().lent([(4096, 1), (4096, 2)]), &["two entries of 4096"]),
            (sound().pages(31).lent([(65_536, 2)]), &["takes 32 pages", "pages is 31"]),
            (sound().pipes(0), &["pipes is 0"]),
            (sound().pipe_size(2048), &["pipe_size is 2048", "4096"]),
            (sound().pipe_size(100_000), &["pipe_size is 100000", "65536 or 131072"]),
            (sound().ring_splices(0), &["ring_splices is 0"]),
            (sound().operations(4), &["ring_splices is 8", "operations is 4"]),
            (sound().iowq_bounded(0), &["iowq_bounded is 0"]),
            (sound().iowq_unbounded(4), &["iowq_unbounded is 4", "ring_splices is 8"]),
            (sound().iowq_affinity([0, 1024]), &["CPU 1024", "1023"]),
            (sound().tasks_per_turn(0), &["tasks_per_turn is 0"]),
        ];
        for (config, expected) in rows {
            let error = config.validate().expect_err("the row breaks a rule");
            assert!(error.is_invalid_config(), "{error:?}");
            for words in expected {
                assert!(error.to_string().contains(words), "{error} should say {words}");
            }
        }
        assert!(sound().iowq_affinity([]).validate().is_err_and(|error| error.is_invalid_config()));
    }
}
