//! The Rust API of `queuescope routing`: several servers behind a router.
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

use super::api::Test;

pub use super::api::Config as RoutingConfig;

/// A test of several servers.
pub type RoutingTest = Test<true>;
