//! The one integration-test crate: a module per area.

mod support;
