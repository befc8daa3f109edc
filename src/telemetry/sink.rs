//! The records file: only whole lines, one header, one time base, and a look whether it is still there.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::csv::{self, TimeBase};
use super::recorder::Error;

/// The file, while it can be written.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) path: PathBuf,
    file: Option<File>,
    header: Vec<u8>,
}

/// All times of a file have one base: rows that count from an earlier run's start go with no others.
pub(super) fn check_base(path: &Path, base: TimeBase) -> Result<(), Error> {
    let Some(first) = first_arrival(path) else {
        return Ok(());
    };
    // No run lasts for thirty years.
    let theirs_is_epoch = first > 1e9;
    let name = |is_epoch| {
        if is_epoch {
            "the epoch"
        } else {
            "the start of a run"
        }
    };
    match base {
        TimeBase::Epoch if theirs_is_epoch => Ok(()),
        _ => Err(Error::OtherBase {
            path: path.into(),
            theirs: if theirs_is_epoch {
                name(true)
            } else {
                "the start of an earlier run"
            },
            ours: name(matches!(base, TimeBase::Epoch)),
        }),
    }
}

/// The arrival of the first row that stands in a file. A device or pipe has none.
fn first_arrival(path: &Path) -> Option<f64> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut rows = ::csv::Reader::from_path(path).ok()?;
    let column = rows
        .headers()
        .ok()?
        .iter()
        .position(|name| name == "arrival_time")?;
    rows.into_records().next()?.ok()?.get(column)?.parse().ok()
}

impl Sink {
    /// Opens it; its header line must be ours.
    pub(super) fn open(path: &Path) -> Result<Sink, Error> {
        let mut header = Vec::new();
        let open = |source| Error::Open {
            path: path.into(),
            source,
        };
        csv::header(&mut header).map_err(open)?;
        let mut sink = Sink {
            path: path.into(),
            file: None,
            header,
        };
        let mut file = sink.open_file().map_err(open)?;
        if !sink.has_our_header(&mut file).map_err(open)? {
            return Err(Error::OtherHeader { path: path.into() });
        }
        sink.file = Some(file);
        // A header that cannot be written now is tried again with the first row.
        if let Err(error) = sink.write(&[]) {
            log::warn!("records: cannot write {}: {error}", path.display());
        }
        Ok(sink)
    }

    fn open_file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        // Reading finds what stands there; a device or pipe may not allow it.
        options
            .clone()
            .read(true)
            .open(&self.path)
            .or_else(|_| options.open(&self.path))
    }

    /// Whether rows can be added: an empty file, ours, or no file at all but a device. A last line that
    /// was cut short is taken off.
    fn has_our_header(&self, file: &mut File) -> io::Result<bool> {
        let meta = file.metadata()?;
        if !meta.is_file() || meta.len() == 0 {
            return Ok(!meta.is_dir());
        }
        let mut first = Vec::new();
        let limit = self.header.len() as u64;
        BufReader::new((&*file).take(limit)).read_until(b'\n', &mut first)?;
        if first != self.header {
            // Our own header, cut short by a full disk, and nothing else.
            let cut = self.header.starts_with(&first) && meta.len() == first.len() as u64;
            return if cut {
                file.set_len(0).map(|()| true)
            } else {
                Ok(false)
            };
        }
        cut_to_whole_lines(file, meta.len())?;
        Ok(true)
    }

    /// Appends whole lines; on failure the file is as it was.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if !self.is_in_place() {
            self.file = None;
        }
        if self.file.is_none() {
            let mut file = self.open_file()?;
            if !self.has_our_header(&mut file)? {
                return Err(io::Error::other("another file stands there now"));
            }
            self.file = Some(file);
        }
        let Some(file) = self.file.as_mut() else {
            return Ok(());
        };
        let meta = file.metadata()?;
        let is_new = meta.is_file() && meta.len() == 0;
        let whole = if is_new { self.header.as_slice() } else { &[] };
        let written = file.write_all(whole).and_then(|()| file.write_all(lines));
        if written.is_err() && meta.is_file() {
            file.set_len(meta.len())?;
        }
        written
    }

    /// Whether the path still leads to the open file: a removed one would swallow rows without an error.
    fn is_in_place(&self) -> bool {
        let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let (Some(file), Ok(there)) = (self.file.as_ref(), std::fs::metadata(&self.path)) else {
            return false;
        };
        let is_pipe = there.file_type().is_fifo();
        file.metadata()
            .is_ok_and(|ours| is_pipe || same(&ours, &there))
    }
}

/// Takes off what follows the last line end.
fn cut_to_whole_lines(file: &mut File, len: u64) -> io::Result<()> {
    const STEP: u64 = 4096;
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::new();
        (&*file).take(end - start).read_to_end(&mut piece)?;
        if let Some(at) = memchr::memrchr(b'\n', &piece) {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < len { file.set_len(end) } else { Ok(()) }
}
