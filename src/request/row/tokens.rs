//! The tokens of a row, and of its whole request.

use crate::request::columns::Row;
use crate::request::timeline::Period;
use crate::request::token_count::TokenCountSource;

impl Row {
    /// Prompt tokens: `meta_info`, else `usage`.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.actual_prompt_tokens.or(self.more.usage_prompt_tokens)
    }

    /// Generated tokens: `meta_info`, else `usage`, which (unless it counts each sequence) speaks of the whole
    /// request and so counts only where there is one sequence.
    pub fn output_tokens(&self) -> Option<u64> {
        let own = self.actual_output_tokens;
        TokenCountSource::most(self.token_count_source, own, self.usage_tokens())
    }

    fn usage_tokens(&self) -> Option<u64> {
        let usage = self.more.usage_completion_tokens;
        usage.filter(|_| self.sequences == 1)
    }

    /// Tokens after those that the first event brought. Where `usage` alone tells their number, that event is taken to have
    /// brought one, as the engine sends it.
    pub fn later_tokens(&self) -> Option<u64> {
        let first = self.first_event_tokens.unwrap_or(1);
        Some(self.actual_output_tokens?.saturating_sub(first))
    }

    /// What follows of its tokens from what events, servers and `usage` told.
    pub(super) fn count_tokens(&mut self) {
        // By `usage` of the whole request, or by the engine's trace or log: none of them an event's own count.
        let source = self.token_count_source;
        let is_told_later = matches!(
            source,
            Some(TokenCountSource::Trace | TokenCountSource::Log)
        );
        let is_of_all = self.actual_output_tokens.is_none() || is_told_later;
        let output = self.output_tokens();
        if is_of_all && output.is_some() && output == self.token_chunks {
            self.itl_mean = self.chunk_gap_mean;
            self.itl_p99 = self.chunk_gap_p99;
            self.itl_max = self.chunk_gap_max;
        }
        self.more.gaps.take_if(|_| self.itl_mean.is_none());
        let usage = self.usage_tokens().map(|_| TokenCountSource::Usage);
        self.token_count_source = source.or(usage);
        self.actual_prompt_tokens = self.prompt_tokens();
        self.actual_output_tokens = output;
        self.decode_length = output;
        let both = self.actual_prompt_tokens.zip(output);
        self.actual_total_tokens = both.map(|(prompt, output)| prompt.saturating_add(output));
    }

    /// Time per output token after those of the first event, without the client's stalls, nanoseconds; `None` where nobody
    /// told how many there were, and of an answer in one event.
    pub(super) fn tpot_nanos(&self) -> Option<i64> {
        self.token_chunks.filter(|events| *events > 1)?;
        let nanos = self.timeline.nanos(Period::TOKENS)?;
        let nanos = nanos.checked_sub(self.more.stall_nanos)?;
        nanos.checked_div(i64::try_from(self.later_tokens()?).ok()?)
    }

    /// Puts the tokens of a whole request into its rows: those that its sequences tell, else those of `usage`, which speaks of
    /// all. The samples of one prompt share its tokens.
    pub(super) fn sum_tokens(rows: &mut [Row]) {
        let Some(first) = rows.first() else {
            return;
        };
        let is_first = |row: &&Row| u64::from(row.index).is_multiple_of(row.more.n.max(1));
        let prompts = || rows.iter().filter(is_first);
        let prompt = sum(prompts().map(|row| row.actual_prompt_tokens));
        let prompt = prompt.or(first.more.usage_prompt_tokens);
        let cached = sum(prompts().map(|row| row.cached_tokens));
        let output = sum(rows.iter().map(|row| row.actual_output_tokens));
        let usage = first.more.usage_completion_tokens;
        let output = TokenCountSource::most(first.token_count_source, output, usage);
        for row in rows {
            row.request_prompt_tokens = prompt;
            row.request_cached_tokens = cached;
            row.request_output_tokens = output;
        }
    }
}

/// The sum, when every part is known.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
