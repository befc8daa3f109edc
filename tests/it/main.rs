//! The one integration-test crate: a module per area.

mod allocations;
mod recordings;
mod report;
mod sim;
mod support;
