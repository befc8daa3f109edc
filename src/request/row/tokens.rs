//! The token counts of a row, and of its request.

use crate::request::columns::Row;
use crate::request::sequence::TokenCountSource;
use crate::request::timeline::Period;

impl Row {
    /// Returns prompt tokens: by `meta_info`, else `usage`.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.actual_prompt_tokens
            .or(self.internal.usage_prompt_tokens)
    }

    /// Returns generated tokens: by `meta_info`, else `usage`. Unless it counts each sequence, `usage` is of the whole request
    /// and so counts only if there is one sequence.
    pub fn output_tokens(&self) -> Option<u64> {
        let own = self.actual_output_tokens;
        TokenCountSource::choose(self.token_count_source, own, self.usage_tokens())
    }

    fn usage_tokens(&self) -> Option<u64> {
        let usage = self.internal.usage_completion_tokens;
        usage.filter(|_| self.sequences == 1)
    }

    /// Returns the number of tokens after those of the first event. If only `usage` gives their number, the first event is taken
    /// to have brought one, as the engine sends it.
    pub fn later_tokens(&self) -> Option<u64> {
        let first = self.first_event_tokens.unwrap_or(1);
        Some(self.actual_output_tokens?.saturating_sub(first))
    }

    /// Sets the token columns from what events, servers and `usage` reported.
    pub(super) fn count_tokens(&mut self) {
        // Counts from `usage` of the whole request, or from the engine's trace or log, are no event's own.
        let source = self.token_count_source;
        let is_by_event = self.actual_output_tokens.is_some()
            && source != Some(TokenCountSource::Trace)
            && source != Some(TokenCountSource::Log);
        let output = self.output_tokens();
        if !is_by_event && output.is_some() && output == self.token_chunks {
            self.itl_mean = self.chunk_gap_mean;
            self.itl_p99 = self.chunk_gap_p99;
            self.itl_max = self.chunk_gap_max;
        }
        self.internal.gaps.take_if(|_| self.itl_mean.is_none());
        let usage = self.usage_tokens().map(|_| TokenCountSource::Usage);
        self.token_count_source = source.or(usage);
        self.actual_prompt_tokens = self.prompt_tokens();
        self.actual_output_tokens = output;
        self.decode_length = output;
        let both = self.actual_prompt_tokens.zip(output);
        self.actual_total_tokens = both.map(|(prompt, output)| prompt.saturating_add(output));
    }

    /// Returns the time per output token after those of the first event, without the client's stalls, nanoseconds; `None` if the
    /// number of tokens is unknown or they came in one event.
    pub(super) fn tpot_nanos(&self) -> Option<i64> {
        self.token_chunks.filter(|events| *events > 1)?;
        let nanos = self.timeline.nanos(Period::TOKENS)?;
        let nanos = nanos.checked_sub(self.internal.stall_nanos)?;
        nanos.checked_div(i64::try_from(self.later_tokens()?).ok()?)
    }

    /// Sets the token counts of the whole request in its rows: the sums of its sequences, else `usage`. Samples of one prompt
    /// share the prompt's tokens.
    pub(super) fn sum_tokens(rows: &mut [Row]) {
        let Some(first) = rows.first() else {
            return;
        };
        let is_first = |row: &&Row| u64::from(row.index).is_multiple_of(row.internal.n.max(1));
        let prompts = || rows.iter().filter(is_first);
        let prompt = sum(prompts().map(|row| row.actual_prompt_tokens));
        let prompt = prompt.or(first.internal.usage_prompt_tokens);
        let cached = sum(prompts().map(|row| row.cached_tokens));
        let output = sum(rows.iter().map(|row| row.actual_output_tokens));
        let usage = first.internal.usage_completion_tokens;
        let output = TokenCountSource::choose(first.token_count_source, output, usage);
        for row in rows {
            row.request_prompt_tokens = prompt;
            row.request_cached_tokens = cached;
            row.request_output_tokens = output;
        }
    }
}

/// The sum, if every part is known.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
