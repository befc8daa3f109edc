//! The Rust API of `queuescope node`: one server under load.
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

use toml::Table;

use super::api::{Test, TestConfig, plan_keys};
use super::plan::keys::ExperimentKind;

plan_keys! {
/// One server and its load. Fields are keys of a plan (docs/EXPERIMENTS.md), with the plan's defaults.
NodeConfig {
    /// `sim`, `sglang` or `external`.
    engine: String = "sim".to_owned(),
    /// The model: a folder or a name on the hub. The simulator needs none.
    #[serde(skip_serializing_if = "String::is_empty")]
    model_path: String = String::new(),
    /// The first GPU.
    gpu_id: u32 = 0,
    /// How many requests the server runs at once.
    max_running_requests: u32 = 256,
    /// GPUs that share the model.
    tp_size: u32 = 1,
    /// Share of the GPU's memory for weights and KV cache.
    mem_fraction_static: f64 = 0.9,
    /// The size of a prefill chunk, in tokens.
    chunked_prefill_size: Option<i64> = None,
    /// The share of the tokens that running requests may still generate for which memory is kept free.
    schedule_conservativeness: Option<f64> = None,
    /// The quantization of the weights: `fp8`.
    quantization: Option<String> = None,
    /// Whether torch.compile is used.
    enable_torch_compile: bool = false,
    /// Whether the server reports times; otherwise nothing is known of its queue.
    enable_metrics: bool = true,
    /// Requests per second. If it is infinite, a rate curve or a trace may say when they are sent.
    #[serde(skip_serializing_if = "is_infinite")]
    request_rate: f64 = f64::INFINITY,
    /// The number of requests.
    num_prompts: u32 = 1000,
    /// The source of the prompts.
    dataset_name: String = "random".to_owned(),
    /// The maximum length of a prompt.
    random_input_len: Option<u32> = None,
    /// The maximum number of output tokens that a request asks for.
    random_output_len: Option<u32> = None,
    /// The minimum length, as a share of the maximum.
    random_range_ratio: Option<f64> = None,
    /// The first server's port; 0: a free one.
    base_port: u16 = 30_001,
    /// The folder for all files; `None` for a new one in `results/`.
    #[serde(skip)]
    output_dir: Option<PathBuf> = None,
    /// Further keys of a plan, which override these; a list of values is varied.
    #[serde(skip)]
    more: Table = Table::new(),
}}

/// A test of one server.
pub type NodeTest = Test<NodeConfig>;

impl TestConfig for NodeConfig {
    const KIND: ExperimentKind = ExperimentKind::Node;

    fn more_keys_and_folder(&self) -> (&Table, Option<&Path>) {
        (&self.more, self.output_dir.as_deref())
    }
}

fn is_infinite(rate: &f64) -> bool {
    rate.is_infinite()
}
