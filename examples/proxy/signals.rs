//! SIGINT and SIGTERM: the first asks, the second ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Calls `told` with the name of each signal that asks for the end. The second one ends the process on the spot, with
/// 128 and its number as shells have it, also when nothing else works any more.
///
/// # Errors
/// Those of `sigaction(2)`, `socketpair(2)` and of starting a thread.
pub(crate) fn watch(told: impl Fn(&'static str) + Send + 'static) -> io::Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag down, and raises it for the second.
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
        flag::register(signal, asked.clone())?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            told(if signal == SIGINT { "SIGINT" } else { "SIGTERM" });
        }
    })?;
    Ok(())
}
