//! The one integration-test crate: a module per area.

mod allocations;
mod house;
mod proxy;
mod recordings;
mod report;
mod sim;
mod support;
mod traffic;
