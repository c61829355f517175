//! A TCP proxy that moves bytes without touching them, and the newcomer's first run.
//!
//! `cargo run --release --example proxy` starts an upstream of its own, pushes real files of this machine through the
//! proxy, verifies them by SHA-256, and prints what each route costs beside a hand-written epoll loop.
//!
//! `cargo run --release --example proxy -- --listen 127.0.0.1:8080 --to 127.0.0.1:80` is a proxy; `--help` says more.
//!
//! Where to read on: `worker.rs` is one ring's life, `connection.rs` one connection's, and the rest is what a program
//! around them needs.

mod address;
mod connection;
mod demo;
mod gate;
mod options;
mod peer;
mod serve;
mod signals;
mod totals;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use options::{Mode, Options};

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match options.mode() {
        Mode::Demo => demo::run(),
        Mode::Twin(upstream) => demo::play_twin(upstream),
        Mode::Proxy(service) => serve::serve(&options, service),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints a line where results go.
///
/// Not `println!`, which panics when the reader of a pipe has gone.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::BrokenPipe => "what reads it has ended; let that read on",
            io::ErrorKind::StorageFull => "free some space",
            _ => "lead it somewhere else",
        };
        io::Error::new(error.kind(), format!("cannot write to standard output: {error}; {advice}"))
    })
}

/// Prints a sentence where complaints go.
fn complain(sentence: &str) {
    // When standard error itself is gone, nobody is left to be told.
    let _unheard = writeln!(io::stderr().lock(), "proxy: {sentence}");
}
