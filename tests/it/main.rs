//! The one integration-test crate: a module per area.

mod proxy;
mod recordings;
mod support;
