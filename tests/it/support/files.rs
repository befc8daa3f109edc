//! Files of a folder.

use std::path::{Path, PathBuf};

/// All files in a folder and below it, in the order of their names.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let below = entries.flat_map(|entry| match entry.unwrap().path() {
        path if path.is_dir() => files(&path),
        path => vec![path],
    });
    let mut files: Vec<PathBuf> = below.collect();
    files.sort();
    files
}
