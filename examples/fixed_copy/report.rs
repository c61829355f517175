//! What a copy came to, in a line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::places::Places;

/// What copying took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// A copy that is done.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    places: Places,
    /// Bytes of data moved.
    pub(crate) bytes: u64,
    /// Bytes of holes kept.
    pub(crate) holes: u64,
    pub(crate) is_verified: bool,
    /// Without what comparing took.
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) verifying: Cost,
}

/// A copy that a signal ended.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    pub(crate) signal: u8,
    pub(crate) moved: u64,
    pub(crate) length: u64,
    pub(crate) to: PathBuf,
}

impl Report {
    pub(crate) fn new(places: &Places, bytes: u64, holes: u64) -> Self {
        let (places, zero) = (places.clone(), Duration::ZERO);
        Self { places, bytes, holes, is_verified: false, wall: zero, cpu: zero, verifying: Cost::default() }
    }

    /// The line that compares this copy with that of cp.
    pub(crate) fn beside(&self, cp: Cost) -> String {
        format!(
            "cp: {} MB in {:.3} s, {:.2} s of CPU; fixed_copy took {:.2} of its time, and {:.3} s of CPU",
            megabytes(self.bytes),
            cp.wall.as_secs_f64(),
            cp.cpu.as_secs_f64(),
            self.wall.as_secs_f64() / cp.wall.as_secs_f64(),
            self.cpu.as_secs_f64(),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.wall.as_secs_f64();
        let Places { from, to } = &self.places;
        write!(f, "{} -> {}: {} MB", from.display(), to.display(), megabytes(self.bytes))?;
        write!(f, " in {seconds:.3} s, {:.0} MB/s", self.bytes as f64 / 1e6 / seconds)?;
        if self.holes > 0 {
            write!(f, ", {} MB of holes kept", megabytes(self.holes))?;
        }
        if self.is_verified {
            write!(f, ", verified in {:.3} s", self.verifying.wall.as_secs_f64())?;
        }
        Ok(())
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = signal_hook::low_level::signal_name(self.signal.into()).unwrap_or("a signal");
        let (moved, length) = (megabytes(self.moved), megabytes(self.length));
        write!(f, "{name}: {moved} of {length} MB were moved, and are removed again; ")?;
        if self.to.exists() {
            write!(f, "{} is as it was", self.to.display())
        } else {
            write!(f, "there is no {}", self.to.display())
        }
    }
}

/// Millions of bytes, to the tenth.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
