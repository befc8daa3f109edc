//! One answer on its way: what the engine has told of it so far.

use std::sync::Arc;

use crate::clock::Stamp;

use super::call::Asked;
use super::driver::{Update, UpdateKind};
use super::engine::Aborted;

/// One answer.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The engine's id for it.
    pub id: u64,
    pub index: usize,
    pub rid: Arc<str>,
    /// The same as a JSON string, quotes included.
    pub rid_json: String,
    pub prompt: Arc<[u32]>,
    pub prompt_tokens: u32,
    /// Prompt tokens that the prefix cache spared its first prefill.
    pub cached: u32,
    /// The data-parallel rank that works on it.
    pub rank: u32,
    pub retractions: u32,
    pub wanted: u32,
    pub made: u32,
    /// Tokens that the events so far have told.
    pub shown: u32,
    pub moments: Moments,
    pub ending: Option<Ending>,
    /// The part of `meta_info` that changes only by a retraction once the first token is made.
    pub fixed: String,
}

/// Its moments, on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub queue_start: Option<Stamp>,
    pub queue_end: Option<Stamp>,
    /// It was retracted and waits again, since then.
    pub requeued: Option<Stamp>,
    /// It was retracted the last time.
    pub retracted: Option<Stamp>,
    /// What it waited after retractions, seconds.
    pub waited_again: f64,
    pub prefill_end: Option<Stamp>,
    /// The first token reached the server's front: the driver told it.
    pub first_token: Option<Stamp>,
    /// The first event was handed to the socket.
    pub first_sent: Option<Stamp>,
    pub finish: Option<Stamp>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All tokens asked for were made.
    Length,
    /// The queue was full.
    Rejected,
    /// `/abort_request`.
    Aborted(Aborted),
}

impl Sequence {
    pub(super) fn new(id: u64, index: usize, asked: Asked) -> Sequence {
        Sequence {
            id,
            index,
            rid_json: serde_json::Value::from(asked.rid.as_str()).to_string(),
            rid: asked.rid.into(),
            prompt: asked.prompt,
            prompt_tokens: asked.prompt_tokens,
            cached: 0,
            rank: 0,
            retractions: 0,
            wanted: asked.output_tokens,
            made: 0,
            shown: 0,
            moments: Moments::default(),
            ending: None,
            fixed: String::new(),
        }
    }

    /// Takes an update in; says whether it is one that an event tells the client.
    pub(super) fn apply(&mut self, update: &Update) -> bool {
        let moments = &mut self.moments;
        match update.kind {
            UpdateKind::Queued { rank } => {
                moments.queue_start = Some(update.at);
                self.rank = rank;
            }
            UpdateKind::Admitted { cached } if moments.queue_end.is_none() => {
                moments.queue_end = Some(update.at);
                self.cached = cached;
            }
            UpdateKind::Admitted { .. } => {
                let since = moments.requeued.take().unwrap_or(update.at);
                moments.waited_again += update.at.since(since);
                self.fixed.clear();
            }
            UpdateKind::Retracted => {
                moments.requeued = Some(update.at);
                moments.retracted = Some(update.at);
                self.retractions += 1;
                self.fixed.clear();
            }
            UpdateKind::Rejected => self.ending = Some(Ending::Rejected),
            UpdateKind::Aborted(place) => self.ending = Some(Ending::Aborted(place)),
            UpdateKind::Token { last } => {
                self.made += 1;
                if self.made == 1 {
                    moments.prefill_end = Some(update.at);
                    moments.first_token = Some(update.told);
                }
                if last {
                    self.ending = Some(Ending::Length);
                }
            }
        }
        if self.ending.is_some() {
            moments.finish = Some(update.told);
        }
        // A retraction is told by an event that repeats the tokens so far, unless there are none.
        match update.kind {
            UpdateKind::Queued { .. } | UpdateKind::Admitted { .. } => false,
            UpdateKind::Retracted => self.made > 0,
            _ => true,
        }
    }
}
