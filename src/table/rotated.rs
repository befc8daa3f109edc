//! Finds the files to which a proxy's records were rotated.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;

/// Returns a file of records and its rotated files, the oldest first: `records.csv.20261120T144800Z`,
/// `records.csv.20261120T144800Z.1`, `records.csv`. Empty rotated files, whose name was only reserved, are left out.
///
/// # Errors
/// If the folder cannot be read.
pub fn with_rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let own = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut older = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.as_encoded_bytes().strip_prefix(own);
        let suffix = rest.and_then(|rest| rest.strip_prefix(b"."));
        let suffix = suffix.and_then(|suffix| std::str::from_utf8(suffix).ok());
        if let Some((at, number)) = suffix.and_then(parse)
            && entry.metadata()?.len() > 0
        {
            older.push((at.to_owned(), number, entry.path()));
        }
    }
    older.sort();
    let older = older.into_iter().map(|(_, _, path)| path);
    Ok(older.chain([path.to_owned()]).collect())
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

/// Parses a suffix such as `20261120T144800Z` or `20261120T144800Z.1` into time and number.
fn parse(suffix: &str) -> Option<(&str, u32)> {
    let (at, number) = suffix.split_once('.').unwrap_or((suffix, "0"));
    // `strptime` also accepts shorter numbers.
    let is_time = at.len() == 16 && DateTime::strptime("%Y%m%dT%H%M%SZ", at).is_ok();
    Some((at, number.parse().ok().filter(|_| is_time)?))
}
