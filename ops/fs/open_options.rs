use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::File;
use crate::ops::Open;
use crate::runtime::Submission;

/// How to open a [`File`]: the standard library's options, with the same meaning.
///
/// # Examples
/// ```
/// use ringmain::fs::OpenOptions;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("fresh");
/// ringmain::Runtime::new()?.block_on(async {
///     let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).await?;
///     assert_eq!(file.len()?, 0);
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
    flags: OFlags,
}

impl OpenOptions {
    /// `new()`: nothing chosen: at least one of read, write and append must be. The mode is `0o666`.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            flags: OFlags::empty(),
        }
    }

    /// `read(yes)`: whether it can be read.
    #[must_use]
    pub fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// `write(yes)`: whether it can be written.
    #[must_use]
    pub fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// `append(yes)`: whether every write goes to the end, whatever its offset.
    #[must_use]
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// `truncate(yes)`: whether what is in it goes. Needs `write`.
    #[must_use]
    pub fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// `create(yes)`: whether to make it if it is not there. Needs `write` or `append`.
    #[must_use]
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// `create_new(yes)`: whether to make it and fail if it is there. Needs `write` or `append`.
    #[must_use]
    pub fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// `mode(bits)`: the permissions of a file that this makes, less the process's umask.
    #[must_use]
    pub fn mode(mut self, bits: u32) -> Self {
        self.mode = bits;
        self
    }

    /// `flags(more)`: further flags of `open(2)`, such as `DIRECT`, `NOFOLLOW` or `DSYNC`.
    #[must_use]
    pub fn flags(mut self, more: OFlags) -> Self {
        self.flags = more;
        self
    }

    /// `open(path)`: opens the file. See [`ops::open`](crate::ops::open()).
    ///
    /// # Cancel safety
    /// Dropping it leaks nothing: what was opened for nobody is closed. A file may have been made or truncated.
    ///
    /// # Errors
    /// Those of `openat(2)`; `InvalidInput` for options that contradict each other, and for a path with a NUL byte in
    /// it.
    pub fn open(&self, path: impl AsRef<Path>) -> Submission<Open<File>> {
        let mode = if self.makes() { Mode::from_raw_mode(self.mode) } else { Mode::empty() };
        Submission::new(match self.oflags() {
            Ok(flags) => Open::new(path.as_ref(), flags, mode),
            Err(error) => Open::refused(error),
        })
    }

    fn makes(&self) -> bool {
        self.create || self.create_new || self.flags.contains(OFlags::TMPFILE)
    }

    fn oflags(&self) -> io::Result<OFlags> {
        let access = match (self.read, self.write || self.append) {
            (true, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
            (false, false) => return Err(invalid("choose at least one of read, write and append")),
        };
        if self.truncate && (!self.write || self.append) && !self.create_new {
            return Err(invalid("truncating needs write, and does not go with append"));
        }
        if (self.create || self.create_new) && !self.write && !self.append {
            return Err(invalid("making a file needs write or append"));
        }
        let mut flags = access | self.flags;
        flags.set(OFlags::APPEND, self.append || self.flags.contains(OFlags::APPEND));
        if self.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        } else {
            flags.set(OFlags::CREATE, self.create || self.flags.contains(OFlags::CREATE));
            flags.set(OFlags::TRUNC, self.truncate || self.flags.contains(OFlags::TRUNC));
        }
        Ok(flags)
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

fn invalid(sentence: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("these options open no file: {sentence}"))
}
