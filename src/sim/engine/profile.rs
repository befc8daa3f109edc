//! How long the engine's steps take, and its limits.

use clap::Parser;

use crate::clock::NANOS;
use crate::units::{MS, NS, US, at_least, between, rate, share, time};

/// `SGLANG_INIT_NEW_TOKEN_RATIO`.
const INITIAL_RATIO: f64 = 0.7;

/// How fast the engine is, and how much it takes at once. The defaults are an H200 with an 8B model:
/// docs/dev/CALIBRATION.md has the figures.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(next_help_heading = "How fast it is")]
pub struct Profile {
    /// Requests that run at once; the others wait in order of arrival
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = at_least(1_usize), help_heading = None)]
    pub max_running_requests: usize,
    /// Requests that may wait; more are rejected with 503 [default: no limit]
    #[arg(long, value_name = "N", value_parser = at_least(1_usize), help_heading = None)]
    pub max_queued_requests: Option<usize>,
    /// Tokens that the KV cache holds
    ///
    /// Of running requests and of the prefix cache.
    #[arg(long, value_name = "N", default_value_t = 800_000, value_parser = between(3_u64, 1_000_000_000), help_heading = None)]
    pub max_total_tokens: u64,
    /// How much of what running requests may yet make is kept free when one is admitted: more retracts less
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = between(0.0, 1e3), help_heading = None)]
    pub schedule_conservativeness: f64,
    /// No prefix cache: every prompt is prefilled whole
    #[arg(long, help_heading = None)]
    pub disable_radix_cache: bool,
    /// Schedule a step only when the one before has ended
    #[arg(long, help_heading = None)]
    pub disable_overlap_schedule: bool,
    /// Prompt tokens in one prefill batch
    ///
    /// A longer prompt goes alone.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = at_least(1_u64))]
    pub max_prefill_tokens: u64,
    /// Prefills of more tokens than this run in chunks; -1 or 0: never
    #[arg(long, value_name = "N", default_value_t = 8_192, value_parser = between(-1_i64, 1_000_000_000))]
    pub chunked_prefill_size: i64,
    /// Time from arrival to the queue, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.5, value_parser = time(MS, 0.0, 1e6))]
    pub tokenize_ms: f64,
    /// What a prompt token adds to that, microseconds
    #[arg(long, value_name = "US", default_value_t = 3.7, value_parser = time(US, 0.0, 1e6))]
    pub tokenize_token_us: f64,
    /// Least time of a prefill, milliseconds
    ///
    /// The time to launch its kernels, in which the scheduler is busy.
    #[arg(long, value_name = "MS", default_value_t = 24.4, value_parser = time(MS, 0.0, 1e6))]
    pub prefill_floor_ms: f64,
    /// Share of prefills that are launched for longer
    ///
    /// Which ones is random.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share(0.0, 1.0))]
    pub prefill_stall_share: f64,
    /// How much longer in the mean, milliseconds
    ///
    /// Exponentially distributed.
    #[arg(long, value_name = "MS", default_value_t = 9.0, value_parser = time(MS, 0.0, 1e6))]
    pub prefill_stall_ms: f64,
    /// Prompt tokens prefilled in a second
    #[arg(long, value_name = "RATE", default_value_t = 43_400.0, value_parser = rate(1e-3, 1e12))]
    pub prefill_tokens_per_s: f64,
    /// What each token before it adds to a prompt token's prefill, nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 2.03, value_parser = time(NS, 0.0, 1e9))]
    pub prefill_context_ns: f64,
    /// Time to launch a decode step, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3.2, value_parser = time(MS, 0.0, 1e6))]
    pub decode_launch_ms: f64,
    /// Time of a decode step without what its requests add, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5.15, value_parser = time(MS, 0.0, 1e6))]
    pub decode_step_ms: f64,
    /// What each running request adds to a decode step, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0192, value_parser = time(MS, 0.0, 1e6))]
    pub decode_step_per_seq_ms: f64,
    /// What each token of all running requests' contexts adds to a decode step, nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 25.6, value_parser = time(NS, 0.0, 1e9))]
    pub decode_context_ns: f64,
    /// What the longest context adds to a decode step: nanoseconds times the square of its tokens
    #[arg(long, value_name = "NS", default_value_t = 0.123, value_parser = time(NS, 0.0, 1e9))]
    pub decode_longest_ns: f64,
    /// Time from picking requests up to starting them, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.35, value_parser = time(MS, 0.0, 1e6))]
    pub schedule_ms: f64,
    /// Idle time of the GPU between two steps, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.1, value_parser = time(MS, 0.0, 1e6))]
    pub step_gap_ms: f64,
    /// Share of the GPU's time that this server gets
    ///
    /// For several that share one.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share(1e-3, 1.0))]
    pub gpu_share: f64,
}

impl Profile {
    /// An engine without overlap and prefix cache whose steps last exactly what `prefill_tokens_per_s` and the two
    /// decode step times say, for tests that compute times by hand.
    pub fn bare() -> Profile {
        Profile {
            disable_radix_cache: true,
            disable_overlap_schedule: true,
            chunked_prefill_size: -1,
            tokenize_ms: 0.0,
            tokenize_token_us: 0.0,
            prefill_floor_ms: 0.0,
            prefill_stall_share: 0.0,
            prefill_context_ns: 0.0,
            decode_launch_ms: 0.0,
            decode_context_ns: 0.0,
            decode_longest_ns: 0.0,
            schedule_ms: 0.0,
            step_gap_ms: 0.0,
            ..Profile::default()
        }
    }

    /// An engine whose steps take no time, with slots and memory for every request.
    pub(in crate::sim) fn instant() -> Profile {
        Profile {
            max_running_requests: 1 << 20,
            max_total_tokens: 1 << 40,
            prefill_tokens_per_s: f64::INFINITY,
            decode_step_ms: 0.0,
            decode_step_per_seq_ms: 0.0,
            ..Profile::bare()
        }
    }

    /// The share of running requests' remaining output for which memory is kept free, at first.
    pub(super) fn initial_token_ratio(&self) -> f64 {
        (INITIAL_RATIO * self.schedule_conservativeness).min(1.0)
    }

    /// Seconds from a request's arrival until the scheduler gets it.
    pub fn tokenize_s(&self, tokens: u64) -> f64 {
        self.tokenize_ms / 1e3 + self.tokenize_token_us * tokens as f64 / 1e6
    }

    /// GPU time of a prefill of these chunks (from token, to token), nanoseconds.
    pub(super) fn prefill_nanos(&self, chunks: impl Iterator<Item = (u64, u64)>) -> i64 {
        let ms: f64 = chunks
            .map(|(from, to)| {
                let (from, to) = (from as f64, to as f64);
                let pairs = (to * to - from * from) / 2.0;
                (to - from) / self.prefill_tokens_per_s * 1e3
                    + pairs * self.prefill_context_ns / 1e6
            })
            .sum();
        nanos(ms / self.gpu_share)
    }

    /// GPU time of a decode step of requests with these context lengths (tokens), nanoseconds.
    pub(super) fn decode_nanos(&self, contexts: impl Iterator<Item = u64>) -> i64 {
        let (mut requests, mut tokens, mut longest) = (0.0, 0.0, 0.0_f64);
        for context in contexts {
            requests += 1.0;
            tokens += context as f64;
            longest = longest.max(context as f64);
        }
        let reads = tokens * self.decode_context_ns + longest * longest * self.decode_longest_ns;
        let ms = self.decode_step_ms + requests * self.decode_step_per_seq_ms + reads / 1e6;
        nanos(ms / self.gpu_share)
    }

    /// The time that the scheduler takes to launch its `nth` prefill, nanoseconds.
    pub(super) fn prefill_launch_nanos(&self, nth: u64) -> i64 {
        let stall = match uniform(2 * nth) < self.prefill_stall_share {
            true => -(1.0 - uniform(2 * nth + 1)).ln() * self.prefill_stall_ms,
            false => 0.0,
        };
        nanos(self.prefill_floor_ms + stall)
    }
}

/// The `nth` number of a fixed pseudo-random sequence in `[0, 1)` (SplitMix64), so that every run is the same.
fn uniform(nth: u64) -> f64 {
    let mut bits = (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

pub(super) fn nanos(ms: f64) -> i64 {
    (ms / 1e3 * NANOS as f64).round() as i64
}

impl Default for Profile {
    /// One H200 with SGLang 0.5.23 and an 8B model in bf16.
    fn default() -> Profile {
        Profile::parse_from(["sim"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with figures measured on an H200.
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
            assert!((step / measured - 1.0).abs() < 0.08, "{batch}: {step} ms");
        }
        for (prompt, measured) in [(128, 24.5), (512, 23.5), (2_048, 54.5), (8_192, 265.0)] {
            let gpu = ms(profile.prefill_nanos([(0, prompt)].into_iter()));
            let step = gpu.max(profile.prefill_floor_ms);
            assert!((step / measured - 1.0).abs() < 0.06, "{prompt}: {step} ms");
        }
    }

    #[test]
    fn chunks_of_a_prompt_take_as_long_as_the_whole() {
        let profile = Profile::default();
        let whole = profile.prefill_nanos([(0, 5_000)].into_iter());
        let chunks = profile.prefill_nanos([(0, 2_000), (2_000, 5_000)].into_iter());
        assert!((whole - chunks).abs() <= 1);
    }
}
