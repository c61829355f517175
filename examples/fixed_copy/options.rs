//! What can be chosen on the command line.

use std::path::PathBuf;

use clap::Parser;

/// Copy a file through pages that are registered with the kernel once, with many reads and writes in flight.
///
/// Without FROM and TO it demonstrates itself: it copies real files of this machine, verifies the copies, and compares
/// itself with cp.
///
/// The copy is made under a temporary name in the directory of TO and renamed at the end, so that what has the name TO
/// is either what was there before or the whole copy, also when this is killed. Holes of FROM are holes of the copy. A
/// FROM that grows in the meantime is copied up to the length that it had. The copy gets the permissions of FROM, less
/// the set-id bits. A TO that is there is replaced, as cp would overwrite it; if it is a directory, the copy goes into
/// it; if it is a symbolic link, what that leads to is replaced.
///
/// SIGINT, SIGTERM or SIGHUP ends it: the temporary file is removed, and it says how much it had moved. SIGKILL leaves that file,
/// `.fixed_copy-PID-N`, and nothing under the name TO.
#[derive(Clone, Debug, Parser)]
#[command(name = "fixed_copy", version)]
pub(crate) struct Options {
    /// The file to copy
    #[arg(value_name = "FROM", requires = "to")]
    pub(crate) from: Option<PathBuf>,

    /// What the copy is to be called, or the directory to put it into
    #[arg(value_name = "TO")]
    pub(crate) to: Option<PathBuf>,

    /// Go past the page cache (O_DIRECT), where the filesystem can
    #[arg(long, requires = "from")]
    pub(crate) direct: bool,

    /// Reads and writes in flight at once, as many of one as of the other
    #[arg(long, value_name = "N", default_value = "16", requires = "from",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,

    /// Bytes of each read and write: a power of two from 4K to 16M, K and M allowed
    #[arg(long, value_name = "BYTES", default_value = "256K", requires = "from", value_parser = bytes)]
    pub(crate) block: u32,

    /// Read both files again and compare them before the copy gets its name; with --direct from the disk, without from
    /// the page cache
    #[arg(long, requires = "from")]
    pub(crate) verify: bool,

    /// Wait until the copy and its name are on the disk
    #[arg(long, requires = "from")]
    pub(crate) fsync: bool,

    /// Let cp copy the file too, before and after, and print a last line that compares the two; with --direct, add
    /// --fsync, or cp has not written to the disk when it ends
    #[arg(long, requires = "from")]
    pub(crate) compare_cp: bool,

    /// Show no progress: no bar on a terminal, and elsewhere no line each second, on standard error
    #[arg(short, long, requires = "from")]
    pub(crate) quiet: bool,
}

fn bytes(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u32 = digits.parse().map_err(|_| format!("`{text}` is not a size; write 65536, 64K or 1M"))?;
    match number.checked_mul(unit) {
        Some(bytes) if bytes.is_power_of_two() && (4096..=16 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("a block has a power of two of bytes, from 4K to 16M".to_owned()),
    }
}
