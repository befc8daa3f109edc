//! A request in the engine, and a step with its requests.

use super::event::Prompt;
use super::memory::Allocation;

/// The most output tokens of a request that count when memory is reserved (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
const MAX_RESERVED_OUTPUT: u64 = 4_096;

/// A request that was picked up.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) prompt: Prompt,
    pub(super) output_tokens: u32,
    pub(super) generated: u32,
    pub(super) retractions: u32,
    pub(super) allocation: Allocation,
    /// Tokens whose prefill has begun.
    pub(super) prefilled: u64,
    /// Whether the prefill of all tokens has begun.
    pub(super) is_decoding: bool,
}

/// A step.
#[derive(Debug)]
pub(super) struct Batch {
    /// Whether it prefills prompts; else it decodes.
    pub(super) is_prefill: bool,
    pub(super) members: Vec<Member>,
    /// Its GPU time, nanoseconds.
    pub(super) nanos: i64,
}

/// A request in a step. Its result counts only if the request was not retracted since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) retractions: u32,
    /// False for every chunk of a prompt but the last.
    pub(super) generates_token: bool,
}

/// A prefill batch in the making.
#[derive(Debug, Default)]
pub(super) struct PrefillBatch {
    pub(super) members: Vec<Member>,
    /// `(from, to)` of each member.
    pub(super) chunks: Vec<(u64, u64)>,
    pub(super) tokens: u64,
    pub(super) hits: u64,
    pub(super) chunk_left: u64,
    /// Memory reserved for the remaining output of requests.
    pub(super) reserved: f64,
}

impl PrefillBatch {
    /// Adds as much of a prompt as the chunk size still allows.
    pub(super) fn add(&mut self, id: u64, task: &mut Task) {
        let from = task.prefilled;
        let to = task.tokens().min(from.saturating_add(self.chunk_left));
        task.prefilled = to;
        task.is_decoding = to == task.tokens();
        self.chunk_left -= to - from;
        self.tokens += to - from;
        self.chunks.push((from, to));
        self.members.push(Member {
            id,
            retractions: task.retractions,
            generates_token: task.is_decoding,
        });
    }
}

impl Task {
    /// Tokens to prefill: after a retraction, those generated before too.
    pub(super) fn tokens(&self) -> u64 {
        self.prompt.tokens() + u64::from(self.generated)
    }

    /// All tokens of prompt and output.
    pub(super) fn max_tokens(&self) -> u64 {
        self.prompt.tokens() + u64::from(self.output_tokens)
    }

    /// Tokens still to generate, as far as they count when memory is reserved.
    pub(super) fn remaining_output(&self) -> u64 {
        u64::from(self.output_tokens - self.generated).min(MAX_RESERVED_OUTPUT)
    }
}
