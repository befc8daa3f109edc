//! Writes a sequence into its row.

use crate::request::columns::Row;
use crate::request::engine_report::EngineReport;
use crate::request::meta_info::{Generation, Member};
use crate::request::timeline::Moment;

use super::{SequenceObserver, TimingSource};

impl SequenceObserver {
    /// Writes the sequence into its row, which already holds the request's part.
    pub fn put(mut self, row: &mut Row) {
        self.close_uncounted();
        row.timeline.set(Moment::FirstToken, self.first_token);
        row.timeline.set(Moment::LastToken, self.last_token);
        let (first, last) = (self.first.as_ref(), self.last.as_deref());
        let fields = self.fields();
        if let Some((first, read)) = first {
            let source = TimingSource::MetaInfo;
            let mut report = EngineReport::of_meta_info(source, first, last);
            // The API server's first output of a reply may be its last token.
            if !fields.has(Member::ServerFirstToken) && self.first_token.is_none() {
                report.first_token = None;
            }
            row.actual_prompt_tokens = report.prompt_tokens;
            report.put(row);
            row.internal.first_write = first.epoch(Member::ResponseSent).map(|sent| (sent, *read));
        }
        let by_scheduler = first.is_some_and(|(first, _)| first.prefill_finished().is_some());
        // What never ran (a full queue, an abort in the queue) has hardly any field, in all versions.
        let has_run = last.filter(|last| last.count(Member::PromptTokens).is_some());
        row.internal.begins_with_token = self.begins_with_token;
        row.internal.generation = has_run.map(|_| Generation::of(fields, by_scheduler));
        let is_body_read = self.has_text || row.unread.is_none();
        row.has_generated_text = is_body_read.then_some(self.has_text);
        row.actual_output_tokens = self.tokens;
        row.token_count_source = self.token_source;
        row.first_event_tokens = self.first_tokens.filter(|_| !self.has_uncounted);
        row.token_chunks = Some(self.token_events).filter(|events| *events > 0);
        row.internal.stall_nanos = self.stalls[1] - self.stalls[0];
        [row.itl_mean, row.itl_p99, row.itl_max] = self.token_gaps.mean_p99_max();
        [row.chunk_gap_mean, row.chunk_gap_p99, row.chunk_gap_max] = self.chunk_gaps.mean_p99_max();
        row.internal.gaps = match self.has_uncounted {
            true => self.chunk_gaps.counts(),
            false => self.token_gaps.counts(),
        };
        row.engine_id = self.engine_id;
    }
}
