//! Writes a sequence into its row.

use crate::clock::Stamp;
use crate::request::columns::Row;
use crate::request::generation::Generation;
use crate::request::meta_info::Timings;
use crate::request::timeline::{Moment, Timeline};

use super::{SequenceObserver, TimingSource};

impl SequenceObserver {
    /// Writes the sequence into its row, which already holds the request's part.
    pub fn put(mut self, row: &mut Row) {
        self.close_uncounted();
        self.mark(&mut row.timeline);
        let first = self.first.map(|(timings, _)| timings);
        let either = |get: fn(&Timings) -> Option<u32>| {
            let last = self.last.as_ref().and_then(get);
            let count = last.or_else(|| first.as_ref().and_then(get));
            count.map(u64::from)
        };
        let last = self.last.as_ref();
        let without_moments = first.filter(|first| first.queue(last).is_none());
        let by_scheduler = first.is_some_and(|first| first.prefill_finished.is_some());
        // What never ran (a full queue, an abort in the queue) has hardly any field, in all versions.
        let has_run = last.filter(|last| last.prompt_tokens.is_some());
        row.internal.first_write = self
            .first
            .and_then(|(first, read)| Some((first.response_sent?, read)));
        row.internal.begins_with_token = self.begins_with_token;
        row.internal.generation = has_run.map(|_| Generation::of(self.fields, by_scheduler));
        let is_body_read = self.has_text || row.unread.is_none();
        row.has_generated_text = is_body_read.then_some(self.has_text);
        row.actual_prompt_tokens = either(|timings| timings.prompt_tokens);
        row.actual_output_tokens = self.tokens;
        row.token_count_source = self.token_source;
        row.first_event_tokens = self.first_tokens.filter(|_| !self.has_uncounted);
        row.token_chunks = Some(self.token_events).filter(|events| *events > 0);
        row.internal.stall_nanos = self.stalls.map_or(0, |(before, by_last)| by_last - before);
        row.cached_tokens = either(|timings| timings.cached_tokens);
        row.num_retractions = either(|timings| timings.num_retractions);
        row.dp_rank = either(|timings| timings.dp_rank);
        row.pure_queue_time = without_moments.and_then(|first| first.queue_total(last));
        let mut timings = first.iter().chain(last);
        let has_moments = timings.any(Timings::has_moments);
        row.timing_source = has_moments.then_some(TimingSource::MetaInfo);
        [row.itl_mean, row.itl_p99, row.itl_max] = self.token_gaps.mean_p99_max();
        [row.chunk_gap_mean, row.chunk_gap_p99, row.chunk_gap_max] = self.chunk_gaps.mean_p99_max();
        row.internal.gaps = match self.has_uncounted {
            true => self.chunk_gaps.counts(),
            false => self.token_gaps.counts(),
        };
        row.engine_id = self.engine_id;
    }

    /// Sets the sequence's own moments on a timeline that holds the request's.
    fn mark(&self, timeline: &mut Timeline) {
        let mut set = |moment, at: Option<Stamp>| timeline.set(moment, at);
        set(Moment::FirstToken, self.first_token);
        set(Moment::LastToken, self.last_token);
        let first = self.first.as_ref().map(|(timings, _)| timings);
        let last = self.last.as_ref();
        let queue = first.and_then(|first| first.queue(last));
        set(Moment::QueueStart, queue.map(|(start, _)| start));
        set(Moment::QueueEnd, queue.map(|(_, end)| end));
        let prefill_end = first.and_then(|timings| timings.prefill_finished);
        set(Moment::PrefillEnd, prefill_end);
        let either =
            |get: fn(&Timings) -> Option<Stamp>| last.and_then(get).or(first.and_then(get));
        set(Moment::ServerCreated, either(|timings| timings.received));
        // The API server's first output of a reply may be its last token.
        let is_late = self.fields.first_is_output() && self.first_token.is_none();
        let first_token = last.or(first).and_then(|timings| timings.first_token);
        let first_token = first_token.filter(|_| !is_late).or(prefill_end);
        set(Moment::ServerFirstToken, first_token);
        set(
            Moment::ServerFinish,
            last.and_then(|timings| timings.finished),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::sequence::TokenEvent;

    const MS: i64 = 1_000_000;

    /// The row of events with text: the millisecond of each, the tokens it reports, and the total milliseconds that the client
    /// stalled.
    fn observed(events: &[(i64, Option<u64>, i64)]) -> Row {
        let mut sequence = SequenceObserver::default();
        for &(at, tokens, stall) in events {
            sequence.event(TokenEvent {
                at: Stamp::from_nanos(at * MS),
                stall_nanos: stall * MS,
                has_text: tokens != Some(0),
                tokens,
                is_reply: false,
                keep_histogram: true,
            });
        }
        let mut row = Row::default();
        sequence.put(&mut row);
        row
    }

    #[test]
    fn gaps_are_shared_among_the_tokens_that_an_event_brings() {
        let several = observed(&[(0, Some(1), 0), (10, Some(2), 0), (40, Some(5), 0)]);
        assert_eq!(several.itl_mean, Some(10 * MS));
        assert_eq!(several.itl_max, Some(10 * MS));
        assert_eq!(several.actual_output_tokens, Some(5));
        // Repeated counts bring no token; their time goes to the next gap.
        let repeated = observed(&[(0, Some(2), 0), (10, Some(2), 0), (30, Some(3), 0)]);
        assert_eq!(repeated.itl_max, Some(30 * MS));
        for row in [several, repeated] {
            assert_eq!(row.token_chunks, Some(3));
        }
        let without = observed(&[(0, Some(0), 0)]);
        assert_eq!(without.token_chunks, None);
        assert_eq!(without.actual_output_tokens, Some(0));
    }

    #[test]
    fn a_stalled_client_is_no_gap_of_the_engine() {
        let row = observed(&[(0, None, 0), (3_010, None, 3_000)]);
        assert_eq!(row.chunk_gap_max, Some(10 * MS));
        assert_eq!(row.internal.stall_nanos, 3_000 * MS);
        // A stall before the first token is not between tokens.
        let row = observed(&[(0, None, 500), (10, None, 500)]);
        assert_eq!(row.internal.stall_nanos, 0);
    }
}
