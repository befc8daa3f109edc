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

/// What a request's headers call it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) x_request_id: Option<String>,
    pub(super) traceparent: Option<String>,
    pub(super) tracestate: Option<String>,
}

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) is_sampled: bool,
}

#[derive(Debug)]
struct Inner {
    kept: VecDeque<Served>,
    file: Option<File>,
}

impl Named {
    /// The span that the request is to be a child of; `None` without a `traceparent` that can be read.
    pub(super) fn parent(&self) -> Option<Parent> {
        let mut parts = self.traceparent.as_deref()?.trim().splitn(5, '-');
        let mut number = |digits: usize| {
            let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            let part = parts.next()?;
            let is_right = part.len() == digits && part.bytes().all(is_hex);
            is_right.then(|| u128::from_str_radix(part, 16).ok())?
        };
        let (version, trace, span, flags) = (number(2)?, number(32)?, number(16)?, number(2)?);
        // Version 00 has exactly four parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let span = u64::try_from(span).ok()?;
        (trace > 0 && span > 0).then_some(Parent {
            trace,
            span,
            is_sampled: flags & 1 == 1,
        })
    }
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
    fn a_traceparent_that_is_none_begins_no_span() {
        let parent = |text: &str| {
            let named = Named {
                x_request_id: None,
                traceparent: Some(text.to_owned()),
                tracestate: None,
            };
            named.parent()
        };
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let right = parent(&format!("00-{ids}-01")).unwrap();
        assert_eq!(
            (right.span, right.is_sampled),
            (0xb7ad_6b71_6920_3331, true)
        );
        assert_eq!(parent(&format!("cc-{ids}-01-more")), Some(right));
        for wrong in [
            format!("ff-{ids}-01"),
            format!("00-{ids}-01-more"),
            format!("00-{ids}-+1"),
            format!("{ids}-01"),
            format!("00-{}-01", ids.to_uppercase()),
            format!("0-{ids}-01"),
        ] {
            assert_eq!(parent(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_log_that_is_there_is_added_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "before\n").unwrap();
        ServedLog::create(Some(file.path())).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "before\n");
    }
}
