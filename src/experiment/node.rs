//! The Rust API of `queuescope node`: one server under load.
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

use super::api::Test;

pub use super::api::Config as NodeConfig;

/// A test of one server.
pub type NodeTest = Test<false>;
