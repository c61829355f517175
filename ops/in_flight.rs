use std::error::Error;
use std::fmt;

/// A handle that could not be turned into something else, because the kernel still works on its descriptor.
///
/// An operation counts from the moment its future is made to the moment the kernel has let go of it, which for a
/// dropped one is a little after the drop.
pub struct InFlight<T> {
    handle: T,
}

impl<T> InFlight<T> {
    pub(super) fn new(handle: T) -> Self {
        Self { handle }
    }

    /// `into_inner()`: the handle, unchanged.
    pub fn into_inner(self) -> T {
        self.handle
    }
}

impl<T> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").finish_non_exhaustive()
    }
}

impl<T> fmt::Display for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("operations on this descriptor are still in flight; await or cancel them first")
    }
}

impl<T> Error for InFlight<T> {}
