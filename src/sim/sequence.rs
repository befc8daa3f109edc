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
    pub prompt_tokens: u32,
    pub wanted: u32,
    pub made: u32,
    /// Tokens that the events so far have told.
    pub shown: u32,
    pub moments: Moments,
    pub ending: Option<Ending>,
    /// The part of `meta_info` that no longer changes once the first token is made.
    pub fixed: String,
}

/// Its moments, on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub queue_start: Option<Stamp>,
    pub queue_end: Option<Stamp>,
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
            prompt_tokens: asked.prompt_tokens,
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
            UpdateKind::Queued => moments.queue_start = Some(update.at),
            UpdateKind::Admitted => moments.queue_end = Some(update.at),
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
        !matches!(update.kind, UpdateKind::Queued | UpdateKind::Admitted)
    }
}
