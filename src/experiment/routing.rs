//! `queuescope routing`: several servers behind a router.
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

use toml::Value;

use super::api::{TestResult, test};
use super::node::NodeConfig;
use super::plan::keys::Kind;
use super::plan::read::Entry;

/// The plan of `queuescope routing` without a file.
pub const EXAMPLE: &str = include_str!("routing/example.toml");

/// Several servers behind a router, and their load. Members are keys of a plan (docs/EXPERIMENTS.md), with the manual's
/// defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingConfig {
    /// Each server, and the load; its `more` also takes the keys of routing.
    pub node: NodeConfig,
    /// Servers, each with its own GPUs.
    pub num_gpus: u32,
    /// Who gets the next request.
    pub routing_policy: String,
    /// Whether each server's `/metrics` are read.
    pub collect_per_node_metrics: bool,
    /// Seconds, and the servers (from 1) that are down from then on.
    pub failure_schedule: Vec<(f64, Vec<u32>)>,
}

/// A test of several servers.
#[derive(Clone, Debug)]
pub struct RoutingTest {
    config: RoutingConfig,
}

impl Default for RoutingConfig {
    fn default() -> RoutingConfig {
        RoutingConfig {
            node: NodeConfig::default(),
            num_gpus: 4,
            routing_policy: "cache_aware".to_owned(),
            collect_per_node_metrics: true,
            failure_schedule: Vec::new(),
        }
    }
}

impl RoutingConfig {
    fn keys(&self) -> Vec<Entry> {
        let mut keys = self.node.keys();
        let schedule = self.failure_schedule.iter().map(|(at, servers)| {
            let servers: Vec<Value> = servers
                .iter()
                .map(|number| Value::from(i64::from(*number)))
                .collect();
            (at.to_string(), Value::Array(servers))
        });
        let schedule: toml::Table = schedule.collect();
        let own = [
            ("num_gpus", Some(Value::from(i64::from(self.num_gpus)))),
            ("routing_policy", Some(self.routing_policy.clone().into())),
            (
                "collect_per_node_metrics",
                Some(self.collect_per_node_metrics.into()),
            ),
            (
                "failure_schedule",
                (!schedule.is_empty()).then_some(Value::Table(schedule)),
            ),
        ];
        let more = &self.node.more;
        let own = own
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        keys.extend(own.filter(|(key, _)| !more.contains_key(key)));
        keys
    }
}

impl RoutingTest {
    /// A test to be run.
    pub fn new(config: RoutingConfig) -> RoutingTest {
        RoutingTest { config }
    }

    /// Runs it: starts servers and router, loads them, ends them.
    ///
    /// # Errors
    /// Values that do not go together; what does not start; nothing measured.
    pub fn run(&self) -> anyhow::Result<TestResult> {
        test(
            Kind::Routing,
            self.config.keys(),
            self.config.node.output_dir.as_deref(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::{Plan, read};

    #[test]
    fn the_defaults_are_those_of_an_empty_plan() {
        let empty = Plan::new(Kind::Routing, Vec::new(), Vec::new()).unwrap();
        let config = RoutingConfig {
            failure_schedule: vec![(2.5, vec![1, 2]), (4.0, vec![])],
            ..RoutingConfig::default()
        };
        let plan = Plan::new(Kind::Routing, Vec::new(), config.keys()).unwrap();
        assert_eq!(empty.differs(&plan), ["failure_schedule", "num_prompts"]);
    }

    #[test]
    fn the_example_is_a_plan_that_varies_the_policy() {
        let plan = Plan::new(Kind::Routing, read::file(EXAMPLE).unwrap(), Vec::new()).unwrap();
        assert_eq!(plan.sweeps()[0].key, "routing_policy");
    }
}
