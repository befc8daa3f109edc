//! The tokens of a whole request, from what is known of its sequences.

use super::record::Record;
use super::row::Row;
use super::token_count::TokenCountSource;

/// The tokens of a whole request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Of its prompts: those its sequences tell, a prompt once, else `usage`, which speaks of all.
    pub prompt: Option<u64>,
    /// Those of them that the prefix cache served, a prompt once.
    pub cached: Option<u64>,
    /// Generated, as the server tells.
    pub output: Option<u64>,
}

impl Sums {
    /// Of the records of a request.
    pub fn of(records: &[Record]) -> Sums {
        let Some(first) = records.first() else {
            return Sums::default();
        };
        let prompts = || records.iter().filter(|record| record.is_first_of_prompt());
        let prompt = sum(prompts().map(|record| record.sequence.prompt_tokens));
        let output = sum(records.iter().map(|record| record.sequence.output_tokens));
        let usage = first.facts.usage_completion_tokens;
        Sums {
            prompt: prompt.or(first.facts.usage_prompt_tokens),
            cached: sum(prompts().map(|record| record.sequence.cached_tokens)),
            output: TokenCountSource::most(first.sequence.token_source, output, usage),
        }
    }

    /// Of rows that do not tell them. Samples of one prompt have as many prompt tokens, which the prompts of a batch seldom
    /// do.
    pub(super) fn of_rows(rows: &[Row]) -> Sums {
        let first = rows.first().and_then(|row| row.actual_prompt_tokens);
        let is_one = rows.iter().all(|row| row.actual_prompt_tokens == first);
        let prompts = || rows.iter().take(if is_one { 1 } else { rows.len() });
        Sums {
            prompt: sum(prompts().map(|row| row.actual_prompt_tokens)),
            cached: sum(prompts().map(|row| row.cached_tokens)),
            output: sum(rows.iter().map(|row| row.actual_output_tokens)),
        }
    }

    pub(super) fn put(self, rows: &mut [Row]) {
        for row in rows {
            row.request_prompt_tokens = self.prompt;
            row.request_cached_tokens = self.cached;
            row.request_output_tokens = self.output;
        }
    }
}

/// The sum, when every part is known.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
