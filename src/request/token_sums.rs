//! The tokens of a whole request, from the rows of its sequences.

use super::record::Record;
use super::token_count::TokenCountSource;

/// Prompt tokens: those its sequences tell, a prompt once, else `usage`, which speaks of all.
pub fn prompt_of(rows: &[Record]) -> Option<u64> {
    let prompts = rows.iter().filter(|row| row.is_first_of_prompt());
    sum(prompts.map(|row| row.sequence.prompt_tokens))
        .or_else(|| rows.first()?.facts.usage_prompt_tokens)
}

/// Those of them that the prefix cache served, a prompt once.
pub fn cached_of(rows: &[Record]) -> Option<u64> {
    let prompts = rows.iter().filter(|row| row.is_first_of_prompt());
    sum(prompts.map(|row| row.sequence.cached_tokens))
}

/// Generated tokens, as the server tells.
pub fn generated_of(rows: &[Record]) -> Option<u64> {
    let first = rows.first()?;
    let by_events = sum(rows.iter().map(|row| row.sequence.output_tokens));
    let usage = first.facts.usage_completion_tokens;
    TokenCountSource::most(first.sequence.token_source, by_events, usage)
}

/// The sum, when every part is known.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.reduce(|a, b| Some(a?.saturating_add(b?)))?
}
