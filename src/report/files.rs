//! The files of a run's folder, and of an experiment's, beside the rows of its requests: whoever writes them and whoever
//! reads them share these types. A run's folder holds `requests.csv`; an experiment's holds [`EXPERIMENT`] and its runs'
//! folders in [`RUNS`].

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::request::attempt::ServerRole;

/// The rows of a run's requests, by their arrival.
pub const ROWS: &str = "requests.csv";
/// The rows of a run that is under way or was killed, in the order of their ends.
pub const PARTIAL: &str = "requests.partial.csv";
/// Its figures.
pub const SUMMARY: &str = "summary.json";
/// What was to be sent when.
pub const SCHEDULE: &str = "schedule.csv";
/// What a run is ([`RunFile`]); a run of the generator alone has none.
pub const RUN: &str = "run.json";
/// What an experiment is ([`ExperimentFile`]).
pub const EXPERIMENT: &str = "experiment.json";
/// What a generator knew of its run when that began: the members of `summary.json` that tell it. It stays only where the run
/// was killed before it had a summary.
pub const BEGUN: &str = "begun.json";
/// The folder of an experiment's runs.
pub const RUNS: &str = "runs";
/// The folder of what a run's processes wrote.
pub const LOGS: &str = "logs";
/// The folder of what its servers wrote of each request.
pub const ENGINE_LOGS: &str = "engine";
/// What was measured over time ([`SeriesRow`]).
pub const SERIES: &str = "series.csv";
/// A run's requests as its proxy saw them.
pub const PROXY_ROWS: &str = "proxy.csv";
/// What was done to servers on purpose ([`FaultRow`]).
pub const FAULTS: &str = "faults.csv";

/// `run.json`: what a run of an experiment is. Written when it begins, and again when it ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// What tells it from the others of its experiment: `routing_policy=random`; `run` where nothing differs.
    pub label: String,
    /// The keys that the experiment varies, with this run's values.
    pub settings: Map<String, Value>,
    /// Which of the repeats, from 0.
    pub repeat: u32,
    /// How far it came.
    pub state: RunState,
    /// Why it failed.
    pub error: Option<String>,
    /// More of its requests failed than `max_failed` allows, or without it and without a fault done on purpose more than
    /// half: its figures are whole, and it is not done again.
    #[serde(default)]
    pub has_failed_too_often: bool,
    /// A server may have begun with what an earlier run left in its cache: not to be compared.
    #[serde(default)]
    pub kept_cache: bool,
    /// When it began, Unix seconds: 0 of `requests.csv` (of time base `run`), of [`SERIES`] and of [`FAULTS`].
    pub began: Option<f64>,
    /// How long it took until all that was started was ready, seconds.
    #[serde(default)]
    pub start_s: Option<f64>,
    /// The servers, in order.
    pub servers: Vec<ServerFile>,
    /// What routed: `builtin round_robin`, `sglang-router cache_aware`.
    pub router: Option<String>,
    /// SHA-256 of schedule and bodies: runs with the same were sent the same.
    pub workload_sha256: Option<String>,
    /// What was started.
    pub processes: Vec<ProcessFile>,
    /// What the reader must know, beside the summary's warnings: a cache that was not emptied, a server not heard of.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Not begun.
    #[default]
    Planned,
    /// Begun; still so when it was killed.
    Running,
    /// Over, with all its files.
    Done,
    /// It could not be started, or ended for a reason that is not the traffic's.
    Failed,
    /// Stopped by a signal.
    Stopped,
}

/// A server of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFile {
    /// `server-1`, …
    pub name: String,
    /// Where it listens.
    pub url: String,
    /// As the column `host` names it.
    pub host: String,
    /// `sim`, `sglang` or `external`.
    pub engine: String,
    /// What it does of a request, where another does the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<ServerRole>,
}

/// A process that was started for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessFile {
    /// `server-1`, `router`, `proxy`.
    pub name: String,
    /// The command, as a shell takes it.
    pub command: String,
    /// What it wrote, from the run's folder.
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
    /// What `--find-max-rate` found.
    pub max_rate: Option<MaxRate>,
}

/// A run of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRef {
    /// Its folder, from the experiment's.
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
    /// The share of all requests that must keep them.
    pub share: f64,
    /// The highest rate tried that met it, requests a second.
    pub met: Option<f64>,
    /// The lowest rate tried that did not.
    pub missed: Option<f64>,
    /// The lowest rate that the generator could not send: not the servers' miss.
    #[serde(default)]
    pub invalid: Option<f64>,
    /// All that were tried, in order.
    #[serde(default)]
    pub trials: Vec<TrialFile>,
}

/// A rate that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialFile {
    /// Requests a second that were asked for.
    pub rate: f64,
    /// What chance made of it: the rate of the schedule that was drawn.
    pub drawn: Option<f64>,
    /// The share of all requests that kept the limits.
    pub kept: f64,
    /// How it did.
    pub result: Trial,
}

/// How a rate did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trial {
    /// Enough requests kept the limits.
    #[default]
    Met,
    /// Too few did.
    Missed,
    /// The generator did not send what was asked for (its run is INVALID), so it tells nothing of the servers.
    Invalid,
}

/// A row of `series.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesRow {
    /// Seconds since the run began.
    pub time: f64,
    /// Who said so: `records` (counted from the rows of requests), `metrics` (the server's `/metrics`), `gpu`.
    pub source: String,
    /// The server's name; empty: all together.
    pub server: String,
    /// What: `running`, `queued`, `concurrency`, `token_usage`, …
    pub metric: String,
    /// How much.
    pub value: f64,
}

/// A row of `faults.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultRow {
    /// Seconds since the run began: just before it was done, of `ready` when it was seen. Only what worked has a row.
    pub time: f64,
    /// The server's name.
    pub server: String,
    /// `kill`, or a kind of the hop's.
    pub kind: String,
    /// `down`: the fault begins; `up`: it is taken away; `ready`: the server answers again.
    pub event: String,
}

/// A value as people write it: without the quotes of JSON, nothing for none.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
