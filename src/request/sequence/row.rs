//! Writes a sequence into its row.

use crate::request::columns::Row;
use crate::request::engine_report::EngineReport;
use crate::request::generation::Generation;
use crate::request::timeline::Moment;

use super::{SequenceObserver, TimingSource};

impl SequenceObserver {
    /// Writes the sequence into its row, which already holds the request's part.
    pub fn put(mut self, row: &mut Row) {
        self.close_uncounted();
        row.timeline.set(Moment::FirstToken, self.first_token);
        row.timeline.set(Moment::LastToken, self.last_token);
        let (first, last) = (self.first.as_ref(), self.last.as_ref());
        if let Some((timings, read)) = first {
            let source = TimingSource::MetaInfo;
            let mut report = EngineReport::of_meta_info(source, timings, last);
            // The API server's first output of a reply may be its last token.
            if self.fields.first_is_output() && self.first_token.is_none() {
                report.first_token = None;
            }
            row.actual_prompt_tokens = report.prompt_tokens;
            report.put(row);
            row.internal.first_write = timings.response_sent.map(|sent| (sent, *read));
        }
        let by_scheduler = first.is_some_and(|(timings, _)| timings.prefill_finished.is_some());
        // What never ran (a full queue, an abort in the queue) has hardly any field, in all versions.
        let has_run = last.filter(|last| last.prompt_tokens.is_some());
        row.internal.begins_with_token = self.begins_with_token;
        row.internal.generation = has_run.map(|_| Generation::of(self.fields, by_scheduler));
        let is_body_read = self.has_text || row.unread.is_none();
        row.has_generated_text = is_body_read.then_some(self.has_text);
        row.actual_output_tokens = self.tokens;
        row.token_count_source = self.token_source;
        row.first_event_tokens = self.first_tokens.filter(|_| !self.has_uncounted);
        row.token_chunks = Some(self.token_events).filter(|events| *events > 0);
        row.internal.stall_nanos = self.stalls.map_or(0, |(before, by_last)| by_last - before);
        [row.itl_mean, row.itl_p99, row.itl_max] = self.token_gaps.mean_p99_max();
        [row.chunk_gap_mean, row.chunk_gap_p99, row.chunk_gap_max] = self.chunk_gaps.mean_p99_max();
        row.internal.gaps = match self.has_uncounted {
            true => self.chunk_gaps.counts(),
            false => self.token_gaps.counts(),
        };
        row.engine_id = self.engine_id;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
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
