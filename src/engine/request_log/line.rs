//! Parses the lines of a request log, which arrive in pieces of any size. Only the few needed values of a line are stored.

use crate::request::engine_report::EngineReport;
use crate::request::field::Field;
use crate::request::meta_info::{LOG_LINE, MetaInfo};
use crate::request::scalar::Scalar;
use crate::request::scan::{Progress, Scanner, Sink};
use crate::request::sequence::TimingSource;

/// Parses one line after another.
#[derive(Debug)]
pub(super) struct Lines {
    scanner: Scanner,
    found: Found,
    /// Whether the current line is skipped, since its beginning was not read.
    is_skipped: bool,
}

#[derive(Debug, Default)]
struct Found {
    id: Option<String>,
    tokens: Option<u64>,
    meta: MetaInfo,
}

impl Sink for Found {
    fn scalar(&mut self, field: Field, value: Scalar<'_>) {
        match field {
            Field::EngineId => self.id = value.string(),
            Field::CompletionTokens => self.tokens = value.count(),
            Field::Meta(member) => self.meta.keep(member, value),
            _ => {}
        }
    }

    fn text(&mut self, _field: Field, _piece: &[u8]) {}
}

impl Lines {
    /// Starts at the beginning of a line, or within one that `is_skipped`.
    pub(super) fn new(is_skipped: bool) -> Lines {
        Lines {
            scanner: Scanner::new(&LOG_LINE),
            found: Found::default(),
            is_skipped,
        }
    }

    /// Parses the next piece of a file. Adds the report of each complete line.
    pub(super) fn feed(&mut self, mut bytes: &[u8], reports: &mut Vec<EngineReport>) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.piece(bytes.get(..end).unwrap_or_default());
            reports.extend(self.report());
            *self = Lines::new(false);
            bytes = bytes.get(end + 1..).unwrap_or_default();
        }
        self.piece(bytes);
    }

    fn piece(&mut self, bytes: &[u8]) {
        if !self.is_skipped {
            self.scanner.feed(bytes, &mut self.found);
        }
    }

    /// Returns the report of the line that has ended.
    fn report(&self) -> Option<EngineReport> {
        let found = &self.found;
        if self.is_skipped || self.scanner.progress() != Progress::Whole {
            return None;
        }
        Some(EngineReport {
            rid: Some(found.id.clone()?),
            output_tokens: found.tokens,
            ..EngineReport::of_meta_info(TimingSource::Log, &found.meta, None)
        })
    }
}
