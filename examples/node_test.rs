//! How does the queue in a server depend on how many requests it runs at once? `cargo run --example node_test`

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::path::PathBuf;

use queuescope::experiment::node::{NodeConfig, NodeTest};

/// Tries two settings on a simulated server, which needs nothing, and prints what came out.
///
/// # Errors
/// The server does not start, or nothing was measured.
pub fn run(output_dir: Option<PathBuf>) -> anyhow::Result<()> {
    let result = NodeTest::new(NodeConfig {
        request_rate: Some(40.0),
        num_prompts: Some(40),
        dataset_name: Some("random".into()),
        random_input_len: Some(64),
        random_output_len: Some(16),
        base_port: Some(0),
        output_dir,
        more: "max_running_requests = [1, 8]".parse()?,
        ..NodeConfig::default()
    })
    .run()?;
    for run in &result.runs {
        let queue = &run.metrics()["pure_queue_time"]["p99"];
        println!("{}: p99 of the queue {queue} s", run.file.label);
    }
    println!("{}", result.report);
    println!(
        "{} files in {}",
        result.exported_files.len(),
        result.output_dir.display()
    );
    Ok(())
}

#[cfg_attr(test, expect(dead_code, reason = "the tests call run"))]
fn main() -> anyhow::Result<()> {
    run(None)
}
