//! Finds the files to which a proxy's records were rotated.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk;

/// Returns a file of records after its rotated files, the oldest first. Empty rotated files, whose name was only reserved, are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn with_rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (_, _, older) in disk::rotated(path)? {
        if std::fs::metadata(&older)?.len() > 0 {
            files.push(older);
        }
    }
    files.push(path.to_owned());
    Ok(files)
}

/// Removes the paths whose rows would be read twice: repeated ones, and rotated files of another given file.
pub fn without_duplicates(given: &[PathBuf]) -> Vec<PathBuf> {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for path in given.iter().filter(|path| path.is_file()) {
        let files = with_rotated(path).unwrap_or_default();
        seen.extend(files.iter().rev().skip(1).map(|file| canonical(file)));
    }
    let mut given = given.to_vec();
    given.retain(|path| seen.insert(canonical(path)));
    given
}
