//! SIGINT and SIGTERM ask for the end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether somebody has asked for the end.
///
/// A second signal changes nothing, as `timeout(1)` sends two: what is in flight ends by itself, and the temporary file
/// has to be removed.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Takes the two signals over.
    ///
    /// # Errors
    /// Those of `sigaction(2)`.
    pub(crate) fn watch() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM] {
            flag::register_usize(number, signal.clone(), number as usize)?;
        }
        Ok(Self { signal })
    }

    /// The number of the signal that asked for the end, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}
