//! What happens to a request on its way through the proxy: the front that clients speak to, and the worker hops that a
//! router speaks to.
//!
//! It changes nothing on the way, stamps what passes and hands the bytes to a
//! [`crate::request::observer::Observer`]. A connection's task takes one request after another from its client
//! (`connection.rs`); each is read top to bottom in `request.rs` and `request/relay.rs`. Pingora reads and writes the
//! messages on both sides.

pub mod connection;
pub mod context;
pub mod failure;
pub mod heads;
pub mod hop_key;
pub mod identity;
pub mod join;
pub mod legs;
pub mod request;
pub mod service;
pub mod shared;
