//! A file copier over registered pages, and the newcomer's first run of it.
//!
//! `cargo run --release --example fixed_copy` copies real files of this machine, verifies them, compares itself with
//! `cp`, and ends.
//!
//! `cargo run --release --example fixed_copy -- FROM TO` copies a file; `--help` says more.
//!
//! Where to read on: `copier.rs` is one copy, `lanes.rs` how its blocks go through the ring, and the rest is what a
//! program around them needs.

mod blocks;
mod copier;
mod cp;
mod demo;
mod draft;
mod lanes;
mod options;
mod places;
mod progress;
mod report;
mod side;
mod signals;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use copier::{Ending, Request};
use options::Options;
use signals::Stop;

fn main() -> ExitCode {
    let options = Options::parse();
    let (error, signal) = match Stop::watch() {
        Ok(stop) => match run(&options, &stop) {
            Ok(code) => return code,
            Err(error) => (error, stop.signal()),
        },
        Err(error) => (error, None),
    };
    complain(&error.to_string());
    // A terminal's signal ends cp too, which is an error here.
    signal.map_or(ExitCode::FAILURE, |signal| ExitCode::from(128 + signal))
}

fn run(options: &Options, stop: &Stop) -> io::Result<ExitCode> {
    let (Some(from), Some(to)) = (&options.from, &options.to) else { return demo::run(stop) };
    let request = Request::new(places::resolve(from, to)?, options)?;
    if options.compare_cp {
        // The first to read a file pays for bringing it into memory. A run that is thrown away pays for both.
        cp::run(&request.places, options.fsync)?;
    }
    match copier::copy(&request, stop)? {
        Ending::Stopped(stopped) => {
            complain(&stopped.to_string());
            Ok(ExitCode::from(128 + stopped.signal))
        }
        Ending::Done(report) => {
            say(&report.to_string())?;
            if options.compare_cp {
                say(&report.beside(cp::run(&request.places, options.fsync)?))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints a line where results go.
///
/// Not `println!`, which panics when the reader of a pipe has gone.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| {
        while_doing("cannot write the report to standard output, and what it is about is done", &error)
    })
}

/// Prints a sentence where complaints go.
fn complain(sentence: &str) {
    // When standard error itself is gone, nobody is left to be told.
    let _unheard = writeln!(io::stderr().lock(), "fixed_copy: {sentence}");
}

/// The error, told as the end of a sentence that says what was being done.
fn while_doing(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
