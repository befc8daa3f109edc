//! The one integration-test crate: a module per area.

mod recordings;
mod sim;
mod support;
