//! Checks where a report may be written: never over its inputs, and over other files only with `--force`, unless they are reports.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::Error;

use super::FIRST_COLUMNS;
use super::files::EXPERIMENT;

/// The beginning of a report as text in a file.
pub const TEXT_HEAD: &str = "queuescope report\n\n";
/// What a page has near its beginning.
const PAGE_MARK: &str = "<meta name=\"generator\" content=\"queuescope\">";
/// The beginnings of reports as text, Markdown and JSON, and of `queuescope whatif --profile`.
const HEADS: [&str; 4] = [
    TEXT_HEAD,
    "# Report\n\n| run |",
    "{\n  \"answers\": [",
    "# queuescope sim",
];
/// The bytes of a file that are inspected.
const HEAD_BYTES: u64 = 4096;

/// Checks, before anything is written, that all `outputs` of a report on `inputs` may be.
///
/// # Errors
/// One may not.
pub fn check(outputs: &[PathBuf], inputs: &[PathBuf], force: bool) -> Result<(), Error> {
    for (at, path) in outputs.iter().enumerate() {
        let error = |message: &str| Err(Error::read(path, message));
        let io_error = |cause| Error::read(path, cause);
        let full = |path: &Path| std::path::absolute(path).ok();
        let mut others = outputs.iter().take(at);
        if others.any(|other| full(other) == full(path)) {
            return error("two outputs would go to this file; give each its own");
        }
        match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::write(path, error)),
            Ok(found) => disk::regular(&found).map_err(io_error)?,
        }
        if let Some(input) = disk::same(path, inputs) {
            let input = input.display();
            return error(&format!(
                "is the same file as {input}, which the report is made of; give another"
            ));
        }
        if !force && !is_report(path).map_err(io_error)? {
            return error(
                "is there already, and is no report that queuescope wrote; give another file, or replace it with --force",
            );
        }
    }
    Ok(())
}

/// Checks, before anything is written, that a folder has none of `files`, and is no experiment's.
///
/// # Errors
/// It has or is.
pub fn check_folder(dir: &Path, files: &[&str]) -> Result<(), Error> {
    let mut names = files.iter().chain([&EXPERIMENT]);
    match names.find(|name| dir.join(name).symlink_metadata().is_ok()) {
        None => Ok(()),
        Some(name) => {
            let message = format!("holds {name} already; name another folder");
            Err(Error::read(dir, message))
        }
    }
}

/// Whether a file is a report of queuescope in any format but Parquet, or empty.
fn is_report(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    disk::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head);
    let is_head = |head: &str| text.starts_with(head);
    Ok(head.is_empty()
        || text.contains(PAGE_MARK)
        || HEADS.into_iter().any(is_head)
        || is_head(&FIRST_COLUMNS.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::load::tests::*;

    #[test]
    fn a_path_that_cannot_be_written_is_a_failure_and_no_wrong_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let below = check(&[file.path().join("x")], &[], false);
        assert_eq!(below.unwrap_err().code, crate::error::FAILED);
    }

    #[test]
    fn reports_are_distinguished_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let nothing = Loaded::default();
        let page = |by| format!("<html><meta name=\"generator\" content=\"{by}\">");
        for (text, is_report_of_ours) in [
            ("", true),
            ("queuescope report\n\n", true),
            ("queuescope reports", false),
            (&page("queuescope"), true),
            (&page("mkdocs"), false),
            ("run,dir,state,verdict,repeat\n", true),
            (&Report::of(&nothing).to_csv(), true),
            // Rows are what reports are made of, and nowhere else.
            ("req_id,success,arrival_time,outcome\n", false),
            ("# Report\n\n| run | ok |\n", true),
            ("# Report\n\nof mine\n", false),
            (&format!("{:#}\n", Report::of(&nothing).to_json()), true),
            ("{\n  \"runs\": []\n}", false),
            ("PAR1", false),
            ("\u{0}", false),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_report(&path).unwrap(), is_report_of_ours, "{text}");
        }
    }
}
