//! The files that a proxy's records were moved to when theirs was full.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;

/// A file of records with those that were rotated away from it, the oldest first: `records.csv.20261120T144800Z`,
/// `records.csv.20261120T144800Z.1`, `records.csv`. A name that was only reserved has an empty file, which is left out.
///
/// # Errors
/// What the system says.
pub fn with_older(path: &Path) -> io::Result<Vec<PathBuf>> {
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

/// What is given, without what would be read twice: what is given again, and files that were rotated away from one that is given.
pub fn once(given: &[PathBuf]) -> Vec<PathBuf> {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut read: HashSet<PathBuf> = HashSet::new();
    for path in given.iter().filter(|path| path.is_file()) {
        let files = with_older(path).unwrap_or_default();
        read.extend(files.iter().rev().skip(1).map(|file| whole(file)));
    }
    let mut given = given.to_vec();
    given.retain(|path| read.insert(whole(path)));
    given
}

/// The parts of `20261120T144800Z` or `20261120T144800Z.1`.
fn parse(suffix: &str) -> Option<(&str, u32)> {
    let (at, number) = suffix.split_once('.').unwrap_or((suffix, "0"));
    // It takes shorter numbers, too.
    let is_time = at.len() == 16 && DateTime::strptime("%Y%m%dT%H%M%SZ", at).is_ok();
    Some((at, number.parse().ok().filter(|_| is_time)?))
}
