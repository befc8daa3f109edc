//! A pretend SGLang that queues as the real one does, for tests, the demo and load on the clients.
//!
//! [`engine`] is the model, free of IO; [`server`] its HTTP face, whose streams have the very shape of
//! those recorded from SGLang 0.5.23. A request goes: `route` reads it, `call` understands it, `driver`
//! lets the engine work on it in real time, `reply` turns what happens into bytes by `wire` and
//! `openai`, and tells of it when it has ended: by `spans`, `request_log`, `metrics`, and `served`, the
//! server's own account.

use std::net::SocketAddr;

mod call;
pub mod config;
mod dialect;
pub mod disaggregation;
mod driver;
pub mod engine;
mod export;
mod flags;
mod handover;
mod info;
mod meta_info;
mod metrics;
mod openai;
mod reply;
mod request_log;
mod route;
mod script;
mod sequence;
mod served;
pub mod server;
mod shared;
mod spans;
mod wire;

pub use dialect::Dialect;
pub use served::{Outcome, Served};

/// Why a simulated server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value out of range.
    #[error("{flag} {value}: must be {want}")]
    Value {
        /// The flag that sets it.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        want: String,
    },
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {addr} (--host, {flag}): {source}; a free port is taken with {flag} 0"
    )]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The flag of its port.
        flag: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The system gave no thread, socket or runtime.
    #[error("the simulator cannot start: {0}")]
    Start(std::io::Error),
}

impl Error {
    fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Start(std::io::Error::other(error))
    }

    /// Whether the command line is wrong, rather than the machine in the way.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Value { .. })
    }
}
