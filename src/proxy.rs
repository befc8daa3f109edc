//! The instrumenting reverse proxy: the front that clients speak to, and the worker hops that a router
//! speaks to.
//!
//! It changes nothing on the way (design.md, section 3), stamps what passes and hands the bytes to a
//! [`crate::request::observer::Observer`]. Pingora moves the bytes; the listeners, the connections' life,
//! draining and the end are ours ([`lifecycle`]).

pub mod admin;
pub mod answer;
pub mod args;
pub mod bounds;
pub mod config;
pub mod connection;
pub mod context;
pub mod door;
pub mod end;
pub mod fault;
pub mod framing;
pub mod hop_key;
pub mod identity;
pub mod join;
pub mod lifecycle;
pub mod listener;
pub mod notify;
pub mod process;
pub mod readiness;
pub mod secret;
pub mod service;
pub mod shared;
pub mod shortage;
pub mod takeover;
pub mod tls;
pub mod topology;
pub mod upstream;
pub mod worker_hop;

pub use args::Args;
pub use config::{Config, Worker, Wrong};
pub use lifecycle::{Error, Proxy};
pub use process::run;
