//! `queuescope node`: one server, under a load.
//!
//! ```no_run
//! use queuescope::experiment::node::{NodeConfig, NodeTest};
//!
//! let result = NodeTest::new(NodeConfig {
//!     engine: "sglang".into(),
//!     model_path: "meta-llama/Llama-3.1-8B-Instruct".into(),
//!     request_rate: 8.0,
//!     ..NodeConfig::default()
//! })
//! .run()?;
//! println!("p99 TTFT {} ms", result.metrics["p99_ttft_ms"]);
//! println!("{} files in {}", result.exported_files.len(), result.output_dir.display());
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::path::PathBuf;

use toml::Value;

use super::api::{TestResult, test};
use super::plan::keys::Kind;
use super::plan::read::Entry;

/// The plan of `queuescope node` without a file.
pub const EXAMPLE: &str = include_str!("node/example.toml");

/// One server and its load. Members are keys of a plan (docs/EXPERIMENTS.md), with the manual's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// `sim`, `sglang` or `external`.
    pub engine: String,
    /// The model: a folder or a name on the hub. The simulator needs none.
    pub model_path: String,
    /// The first GPU.
    pub gpu_id: u32,
    /// Requests that the server runs at once.
    pub max_running_requests: u32,
    /// GPUs that share the model.
    pub tp_size: u32,
    /// Share of the GPU's memory for weights and KV cache.
    pub mem_fraction_static: f64,
    /// Prefills are cut into pieces of so many tokens.
    pub chunked_prefill_size: Option<i64>,
    /// How much of what running requests may yet make is kept free.
    pub schedule_conservativeness: Option<f64>,
    /// The weights' quantization: `fp8`.
    pub quantization: Option<String>,
    /// Whether torch.compile is used.
    pub enable_torch_compile: bool,
    /// Whether the server measures; without it nothing is known of its queue.
    pub enable_metrics: bool,
    /// Requests a second.
    pub request_rate: f64,
    /// Requests.
    pub num_prompts: u32,
    /// Where prompts come from.
    pub dataset_name: String,
    /// Length of a prompt, at most.
    pub random_input_len: Option<u32>,
    /// Tokens to ask for, at most.
    pub random_output_len: Option<u32>,
    /// Lengths are from this share of the length to the length.
    pub random_range_ratio: Option<f64>,
    /// The first server's port; 0: a free one.
    pub base_port: u16,
    /// The folder that gets all files; `None`: a new one in `results/`.
    pub output_dir: Option<PathBuf>,
    /// Further keys of a plan, which win over these; a list of values is varied.
    pub more: toml::Table,
}

/// A test of one server.
#[derive(Clone, Debug)]
pub struct NodeTest {
    config: NodeConfig,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            engine: "sim".to_owned(),
            model_path: String::new(),
            gpu_id: 0,
            max_running_requests: 256,
            tp_size: 1,
            mem_fraction_static: 0.9,
            chunked_prefill_size: None,
            schedule_conservativeness: None,
            quantization: None,
            enable_torch_compile: false,
            enable_metrics: true,
            request_rate: f64::INFINITY,
            num_prompts: 1000,
            dataset_name: "random".to_owned(),
            random_input_len: None,
            random_output_len: None,
            random_range_ratio: None,
            base_port: 30_001,
            output_dir: None,
            more: toml::Table::new(),
        }
    }
}

impl NodeConfig {
    /// The keys of a plan.
    pub(super) fn keys(&self) -> Vec<Entry> {
        let whole = |number: u32| Value::from(i64::from(number));
        let model = Some(self.model_path.clone()).filter(|model| !model.is_empty());
        let own = [
            ("engine", Some(Value::from(self.engine.clone()))),
            ("model_path", model.map(Value::from)),
            ("gpu_id", Some(whole(self.gpu_id))),
            (
                "max_running_requests",
                Some(whole(self.max_running_requests)),
            ),
            ("tp_size", Some(whole(self.tp_size))),
            ("mem_fraction_static", Some(self.mem_fraction_static.into())),
            (
                "chunked_prefill_size",
                self.chunked_prefill_size.map(Value::from),
            ),
            (
                "schedule_conservativeness",
                self.schedule_conservativeness.map(Value::from),
            ),
            ("quantization", self.quantization.clone().map(Value::from)),
            (
                "enable_torch_compile",
                Some(self.enable_torch_compile.into()),
            ),
            ("enable_metrics", Some(self.enable_metrics.into())),
            ("request_rate", Some(self.request_rate.into())),
            ("num_prompts", Some(whole(self.num_prompts))),
            ("dataset_name", Some(self.dataset_name.clone().into())),
            ("random_input_len", self.random_input_len.map(whole)),
            ("random_output_len", self.random_output_len.map(whole)),
            (
                "random_range_ratio",
                self.random_range_ratio.map(Value::from),
            ),
            ("base_port", Some(whole(self.base_port.into()))),
        ];
        let own = own
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let own = own.filter(|(key, _)| !self.more.contains_key(key));
        own.chain(self.more.clone()).collect()
    }
}

impl NodeTest {
    /// A test to be run.
    pub fn new(config: NodeConfig) -> NodeTest {
        NodeTest { config }
    }

    /// Runs it: starts the server, loads it, ends it.
    ///
    /// # Errors
    /// Values that do not go together; a server that does not start; nothing measured.
    pub fn run(&self) -> anyhow::Result<TestResult> {
        test(
            Kind::Node,
            self.config.keys(),
            self.config.output_dir.as_deref(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::{Plan, read};

    #[test]
    fn the_defaults_are_those_of_an_empty_plan() {
        let empty = Plan::new(Kind::Node, Vec::new(), Vec::new()).unwrap();
        let config = NodeConfig::default();
        let mut plan = Plan::new(Kind::Node, Vec::new(), config.keys()).unwrap();
        assert_eq!(
            empty.differs(&plan),
            ["num_prompts"],
            "the generator's own default is 1000"
        );
        let more = toml::from_str("max_running_requests = [1, 2]\nnum_prompts = 7").unwrap();
        plan = Plan::new(Kind::Node, Vec::new(), NodeConfig { more, ..config }.keys()).unwrap();
        assert_eq!(plan.runs().unwrap().len(), 2);
    }

    #[test]
    fn the_example_is_a_plan_that_varies_what_it_says() {
        let plan = Plan::new(Kind::Node, read::file(EXAMPLE).unwrap(), Vec::new()).unwrap();
        assert_eq!(plan.sweeps()[0].key, "max_running_requests");
    }
}
