//! From where to where: the file that is read, and the name that the copy gets.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::while_doing;

/// The two ends of a copy, looked at and found to be sensible.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) from: PathBuf,
    /// The name that the copy gets: in a directory, and no symbolic link.
    pub(crate) to: PathBuf,
}

/// What `FROM TO` means.
///
/// # Errors
/// A sentence that says what is wrong with one of them.
pub(crate) fn resolve(from: &Path, to: &Path) -> io::Result<Places> {
    let source = fs::metadata(from).map_err(|error| while_doing(&format!("cannot copy {}", from.display()), &error))?;
    if source.is_dir() {
        let sentence = format!("{} is a directory, and this copies single files; try cp -r", from.display());
        return Err(io::Error::new(ErrorKind::IsADirectory, sentence));
    }
    if !source.is_file() {
        let sentence = format!("{} is a pipe, a socket or a device, and this copies regular files", from.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
    }
    let to = name_of_copy(from, to)?;
    match fs::metadata(&to) {
        Ok(target) => check_replaceable(&source, from, &target, &to)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(while_doing(&format!("cannot write {}", to.display()), &error)),
    }
    Ok(Places { from: from.to_owned(), to })
}

impl Places {
    /// The directory that the copy will be in.
    pub(crate) fn folder(&self) -> &Path {
        self.to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// Into a directory under the old name, through a symbolic link to where that leads, and as it is otherwise.
fn name_of_copy(from: &Path, to: &Path) -> io::Result<PathBuf> {
    let mut to = to.to_owned();
    if to.is_dir() {
        let name = from.file_name().ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, format!("{} ends in no file's name", from.display()))
        })?;
        to.push(name);
    }
    if to.is_symlink() {
        match fs::canonicalize(&to) {
            Ok(target) => to = target,
            // Those of `/proc/self/fd` lead to what has no name: it is looked at as it is.
            Err(_) if fs::metadata(&to).is_ok_and(|target| !target.is_file()) => {}
            Err(error) => {
                let what = format!(
                    "{} is a symbolic link that leads nowhere; remove it, or choose another name",
                    to.display()
                );
                return Err(while_doing(&what, &error));
            }
        }
    } else if to.as_os_str().as_bytes().ends_with(b"/") {
        let sentence = format!("{} is no directory; make it first, or leave the `/` at its end out", to.display());
        return Err(io::Error::new(ErrorKind::NotADirectory, sentence));
    }
    if to.file_name().is_none() {
        let sentence = format!("`{}` is no name for a file", to.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
    }
    Ok(to)
}

fn check_replaceable(source: &Metadata, from: &Path, target: &Metadata, to: &Path) -> io::Result<()> {
    if (source.dev(), source.ino()) == (target.dev(), target.ino()) {
        let sentence = format!("{} and {} are the same file", from.display(), to.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
    }
    if target.is_dir() {
        let sentence = format!("{} is a directory, which a file cannot replace", to.display());
        return Err(io::Error::new(ErrorKind::IsADirectory, sentence));
    }
    if !target.is_file() {
        let sentence = format!("{} is a pipe, a socket or a device, which a copy would replace", to.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
    }
    Ok(())
}
