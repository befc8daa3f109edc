//! A simulated SGLang that queues as the real one does, for tests, the demo and loading clients.
//!
//! [`engine`] is the model, without IO; [`server`] its HTTP server, whose responses have the shape of those recorded from SGLang
//! 0.5.23. `route` reads a request and `request_body` parses it. `driver` runs the engine in real time. `reply` turns the
//! engine's events into bytes by `generate` and `openai`, and reports the request when it has ended: by `spans`,
//! `request_log`, `metrics`, and the server's own record ([`Served`]).

mod canned_text;
pub mod config;
mod dialect;
pub mod disaggregation;
mod driver;
pub mod engine;
mod generate;
mod handover;
mod info;
mod meta_info;
mod metrics;
mod openai;
mod request_body;
mod request_log;
mod responder;
mod route;
mod sequence;
pub mod server;
mod shared;
mod spans;
mod tracer;

pub use dialect::Dialect;
pub use sequence::Moments;
pub use shared::{Outcome, Served};
