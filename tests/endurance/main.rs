//! What counts the whole process: idle relays by the thousand, and a soak. One test at a time has the process.

#[path = "../data/peers.rs"]
#[allow(dead_code, reason = "each test target takes from it what it needs")]
mod peers;

mod idle;
mod process;
mod soak;

use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Have the process for oneself.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
