//! What this machine allows and why: `cargo run --example diagnose`.
//!
//! The exit code is 0 if a ring can be built, and 1 if not.

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let diagnosis = ringmain::diagnose();
    io::stdout().write_all(diagnosis.to_string().as_bytes())?;
    Ok(if diagnosis.is_usable() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
