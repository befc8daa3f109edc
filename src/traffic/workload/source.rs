//! A data set's file: read once from its start, with its checksum.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::digest;

use crate::traffic::error::Error;

use super::jsonl::Named;

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

/// What `read` makes of the file at `path`, and of what file: `read` says in words what it took.
///
/// # Errors
/// [`Error::Usage`]: the file cannot be read, or what `read` says.
pub(in crate::traffic) fn open<T>(
    path: &Path,
    read: impl FnOnce(&mut dyn Read, Named<'_>) -> Result<(T, String), Error>,
) -> Result<(T, Source), Error> {
    let name = path.display().to_string();
    let named = Named(&name);
    let wrong = |cause: io::Error| named.wrong(&format!(": {cause}"));
    let mut file = Hashed {
        inner: File::open(path).map_err(wrong)?,
        sum: digest::Context::new(&digest::SHA256),
    };
    let mut start = Vec::new();
    let mut first = file.by_ref().take(MARK.len() as u64);
    first.read_to_end(&mut start).map_err(wrong)?;
    let start = start.strip_prefix(MARK).unwrap_or(&start);
    let (made, taken) = read(&mut start.chain(&mut file), named)?;
    // It need not have read to the end.
    io::copy(&mut file, &mut io::sink()).map_err(wrong)?;
    let source = Source {
        path: path.to_owned(),
        sha256: hex(file.sum.finish().as_ref()),
        taken,
    };
    Ok((made, source))
}
