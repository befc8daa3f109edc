//! What happens to a request on its way through the proxy: the front that clients speak to, and the worker hops that a
//! router speaks to.
//!
//! It changes nothing on the way, stamps what passes and hands the bytes to a
//! [`crate::request::observer::Observer`]. Pingora moves the bytes.

pub mod answer;
pub mod app;
pub mod context;
pub mod end;
pub mod framing;
pub mod hop_key;
pub mod identity;
pub mod injection;
pub mod join;
pub mod limits;
pub mod prompt;
pub mod service;
pub mod shared;
pub mod worker_hop;
