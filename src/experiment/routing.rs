//! The Rust API of `queuescope routing`: several servers behind a router.
//!
//! ```no_run
//! use queuescope::experiment::node::NodeConfig;
//! use queuescope::experiment::routing::{RoutingConfig, RoutingTest};
//!
//! let more = "routing_policy = ['cache_aware', 'random']\nrepeats = 3".parse()?;
//! let result = RoutingTest::new(RoutingConfig {
//!     num_gpus: 2,
//!     node: NodeConfig { request_rate: 20.0, more, ..NodeConfig::default() },
//!     ..RoutingConfig::default()
//! })
//! .run()?;
//! println!("{}", result.report);
//! # Ok::<(), anyhow::Error>(())
//! ```

use std::path::Path;

use serde::Serializer;
use toml::Table;

use super::api::{Test, TestConfig, plan_keys};
use super::node::NodeConfig;
use super::plan::keys::ExperimentKind;

plan_keys! {
/// Several servers behind a router, and their load. Fields are keys of a plan (docs/EXPERIMENTS.md), with the plan's
/// defaults.
RoutingConfig {
    /// The configuration of each server, and the load; its `more` also takes the keys of routing.
    #[serde(flatten)]
    node: NodeConfig = NodeConfig::default(),
    /// The number of servers, each with its own GPUs.
    num_gpus: u32 = 4,
    /// The policy by which the router chooses a server.
    routing_policy: String = "cache_aware".to_owned(),
    /// Whether each server's `/metrics` are read.
    collect_per_node_metrics: bool = true,
    /// Times in seconds, each with the servers (counted from 1) that are down from then on.
    #[serde(serialize_with = "by_time", skip_serializing_if = "Vec::is_empty")]
    failure_schedule: Vec<(f64, Vec<u32>)> = Vec::new(),
}}

/// A test of several servers.
pub type RoutingTest = Test<RoutingConfig>;

/// Serializes the schedule as a table.
fn by_time<S: Serializer>(schedule: &[(f64, Vec<u32>)], serializer: S) -> Result<S::Ok, S::Error> {
    let phases = schedule.iter();
    serializer.collect_map(phases.map(|(at, servers)| (at.to_string(), servers)))
}

impl TestConfig for RoutingConfig {
    const KIND: ExperimentKind = ExperimentKind::Routing;

    fn more_keys_and_folder(&self) -> (&Table, Option<&Path>) {
        self.node.more_keys_and_folder()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Plan;

    #[test]
    fn the_defaults_are_those_of_an_empty_plan() {
        let config = RoutingConfig {
            failure_schedule: vec![(2.5, vec![1, 2]), (4.0, vec![])],
            ..RoutingConfig::default()
        };
        let printed = |keys: Table| {
            let plan = Plan::new(ExperimentKind::Routing, Vec::new(), keys).unwrap();
            let mut lines: Vec<String> = plan.to_toml().lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let mut lines = printed(config.keys().unwrap());
        let own = [
            "num_prompts = 1000",
            "failure_schedule = { \"2.5\" = [1, 2], 4 = [] }",
        ];
        lines.retain(|line| !own.contains(&line.as_str()));
        assert_eq!(lines, printed(Table::new()));
    }
}
