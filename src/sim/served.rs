//! The server's own account of the requests it served: what a proxy's records are compared with.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use parking_lot::Mutex;
use serde::{Serialize, Serializer};

use crate::clock::Stamp;

/// Entries kept in memory; older ones go.
const KEPT: usize = 100_000;

/// One generation request that reached the engine. Stamps are on the engine's clock (with its skew) and
/// written as epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Served {
    /// Request id of its first sequence.
    pub rid: String,
    /// The client's or router's `x-request-id`.
    pub x_request_id: Option<String>,
    /// The `traceparent` that it came with.
    pub traceparent: Option<String>,
    /// Path of the endpoint.
    pub endpoint: &'static str,
    /// Whether it was a stream.
    pub stream: bool,
    /// Sequences asked for (prompts times n).
    pub sequences: usize,
    /// Tokens of its prompts, each prompt once.
    pub prompt_tokens: u64,
    /// Tokens made, of all sequences.
    pub output_tokens: u64,
    /// The request was read.
    #[serde(serialize_with = "seconds")]
    pub received: Option<Stamp>,
    /// Its first sequence entered the waiting queue.
    #[serde(serialize_with = "seconds")]
    pub queue_start: Option<Stamp>,
    /// Its first sequence left the waiting queue.
    #[serde(serialize_with = "seconds")]
    pub queue_end: Option<Stamp>,
    /// The first token of any sequence.
    #[serde(serialize_with = "seconds")]
    pub first_token: Option<Stamp>,
    /// Its end: the last token of all, or the moment it was aborted or rejected.
    #[serde(serialize_with = "seconds")]
    pub finish: Option<Stamp>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole answer was handed to the socket.
    Finished,
    /// The client went away, or `/abort_request`.
    Aborted,
    /// The queue was full.
    Rejected,
}

/// Where entries go.
#[derive(Debug)]
pub(super) struct ServedLog(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    kept: VecDeque<Served>,
    file: Option<File>,
}

impl ServedLog {
    /// A log that also appends to `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or created.
    pub(super) fn create(path: Option<&Path>) -> std::io::Result<ServedLog> {
        let file = path.map(|path| File::options().create(true).append(true).open(path));
        let file = file.transpose()?;
        Ok(ServedLog(Mutex::new(Inner {
            kept: VecDeque::new(),
            file,
        })))
    }

    /// Adds an entry; whole lines only. A file that fails is given up with a word in the log.
    pub(super) fn add(&self, served: Served) {
        let mut inner = self.0.lock();
        let failed = inner.file.as_mut().and_then(|file| {
            let mut line = serde_json::to_vec(&served).unwrap_or_default();
            line.push(b'\n');
            file.write_all(&line).err()
        });
        if let Some(error) = failed {
            log::error!("the request log cannot be written and ends here: {error}");
            inner.file = None;
        }
        if inner.kept.len() == KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back(served);
    }

    /// The entries kept, in order of ending.
    pub(super) fn entries(&self) -> Vec<Served> {
        self.0.lock().kept.iter().cloned().collect()
    }
}

#[expect(clippy::ref_option, reason = "the signature serde asks for")]
fn seconds<S: Serializer>(at: &Option<Stamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(Stamp::seconds).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_there_is_added_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "before\n").unwrap();
        ServedLog::create(Some(file.path())).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "before\n");
    }
}
