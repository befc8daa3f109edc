//! A pretend SGLang that queues as the real one does, for tests, the demo and load on the clients.
//!
//! [`engine`] is the model, free of IO; [`server`] its HTTP face, whose streams have the very shape of
//! those recorded from SGLang 0.5.23. A request goes: `route` reads it, `call` understands it, `driver`
//! lets the engine work on it in real time, `reply` turns what happens into bytes by `wire` and
//! `openai`, and `served` keeps the server's own account of it.

use std::net::SocketAddr;
use std::path::PathBuf;

mod call;
pub mod config;
mod dialect;
mod driver;
pub mod engine;
mod export;
pub mod failures;
mod info;
mod meta_info;
mod metrics;
mod openai;
mod outside;
mod parameters;
mod range;
mod reply;
mod request_log;
mod route;
mod script;
mod sequence;
mod served;
pub mod server;
mod shared;
mod span;
mod spans;
pub mod tells;
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
        "cannot listen on {addr} (--host, --port): {source}; a free port is taken with --port 0"
    )]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The request log cannot be created.
    #[error(
        "--request-log {}: {source}; it must be a file in a folder that exists and can be written",
        path.display()
    )]
    RequestLog {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The folder of `--export-metrics-to-file` cannot be made.
    #[error(
        "--export-metrics-to-file-dir {}: {source}; it must be a folder that can be made and written",
        path.display()
    )]
    MetricsFolder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The system gave no thread, socket or runtime.
    #[error("the simulator cannot start: {0}")]
    Start(std::io::Error),
}

impl Error {
    /// Whether the command line is wrong, rather than the machine in the way.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::Value { .. } | Error::RequestLog { .. } | Error::MetricsFolder { .. }
        )
    }
}
