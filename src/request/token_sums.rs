//! The tokens of a whole request, from what is known of its sequences.

use super::record::Record;
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
}

/// The sum, when every part is known.
pub(super) fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
