//! SIGINT, SIGTERM and SIGHUP ask for the end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
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
    /// Takes the signals over.
    ///
    /// # Errors
    /// Those of `sigaction(2)`.
    pub(crate) fn watch() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM] {
            flag::register_usize(number, signal.clone(), number as usize)?;
        }
        // Under `nohup(1)` the terminal may go.
        if !is_ignored(SIGHUP) {
            flag::register_usize(SIGHUP, signal.clone(), SIGHUP as usize)?;
        }
        // A write beyond `ulimit -f` is then an error, with a sentence, and the temporary file is removed.
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { signal })
    }

    /// The number of the signal that asked for the end, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}

/// Whether the program was started with the signal ignored.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| set >> (number - 1) & 1 == 1)
}
