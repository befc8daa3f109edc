//! Where a report may be written: onto nothing that it is made of, nor, unasked, over what is another's.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader as _, SerializedFileReader};

use crate::disk;
use crate::table::Error;

use super::files::EXPERIMENT;
use super::runs::SHEET;

/// What the text of a report begins with in a file.
pub const TEXT: &str = "queuescope report\n\n";
/// What pages, sheets and Markdown begin with, or have near their beginning.
const PAGE: &str = "<meta name=\"generator\" content=\"queuescope\">";
const MARKDOWN: &str = "# Report\n\n| run |";
const JSON: &str = "{\n  \"answers\": [";
/// What `queuescope whatif --profile` begins with.
const PROFILE: &str = "# queuescope sim";
const OLDER_JSON: &str = "{\n  \"comparison\": [";
/// So many bytes tell.
const LOOKED_AT: u64 = 4096;

/// Looks, before anything is written, whether all `outputs` may be: of a report that is made of `inputs`.
///
/// # Errors
/// One may not.
pub fn check(outputs: &[PathBuf], inputs: &[PathBuf], force: bool) -> Result<(), Error> {
    for (at, path) in outputs.iter().enumerate() {
        let wrong = |what: &str| Err(Error::read(path, what));
        let file = |cause| Error::read(path, cause);
        let is_twice = |other: &PathBuf| {
            let full = |path: &Path| std::path::absolute(path).ok();
            full(other) == full(path) || disk::same(path, std::slice::from_ref(other)).is_some()
        };
        if outputs.iter().take(at).any(is_twice) {
            return wrong("two outputs would go to this file; give each its own");
        }
        match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => disk::regular(&found.map_err(file)?).map_err(file)?,
        }
        if let Some(input) = disk::same(path, inputs) {
            let input = input.display();
            return wrong(&format!(
                "is the same file as {input}, which the report is made of; give another"
            ));
        }
        if !force && !is_ours(path).map_err(file)? {
            return wrong(
                "is there already, and is no report that queuescope wrote; give another file, or replace it with --force",
            );
        }
    }
    Ok(())
}

/// Looks, before anything is written, whether `files` may be made in a folder that was given: it must hold none of them, nor be an
/// experiment's, whose runs have folders of their own.
///
/// # Errors
/// It may not.
pub fn check_folder(dir: &Path, files: &[&str]) -> Result<(), Error> {
    let mut names = files.to_vec();
    names.push(EXPERIMENT);
    names.retain(|name| dir.join(name).symlink_metadata().is_ok());
    names.dedup();
    match names.is_empty() {
        true => Ok(()),
        false => Err(Error::read(
            dir,
            format!("holds {} already; name another folder", names.join(", ")),
        )),
    }
}

/// Whether a file is a report, in any form, or nothing.
///
/// # Errors
/// It cannot be read.
fn is_ours(path: &Path) -> io::Result<bool> {
    let file = disk::open(path)?;
    let mut head = Vec::new();
    (&file).take(LOOKED_AT).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head);
    if head.is_empty() || text.contains(PAGE) {
        return Ok(true);
    }
    Ok(match head.first() {
        Some(b'P') => is_our_parquet(file),
        _ => [TEXT, &SHEET.join(","), MARKDOWN, JSON, OLDER_JSON, PROFILE]
            .iter()
            .any(|mark| text.starts_with(mark)),
    })
}

/// By its first columns, see [`crate::table::parquet`].
fn is_our_parquet(file: File) -> bool {
    SerializedFileReader::new(file).is_ok_and(|reader| {
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let first = columns.iter().map(|column| column.name()).take(3);
        first.eq(["run", "began", "req_id"])
    })
}

#[cfg(test)]
mod tests {
    use super::super::reader::Loaded;
    use super::super::runs::Report;
    use super::*;

    #[test]
    fn what_is_no_report_is_anothers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let nothing = Loaded {
            experiment: None,
            runs: Vec::new(),
        };
        for (text, ours) in [
            ("", true),
            ("queuescope report\n\n", true),
            ("queuescope reports", false),
            (
                "<html><meta name=\"generator\" content=\"queuescope\">",
                true,
            ),
            ("<html><meta name=\"generator\" content=\"mkdocs\">", false),
            ("run,dir,state,verdict,repeat\n", true),
            (&Report::of(&nothing).to_csv(), true),
            // Rows are what reports are made of, and nowhere else.
            ("req_id,success,arrival_time,outcome\n", false),
            ("# Report\n\n| run | ok |\n", true),
            ("# Report\n\nof mine\n", false),
            (&format!("{:#}\n", Report::of(&nothing).to_json()), true),
            ("{\n  \"comparison\": [\n", true),
            ("{\n  \"runs\": []\n}", false),
            ("PAR1", false),
            ("\u{0}", false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_ours(&path).unwrap(), ours, "{text}");
        }
    }
}
