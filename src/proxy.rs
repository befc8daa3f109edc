//! A request in the proxy: in the front that clients speak to, and in the worker hops that a router speaks to.
//!
//! The proxy changes nothing, takes timestamps and hands the bytes to a [`crate::request::Observer`]. A connection's
//! task takes one request after another from its client (`connection.rs`); what happens to each is in `request.rs` and
//! `request/relay.rs`. Pingora reads and writes the messages on both sides.

pub mod connection;
pub mod context;
pub mod failure;
pub mod heads;
pub mod hop_key;
pub mod identity;
pub mod join;
pub mod request;
pub mod shared;
