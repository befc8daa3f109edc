//! How fast the engine is, and how much it takes at once.

use crate::clock::NANOS;

/// Context of a request up to which its part of a decode step is `decode_step_per_seq_ms` alone, tokens.
const SHORT_CONTEXT: u64 = 1_024;

/// How fast the engine is, and how much it takes at once. The defaults are an H200 with an 8B model:
/// docs/SIMULATOR.md has the figures.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Profile {
    /// Requests that run at once; the others wait in order of arrival
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_running_requests)]
    pub max_running_requests: usize,
    /// Requests that may wait; more are rejected with 503 [default: no limit]
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<usize>,
    /// Tokens that the KV cache holds: of running requests and of the prefix cache
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_total_tokens)]
    pub max_total_tokens: u64,
    /// How much of what running requests may yet make is kept free when one is admitted: more retracts less
    #[arg(long, value_name = "X", default_value_t = Profile::default().schedule_conservativeness)]
    pub schedule_conservativeness: f64,
    /// No prefix cache: every prompt is prefilled whole
    #[arg(long)]
    pub disable_radix_cache: bool,
    /// Schedule a step only when the one before has ended
    #[arg(long)]
    pub disable_overlap_schedule: bool,
    /// Prompt tokens in one prefill batch; a longer prompt goes alone
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_prefill_tokens)]
    #[arg(help_heading = "How fast it is")]
    pub max_prefill_tokens: u64,
    /// Longer prefills are cut into pieces of so many tokens; -1: never
    #[arg(long, value_name = "N", default_value_t = Profile::default().chunked_prefill_size)]
    #[arg(help_heading = "How fast it is")]
    pub chunked_prefill_size: i64,
    /// Least time of a prefill, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().prefill_floor_ms)]
    #[arg(help_heading = "How fast it is")]
    pub prefill_floor_ms: f64,
    /// Prompt tokens prefilled in a second
    #[arg(long, value_name = "RATE", default_value_t = Profile::default().prefill_tokens_per_s)]
    #[arg(help_heading = "How fast it is")]
    pub prefill_tokens_per_s: f64,
    /// What each token before it adds to a prompt token's prefill, nanoseconds
    #[arg(long, value_name = "NS", default_value_t = Profile::default().prefill_context_ns)]
    #[arg(help_heading = "How fast it is")]
    pub prefill_context_ns: f64,
    /// Time of a decode step without what its requests add, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_ms)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_ms: f64,
    /// What each running request adds to a decode step, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_per_seq_ms)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_per_seq_ms: f64,
    /// What each token of a request's context beyond 1024 adds to a decode step, nanoseconds
    #[arg(long, value_name = "NS", default_value_t = Profile::default().decode_context_ns)]
    #[arg(help_heading = "How fast it is")]
    pub decode_context_ns: f64,
    /// Time from picking requests up to starting them, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().schedule_ms)]
    #[arg(help_heading = "How fast it is")]
    pub schedule_ms: f64,
    /// Time that the GPU rests between two steps, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().step_gap_ms)]
    #[arg(help_heading = "How fast it is")]
    pub step_gap_ms: f64,
}

impl Profile {
    /// An engine whose steps last just what `prefill_tokens_per_s` and the two decode figures say, one after
    /// the other, without a prefix cache: for tests that lay times out.
    pub fn bare() -> Profile {
        Profile {
            disable_radix_cache: true,
            disable_overlap_schedule: true,
            chunked_prefill_size: -1,
            prefill_floor_ms: 0.0,
            prefill_context_ns: 0.0,
            decode_context_ns: 0.0,
            schedule_ms: 0.0,
            step_gap_ms: 0.0,
            ..Profile::default()
        }
    }

    /// The ranges: flag, value, least and most.
    pub(in crate::sim) fn ranges(&self) -> [(&'static str, f64, f64, f64); 14] {
        const ANY: f64 = f64::INFINITY;
        const MS: f64 = 1e6;
        let queued = self.max_queued_requests.unwrap_or(usize::MAX) as f64;
        let most_tokens = self.max_prefill_tokens as f64;
        [
            (
                "--max-running-requests",
                self.max_running_requests as f64,
                1.0,
                ANY,
            ),
            ("--max-queued-requests", queued, 1.0, ANY),
            ("--max-total-tokens", self.max_total_tokens as f64, 3.0, 1e9),
            (
                "--schedule-conservativeness",
                self.schedule_conservativeness,
                0.0,
                1e3,
            ),
            ("--max-prefill-tokens", most_tokens, 1.0, ANY),
            // 0 would never end a prefill.
            (
                "--chunked-prefill-size",
                match self.chunked_prefill_size {
                    0 => f64::NAN,
                    size => size as f64,
                },
                -1.0,
                1e9,
            ),
            ("--prefill-floor-ms", self.prefill_floor_ms, 0.0, MS),
            (
                "--prefill-tokens-per-s",
                self.prefill_tokens_per_s,
                1e-3,
                1e12,
            ),
            ("--prefill-context-ns", self.prefill_context_ns, 0.0, 1e9),
            ("--decode-step-ms", self.decode_step_ms, 0.0, MS),
            (
                "--decode-step-per-seq-ms",
                self.decode_step_per_seq_ms,
                0.0,
                MS,
            ),
            ("--decode-context-ns", self.decode_context_ns, 0.0, 1e9),
            ("--schedule-ms", self.schedule_ms, 0.0, MS),
            ("--step-gap-ms", self.step_gap_ms, 0.0, MS),
        ]
    }

    /// The length of a prefill of these pieces (from token, to token), nanoseconds.
    pub(super) fn prefill_nanos(&self, pieces: impl Iterator<Item = (u64, u64)>) -> i64 {
        let ms: f64 = pieces
            .map(|(from, to)| {
                let (from, to) = (from as f64, to as f64);
                let pairs = (to * to - from * from) / 2.0;
                (to - from) / self.prefill_tokens_per_s * 1e3
                    + pairs * self.prefill_context_ns / 1e6
            })
            .sum();
        nanos(ms.max(self.prefill_floor_ms))
    }

    /// The length of a decode step of requests with these contexts (tokens), nanoseconds.
    pub(super) fn decode_nanos(&self, contexts: impl Iterator<Item = u64>) -> i64 {
        let added: f64 = contexts
            .map(|context| {
                let long = context.saturating_sub(SHORT_CONTEXT) as f64;
                self.decode_step_per_seq_ms + long * self.decode_context_ns / 1e6
            })
            .sum();
        nanos(self.decode_step_ms + added)
    }

    pub(super) fn schedule_nanos(&self) -> i64 {
        nanos(self.schedule_ms)
    }

    pub(super) fn gap_nanos(&self) -> i64 {
        nanos(self.step_gap_ms)
    }
}

fn nanos(ms: f64) -> i64 {
    (ms / 1e3 * NANOS as f64).round() as i64
}

impl Default for Profile {
    /// One H200 with SGLang 0.5.23 and an 8B model in bf16.
    fn default() -> Profile {
        Profile {
            max_running_requests: 32,
            max_queued_requests: None,
            max_total_tokens: 800_000,
            schedule_conservativeness: 1.0,
            disable_radix_cache: false,
            disable_overlap_schedule: false,
            max_prefill_tokens: 16_384,
            chunked_prefill_size: 8_192,
            prefill_floor_ms: 23.5,
            prefill_tokens_per_s: 40_500.0,
            prefill_context_ns: 1.87,
            decode_step_ms: 5.28,
            decode_step_per_seq_ms: 0.0225,
            decode_context_ns: 182.0,
            schedule_ms: 0.35,
            step_gap_ms: 0.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held against the figures measured on an H200.
    #[test]
    fn steps_last_what_was_measured() {
        let profile = Profile::default();
        let ms = |nanos: i64| nanos as f64 / 1e6;
        for (batch, context, measured) in [
            (1, 512, 5.30),
            (8, 512, 5.47),
            (16, 512, 5.60),
            (32, 512, 6.03),
            (64, 512, 6.72),
            (8, 8_192, 15.9),
        ] {
            let step = ms(profile.decode_nanos(std::iter::repeat_n(context, batch)));
            assert!((step / measured - 1.0).abs() < 0.01, "{batch}: {step} ms");
        }
        for (prompt, measured) in [(128, 24.5), (512, 23.5), (2_048, 54.5), (8_192, 265.0)] {
            let step = ms(profile.prefill_nanos([(0, prompt)].into_iter()));
            assert!((step / measured - 1.0).abs() < 0.05, "{prompt}: {step} ms");
        }
    }

    #[test]
    fn pieces_of_a_prompt_cost_what_the_whole_does() {
        let profile = Profile {
            prefill_floor_ms: 0.0,
            ..Profile::default()
        };
        let whole = profile.prefill_nanos([(0, 5_000)].into_iter());
        let pieces = profile.prefill_nanos([(0, 2_000), (2_000, 5_000)].into_iter());
        assert!((whole - pieces).abs() <= 1);
    }
}
