//! Files that are replaced atomically: if writing fails or is interrupted, the former file stays. And the names of rotated files.

use std::fs::{DirEntry, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use parking_lot::Mutex;
use tempfile::{Builder, NamedTempFile};

/// A file that is being written under a temporary name. [`NewFile::commit`] renames it to its own; dropped before, it is removed.
#[derive(Debug)]
pub struct NewFile {
    draft: NamedTempFile,
    to: PathBuf,
    /// Whether it must not replace a file.
    is_first: bool,
}

/// The temporary files that [`remove_drafts`] removes.
static DRAFTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The start and end of temporary names.
const PREFIX: &str = ".queuescope-";
const SUFFIX: &str = ".new";
/// Modes of a new file: for the owner alone, and what the process's umask leaves.
const PRIVATE: u32 = 0o600;
const USUAL: u32 = 0o666;

/// The most bytes of a line: a file that is one endless line must not be held in memory.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Removes all temporary files: for a process that ends while a thread still writes.
pub fn remove_drafts() {
    let drafts = DRAFTS.lock();
    drafts
        .iter()
        .for_each(|path| drop(std::fs::remove_file(path)));
}

/// Replaces a file atomically.
///
/// # Errors
/// The system's error; the former file then stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, false)
}

/// Replaces a file atomically. A `private` file is never readable by others.
///
/// # Errors
/// As [`replace`].
pub fn write(path: &Path, bytes: &[u8], private: bool) -> io::Result<()> {
    let mut new = NewFile::open(path, if private { PRIVATE } else { USUAL })?;
    new.write_all(bytes)?;
    new.commit()
}

/// Opens a file to read it.
///
/// # Errors
/// The system's error; or it is not a regular file: opening a named pipe would block.
pub fn open(path: &Path) -> io::Result<File> {
    regular(&std::fs::metadata(path)?)?;
    File::open(path)
}

/// Reads a file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    regular(&std::fs::metadata(path)?)?;
    std::fs::read(path)
}

/// Reads a text file. A named pipe is waited for: where nobody has opened it to write, that may be for ever, so it is logged.
///
/// # Errors
/// The system's error; or it is not text.
pub fn read_text(path: &Path) -> io::Result<String> {
    // A pipe without a name, as of `<(command)`, has its writer, and no path of its own.
    let named = path.canonicalize().and_then(std::fs::metadata);
    if named.is_ok_and(|found| found.file_type().is_fifo()) {
        let path = path.display();
        log::warn!("{path}: is a pipe: it is read once somebody writes to it");
    }
    std::fs::read_to_string(path)
}

/// Checks that this is no pipe, socket or device. Folders pass.
///
/// # Errors
/// It is one.
pub fn regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let name = match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => return Ok(()),
    };
    let message = format!("is {name}; it must be a file");
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

/// Returns the one of `others` that is the same file as `path`, by inode.
pub fn same<'a>(path: &Path, others: &'a [PathBuf]) -> Option<&'a Path> {
    let id = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let own = id(path)?;
    let mut others = others.iter().map(PathBuf::as_path);
    others.find(|other| id(other) == Some(own))
}

/// A rotated file: the parts of its name, by which files sort by age, and its path.
pub type Rotated = (String, u32, PathBuf);

/// Finds the rotated files of `path` by their names, the oldest first: `records.csv.20261120T144800Z`,
/// `records.csv.20261120T144800Z.1`.
///
/// # Errors
/// The folder cannot be read.
pub fn rotated(path: &Path) -> io::Result<Vec<Rotated>> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let own = path.file_name().unwrap_or_default().as_encoded_bytes();
    let parsed = |entry: &DirEntry| {
        let name = entry.file_name();
        let suffix = name.as_encoded_bytes().strip_prefix(own)?;
        let (at, number) = parse(str::from_utf8(suffix).ok()?.strip_prefix('.')?)?;
        Some((at.to_owned(), number, entry.path()))
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
        found.extend(parsed(&entry?));
    }
    found.sort();
    Ok(found)
}

/// Parses `20261120T144800Z` or `20261120T144800Z.1`.
fn parse(suffix: &str) -> Option<(&str, u32)> {
    let (at, number) = match suffix.split_once('.') {
        Some((at, number)) => (at, number.parse().ok().filter(|number| *number > 0)?),
        None => (suffix, 0),
    };
    // `strptime` also accepts shorter numbers.
    let is_time = at.len() == 16 && DateTime::strptime("%Y%m%dT%H%M%SZ", at).is_ok();
    is_time.then_some((at, number))
}

impl NewFile {
    /// Opens a file that replaces `path` (a symbolic link is followed) and keeps its permissions.
    ///
    /// # Errors
    /// The system's error; or `path` is not a regular file.
    pub fn replacing(path: &Path) -> io::Result<NewFile> {
        NewFile::open(path, USUAL)
    }

    /// Opens a file that must not replace one.
    ///
    /// # Errors
    /// As [`NewFile::replacing`]; or `path` exists.
    pub fn create_new(path: &Path) -> io::Result<NewFile> {
        if path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let is_first = true;
        NewFile::open(path, USUAL).map(|new| NewFile { is_first, ..new })
    }

    fn open(path: &Path, mode: u32) -> io::Result<NewFile> {
        let to = match path.is_symlink() {
            true => path.canonicalize()?,
            false => path.to_owned(),
        };
        let former = std::fs::metadata(&to).ok();
        former.as_ref().map_or(Ok(()), regular)?;
        if former.as_ref().is_some_and(Metadata::is_dir) {
            return Err(ErrorKind::IsADirectory.into());
        }
        // Private until it has the permissions of the former file.
        let first = if former.is_some() { PRIVATE } else { mode };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(first);
        let folder = to.parent().unwrap_or(Path::new(""));
        // Held until the file is registered, so that [`remove_drafts`] misses none.
        let mut drafts = DRAFTS.lock();
        let mut draft = Builder::new();
        let draft = draft.prefix(PREFIX).suffix(SUFFIX);
        let draft = draft.make_in(folder, |path| options.open(path))?;
        drafts.retain(|path| path.exists());
        drafts.push(draft.path().to_owned());
        drop(drafts);
        if let (Some(former), true) = (former, mode != PRIVATE) {
            let mode = former.permissions().mode() & 0o777;
            draft
                .as_file()
                .set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(NewFile {
            draft,
            to,
            is_first: false,
        })
    }

    /// Its temporary path.
    pub fn draft(&self) -> &Path {
        self.draft.path()
    }

    /// Syncs it to disk and renames it to its own path: after a power failure the name must not lead to a part of a file.
    ///
    /// # Errors
    /// The system's error; the former file then stays.
    pub fn commit(self) -> io::Result<()> {
        self.draft.as_file().sync_all()?;
        match self.is_first {
            true => self.draft.persist_noclobber(&self.to)?,
            false => self.draft.persist(&self.to)?,
        };
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.draft.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.draft.as_file_mut().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names = Vec::from_iter(names);
        names.sort();
        names
    }

    #[test]
    fn a_file_is_the_former_or_the_complete_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, b"one").unwrap();
        let mut given_up = NewFile::replacing(&path).unwrap();
        given_up.write_all(b"tw").unwrap();
        assert_eq!(names(folder.path()).len(), 2);
        drop(given_up);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["a"]);
        let first = NewFile::create_new(&path).unwrap_err();
        assert_eq!(first.kind(), ErrorKind::AlreadyExists);
        let late = NewFile::create_new(&folder.path().join("b")).unwrap();
        std::fs::write(folder.path().join("b"), "theirs").unwrap();
        assert_eq!(late.commit().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(folder.path().join("b")).unwrap(), b"theirs");
        assert_eq!(names(folder.path()), ["a", "b"]);
    }

    #[test]
    fn private_files_are_private_from_the_start_and_modes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let path = folder.path().join("a");
        let new = NewFile::open(&path, PRIVATE).unwrap();
        assert_eq!(mode(new.draft()), 0o600);
        new.commit().unwrap();
        assert_eq!(mode(&path), 0o600);
        replace(&path, b"x").unwrap();
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"x").unwrap();
        assert_eq!(mode(&path), 0o644);
        write(&path, b"x", true).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn links_are_followed_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("link"));
        std::fs::write(&path, "one").unwrap();
        std::os::unix::fs::symlink("a", &link).unwrap();
        replace(&link, b"two").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert!(NewFile::replacing(folder.path()).is_err());
    }
}
