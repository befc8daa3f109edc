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

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::Table;

use super::api::{Keys, Test};
use super::plan::keys::Kind;

/// One server and its load. Members are keys of a plan (docs/EXPERIMENTS.md), with the defaults.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeConfig {
    /// `sim`, `sglang` or `external`.
    pub engine: String,
    /// The model: a folder or a name on the hub. The simulator needs none.
    #[serde(skip_serializing_if = "String::is_empty")]
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
    #[serde(skip)]
    pub output_dir: Option<PathBuf>,
    /// Further keys of a plan, which win over these; a list of values is varied.
    #[serde(skip)]
    pub more: Table,
}

/// A test of one server.
pub type NodeTest = Test<NodeConfig>;

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
            more: Table::new(),
        }
    }
}

impl Keys for NodeConfig {
    const KIND: Kind = Kind::Node;

    fn beside(&self) -> (&Table, Option<&Path>) {
        (&self.more, self.output_dir.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::{Plan, read};

    /// That its defaults are a plan's is held in `routing.rs`, whose config has all of it.
    #[test]
    fn further_keys_win_and_are_varied() {
        let more = toml::from_str("max_running_requests = [1, 2]\nnum_prompts = 7").unwrap();
        let config = NodeConfig {
            more,
            ..NodeConfig::default()
        };
        let keys = config.keys().unwrap().into_iter().collect();
        let plan = Plan::new(Kind::Node, Vec::new(), keys).unwrap();
        assert_eq!(plan.runs().len(), 2);
        assert_eq!(plan.runs()[0].settings.load.num_prompts, Some(7));
    }

    #[test]
    fn the_examples_are_plans_that_vary_what_they_say() {
        for (kind, key) in [
            (Kind::Node, "max_running_requests"),
            (Kind::Routing, "routing_policy"),
        ] {
            let plan = Plan::new(kind, read::file(kind.example()).unwrap(), Vec::new()).unwrap();
            assert_eq!(plan.sweeps()[0].key, key);
        }
    }
}
