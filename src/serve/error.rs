//! Why a proxy could not start.

use std::io;
use std::net::SocketAddr;

use crate::config_error::ConfigError;
use crate::telemetry::{otlp, recorder};

/// Why a proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error("{key} = \"{address}\": {source}; is another process there? Give a free address")]
    Listen {
        /// The key of the address.
        key: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// An upstream's name does not resolve.
    #[error("{key}: cannot resolve {problem}")]
    Resolve {
        /// The key of the upstream.
        key: String,
        /// The name, and why.
        problem: String,
    },
    /// The records file cannot be used.
    #[error("records: {0}")]
    Records(#[from] recorder::Error),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] otlp::Error),
    /// The running process keeps its listeners.
    #[error(transparent)]
    Takeover(ConfigError),
    /// The counters.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The runtime or the signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl Error {
    /// Whether the one who started it can mend it by other arguments.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Config(_))
    }
}
