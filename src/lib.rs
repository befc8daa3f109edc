//! queuescope shows where every LLM request waits.
//!
//! # The life of a request
//!
//! A generator lays out when it will send, and sends ([`traffic`]). A front reads the request's head and says:
//! it has arrived; it sends the head on to a router and says: forwarded ([`proxy`]). The router may hold it. When
//! it lets go, a worker hop before the server reads the head, and so knows what nobody else does: the router has
//! forwarded it, and to whom. The server tokenizes it, queues it, prefills it and decodes; SGLang says when, in the
//! `meta_info` of its events, on its own clock. The events pass back, byte for byte, and whoever watches reads from
//! them when the first token came and the last.
//!
//! All of it is gathered by one observer a request ([`request::observer::Observer`]): bytes and stamps go in, one
//! record a generated sequence comes out. A moment that nobody saw stays unknown. Moments of different clocks are
//! compared only through what is known of the clocks' distance ([`offset`]). Records become rows ([`telemetry`])
//! and figures ([`report`]).
//!
//! `docs/dev/ARCHITECTURE.md` follows the same way through the code, function by function.

// The settings of a run are one JSON object of some sixty members.
#![recursion_limit = "256"]

pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod config_error;
pub mod disk;
pub mod engine;
pub mod experiment;
pub mod fault;
pub mod keys;
pub mod offset;
pub mod proxy;
pub mod report;
pub mod request;
pub mod secret;
pub mod serve;
pub mod sim;
pub mod stats;
pub mod table;
pub mod telemetry;
pub mod terminal;
pub mod traffic;
pub mod trust;
pub mod units;
pub mod upstream;
pub mod whatif;
