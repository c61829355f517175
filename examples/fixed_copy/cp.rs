//! The same copy by cp.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::draft::Draft;
use crate::places::Places;
use crate::report::Cost;
use crate::while_doing;

/// Lets cp copy the file into the same directory, and says what that took. The copy is removed.
///
/// # Errors
/// A sentence, if cp cannot be run or does not succeed.
pub(crate) fn run(places: &Places, fsync: bool) -> io::Result<Cost> {
    let copy = Draft::named(places.folder(), "cp");
    let (began, cpu_before) = (Instant::now(), cpu_of_children()?);
    let status = Command::new("cp")
        .arg("--")
        .args([&places.from, copy.path()])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| while_doing("cannot run cp, to compare with", &error))?;
    if !status.success() {
        let advice = if status.code().is_some() { "; see to what it has said above" } else { "" };
        return Err(io::Error::other(format!("cp, to compare with, did not succeed: {status}{advice}")));
    }
    if fsync {
        fs::File::open(copy.path())?.sync_all()?;
    }
    Ok(Cost { wall: began.elapsed(), cpu: cpu_of_children()? - cpu_before })
}

/// CPU time of all children that have ended, in steps of a clock tick (`proc_pid_stat(5)`).
fn cpu_of_children() -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is the name, in brackets; cutime and cstime are the 16th and the 17th.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').skip(13).take(2));
    let ticks: Option<u64> = fields.and_then(|fields| fields.map(|field| field.parse::<u64>().ok()).sum());
    let ticks = ticks.ok_or_else(|| io::Error::other("/proc/self/stat has no CPU time of children"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
