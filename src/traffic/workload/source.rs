//! Reads the file of a data set and computes its checksum in one pass.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use ring::digest;

use crate::error::Error;

use super::dataset::Dataset;

/// A byte order mark, which some programs write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file whose SHA-256 is computed as it is read.
pub(in crate::traffic) struct HashedFile {
    inner: File,
    sum: digest::Context,
}

impl Read for HashedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.sum.update(into.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Formats bytes as hexadecimal digits.
pub(in crate::traffic) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computes the SHA-256 of a file, hexadecimal.
///
/// # Errors
/// It cannot be read.
pub(in crate::traffic) fn sha256(path: &Path) -> io::Result<String> {
    HashedFile::open(path)?.sum()
}

/// Reads the data set in the file at `path` by `parse`, whose error is appended to the file's name.
///
/// # Errors
/// [`Error::usage`] names the file, the line, the member or column, and what is expected.
pub(in crate::traffic) fn read(
    path: &Path,
    parse: impl FnOnce(&mut BufReader<HashedFile>) -> Result<Dataset, String>,
) -> Result<Dataset, Error> {
    let usage = |problem: &dyn Display| {
        let path = path.display();
        Error::usage(format!("--dataset-path {path}{problem}"))
    };
    let read_error = |cause: io::Error| usage(&format_args!(": {cause}"));
    let file = HashedFile::open(path).map_err(read_error)?;
    let mut file = BufReader::with_capacity(1 << 16, file);
    let start = file.fill_buf().map_err(read_error)?;
    if start.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    let mut dataset = parse(&mut file).map_err(|problem| usage(&problem))?;
    dataset.sha256 = Some(file.into_inner().sum().map_err(read_error)?);
    Ok(dataset)
}

impl HashedFile {
    fn open(path: &Path) -> io::Result<HashedFile> {
        Ok(HashedFile {
            inner: File::open(path)?,
            sum: digest::Context::new(&digest::SHA256),
        })
    }

    /// The SHA-256 of the whole file; reads what is left of it.
    fn sum(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(self.sum.finish().as_ref()))
    }
}
