//! A data set's file: read once from its start, with its checksum.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest;

use crate::traffic::error::Error;

use super::dataset::Dataset;
use super::records::{self, Format};

/// The file that a data set was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Where it is.
    pub path: PathBuf,
    /// SHA-256 of the whole file, hexadecimal.
    pub sha256: String,
    /// What was read of it, in words.
    pub taken: String,
}

/// A byte order mark: some programs write one before a text, of which it is no part.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Bytes that pass on, and their SHA-256.
struct Hashed {
    inner: File,
    sum: digest::Context,
}

impl Read for Hashed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.sum.update(into.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Bytes as hexadecimal digits.
pub(in crate::traffic) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of a file, hexadecimal.
///
/// # Errors
/// It cannot be read.
pub(in crate::traffic) fn sha256(path: &Path) -> io::Result<String> {
    Hashed::open(path)?.sum()
}

/// The data set in the file at `path`, and of what file it is.
///
/// # Errors
/// [`Error::Usage`]: the file, its line, the member or column, and what would be right.
pub(in crate::traffic) fn read(
    path: &Path,
    format: impl Format,
) -> Result<(Dataset, Source), Error> {
    let wrong = |what: &dyn Display| {
        let path = path.display();
        Error::Usage(format!("--dataset-path {path}{what}"))
    };
    let unread = |cause: io::Error| wrong(&format_args!(": {cause}"));
    let mut file = Hashed::open(path).map_err(unread)?;
    let mut start = Vec::new();
    let mut first = file.by_ref().take(MARK.len() as u64);
    first.read_to_end(&mut start).map_err(unread)?;
    let start = start.strip_prefix(MARK).unwrap_or(&start);
    let read = records::read(start.chain(&mut file), format);
    let (dataset, taken) = read.map_err(|what| wrong(&what))?;
    let source = Source {
        path: path.to_owned(),
        sha256: file.sum().map_err(unread)?,
        taken,
    };
    Ok((dataset, source))
}

impl Hashed {
    fn open(path: &Path) -> io::Result<Hashed> {
        Ok(Hashed {
            inner: File::open(path)?,
            sum: digest::Context::new(&digest::SHA256),
        })
    }

    /// Of all, read or not.
    fn sum(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(self.sum.finish().as_ref()))
    }
}
