//! The copy before it has its name.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ringmain::fs::{File, OpenOptions};

use crate::{complain, while_doing};

/// Names tried: a killed copy leaves one behind, and its process number is given out again some day.
const ATTEMPTS: u32 = 64;

/// A name in the directory of the target, for something that is not finished. Dropping it removes what has the name.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    is_kept: bool,
}

impl Draft {
    /// Makes an empty file in `folder`, for reading and writing, that only this user can open.
    ///
    /// # Errors
    /// Those of `openat(2)`, with a sentence.
    pub(crate) async fn create(folder: &Path) -> io::Result<(Self, File)> {
        let mut options = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600);
        // The permissions come with the name, so that nobody reads what FROM does not show them.
        options = options.flags(ringmain::OFlags::NOFOLLOW);
        let mut attempt = 0;
        loop {
            let draft = Self::named(folder, &attempt.to_string());
            match options.open(&draft.path).await {
                Ok(file) => return Ok((draft, file)),
                Err(error) => {
                    // Nothing of ours has the name.
                    draft.keep();
                    attempt += 1;
                    if error.kind() != ErrorKind::AlreadyExists || attempt == ATTEMPTS {
                        return Err(refused(folder, &error));
                    }
                }
            }
        }
    }

    /// A name that nothing has yet.
    pub(crate) fn named(folder: &Path, end: &str) -> Self {
        let path = folder.join(format!(".fixed_copy-{}-{end}", std::process::id()));
        Self { path, is_kept: false }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name, which takes the place of what had that before.
    ///
    /// # Errors
    /// Those of `rename(2)`, with a sentence; the file is removed then.
    pub(crate) fn publish(self, name: &Path) -> io::Result<()> {
        fs::rename(&self.path, name)
            .map_err(|error| while_doing(&format!("cannot name the copy {}", name.display()), &error))?;
        self.keep();
        Ok(())
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

fn refused(folder: &Path, error: &io::Error) -> io::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound => "; make the directory first",
        ErrorKind::PermissionDenied => "; the copy is made there, and needs the right to write to the directory",
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot make a file in {}: {error}{advice}", folder.display()))
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                complain(&format!("{} could not be removed, and is of no use: {error}", self.path.display()));
            }
            _ => {}
        }
    }
}
