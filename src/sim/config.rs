//! What a simulated server is to be: the flags of `queuescope sim`.

use std::path::PathBuf;

use clap::ArgAction::SetFalse;

use super::Error;
use super::dialect::Dialect;
use super::engine::Profile;
use super::failures::Failures;
use super::range::in_range;
use super::tells::Tells;

/// A pretend SGLang that queues as the real one does: for tests, demos, and load on clients.
#[derive(Clone, Debug, PartialEq, clap::Args)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Config {
    /// Name or address to listen on
    #[arg(long, default_value_t = Config::default().host)]
    pub host: String,
    /// Port to listen on; 0 takes a free one, which is printed
    #[arg(long, default_value_t = Config::default().port)]
    pub port: u16,
    /// The model it says it serves
    #[arg(long, default_value_t = Config::default().model)]
    pub model: String,
    /// How fast it is.
    #[command(flatten)]
    pub profile: Profile,
    /// Data-parallel ranks: so many engines, which get the requests in turn
    #[arg(long, value_name = "N", default_value_t = Config::default().dp_size)]
    pub dp_size: usize,
    /// Tokens made for a request that names no length
    #[arg(long, value_name = "N", default_value_t = Config::default().default_output_len)]
    pub default_output_len: u32,
    /// Prompt and answer together hold at most this many tokens
    #[arg(long = "context-length", value_name = "N", default_value_t = Config::default().context_len)]
    pub context_len: u32,
    /// Speak as an older SGLang: its meta_info in replies of /generate
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "VERSION",
        help_heading = "What it tells"
    )]
    pub dialect: Dialect,
    /// Events carry only what is new, not the text so far
    #[arg(long = "incremental-streaming-output", help_heading = "What it tells")]
    pub incremental: bool,
    /// As SGLang without --enable-metrics: no timings in meta_info, no /metrics
    #[arg(long = "no-metrics", action = SetFalse, help_heading = "What it tells")]
    pub metrics: bool,
    /// Answer every request at once and in full: no queue, no model; to load clients
    #[arg(long, help_heading = "How fast it is")]
    pub instant: bool,
    /// Append a JSON line for each generation request to FILE
    #[arg(long, value_name = "FILE", help_heading = "What it tells")]
    pub request_log: Option<PathBuf>,
    /// Set the engine's clock ahead by this, seconds (to test clock offsets)
    #[arg(long, value_name = "S", default_value_t = Config::default().clock_skew_s)]
    #[arg(help_heading = "What it tells")]
    pub clock_skew_s: f64,
    /// Close keep-alive connections that are idle for this long, seconds
    #[arg(long, value_name = "S", default_value_t = Config::default().keep_alive_s)]
    #[arg(help_heading = "What it tells")]
    pub keep_alive_s: f64,
    /// Its traces and its log.
    #[command(flatten)]
    pub tells: Tells,
    /// Requests that go wrong.
    #[command(flatten)]
    pub failures: Failures,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: "127.0.0.1".to_owned(),
            port: 30_000,
            model: "sim-llama".to_owned(),
            profile: Profile::default(),
            dp_size: 1,
            default_output_len: 128,
            context_len: 32_768,
            metrics: true,
            incremental: false,
            instant: false,
            request_log: None,
            clock_skew_s: 0.0,
            keep_alive_s: 5.0,
            dialect: Dialect::default(),
            tells: Tells::default(),
            failures: Failures::default(),
        }
    }
}

impl Config {
    /// The tokens that one sequence may have: its context, and what the KV cache holds.
    pub(super) fn most_tokens(&self) -> u32 {
        let cache = u32::try_from(self.profile.max_total_tokens - 1).unwrap_or(u32::MAX);
        self.context_len.min(cache)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`Error::Value`] for the first that is out of range, by its flag.
    pub fn validate(&self) -> Result<(), Error> {
        const ANY: f64 = f64::INFINITY;
        let own = [
            (
                "--default-output-len",
                f64::from(self.default_output_len),
                1.0,
                ANY,
            ),
            ("--context-length", f64::from(self.context_len), 2.0, 4e6),
            ("--clock-skew-s", self.clock_skew_s, -1e8, 1e8),
            ("--keep-alive-s", self.keep_alive_s, 1e-3, 1e6),
            ("--dp-size", self.dp_size as f64, 1.0, 64.0),
        ];
        in_range(self.profile.ranges())?;
        in_range(own)?;
        in_range(self.tells.ranges())?;
        self.tells.validate()?;
        self.failures.validate()
    }
}
