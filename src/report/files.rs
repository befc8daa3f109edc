//! The names of the files in the folder of a run and of an experiment, and the types of their contents, for both writers and
//! readers. A run's folder holds `requests.csv`; an experiment's holds [`EXPERIMENT`], and its runs' folders in [`RUNS`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::names::names;
use crate::request::ServerRole;

/// The rows of a run's requests, in the order of arrival.
pub const ROWS: &str = "requests.csv";
/// [`ROWS`] as `gzip` leaves it.
pub const PACKED_ROWS: &str = "requests.csv.gz";
/// The rows of a run that is under way or was killed, in the order of ends.
pub const PARTIAL: &str = "requests.partial.csv";
/// The figures of a run.
pub const SUMMARY: &str = "summary.json";
/// The schedule: what was to be sent when.
pub const SCHEDULE: &str = "schedule.csv";
/// The description of a run ([`RunFile`]); a run of the generator alone has none.
pub const RUN: &str = "run.json";
/// The description of an experiment ([`ExperimentFile`]).
pub const EXPERIMENT: &str = "experiment.json";
/// The members of `summary.json` that are known when a run begins. It is kept only if the run is killed before it has a summary.
pub const BEGUN: &str = "begun.json";
/// The folder of an experiment's runs.
pub const RUNS: &str = "runs";
/// The folder of the logs of a run's processes.
pub const LOGS: &str = "logs";
/// The folder of the servers' request logs.
pub const ENGINE_LOGS: &str = "engine";
/// Measurements over time ([`SeriesRow`]).
pub const SERIES: &str = "series.csv";
/// The records of a run's proxy.
pub const PROXY_ROWS: &str = "proxy.csv";
/// Faults that were injected into servers ([`FaultRow`]).
pub const FAULTS: &str = "faults.csv";

/// `run.json`: a run of an experiment. Written when it begins, and again when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFile {
    /// The values that distinguish it from the other runs: `routing_policy=random`; `run` if nothing varies.
    pub label: String,
    /// The keys that the experiment varies, with this run's values.
    pub settings: Map<String, Value>,
    /// The number of the repeat, from 0.
    pub repeat: u32,
    /// The state of the run.
    pub state: RunState,
    /// Why it failed.
    pub error: Option<String>,
    /// More of its requests failed than `max_failed` allows; without it, and without an injected fault, more than half. Its figures are
    /// complete, and it is not repeated.
    pub has_failed_too_often: bool,
    /// A server may have had the cache of an earlier run: not to be compared.
    pub kept_cache: bool,
    /// When it began, Unix seconds: time 0 in `requests.csv` (with time base `run`), [`SERIES`] and [`FAULTS`].
    pub began: Option<f64>,
    /// The time until all processes were ready, seconds.
    pub start_s: Option<f64>,
    /// The servers, in order.
    pub servers: Vec<ServerFile>,
    /// The router: `builtin round_robin`, `sglang-router cache_aware`.
    pub router: Option<String>,
    /// SHA-256 of schedule and bodies: runs with the same hash were sent the same requests.
    pub workload_sha256: Option<String>,
    /// The processes that were started.
    pub processes: Vec<ProcessFile>,
    /// Notes besides the summary's warnings: a cache that was not emptied, a server that did not respond.
    pub notes: Vec<String>,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Not begun.
    #[default]
    Planned,
    /// Begun; also after it was killed.
    Running,
    /// Finished, with all its files.
    Done,
    /// Not started, or ended by an error other than failed requests.
    Failed,
    /// Stopped by a signal.
    Stopped,
}

/// A server of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFile {
    /// `server-1`, …
    pub name: String,
    /// Its address.
    pub url: String,
    /// Its name in the column `host`.
    pub host: String,
    /// `sim`, `sglang` or `external`.
    pub engine: String,
    /// The most requests that each of its data-parallel ranks runs at once, as its `/get_server_info` says.
    pub max_running_requests: Option<u32>,
    /// Its role, if it is one of a prefill/decode pair.
    pub role: Option<ServerRole>,
}

/// A process that was started for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessFile {
    /// `server-1`, `router`, `proxy`.
    pub name: String,
    /// The command, quoted for a shell.
    pub command: String,
    /// Its log, relative to the run's folder.
    pub log: String,
}

/// `experiment.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentFile {
    /// `node` or `routing`.
    pub kind: String,
    /// When it began, Unix seconds.
    pub began: f64,
    /// The keys that vary, the slowest first.
    pub keys: Vec<String>,
    /// The runs, in order.
    pub runs: Vec<RunRef>,
    /// The result of `--find-max-rate`.
    pub max_rate: Option<MaxRate>,
}

/// A run of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRef {
    /// Its folder, relative to the experiment's.
    pub dir: String,
    /// As in [`RunFile`].
    pub label: String,
    /// As in [`RunFile`].
    pub settings: Map<String, Value>,
    /// As in [`RunFile`].
    pub repeat: u32,
    /// As in [`RunFile`].
    pub state: RunState,
}

/// The highest rate that meets an objective.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MaxRate {
    /// The objective's limits: `ttft:500`.
    pub goodput: Vec<String>,
    /// The share of all requests that must meet them.
    pub share: f64,
    /// The highest rate tried that met it, requests a second.
    pub met: Option<f64>,
    /// The lowest rate tried that did not.
    pub missed: Option<f64>,
    /// The lowest rate that the generator could not send, which says nothing of the servers.
    pub invalid: Option<f64>,
    /// All trials, in order.
    #[serde(default)]
    pub trials: Vec<TrialFile>,
}

/// A rate that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialFile {
    /// The requested rate, requests a second.
    pub rate: f64,
    /// The rate of the random schedule that was drawn.
    pub drawn: Option<f64>,
    /// The share of all requests that met the limits.
    pub kept: f64,
    /// The result.
    pub result: Trial,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trial {
    /// Enough requests met the limits.
    #[default]
    Met,
    /// Too few did.
    Missed,
    /// The generator could not send this rate (its run is INVALID), which says nothing of the servers.
    Invalid,
}

/// The source of what is counted from the rows of requests.
pub const RECORDS: &str = "records";
/// The source of rows from a server's `/metrics`.
pub const METRICS: &str = "metrics";
/// The metric of how many tokens a server's KV cache can hold.
pub const POOL: &str = "max_total_num_tokens";
/// The source of rows of a GPU.
pub const GPU: &str = "gpu";
/// The metric of requests in a batch.
pub const RUNNING: &str = "running";
/// The metric of requests in the server queue.
pub const QUEUED: &str = "queued";

/// A row of `series.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesRow {
    /// Seconds since the run began.
    pub time: f64,
    /// The source: `metrics` (the server's `/metrics`) or `gpu`.
    pub source: String,
    /// The server's name; empty for all together.
    pub server: String,
    /// The metric: `running`, `queued`, `concurrency`, `token_usage`, …
    pub metric: String,
    /// The value.
    pub value: f64,
}

/// A row of `faults.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultRow {
    /// Seconds since the run began, just before the event; of `ready`, when it was observed. Failed attempts have no row.
    pub time: f64,
    /// The server's name.
    pub server: String,
    /// `kill`, or a fault of the worker hop.
    pub kind: String,
    /// `down`: the fault begins; `up`: it is removed; `ready`: the server responds again.
    pub event: String,
}

names! {
    /// How far a run's figures can be believed.
    #[derive(Default)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Grade {
        /// The load was the one asked for, and its answers were seen in time.
        Valid = "VALID" default,
        /// Something was off that shows in some figures.
        Degraded = "DEGRADED",
        /// The figures are not those of the server.
        Invalid = "INVALID",
    }
}

/// How far a run's figures can be believed, and why not farther.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How far.
    pub grade: Grade,
    /// Why not farther, in sentences with the figures, those of the grade first.
    pub reasons: Vec<String>,
}

/// A JSON value as text: a string without quotes, null as the empty string.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
