//! queuescope shows where every LLM request waits.
//!
//! # The life of a request
//!
//! A generator schedules requests and sends them ([`traffic`]). The proxy's front reads a request's head (the moment
//! `arrival`) and sends it to a router (`forwarded`; [`proxy`]). The router may queue it. When the router sends it on,
//! a worker hop in front of the server reads the head: only the hop shows when the router sent it, and to which
//! server. The server tokenizes, queues, prefills and decodes it. SGLang reports when, on its own clock, in the
//! `meta_info` of its events. The events pass back unchanged, and show when the first and the last token arrived.
//!
//! One observer per request collects all of this ([`request::Observer`]): bytes and timestamps go in, one
//! row per generated sequence comes out. A moment that was not seen is unknown. Moments of different clocks are
//! compared only by a known offset of the clocks ([`offset`]). Rows are written to files and exported ([`telemetry`]),
//! and summarized ([`report`]).
//!
//! `docs/dev/ARCHITECTURE.md` follows the same path through the code, function by function.

// The settings of a run are one JSON object with about sixty members.
#![recursion_limit = "256"]

pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod disk;
pub mod engine;
pub mod error;
pub mod experiment;
pub mod fault;
pub mod keys;
mod names;
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
pub mod threads;
pub mod traffic;
pub mod trust;
pub mod units;
pub mod upstream;
pub mod whatif;
