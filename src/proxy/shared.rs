//! What the listeners of a proxy share.

use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::offset::OffsetTable;
use crate::telemetry::prometheus::Metrics;
use crate::telemetry::recorder::Recorder;

use super::config::{Limits, StampsPolicy, UpstreamKind};
use super::join::Joins;
use super::lifecycle::Phase;

/// What all listeners of a proxy share.
#[derive(Debug)]
pub struct Shared {
    /// The proxy's clock.
    pub clock: Clock,
    /// Its name in stamps.
    pub clock_name: String,
    /// What is counted.
    pub metrics: Metrics,
    /// Where records go.
    pub recorder: Option<Recorder>,
    /// What a reload replaces.
    pub settings: ArcSwap<Settings>,
    /// What the front's upstreams are.
    pub upstream_kind: UpstreamKind,
    /// How far other clocks are from ours: engines by `host`, hops of other processes by name.
    pub clocks: Mutex<OffsetTable>,
    /// Which attempts at the hops belong to which requests of the front.
    pub joins: Joins,
    /// Where the proxy is in its life.
    pub phase: watch::Sender<Phase>,
}

/// What a reload replaces for all listeners. Read it once for what belongs together.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The time limits.
    pub limits: Limits,
    /// Which clients get stamps.
    pub stamps: StampsPolicy,
    /// The secret of [`StampsPolicy::Token`].
    pub stamps_token: Option<String>,
}

/// Which listener a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that clients speak to: it records.
    Front,
    /// One that a router speaks to, by the worker's name: it stamps, and records what no front here knows.
    Hop(Arc<str>),
}
