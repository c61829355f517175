//! The table of ring configurations that tests run under: every mode, a small and a large ring, pages registered or not.

use ringmain::{Config, RingMode, Runtime};

const MODES: [RingMode; 4] = [RingMode::Auto, RingMode::Defer, RingMode::Coop, RingMode::Plain];

/// Submissions and completions: so few that every test fills them, and the default.
const SIZES: [(u32, u32); 2] = [(8, 16), (256, 4096)];

/// Run a test on a fresh runtime of each configuration. Its name is printed first, so that a failure tells which.
///
/// # Panics
/// If this kernel has none of them.
pub(crate) fn each(test: impl Fn(Runtime)) {
    each_with(|config| config, test);
}

/// As [`each`], with a change to each configuration.
///
/// # Panics
/// If this kernel has none of them.
pub(crate) fn each_with(change: impl Fn(Config) -> Config, test: impl Fn(Runtime)) {
    let mut ran = 0;
    for mode in MODES {
        for (entries, completions) in SIZES {
            for register_pages in [true, false] {
                let name = format!("{mode:?}, {entries} entries, pages registered: {register_pages}");
                let config = Config::default()
                    .mode(mode)
                    .entries(entries)
                    .completions(completions)
                    .register_pages(register_pages)
                    .pages(64);
                match Runtime::builder().config(change(config)).build() {
                    Ok(runtime) => {
                        println!("{name}");
                        test(runtime);
                        ran += 1;
                    }
                    // A mode that this kernel does not have. Everything else is a failure.
                    Err(error) if error.is_unsupported_kernel() => println!("SKIPPED: {name}: {error}"),
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
    }
    assert!(ran > 0, "this kernel has none of the ring configurations");
}
