//! The ring: submissions out, completions in. The only code that touches memory shared with the kernel.
//!
//! A closed set of implementations stands behind [`Ring`]: the kernel's, and a scripted one that a test plays.

mod attempt;
pub(crate) mod kernel;
pub(crate) mod setup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// One completion as it came from the ring.
pub(crate) struct Cqe {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

/// How long an `enter` may wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Submit and collect what is ready; never sleep.
    #[cfg_attr(not(test), expect(dead_code, reason = "the driver uses it"))]
    No,
    /// Sleep until one completion is there, or until the given time has passed. `None`: no limit.
    Until(Option<std::time::Duration>),
}
