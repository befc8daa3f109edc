//! The one integration-test crate: a module per area.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::too_many_lines,
    reason = "a test that meets the unexpected should fail loudly; its names are its documentation"
)]

mod accuracy;
mod allocations;
mod cli;
mod dashboards;
mod demo;
mod engine;
mod experiment;
mod generations;
mod golden;
mod house;
mod metrics;
mod observer;
mod otlp;
mod outcomes;
mod pair;
mod proxy;
mod recordings;
mod records;
mod report;
mod router;
mod sim;
mod support;
mod tokens;
mod traffic;
mod whatif;
