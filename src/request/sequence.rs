//! One generated sequence as its events come in.

use crate::clock::Stamp;
use crate::stats::Histogram;

use super::record::{Sequence, TimingSource};
use super::sglang::Timings;
use super::timeline::{Moment, Timeline};

/// Gathers a sequence's tokens and timings.
#[derive(Debug, Default)]
pub struct SequenceWatch {
    engine_id: Option<String>,
    is_heard: bool,
    has_text: bool,
    first_token: Option<Stamp>,
    last_token: Option<Stamp>,
    token_events: u64,
    /// Most `completion_tokens` seen; after a retraction they may repeat.
    tokens: Option<u64>,
    gaps: Gaps,
    /// The first `meta_info`, and when its event was read.
    first: Option<(Timings, Stamp)>,
    /// The latest `meta_info` that came with a finish reason.
    last: Option<Timings>,
}

/// Time between token events, divided among the tokens an event brings; client stalls taken out.
#[derive(Debug, Default)]
struct Gaps {
    since: Option<(Stamp, i64)>,
    count: i64,
    sum_nanos: i64,
    max_nanos: i64,
    /// For the quantile; only the first few sequences of a request have one.
    histogram: Option<Box<Histogram>>,
}

/// What one event says of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
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

    /// Whether any event spoke of it: the places between those that came are empty.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Takes what an event brought.
    pub fn heard(&mut self, heard: Heard) {
        self.is_heard = true;
        self.has_text |= heard.text;
        let new_tokens = self.new_tokens(heard);
        let carries_token = heard.text || heard.tokens.is_some_and(|tokens| tokens > 0);
        if carries_token && !heard.whole_reply {
            self.first_token.get_or_insert(heard.at);
            self.last_token = Some(heard.at);
            self.token_events += 1;
            self.gaps
                .token(heard.at, heard.stall_nanos, new_tokens, heard.gaps_in_full);
        }
    }

    /// Takes a `meta_info`; `last` says that it came with a finish reason.
    pub fn timings(&mut self, timings: impl FnOnce() -> Timings, last: bool, at: Stamp) {
        if self.first.is_some() && !last {
            return;
        }
        let timings = timings();
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
        let mut set = |moment, at: Option<Stamp>| {
            if let Some(at) = at {
                timeline.set(moment, at);
            }
        };
        set(Moment::FirstToken, self.first_token);
        set(Moment::LastToken, self.last_token);
        let (first, last) = (
            self.first.as_ref().map(|(timings, _)| timings),
            self.last.as_ref(),
        );
        let queue = first.and_then(Timings::queue);
        set(Moment::QueueStart, queue.map(|(start, _)| start));
        set(Moment::QueueEnd, queue.map(|(_, end)| end));
        let prefill_end = first.and_then(|timings| timings.prefill_finished);
        set(Moment::PrefillEnd, prefill_end);
        let received = last.or(first).and_then(|timings| timings.received);
        set(Moment::ServerCreated, received);
        let first_token =
            last.and_then(|timings| Some(timings.received?.plus_nanos(timings.first_token_nanos?)));
        set(Moment::ServerFirstToken, first_token.or(prefill_end));
        set(
            Moment::ServerFinish,
            last.and_then(|timings| timings.finished),
        );
    }

    /// The sequence's part of a record.
    pub fn into_sequence(self, index: u32) -> Sequence {
        let first = self.first.map(|(timings, _)| timings);
        let either = |get: fn(&Timings) -> Option<u64>| {
            self.last
                .as_ref()
                .and_then(get)
                .or_else(|| first.as_ref().and_then(get))
        };
        let has_moments = |timings: &Option<Timings>| timings.is_some_and(|t| t.has_moments());
        let retracted_only_total = first.filter(|timings| timings.queue().is_none());
        Sequence {
            index,
            engine_id: self.engine_id,
            has_text: self.has_text,
            prompt_tokens: either(|timings| timings.prompt_tokens),
            output_tokens: self.tokens,
            token_events: self.token_events,
            cached_tokens: either(|timings| timings.cached_tokens),
            num_retractions: either(|timings| timings.num_retractions),
            dp_rank: either(|timings| timings.dp_rank),
            queue_nanos: retracted_only_total.and_then(|timings| timings.queue_nanos),
            timing_source: (has_moments(&first) || has_moments(&self.last))
                .then_some(TimingSource::MetaInfo),
            itl_mean_nanos: self.gaps.mean(),
            itl_p99_nanos: self.gaps.p99(),
            itl_max_nanos: self.gaps.max(),
        }
    }

    /// How many tokens the event brings; events without a count bring one if they bring text.
    fn new_tokens(&mut self, heard: Heard) -> u64 {
        match heard.tokens {
            Some(tokens) => {
                let before = self.tokens.unwrap_or(0);
                self.tokens = Some(before.max(tokens));
                tokens.saturating_sub(before)
            }
            None => u64::from(heard.text),
        }
    }
}

impl Gaps {
    fn token(&mut self, at: Stamp, stall_nanos: i64, new_tokens: u64, in_full: bool) {
        let Ok(tokens @ 1..) = i64::try_from(new_tokens) else {
            return;
        };
        let Some((since, stall_before)) = self.since.replace((at, stall_nanos)) else {
            return;
        };
        let gap = (at.nanos_since(since) - (stall_nanos - stall_before)).max(0);
        let each = gap / tokens;
        self.count = self.count.saturating_add(tokens);
        self.sum_nanos = self.sum_nanos.saturating_add(gap);
        self.max_nanos = self.max_nanos.max(each);
        if in_full {
            let times = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.histogram.get_or_insert_default().record(each, times);
        }
    }

    fn mean(&self) -> Option<i64> {
        self.sum_nanos.checked_div(self.count)
    }

    fn max(&self) -> Option<i64> {
        (self.count > 0).then_some(self.max_nanos)
    }

    fn p99(&self) -> Option<i64> {
        self.histogram.as_ref()?.quantile(0.99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ms: i64, tokens: Option<u64>, text: bool, stall_ms: i64) -> Heard {
        Heard {
            at: Stamp::from_nanos(at_ms * 1_000_000),
            stall_nanos: stall_ms * 1_000_000,
            text,
            tokens,
            whole_reply: false,
            gaps_in_full: true,
        }
    }

    fn watched(events: &[Heard]) -> Sequence {
        let mut watch = SequenceWatch::default();
        events.iter().for_each(|event| watch.heard(*event));
        watch.into_sequence(0)
    }

    #[test]
    fn an_event_that_brings_several_tokens_shares_its_gap() {
        let sequence = watched(&[
            event(0, Some(1), true, 0),
            event(10, Some(2), true, 0),
            event(40, Some(5), true, 0),
        ]);
        assert_eq!(sequence.itl_mean_nanos, Some(10_000_000));
        assert_eq!(sequence.itl_max_nanos, Some(10_000_000));
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
        assert_eq!(sequence.itl_max_nanos, Some(30_000_000));
        assert_eq!(sequence.token_events, 3);
    }

    #[test]
    fn a_stalled_client_is_no_gap_of_the_engine() {
        let sequence = watched(&[event(0, None, true, 0), event(3_010, None, true, 3_000)]);
        assert_eq!(sequence.itl_max_nanos, Some(10_000_000));
    }

    #[test]
    fn an_event_without_token_or_text_is_no_token() {
        let sequence = watched(&[event(0, Some(0), false, 0), event(5, None, false, 0)]);
        assert_eq!(sequence.token_events, 0);
        assert_eq!(sequence.output_tokens, Some(0));
    }
}
