//! The Rust API of `queuescope node`, one server under load, and of `queuescope routing`, several servers behind a router. They run what the
//! commands run, with the same keys.
//!
//! ```no_run
//! use queuescope::experiment::node::{NodeConfig, NodeTest};
//!
//! let result = NodeTest::new(NodeConfig {
//!     engine: Some("sglang".into()),
//!     model_path: Some("meta-llama/Llama-3.1-8B-Instruct".into()),
//!     request_rate: Some(8.0),
//!     ..NodeConfig::default()
//! })
//! .run()?;
//! println!("p99 TTFT {} ms", result.metrics["p99_ttft_ms"]);
//! println!("{} files in {}", result.exported_files.len(), result.output_dir.display());
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! ```no_run
//! use queuescope::experiment::routing::{RoutingConfig, RoutingTest};
//!
//! let result = RoutingTest::new(RoutingConfig {
//!     num_gpus: Some(2),
//!     request_rate: Some(20.0),
//!     more: "routing_policy = ['cache_aware', 'random']\nrepeats = 3".parse()?,
//!     ..RoutingConfig::default()
//! })
//! .run()?;
//! println!("{}", result.report);
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::Value;
use toml::Table;

use super::command::{new_folder, run_and_report};
use super::launch::in_path;
use super::plan::Plan;
use super::plan::keys::ExperimentKind;
use super::run::Finished;
use super::run::single::RunResult;
use crate::report::files::MaxRate;
use crate::traffic;

/// The keys of a plan (docs/EXPERIMENTS.md); `None` for the plan's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Config {
    /// `sim`, `sglang` or `external`.
    pub engine: Option<String>,
    /// The model: a folder or a name on the hub. The simulator needs none.
    pub model_path: Option<String>,
    /// The first GPU.
    pub gpu_id: Option<u32>,
    /// How many requests the server runs at once.
    pub max_running_requests: Option<u32>,
    /// GPUs that share the model.
    pub tp_size: Option<u32>,
    /// Share of the GPU's memory for weights and KV cache.
    pub mem_fraction_static: Option<f64>,
    /// The size of a prefill chunk, in tokens.
    pub chunked_prefill_size: Option<i64>,
    /// The share of the tokens that running requests may still generate for which memory is kept free.
    pub schedule_conservativeness: Option<f64>,
    /// The quantization of the weights: `fp8`.
    pub quantization: Option<String>,
    /// Whether torch.compile is used.
    pub enable_torch_compile: Option<bool>,
    /// Whether the server reports times; otherwise nothing is known of its queue.
    pub enable_metrics: Option<bool>,
    /// Requests per second.
    pub request_rate: Option<f64>,
    /// The number of requests.
    pub num_prompts: Option<u32>,
    /// The source of the prompts.
    pub dataset_name: Option<String>,
    /// The maximum length of a prompt.
    pub random_input_len: Option<u32>,
    /// The maximum number of output tokens that a request asks for.
    pub random_output_len: Option<u32>,
    /// The minimum length, as a share of the maximum.
    pub random_range_ratio: Option<f64>,
    /// The first server's port; 0: a free one.
    pub base_port: Option<u16>,
    /// The number of servers behind a router, each with its own GPUs.
    pub num_gpus: Option<u32>,
    /// The policy by which the router chooses a server.
    pub routing_policy: Option<String>,
    /// Whether each server's `/metrics` are read.
    pub collect_per_node_metrics: Option<bool>,
    /// Times, each with the servers (counted from 1) that are down from then on: seconds, or with a unit.
    pub failure_schedule: Option<BTreeMap<String, Vec<u32>>>,
    /// The folder for all files; `None` for a new one in `results/`.
    #[serde(skip)]
    pub output_dir: Option<PathBuf>,
    /// Further keys of a plan, which override these; a list of values is varied.
    #[serde(skip)]
    pub more: Table,
}

/// A test that can be run: of `queuescope routing`, or else of `queuescope node`.
#[derive(Clone, Debug)]
pub struct Test<const IS_ROUTING: bool> {
    config: Config,
}

/// The keys of a test of one server.
pub type NodeConfig = Config;
/// The keys of a test of several servers.
pub type RoutingConfig = Config;
/// A test of one server.
pub type NodeTest = Test<false>;
/// A test of several servers.
pub type RoutingTest = Test<true>;

/// The result of a test.
#[derive(Clone, Debug)]
pub struct TestResult {
    /// The figures of the first run: its `summary.json` (docs/SUMMARY.md).
    pub metrics: Value,
    /// All runs, in order. [`RunResult::metrics`] are the figures of one.
    pub runs: Vec<RunResult>,
    /// The result of a search for the highest rate.
    pub max_rate: Option<MaxRate>,
    /// The folder with all files.
    pub output_dir: PathBuf,
    /// The files in it: rows, figures, logs, `report.html`.
    pub exported_files: Vec<PathBuf>,
    /// The report as text.
    pub report: String,
}

impl<const IS_ROUTING: bool> Test<IS_ROUTING> {
    /// Makes a test of a configuration.
    pub fn new(config: Config) -> Self {
        Test { config }
    }

    /// Runs the test: starts what it needs, sends the load, stops everything.
    ///
    /// # Errors
    /// The keys contradict each other, something does not start, the folder cannot be used, or no run has figures.
    pub fn run(&self) -> anyhow::Result<TestResult> {
        let kind = match IS_ROUTING {
            true => ExperimentKind::Routing,
            false => ExperimentKind::Node,
        };
        let mut keys = Table::try_from(&self.config)?;
        keys.extend(self.config.more.clone());
        let plan = Plan::new(kind, Vec::new(), keys)?;
        let to = new_folder(kind, self.config.output_dir.as_deref());
        let program = program()?;
        let on_progress = |line: &str| log::info!("{line}");
        let run = || run_and_report(plan, to, program, on_progress, None);
        let (finished, report) = traffic::beside_runtimes(run)??;
        result(finished, report?)
    }
}

/// Finds the program `queuescope`: in the folder of the running program, in the one above it, or in PATH.
fn program() -> anyhow::Result<PathBuf> {
    const NAME: &str = "queuescope";
    let own = std::env::current_exe().context("the program's own file")?;
    let folders = own.ancestors().skip(1).take(2);
    let mut programs = folders.map(|folder| folder.join(NAME));
    let near = programs.find(|program| program.is_file());
    near.or_else(|| in_path(NAME)).context(
        "the program queuescope is neither beside this one nor in PATH; `cargo build` makes it",
    )
}

fn result(finished: Finished, report: String) -> anyhow::Result<TestResult> {
    let runs = finished.runs;
    let mut metrics = runs.iter().map(RunResult::metrics);
    let Some(metrics) = metrics.find(|metrics| !metrics.is_null()) else {
        let error = runs.iter().find_map(|run| run.file.error.clone());
        let error = error.unwrap_or_else(|| "stopped before there were figures".to_owned());
        return Err(anyhow!(error));
    };
    let mut exported_files = Vec::new();
    list_files(&finished.dir, &mut exported_files)?;
    exported_files.sort();
    Ok(TestResult {
        metrics,
        runs,
        max_rate: finished.file.max_rate,
        output_dir: finished.dir,
        exported_files,
        report,
    })
}

/// Adds all files in a folder and its subfolders to `all`.
fn list_files(dir: &Path, all: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        match path.is_dir() {
            true => list_files(&path, all)?,
            false => all.push(path),
        }
    }
    Ok(())
}
