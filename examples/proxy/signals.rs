//! SIGINT and SIGTERM: the first asks, the second ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Two signals that come within this time are one: `timeout(1)` sends a second at once, to its whole group.
const ONE_WISH: Duration = Duration::from_millis(50);

/// Calls `told` with the name of each signal that asks for the end. The second one ends the process on the spot, with
/// 128 and its number as shells have it, also when nothing else works any more.
///
/// # Errors
/// Those of `sigaction(2)`, `socketpair(2)` and of starting a thread.
pub(crate) fn watch(told: impl Fn(&'static str) + Send + 'static) -> io::Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            // Before anybody is told, so that who hears of the first signal can send the second.
            thread::sleep(ONE_WISH);
            asked.store(true, Ordering::Relaxed);
            told(if signal == SIGINT { "SIGINT" } else { "SIGTERM" });
        }
    })?;
    Ok(())
}
