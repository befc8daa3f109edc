//! Which policy routes better? `cargo run --example routing_test`

#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::path::PathBuf;

use queuescope::experiment::routing::{RoutingConfig, RoutingTest};

/// Tries two policies on simulated servers, which need nothing, and prints what came out.
///
/// # Errors
/// A server does not start, or nothing was measured.
pub fn run(output_dir: Option<PathBuf>) -> anyhow::Result<()> {
    let result = RoutingTest::new(RoutingConfig {
        num_gpus: Some(2),
        request_rate: Some(40.0),
        num_prompts: Some(40),
        dataset_name: Some("random".into()),
        random_input_len: Some(64),
        random_output_len: Some(16),
        base_port: Some(0),
        output_dir,
        more: "routing_policy = ['cache_aware', 'random']".parse()?,
        ..RoutingConfig::default()
    })
    .run()?;
    for run in &result.runs {
        println!(
            "{}: p99 of TTFT {} ms",
            run.file.label,
            run.metrics()["p99_ttft_ms"]
        );
    }
    println!("{}", result.report);
    Ok(())
}

#[cfg_attr(test, expect(dead_code, reason = "the tests call run"))]
fn main() -> anyhow::Result<()> {
    run(None)
}
