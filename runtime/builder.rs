//! Building a runtime: a configuration, a driver, an executor.

use std::rc::Rc;

use super::block_on::Runtime;
use super::config::Config;
use super::driver::Driver;
use super::error::BuildError;
use super::registry::Registry;
use super::ring::Script;

/// How a [`Runtime`] is to be built.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Config,
    registry: Option<Registry>,
}

impl Builder {
    /// Keep these bounds.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Use the pages of this registry, which other runtimes may use as well, on this thread or on others. What the
    /// configuration says of pages is not looked at then, but for whether they are registered.
    ///
    /// Each ring has its own table of registered buffers, and pinning them counts towards RLIMIT_MEMLOCK. The first ring
    /// pins the pages that the registry begins with. A later one looks at that of the living rings that has had the
    /// registry longest: it takes over what that one has pinned, at no charge, if the kernel can do that (Linux 6.12,
    /// 6.13 for a registry that grows) and the ring is of the same thread or of none. A ring in mode
    /// [`Defer`](crate::RingMode::Defer), which is the default, or [`Coop`](crate::RingMode::Coop) is of its thread from
    /// Linux 6.0 on (`IORING_SETUP_SINGLE_ISSUER`), and the kernel refuses the others with `EEXIST`. Where nothing can be
    /// taken over the ring pins the pages once more: with one runtime on each thread, they are charged once for each
    /// runtime. What the registry grows by is pinned, and charged, once for each ring in any case.
    ///
    /// # Examples
    /// ```
    /// use ringmain::{Registry, Runtime};
    ///
    /// let registry = Registry::new(64)?;
    /// let threads = [(); 2].map(|()| {
    ///     let registry = registry.clone();
    ///     std::thread::spawn(move || {
    ///         let runtime = Runtime::builder().registry(registry).build()?;
    ///         let lease = runtime.driver().registry().try_lease(4096).expect("a page is free");
    ///         Ok::<_, ringmain::BuildError>(lease)
    ///     })
    /// });
    /// let _leases = threads.map(|thread| thread.join().expect("the thread ends"));
    /// assert_eq!(registry.snapshot().pages_leased, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # References
    /// `io_uring_register(2)` (`IORING_REGISTER_CLONE_BUFFERS`), `io_uring_setup(2)` (`IORING_SETUP_SINGLE_ISSUER`);
    /// `io_register_clone_buffers` in `io_uring/rsrc.c`.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Build the runtime on this thread, to which it stays bound.
    ///
    /// # Errors
    /// [`BuildError`] says which of kernel, seccomp, sysctl, resource limit or configuration forbids it, and what
    /// to do about it.
    pub fn build(&self) -> Result<Runtime, BuildError> {
        Ok(Runtime::with_driver(Driver::build(&self.config, self.registry.as_ref())?))
    }

    /// Build a runtime whose kernel is played by the [`Script`], for tests of operations and of what uses them.
    ///
    /// # Errors
    /// [`BuildError`] if the configuration is invalid, or memory or descriptors are out.
    ///
    /// # Examples
    /// ```
    /// use ringmain::{Runtime, ops};
    ///
    /// let (runtime, script) = Runtime::builder().build_scripted()?;
    /// script.play(|kernel| {
    ///     for pending in kernel.pending() {
    ///         kernel.complete(pending.entry.user_data, -5);
    ///     }
    /// });
    /// let error = runtime.block_on(ops::nop()).unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(5), "the played kernel answers EIO");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_scripted(&self) -> Result<(Runtime, Script), BuildError> {
        let (driver, script) = Driver::build_scripted(&self.config, self.registry.as_ref())?;
        Ok((Runtime::with_driver(driver), script))
    }
}

impl Runtime {
    /// A runtime with the default [`Config`], bound to this thread.
    ///
    /// # Errors
    /// As [`Builder::build`].
    ///
    /// # Examples
    /// ```
    /// let runtime = ringmain::Runtime::new()?;
    /// assert_eq!(runtime.block_on(async { 6 * 7 }), 42);
    /// # Ok::<(), ringmain::BuildError>(())
    /// ```
    pub fn new() -> Result<Self, BuildError> {
        Self::builder().build()
    }

    /// A builder, to choose the bounds.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn with_driver(driver: Rc<Driver>) -> Self {
        let tasks_per_turn = driver.config().tasks_per_turn as usize;
        let mut runtime = Self::with_park(driver.clone(), tasks_per_turn);
        runtime.driver = Some(driver);
        runtime
    }

    /// The driver of this runtime: its counters, its registry, what it was built as.
    #[must_use]
    pub fn driver(&self) -> &Rc<Driver> {
        self.driver.as_ref().expect("a runtime is built on a driver")
    }
}
