//! What this machine allows and why: `cargo run --example diagnose`.
//!
//! The exit code is 0 if a ring can be built, and 1 if not.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Print what this machine allows io_uring to do, and why not more.
///
/// The exit code is 0 if a ring can be built, and 1 if not.
#[derive(Debug, Parser)]
#[command(name = "diagnose", version)]
struct Options {}

fn main() -> ExitCode {
    let Options {} = Options::parse();
    let diagnosis = ringmain::diagnose();
    match io::stdout().write_all(diagnosis.to_string().as_bytes()) {
        // Who reads the first lines only has what they want, and the exit code says the rest.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            // When standard error itself is gone, nobody is left to be told.
            let _unheard = writeln!(io::stderr(), "diagnose: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ if diagnosis.is_usable() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
