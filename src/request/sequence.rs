//! One generated sequence as its events come in.

use crate::clock::Stamp;

use super::field::Field;
use super::gaps::Gaps;
use super::meta_info::{MetaInfo, Shape, Timings};
use super::names::names;
use super::token_count::TokenCountSource;

mod row;

names! {
    /// Where the engine's moments came from.
    pub enum TimingSource {
        /// The response's `meta_info`.
        MetaInfo = "meta_info",
        /// The engine's own spans.
        Trace = "trace",
        /// The engine's request log.
        Log = "log",
    }
}

#[expect(clippy::derivable_impls, reason = "`names!` makes the enum")]
impl Default for TimingSource {
    fn default() -> TimingSource {
        TimingSource::MetaInfo
    }
}

names! {
    /// Why the engine's own trace or log told nothing, or not all, of a sequence.
    pub enum Untold {
        /// It was waited for, and no span came.
        NoSpans = "no_spans",
        /// It was waited for, and no line of the log came.
        NoLogLine = "no_log_line",
        /// Some of its spans came.
        Incomplete = "incomplete",
        /// Its trace went to the server without the sampled flag, of which SGLang makes no spans.
        Unsampled = "unsampled",
        /// Too many requests waited already.
        NoRoom = "no_room",
        /// What the engine told of its times cannot be.
        Impossible = "impossible",
    }
}

/// Gathers a sequence's tokens and timings.
#[derive(Debug, Default)]
pub struct SequenceWatch {
    /// The engine's id, if one was told.
    pub(super) engine_id: Option<String>,
    /// Any event spoke of it: the places between those that came are empty.
    pub(super) has_events: bool,
    has_text: bool,
    /// When the first token of it came.
    pub(super) first_token: Option<Stamp>,
    last_token: Option<Stamp>,
    token_events: u64,
    /// The client's stalls by the first of them, and by the last.
    stalls: Option<(i64, i64)>,
    /// Most `completion_tokens` seen; after a retraction they may repeat.
    tokens: Option<u64>,
    token_source: Option<TokenCountSource>,
    /// Tokens that the first event with any brought.
    first_tokens: Option<u64>,
    /// When the latest event with a token was read, less the client's stalls, while nobody has said how many it brought.
    pending: Option<Stamp>,
    /// Keep what the quantiles of the gaps need (2.5 KB).
    gaps_in_full: bool,
    /// There was an event of which nobody said how many tokens it brought.
    uncounted: bool,
    token_gaps: Gaps,
    chunk_gaps: Gaps,
    /// The first `meta_info`, and when its event was read. From then on only one with a finish reason tells more.
    pub(super) first: Option<(Timings, Stamp)>,
    /// The latest `meta_info` that came with a finish reason.
    last: Option<Timings>,
    /// The fields of these two.
    shape: Shape,
}

/// What one event says of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct TokenEvent {
    /// When it was read.
    pub at: Stamp,
    /// How long writes to the client had been held up by then, nanoseconds.
    pub stall_nanos: i64,
    /// It brought text, or a tool call.
    pub text: bool,
    /// `completion_tokens`, where the event has it.
    pub tokens: Option<u64>,
    /// It is a whole reply, not an event of a stream: nobody saw its tokens come.
    pub whole_reply: bool,
    /// Keep what the quantiles of the gaps need (2.5 KB).
    pub gaps_in_full: bool,
}

impl SequenceWatch {
    /// Takes what an event brought.
    pub fn event(&mut self, event: TokenEvent) {
        self.has_events = true;
        self.has_text |= event.text;
        let carries_token = event.text || event.tokens.is_some_and(|tokens| tokens > 0);
        if carries_token && !event.whole_reply {
            self.first_token.get_or_insert(event.at);
            self.last_token = Some(event.at);
            let (before, _) = self.stalls.unwrap_or((event.stall_nanos, 0));
            self.stalls = Some((before, event.stall_nanos));
            self.token_events += 1;
            self.give_up_counting();
            self.gaps_in_full = event.gaps_in_full;
            self.pending = Some(event.at.plus_nanos(-event.stall_nanos));
        }
        if let Some(tokens) = event.tokens {
            self.counted(tokens, TokenCountSource::MetaInfo);
        }
    }

    /// Takes how many tokens there have been by now, those of the latest event among them.
    pub fn counted(&mut self, tokens: u64, source: TokenCountSource) {
        let before = self.tokens.unwrap_or(0);
        self.tokens = Some(before.max(tokens));
        self.token_source.get_or_insert(source);
        let Some(at) = self.pending.take() else {
            return;
        };
        let new = tokens.saturating_sub(before);
        self.chunk_gaps.event(at, 1, false);
        if !self.uncounted {
            self.first_tokens.get_or_insert(new.max(1));
            self.token_gaps.event(at, new, self.gaps_in_full);
        }
    }

    /// Nobody said how many tokens the latest event brought: gaps between tokens are unknown from here on.
    fn give_up_counting(&mut self) {
        if let Some(at) = self.pending.take() {
            self.chunk_gaps.event(at, 1, self.gaps_in_full);
            self.uncounted = true;
            self.token_gaps = Gaps::default();
        }
    }

    /// Takes a `meta_info`; `last` says that it came with a finish reason.
    pub fn timings(&mut self, meta: &MetaInfo, last: bool, at: Stamp) {
        if self.first.is_some() && !last {
            return;
        }
        let timings = meta.timings(self.first.as_ref().map(|(first, _)| first));
        self.shape = self.shape.and(meta.shape);
        self.first.get_or_insert((timings, at));
        if last {
            self.last = Some(timings);
        }
    }

    /// Whether it was prefilled by another server than the one that told this: one that entered its batch, made tokens, and
    /// never had a prefill. (An SGLang of before 0.5.12 tells its prefill otherwise.)
    pub fn is_decoded_elsewhere(&self) -> bool {
        let has = |field| self.shape.has(field);
        let ran = has(Field::ForwardEntryTime) && has(Field::QueueTime) && self.tokens > Some(0);
        ran && has(Field::NumRetractions) && !self.has_prefilled()
    }

    /// Whether the server that told this had a prefill of it.
    pub fn has_prefilled(&self) -> bool {
        let prefill = [
            Field::PrefillFinishedTime,
            Field::PrefillFinishedTs,
            Field::StorageWait,
            Field::InferenceTime,
        ];
        prefill.into_iter().any(|field| self.shape.has(field))
    }
}
