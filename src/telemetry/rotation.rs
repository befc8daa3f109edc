//! When a records file is rotated, and how many rotated files are kept.

use std::cmp::Reverse;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::clock::Stamp;
use crate::disk::rotated;

/// When a records file is rotated, and how many rotated ones are kept. The default: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// The maximum size of a file, unless a single block of rows is longer, bytes. 0: no limit.
    pub bytes: u64,
    /// The maximum age of a file's first row, nanoseconds. 0: no limit.
    pub age_nanos: i64,
    /// The number of rotated files kept, the newest by name. 0: all.
    pub keep: usize,
}

impl Rotation {
    /// Whether a block of `adding` bytes should go into a new file. The current file has `len` bytes, of which the header takes
    /// `header`, and its first row was written at `since`.
    pub(super) fn is_due(
        &self,
        len: u64,
        since: Option<Stamp>,
        header: u64,
        adding: u64,
        now: Stamp,
    ) -> bool {
        let is_full = self.bytes > 0 && len.saturating_add(adding) > self.bytes;
        let age = since.map(|since| now.nanos_since(since));
        let is_old = self.age_nanos > 0 && age.is_some_and(|age| age >= self.age_nanos);
        len > header && (is_full || is_old)
    }

    /// Moves the file to an unused name, and removes rotated files beyond `keep`. `header`: the length of a file without rows.
    pub(super) fn rotate(&self, path: &Path, header: u64, now: Stamp) -> io::Result<PathBuf> {
        let away = reserve(path, now)?;
        if let Err(error) = std::fs::rename(path, &away) {
            let _ = std::fs::remove_file(&away);
            return Err(error);
        }
        if self.keep > 0
            && let Err(error) = self.prune(path, header, &away)
        {
            log::warn!(
                "records: cannot remove old files beside {}: {error}",
                path.display()
            );
        }
        Ok(away)
    }

    fn prune(&self, path: &Path, header: u64, newest: &Path) -> io::Result<()> {
        let mut files = rotated(path)?;
        // The newest is kept even if its name is older, after the clock was set back.
        files.sort_by_cached_key(|file| (file.2 != newest, Reverse(file.clone())));
        let mut kept = 0;
        for (_, _, file) in files {
            if kept < self.keep {
                // Files without rows must not displace files with rows.
                let has_rows = std::fs::metadata(&file).is_ok_and(|file| file.len() > header);
                kept += usize::from(has_rows);
                continue;
            }
            match std::fs::remove_file(&file) {
                // Another process has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

/// Creates an empty file under the name of the next rotated one, so that no other process takes the name.
pub(super) fn reserve(path: &Path, now: Stamp) -> io::Result<PathBuf> {
    let at = now.compact_utc();
    let taken = rotated(path)?.into_iter().filter(|file| file.0 == at);
    // Numbers increase, so that names sort by age.
    let first = taken.map(|file| file.1 + 1).max().unwrap_or(0);
    for number in first..first.saturating_add(1000) {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{at}"));
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let away = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&away) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|_| away),
        }
    }
    Err(io::Error::other("every name for the rotated file is taken"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::NANOS;

    fn at(seconds: i64) -> Stamp {
        Stamp::from_nanos(seconds * NANOS)
    }

    #[test]
    fn no_name_is_used_twice_and_the_oldest_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.csv");
        let now = at(1_795_186_080);
        let rotation = Rotation {
            keep: 2,
            ..Rotation::default()
        };
        std::fs::write(folder.path().join("r.csv.20261120T144800Z"), "theirs").unwrap();
        for n in 0..12 {
            std::fs::write(&path, n.to_string()).unwrap();
            let away = rotation.rotate(&path, 0, now).unwrap();
            assert_eq!(std::fs::read_to_string(&away).unwrap(), n.to_string());
            assert!(away.to_str().unwrap().ends_with(&format!("Z.{}", n + 1)));
            assert!(!path.exists());
        }
        let contents = || {
            let left = rotated(&path).unwrap().into_iter();
            let texts = left.map(|(_, _, path)| std::fs::read_to_string(path).unwrap());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(contents(), ["10", "11"]);
        // After the clock was set back, the newest is kept though its name is the oldest.
        std::fs::write(&path, "12").unwrap();
        rotation.rotate(&path, 0, at(1_700_000_000)).unwrap();
        assert_eq!(contents(), ["12", "11"]);
    }
}
