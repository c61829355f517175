//! Ends a run that hangs, with an error: a lost wake or completion must not look like a benchmark that takes long.

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Longer than any variant takes, and than a benchmark's own limits, whose errors say more.
const LIMIT: Duration = Duration::from_secs(300);

/// A thread that waits for each run to end.
pub(super) struct Watchdog {
    runs: Sender<Option<String>>,
}

impl Watchdog {
    pub(super) fn start() -> Self {
        let (runs, begun) = mpsc::channel::<Option<String>>();
        thread::spawn(move || {
            // Between two runs it waits without a limit; it ends when the benchmark drops its side.
            while let Ok(run) = begun.recv() {
                let Some(name) = run else { continue };
                if begun.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                    eprintln!("{name} did not end within {LIMIT:?}: it hangs, and the benchmark with it");
                    process::exit(1);
                }
            }
        });
        Self { runs }
    }

    /// Runs this under watch.
    pub(super) fn watch<R>(&self, name: &str, run: impl FnOnce() -> R) -> R {
        self.tell(Some(name.to_owned()));
        let result = run();
        self.tell(None);
        result
    }

    fn tell(&self, run: Option<String>) {
        self.runs.send(run).expect("the watching thread lives as long as the benchmark");
    }
}
