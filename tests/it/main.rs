//! The one integration-test crate: a module per area.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test that meets the unexpected should fail loudly; its names are its documentation"
)]

mod allocations;
mod proxy;
mod recordings;
mod report;
mod sim;
mod support;
mod traffic;
