//! The experiment's own keys, each also a flag. Together with the generator's flags they make a run's settings (`settings.rs`).

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction::Set;

use crate::experiment::faults::{FaultKind, Schedule};
use crate::experiment::launch::{EngineName, Router};
use crate::names::names;
use crate::traffic;
use crate::traffic::client::Target;
use crate::units::{at_least, between, share};
use crate::upstream::Policy;

names! {
    /// What an experiment tests. Its name is its subcommand.
    pub enum ExperimentKind {
        /// One server.
        Node = "node",
        /// Several servers behind a router.
        Routing = "routing",
    }
}

/// A heading of the help. Keys under it have no effect on servers that run already.
pub const STARTED: &str = "Servers that are started";
/// A heading of the help. Keys under it have an effect on SGLang servers that are started, and on no others.
pub const SGLANG: &str = "SGLang";
const SERVERS: &str = "Servers";
const ROUTER: &str = "Router";
const EXPERIMENT: &str = "Experiment";
const FAILURES: &str = "Failures";
const SEARCH: &str = "Highest rate";

/// The values of the key `preset`, and the keys that each sets. Sources: SGLang's page on tuning (docs.sglang.io, "Hyperparameter
/// Tuning") and the project's requirements.
pub const PRESETS: [(&str, &str); 3] = [
    // Large batches: many requests at once, admitted early, with large prefill chunks.
    (
        "high-throughput",
        "max_running_requests = 512\nmem_fraction_static = 0.92\nchunked_prefill_size = 16384\nschedule_conservativeness = 0.3",
    ),
    // Small batches step faster, and small prefill chunks delay other requests' tokens less.
    (
        "low-latency",
        "max_running_requests = 32\nchunked_prefill_size = 4096",
    ),
    // What the page advises against running out of memory: in decode, in general, and in prefill.
    (
        "low-memory",
        "max_running_requests = 64\nmem_fraction_static = 0.7\nchunked_prefill_size = 2048",
    ),
];

/// All keys but the generator's own.
#[derive(Clone, Debug, clap::Args)]
pub struct Keys {
    /// What serves: the simulator, SGLang started here, or servers that run already (--servers)
    #[arg(long, value_enum, default_value = "sim", help_heading = SERVERS)]
    pub engine: EngineName,
    /// URLs of running servers, for --engine external
    #[arg(long, value_parser = url, help_heading = SERVERS)]
    pub servers: Vec<String>,
    /// The model: a folder or a name on the hub; the simulator only reports its name
    #[arg(long, help_heading = STARTED)]
    pub model_path: Option<String>,
    /// First GPU (SGLang's --base-gpu-id)
    #[arg(long, default_value = "0", value_parser = between(0_u32, 1024), help_heading = SGLANG)]
    pub gpu_id: u32,
    /// GPUs that share a model
    #[arg(long, default_value = "1", value_parser = between(1_u32, 1024), help_heading = SGLANG)]
    pub tp_size: u32,
    /// Requests that a server runs at once; the others wait
    #[arg(long, default_value = "256", value_parser = at_least(1_i64), help_heading = STARTED)]
    pub max_running_requests: i64,
    /// Share of a GPU's memory for weights and cache
    #[arg(long, default_value = "0.9", value_parser = share(0.001, 1.0), help_heading = SGLANG)]
    pub mem_fraction_static: f64,
    /// Prefills of more tokens than this run in chunks; -1: never
    #[arg(long, value_parser = at_least(-1_i64), help_heading = STARTED)]
    pub chunked_prefill_size: Option<i64>,
    /// How much of what running requests may yet make is kept free
    #[arg(long, value_parser = between(0.001, 1000.0), help_heading = STARTED)]
    pub schedule_conservativeness: Option<f64>,
    /// SGLang's --quantization
    #[arg(long, help_heading = SGLANG)]
    pub quantization: Option<String>,
    /// SGLang's --enable-torch-compile
    #[arg(long, value_name = "BOOL", default_value = "false", action = Set, help_heading = SGLANG)]
    pub enable_torch_compile: bool,
    /// Servers report when requests queued and ran, and serve /metrics
    #[arg(long, value_name = "BOOL", default_value = "true", action = Set, help_heading = STARTED)]
    pub enable_metrics: bool,
    /// The Python that has SGLang
    #[arg(long, default_value = "python3", help_heading = SGLANG)]
    pub python: PathBuf,
    /// Port of the first server, the others follow; 0: free ports
    #[arg(long, default_value = "30001", value_parser = between(0_u16, 65_535), help_heading = STARTED)]
    pub base_port: u16,
    /// Limit on a server's start, seconds [default: 30 for the simulator, 600 for SGLang]
    #[arg(long, value_parser = traffic::seconds, help_heading = SERVERS)]
    pub start_timeout_s: Option<Duration>,
    /// Servers to start, each with its own GPUs
    #[arg(long, default_value = "1", value_parser = between(1_u32, 1024), help_heading = STARTED)]
    pub num_gpus: u32,
    /// Servers to start that only prefill, with their own GPUs, the first; with --num-decode and a sglang-router, in place of
    /// --num-gpus
    #[arg(long, default_value = "0", value_parser = between(0_u32, 1024), help_heading = STARTED)]
    pub num_prefill: u32,
    /// Servers to start that decode what those have prefilled
    #[arg(long, default_value = "0", value_parser = between(0_u32, 1024), help_heading = STARTED)]
    pub num_decode: u32,
    /// Servers that share GPUs; each needs a mem_fraction_static of its own share, such as 0.4 for two
    #[arg(long, default_value = "1", value_parser = between(1_u32, 64), help_heading = SGLANG)]
    pub servers_per_gpu: u32,
    /// What shares requests out: queuescope's balancer, a sglang-router started here, or one that runs (--router-url)
    #[arg(long, value_enum, default_value = "none", help_heading = ROUTER)]
    pub router: Router,
    /// URL of the running router, for --router external
    #[arg(long, value_parser = url, help_heading = ROUTER)]
    pub router_url: Option<String>,
    /// Program of --router sglang-router [default: smg of PATH]
    #[arg(long, help_heading = ROUTER)]
    pub router_program: Option<PathBuf>,
    /// Who gets the next request
    #[arg(long, default_value = "cache_aware", help_heading = ROUTER, help = format!(
        "Who gets the next request: {}; or what the router knows", Policy::listed(|_| true)))]
    pub routing_policy: String,
    /// Put queuescope's proxy in front of all [default: where there is a router]
    #[arg(long, value_name = "BOOL", help_heading = ROUTER)]
    pub front: Option<bool>,
    /// Put a hop of queuescope's before each server: shows the router queue and which server served [default: where a
    /// router other than builtin is]
    #[arg(long, value_name = "BOOL", help_heading = ROUTER)]
    pub hops: Option<bool>,
    /// Read each server's /metrics every second
    #[arg(long, value_name = "BOOL", default_value = "true", action = Set, help_heading = EXPERIMENT)]
    pub collect_per_node_metrics: bool,
    /// Values that suit an aim; keys that are given win
    #[arg(long, value_parser = PRESETS.map(|(name, _)| name), help_heading = EXPERIMENT)]
    pub preset: Option<String>,
    /// Do each run this many times, with seeds one apart
    #[arg(long, default_value = "1", value_parser = between(1_u32, 1000), help_heading = EXPERIMENT)]
    pub repeats: u32,
    /// Make servers fail by --failure-schedule [default: where there is one]
    #[arg(long, value_name = "BOOL", help_heading = FAILURES)]
    pub enable_node_failures: Option<bool>,
    /// Servers that are down from that many seconds on: '{ 30 = [1, 2], 60 = [] }'
    #[arg(long, value_parser = Schedule::parse, help_heading = FAILURES)]
    pub failure_schedule: Option<Schedule>,
    /// How they fail: kill (the process), or what a hop can do: refuse, reset, stall, slow, cut
    #[arg(long, default_value = "kill", value_parser = FaultKind::parse, help_heading = FAILURES)]
    pub failure_kind: FaultKind,
    /// Search the highest request rate that meets --goodput; begins at --request-rate, or 10
    #[arg(long, value_name = "BOOL", default_value = "false", action = Set, help_heading = SEARCH)]
    pub find_max_rate: bool,
    /// Share of all requests that must keep the limits
    #[arg(long, default_value = "0.95", value_parser = share(0.001, 0.999), help_heading = SEARCH)]
    pub goodput_share: f64,
    /// The search ends when the lowest rate that missed is at most this share above the highest that met
    #[arg(long, default_value = "0.05", value_parser = share(0.001, 1.0), help_heading = SEARCH)]
    pub rate_precision: f64,
    /// Each rate is tried for at least this many seconds, and for 10 / (1 - goodput share) requests
    #[arg(long, default_value = "20", value_parser = traffic::seconds, help_heading = SEARCH)]
    pub probe_s: Duration,
}

/// Reads a URL, without a slash at its end.
fn url(text: &str) -> Result<String, String> {
    Target::parse(text).map(|_| text.trim_end_matches('/').to_owned())
}

impl Keys {
    /// Whether prefill and decode servers are started.
    pub fn has_pairs(&self) -> bool {
        self.engine != EngineName::External && self.num_prefill + self.num_decode > 0
    }
}

impl ExperimentKind {
    /// The built-in plan, which is used if no file is given.
    pub fn example(self) -> &'static str {
        match self {
            ExperimentKind::Node => include_str!("node.toml"),
            ExperimentKind::Routing => include_str!("routing.toml"),
        }
    }
}
