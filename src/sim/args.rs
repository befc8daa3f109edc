//! The command line of `queuescope sim`.

use std::io::Write;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use crate::clock::Clock;

use super::Error;
use super::engine::Profile;
use super::server::{Config, Sim};

/// A pretend SGLang that queues as the real one does: for tests, demos, and load on clients.
#[derive(Clone, Debug, clap::Args)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Name or address to listen on
    #[arg(long, default_value_t = Config::default().host)]
    pub host: String,
    /// Port to listen on; 0 takes a free one, which is printed
    #[arg(long, default_value_t = Config::default().port)]
    pub port: u16,
    /// The model it says it serves
    #[arg(long, default_value_t = Config::default().model)]
    pub model: String,
    /// Requests that run at once; the others wait in order of arrival
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_running_requests)]
    pub max_running_requests: usize,
    /// Requests that may wait; more are rejected with 503 [default: no limit]
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<usize>,
    /// Prompt tokens in one prefill batch; a longer prompt goes alone
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_prefill_tokens)]
    #[arg(help_heading = "How fast it is")]
    pub max_prefill_tokens: u64,
    /// Prompt tokens prefilled in a second
    #[arg(long, value_name = "RATE", default_value_t = Profile::default().prefill_tokens_per_s)]
    #[arg(help_heading = "How fast it is")]
    pub prefill_tokens_per_s: f64,
    /// Time of a decode step without what its requests add, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_s * 1e3)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_ms: f64,
    /// What each running request adds to a decode step, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_per_seq_s * 1e3)]
    #[arg(help_heading = "How fast it is")]
    pub decode_step_per_seq_ms: f64,
    /// Tokens made for a request that names no length
    #[arg(long, value_name = "N", default_value_t = Config::default().default_output_len)]
    pub default_output_len: u32,
    /// Prompt and answer together hold at most this many tokens
    #[arg(long, value_name = "N", default_value_t = Config::default().context_len)]
    pub context_length: u32,
    /// Events carry only what is new, not the text so far
    #[arg(long)]
    #[arg(help_heading = "What it tells")]
    pub incremental_streaming_output: bool,
    /// As SGLang without --enable-metrics: no timings in meta_info, no /metrics
    #[arg(long)]
    #[arg(help_heading = "What it tells")]
    pub no_metrics: bool,
    /// Answer every request at once and in full: no queue, no model; to load clients
    #[arg(long)]
    #[arg(help_heading = "How fast it is")]
    pub instant: bool,
    /// Write a JSON line for each generation request to FILE
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "What it tells")]
    pub request_log: Option<PathBuf>,
    /// Set the engine's clock ahead by this, seconds (to test clock offsets)
    #[arg(long, value_name = "S", default_value_t = Config::default().clock_skew_s)]
    #[arg(help_heading = "What it tells")]
    pub clock_skew_s: f64,
    /// Time between a request's coming and its entering the queue, milliseconds
    #[arg(long, value_name = "MS", default_value_t = Config::default().tokenize_ms)]
    #[arg(help_heading = "How fast it is")]
    pub tokenize_ms: f64,
    /// Close keep-alive connections that are idle for this long, seconds
    #[arg(long, value_name = "S", default_value_t = Config::default().keep_alive_s)]
    #[arg(help_heading = "What it tells")]
    pub keep_alive_s: f64,
}

impl From<Args> for Config {
    fn from(args: Args) -> Config {
        Config {
            host: args.host,
            port: args.port,
            model: args.model,
            profile: Profile {
                max_running_requests: args.max_running_requests,
                max_queued_requests: args.max_queued_requests,
                max_prefill_tokens: args.max_prefill_tokens,
                prefill_tokens_per_s: args.prefill_tokens_per_s,
                decode_step_s: args.decode_step_ms / 1e3,
                decode_step_per_seq_s: args.decode_step_per_seq_ms / 1e3,
            },
            default_output_len: args.default_output_len,
            context_len: args.context_length,
            metrics: !args.no_metrics,
            incremental: args.incremental_streaming_output,
            instant: args.instant,
            request_log: args.request_log,
            clock_skew_s: args.clock_skew_s,
            tokenize_ms: args.tokenize_ms,
            keep_alive_s: args.keep_alive_s,
        }
    }
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// As [`Sim::start`]; also when the system gives no runtime or signal handler.
pub fn run(args: Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::Start)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::Start)?;
        let sim = Sim::start(args.into(), Clock::system())?;
        announce(&sim);
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Error::Start),
            _ = terminate.recv() => Ok(()),
        }
    })
}

/// Whoever asked for port 0 reads it here.
fn announce(sim: &Sim) {
    let _ = writeln!(std::io::stdout(), "sim listening on http://{}", sim.addr());
}
