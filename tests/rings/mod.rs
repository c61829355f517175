//! The table of ring configurations that a test of what the kernel does runs under.
//!
//! How completions are delivered, how many fit and whether pages are registered changes the order of things and the
//! opcodes, never what comes of them. So a test takes every row, and says which one it failed under.

#![allow(dead_code, reason = "each test target takes from it what it needs")]

use ringmain::{Config, RingMode, Runtime};

const MODES: [RingMode; 4] = [RingMode::Auto, RingMode::Defer, RingMode::Coop, RingMode::Plain];

/// Submissions and completions: so few that every test fills them, and the default.
const SIZES: [(u32, u32); 2] = [(8, 16), (256, 4096)];

/// Every mode, a small and a large ring, with registered pages and without.
pub(crate) fn table() -> Vec<(String, Config)> {
    let mut rows = Vec::new();
    for mode in MODES {
        for (entries, completions) in SIZES {
            for register_pages in [true, false] {
                let name = format!("{mode:?}, {entries} entries, pages registered: {register_pages}");
                let config = Config::default().mode(mode).entries(entries).completions(completions);
                rows.push((name, config.register_pages(register_pages).pages(64)));
            }
        }
    }
    rows
}

/// Run a test on a fresh runtime of each row.
pub(crate) fn each(test: impl FnMut(Runtime)) {
    each_with(|config| config, test);
}

/// As [`each`], with a change to each row.
pub(crate) fn each_with(change: impl Fn(Config) -> Config, mut test: impl FnMut(Runtime)) {
    for (name, config) in table() {
        println!("ring: {name}");
        test(build(&name, change(config)));
    }
}

/// The runtime of one row. A kernel that lacks a mode fails the test: the rows are what the crate promises to run on.
pub(crate) fn build(name: &str, config: Config) -> Runtime {
    Runtime::builder().config(config).build().unwrap_or_else(|error| panic!("no runtime with {name}: {error}"))
}
