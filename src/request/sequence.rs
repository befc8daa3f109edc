//! One generated sequence as its events come in.

use crate::clock::Stamp;

use super::field::Field;
use super::gaps::{GapCounts, GapFigures, Gaps};
use super::generation::Generation;
use super::meta_info::{MetaInfo, Shape, Timings};
use super::names::names;
use super::timeline::{Moment, Timeline};
use super::token_count::TokenCountSource;

/// What is known of one generated sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Place among the request's sequences.
    pub index: u32,
    /// The engine's id of it.
    pub engine_id: Option<String>,
    /// Any text came.
    pub has_text: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens generated, as the engine says.
    pub output_tokens: Option<u64>,
    /// Where [`Sequence::output_tokens`] came from.
    pub token_source: Option<TokenCountSource>,
    /// Tokens that the first event with any brought, where each event's are known.
    pub first_event_tokens: Option<u64>,
    /// Events that carried a token.
    pub token_events: u64,
    /// How long writes to the client were held up between the first and the last of them, nanoseconds.
    pub stall_nanos: i64,
    /// Prompt tokens served from the cache.
    pub cached_tokens: Option<u64>,
    /// Times the scheduler took it out of the batch again.
    pub num_retractions: Option<u64>,
    /// Data-parallel rank.
    pub dp_rank: Option<u64>,
    /// Total queue time when the pair of moments is unknown, nanoseconds.
    pub queue_nanos: Option<i64>,
    /// Where the engine's moments came from.
    pub timing_source: Option<TimingSource>,
    /// The SGLang that its last `meta_info` is of; `None` of what never ran.
    pub generation: Option<Generation>,
    /// Tokens generated, as the engine's trace says.
    pub trace_tokens: Option<u64>,
    /// Moments that another source puts elsewhere, and that source.
    pub differing: Vec<(Moment, TimingSource)>,
    /// Why the engine's trace or log brought nothing, where it was asked.
    pub untold: Option<Untold>,
    /// Gaps between tokens, where each event's tokens are known; see [`Record::itl`].
    pub token_gaps: GapFigures,
    /// Gaps between events that carried a token, whatever their number.
    pub chunk_gaps: GapFigures,
    /// How many of those gaps there are of which length: between tokens, where each event's are known, else between
    /// events. Known of the first few sequences of a request, within the process that saw them; see [`Record::gaps`].
    ///
    /// [`Record::gaps`]: super::record::Record::gaps
    pub gap_counts: Option<GapCounts>,
}

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
    engine_id: Option<String>,
    has_events: bool,
    has_text: bool,
    first_token: Option<Stamp>,
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
    /// The first `meta_info`, and when its event was read.
    first: Option<(Timings, Stamp)>,
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
    /// Takes the engine's id, unless there is one.
    pub fn engine_id(&mut self, id: impl FnOnce() -> Option<String>) {
        if self.engine_id.is_none() {
            self.engine_id = id();
        }
    }

    /// The engine's id, if one was told.
    pub fn told_id(&self) -> Option<&str> {
        self.engine_id.as_deref()
    }

    /// Whether any event spoke of it: the places between those that came are empty.
    pub fn has_events(&self) -> bool {
        self.has_events
    }

    /// Whether a token of it has come.
    pub fn has_token(&self) -> bool {
        self.first_token.is_some()
    }

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

    /// Whether a `meta_info` came: only one with a finish reason tells more.
    pub fn has_timings(&self) -> bool {
        self.first.is_some()
    }

    /// Takes a `meta_info`; `last` says that it came with a finish reason.
    pub fn timings(&mut self, meta: &MetaInfo, last: bool, at: Stamp) {
        if self.first.is_some() && !last {
            return;
        }
        let timings = meta.timings(self.first.as_ref().map(|(first, _)| first));
        self.shape = self.shape.and(meta.shape());
        self.first.get_or_insert((timings, at));
        if last {
            self.last = Some(timings);
        }
    }

    /// The server's first write and when it was read: `None` where the engine did not say.
    pub fn first_write(&self) -> Option<(Stamp, Stamp)> {
        let (timings, read) = self.first.as_ref()?;
        Some((timings.response_sent?, *read))
    }

    /// Puts the sequence's own moments on a timeline that holds the request's.
    pub fn mark(&self, timeline: &mut Timeline) {
        let mut set = |moment, at: Option<Stamp>| timeline.set(moment, at);
        set(Moment::FirstToken, self.first_token);
        set(Moment::LastToken, self.last_token);
        let (first, last) = (
            self.first.as_ref().map(|(timings, _)| timings),
            self.last.as_ref(),
        );
        let queue = first.and_then(|first| first.queue(last));
        set(Moment::QueueStart, queue.map(|(start, _)| start));
        set(Moment::QueueEnd, queue.map(|(_, end)| end));
        let prefill_end = first.and_then(|timings| timings.prefill_finished);
        set(Moment::PrefillEnd, prefill_end);
        let told = |get: fn(&Timings) -> Option<Stamp>| last.and_then(get).or(first.and_then(get));
        set(Moment::ServerCreated, told(|timings| timings.received));
        let is_late = self.shape.first_is_output() && self.first_token.is_none();
        let first_token = last.or(first).and_then(|timings| timings.first_token);
        let first_token = first_token.filter(|_| !is_late).or(prefill_end);
        set(Moment::ServerFirstToken, first_token);
        set(
            Moment::ServerFinish,
            last.and_then(|timings| timings.finished),
        );
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

    /// The sequence's part of a record.
    pub fn into_sequence(mut self, index: u32) -> Sequence {
        self.give_up_counting();
        let first = self.first.map(|(timings, _)| timings);
        let either = |get: fn(&Timings) -> Option<u32>| {
            let told = self.last.as_ref().and_then(get);
            let told = told.or_else(|| first.as_ref().and_then(get));
            told.map(u64::from)
        };
        let has_moments = |timings: &Option<Timings>| timings.is_some_and(|t| t.has_moments());
        let gap_counts = match self.uncounted {
            true => self.chunk_gaps.counts(),
            false => self.token_gaps.counts(),
        };
        let last = self.last.as_ref();
        let only_total = first.filter(|first| first.queue(last).is_none());
        let by_scheduler = first.is_some_and(|first| first.prefill_finished.is_some());
        // What never ran (a full queue, an abort in the queue) has hardly any field, whoever writes it.
        let has_run = last.filter(|last| last.prompt_tokens.is_some());
        let generation = has_run.map(|_| Generation::of(self.shape, by_scheduler));
        Sequence {
            index,
            engine_id: self.engine_id,
            has_text: self.has_text,
            prompt_tokens: either(|timings| timings.prompt_tokens),
            output_tokens: self.tokens,
            token_source: self.token_source,
            first_event_tokens: self.first_tokens.filter(|_| !self.uncounted),
            token_events: self.token_events,
            stall_nanos: self.stalls.map_or(0, |(before, by_last)| by_last - before),
            cached_tokens: either(|timings| timings.cached_tokens),
            num_retractions: either(|timings| timings.num_retractions),
            dp_rank: either(|timings| timings.dp_rank),
            queue_nanos: only_total.and_then(|first| first.queue_total(last)),
            timing_source: (has_moments(&first) || has_moments(&self.last))
                .then_some(TimingSource::MetaInfo),
            generation,
            trace_tokens: None,
            differing: Vec::new(),
            untold: None,
            token_gaps: self.token_gaps.figures(),
            chunk_gaps: self.chunk_gaps.figures(),
            gap_counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: i64, tokens: Option<u64>, text: bool, stall_ms: i64) -> TokenEvent {
        TokenEvent {
            at: Stamp::from_nanos(at_ms * 1_000_000),
            stall_nanos: stall_ms * 1_000_000,
            text,
            tokens,
            whole_reply: false,
            gaps_in_full: true,
        }
    }

    fn watched(events: &[TokenEvent]) -> Sequence {
        let mut watch = SequenceWatch::default();
        events.iter().for_each(|event| watch.event(*event));
        watch.into_sequence(0)
    }

    #[test]
    fn an_event_that_brings_several_tokens_shares_its_gap() {
        let sequence = watched(&[
            event(0, Some(1), true, 0),
            event(10, Some(2), true, 0),
            event(40, Some(5), true, 0),
        ]);
        assert_eq!(sequence.token_gaps.mean_nanos, Some(10_000_000));
        assert_eq!(sequence.token_gaps.max_nanos, Some(10_000_000));
        assert_eq!(sequence.output_tokens, Some(5));
        assert_eq!(sequence.token_events, 3);
    }

    #[test]
    fn repeated_counts_bring_nothing_and_their_time_goes_to_the_next() {
        let sequence = watched(&[
            event(0, Some(2), true, 0),
            event(10, Some(2), true, 0),
            event(30, Some(3), true, 0),
        ]);
        assert_eq!(sequence.token_gaps.max_nanos, Some(30_000_000));
        assert_eq!(sequence.token_events, 3);
    }

    #[test]
    fn a_stalled_client_is_no_gap_of_the_engine() {
        let sequence = watched(&[event(0, None, true, 0), event(3_010, None, true, 3_000)]);
        assert_eq!(sequence.chunk_gaps.max_nanos, Some(10_000_000));
        assert_eq!(sequence.stall_nanos, 3_000 * 1_000_000);
        // What had passed before the first token is none between them.
        let sequence = watched(&[event(0, None, true, 500), event(10, None, true, 500)]);
        assert_eq!(sequence.stall_nanos, 0);
    }

    #[test]
    fn an_event_without_token_or_text_is_no_token() {
        let sequence = watched(&[event(0, Some(0), false, 0), event(5, None, false, 0)]);
        assert_eq!(sequence.token_events, 0);
        assert_eq!(sequence.output_tokens, Some(0));
    }
}
