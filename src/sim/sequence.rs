//! One answer on its way: what the engine has told of it so far.

use std::sync::Arc;

use crate::clock::Stamp;

use super::disaggregation::Bootstrap;
use super::driver::Update;
use super::engine::EventKind;

/// The message of a rejected request.
pub(super) const QUEUE_FULL: &str = "The request queue is full.";

/// One answer.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The engine's id for it.
    pub id: u64,
    pub index: usize,
    pub rid: Arc<str>,
    /// The same as a JSON string, quotes included.
    pub rid_json: String,
    /// What the prefix cache knows the prompt by: its tokens.
    pub prompt: Arc<[u32]>,
    /// Prompt tokens that the prefix cache spared its first prefill.
    pub cached: u32,
    /// Where the server that prefills it and the one that decodes it meet.
    pub bootstrap: Option<Bootstrap>,
    /// Tokens that it is to have.
    pub wanted: u32,
    /// When each token was made.
    pub tokens: Vec<Stamp>,
    /// Tokens that the events so far have told.
    pub shown: u32,
    pub retractions: Vec<Retraction>,
    pub moments: Moments,
    /// What it ended by.
    pub ending: Option<EventKind>,
}

/// Its moments, on the engine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    /// Of a server of a pair: it began to look for the other one.
    pub bootstrap_start: Option<Stamp>,
    /// On a decode server: there was room for it.
    pub reserved: Option<Stamp>,
    pub queue_start: Option<Stamp>,
    pub queue_end: Option<Stamp>,
    /// The first token reached the server's front: the driver told it.
    pub first_token: Option<Stamp>,
    /// The first event was handed to the socket.
    pub first_sent: Option<Stamp>,
    pub finish: Option<Stamp>,
}

/// It was taken out of the batch, to wait again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retraction {
    pub at: Stamp,
    /// Tokens made before.
    pub made: usize,
    /// It left the queue again.
    pub readmitted: Option<Stamp>,
}

impl Sequence {
    /// An answer that is asked for.
    pub(super) fn new(index: usize, rid: String, prompt: Arc<[u32]>, wanted: u32) -> Sequence {
        Sequence {
            index,
            rid_json: serde_json::Value::from(rid.as_str()).to_string(),
            rid: rid.into(),
            prompt,
            wanted,
            ..Sequence::default()
        }
    }

    /// Tokens of its prompt.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// Tokens made so far.
    pub(super) fn made(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Its prefill ended, in the model.
    pub(super) fn prefill_end(&self) -> Option<Stamp> {
        self.tokens.first().copied()
    }

    /// What it waited after retractions, seconds.
    pub(super) fn waited_again(&self) -> f64 {
        let waits = self.retractions.iter();
        waits
            .filter_map(|one| Some(one.readmitted?.since(one.at)))
            .sum()
    }

    /// It ended before it ran, or waited to run again.
    pub(super) fn never_ran(&self) -> bool {
        let admitted = match self.retractions.last() {
            Some(retraction) => retraction.readmitted,
            None => self.moments.queue_end,
        };
        let is_out = matches!(self.ending, Some(EventKind::Rejected | EventKind::Aborted));
        is_out && admitted.is_none()
    }

    /// Takes an update in; says whether it is one that an event tells the client.
    pub(super) fn apply(&mut self, update: &Update) -> bool {
        let moments = &mut self.moments;
        match update.kind {
            EventKind::Queued | EventKind::Arrived => moments.queue_start = Some(update.at),
            EventKind::Reserved => {
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
                made: self.tokens.len(),
                readmitted: None,
            }),
            EventKind::Token { .. } => {
                moments.first_token.get_or_insert(update.told);
                self.tokens.push(update.at);
            }
            EventKind::Lost => moments.first_token = Some(update.told),
            EventKind::Rejected | EventKind::Aborted => {}
        }
        if update.kind.is_end() {
            self.ending = Some(update.kind);
            moments.finish = Some(update.told);
        }
        // A retraction is told by an event that repeats the tokens so far, unless there are none.
        match update.kind {
            EventKind::Queued
            | EventKind::Reserved
            | EventKind::Arrived
            | EventKind::Admitted { .. } => false,
            EventKind::Retracted => !self.tokens.is_empty(),
            _ => true,
        }
    }
}
