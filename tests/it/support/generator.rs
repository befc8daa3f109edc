//! Both ends of the chain in the test's own process: our generator and a simulated server.

use std::sync::Arc;

use clap::Parser;
use queuescope::clock::Clock;
use queuescope::error::Error;
use queuescope::sim::Sim;
use queuescope::sim::config::Config;
use queuescope::sim::engine::Profile;
use queuescope::traffic::{self, Args, LiveProgress, Run, RunPlan, Stop};

use super::wire::PATIENCE;

/// A plan of traffic to a base URL, with these flags.
pub fn plan(url: &str, line: &str) -> Result<RunPlan, Error> {
    let line = format!("traffic --base-url {url} {line}");
    Args::try_parse_from(flags(&line)).unwrap().plan()
}

/// Runs a plan to its end, which must come.
pub async fn drive(plan: RunPlan) -> Result<Run, Error> {
    let run = traffic::drive(
        plan,
        Clock::system(),
        Arc::new(LiveProgress::default()),
        Stop::default(),
    );
    let run = tokio::time::timeout(PATIENCE, run).await;
    run.expect("the run ended")
}

/// A simulated server on a free port, quick to begin.
pub fn sim(change: impl FnOnce(&mut Config)) -> Sim {
    let mut config = Config {
        port: 0,
        profile: Profile::bare(),
        ..Config::default()
    };
    change(&mut config);
    Sim::start(config, Clock::system()).unwrap()
}

/// The words of a command line.
pub fn flags(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
