//! One generated sequence, and the engine's updates of it so far.

use std::sync::Arc;

use crate::clock::Stamp;

use super::driver::Update;
use super::engine::EventKind;

/// The message of a rejected request.
pub(super) const QUEUE_FULL: &str = "The request queue is full.";

/// One generated sequence.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The engine's id for it.
    pub id: u64,
    pub index: usize,
    pub rid: Arc<str>,
    /// The same as a JSON string, quotes included.
    pub rid_json: String,
    /// The tokens of its prompt.
    pub prompt: Arc<[u32]>,
    /// Prompt tokens that its first prefill found in the prefix cache.
    pub cached: u32,
    /// Set on a server of a pair.
    pub bootstrap: Option<Bootstrap>,
    /// The number of tokens to generate.
    pub max_tokens: u32,
    /// When each token was generated.
    pub tokens: Vec<Stamp>,
    /// The number of tokens in the events so far.
    pub streamed: u32,
    pub retractions: Vec<Retraction>,
    pub moments: Moments,
    /// The event that ended it.
    pub ending: Option<EventKind>,
}

/// The prefill server's address and the room that both servers of a pair get for a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bootstrap {
    pub host: String,
    pub port: u16,
    pub room: u64,
}

/// Its moments, on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// Server of a pair: when it began to look for the other one.
    pub bootstrap_start: Option<Stamp>,
    /// Decode server: when memory was reserved.
    pub reserved: Option<Stamp>,
    /// When it entered the waiting queue.
    pub queue_start: Option<Stamp>,
    /// When it left the waiting queue.
    pub queue_end: Option<Stamp>,
    /// When the driver reported the first token.
    pub first_token: Option<Stamp>,
    /// When the first event was rendered, to be sent at once.
    pub first_sent: Option<Stamp>,
    /// When it ended, by its last token, an abort or a rejection.
    pub finish: Option<Stamp>,
}

/// A return from the batch to the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retraction {
    pub at: Stamp,
    /// The number of tokens generated before.
    pub generated: usize,
    /// When it left the queue again.
    pub readmitted: Option<Stamp>,
}

impl Sequence {
    /// A sequence that has not begun.
    pub(super) fn new(index: usize, rid: String, prompt: Arc<[u32]>, max_tokens: u32) -> Sequence {
        Sequence {
            index,
            rid_json: serde_json::Value::from(rid.as_str()).to_string(),
            rid: rid.into(),
            prompt,
            max_tokens,
            ..Sequence::default()
        }
    }

    /// The number of tokens of its prompt.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// The number of tokens generated so far.
    pub(super) fn generated(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// When its prefill ended, in the model.
    pub(super) fn prefill_end(&self) -> Option<Stamp> {
        self.tokens.first().copied()
    }

    /// The time that it waited after retractions, seconds.
    pub(super) fn waited_again(&self) -> f64 {
        let waits = self.retractions.iter();
        waits
            .filter_map(|one| Some(one.readmitted?.since(one.at)))
            .sum()
    }

    /// Whether it ended in the queue, before it ran or after a retraction.
    pub(super) fn never_ran(&self) -> bool {
        let last = self.retractions.last();
        let admitted = last.map_or(self.moments.queue_end, |last| last.readmitted);
        let is_out = matches!(self.ending, Some(EventKind::Rejected | EventKind::Aborted));
        is_out && admitted.is_none()
    }

    /// Applies an update. Returns whether an event reports it to the client.
    pub(super) fn apply(&mut self, update: &Update) -> bool {
        let moments = &mut self.moments;
        match update.kind {
            EventKind::Queued | EventKind::Arrived => moments.queue_start = Some(update.at),
            EventKind::Reserved => {
                // Until now it was queued for memory; the waiting queue begins when it has arrived.
                moments.bootstrap_start = moments.queue_start.take();
                moments.reserved = Some(update.at);
            }
            EventKind::Admitted { cached } => match self.retractions.last_mut() {
                Some(retraction) => retraction.readmitted = Some(update.at),
                None => {
                    moments.queue_end = Some(update.at);
                    self.cached = cached;
                }
            },
            EventKind::Retracted => self.retractions.push(Retraction {
                at: update.at,
                generated: self.tokens.len(),
                readmitted: None,
            }),
            EventKind::Token { .. } => {
                moments.first_token.get_or_insert(update.reported_at);
                self.tokens.push(update.at);
            }
            EventKind::Lost => moments.first_token = Some(update.reported_at),
            EventKind::Rejected | EventKind::Aborted => {}
        }
        if update.kind.is_end() {
            self.ending = Some(update.kind);
            moments.finish = Some(update.reported_at);
        }
        // After a retraction an event repeats the tokens so far, unless there are none.
        match update.kind {
            EventKind::Retracted => !self.tokens.is_empty(),
            EventKind::Token { .. } => true,
            kind => kind.is_end(),
        }
    }
}
