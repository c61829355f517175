//! How far it is: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::rc::Rc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ringmain::{JoinHandle, interval};

use crate::complain;
use crate::lanes::Pass;
use crate::report::megabytes;

const REDRAW: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Shows how far a pass is. Dropping it ends that, and removes the bar.
#[derive(Debug)]
pub(crate) struct Progress {
    task: Option<JoinHandle<()>>,
    bar: Option<ProgressBar>,
}

/// Shows how far `pass` is, as a task of its own, so that a block costs nothing for it.
pub(crate) fn show(pass: &Rc<Pass>, verb: &'static str, length: u64, quiet: bool) -> Progress {
    if quiet {
        return Progress { task: None, bar: None };
    }
    let pass = pass.clone();
    if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template(
            "{msg} [{wide_bar}] {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
        )
        .expect("the template is right");
        let bar = ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_message(verb);
        let drawn = bar.clone();
        let task = ringmain::spawn(async move {
            let mut ticks = interval(REDRAW);
            loop {
                ticks.tick().await;
                drawn.set_position(pass.moved() + pass.holes());
            }
        });
        return Progress { task: Some(task), bar: Some(bar) };
    }
    let task = ringmain::spawn(async move {
        loop {
            ringmain::sleep(LINE_EVERY).await;
            complain(&format!("{verb} {} of {} MB", megabytes(pass.moved() + pass.holes()), megabytes(length)));
        }
    });
    Progress { task: Some(task), bar: None }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
