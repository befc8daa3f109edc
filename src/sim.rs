//! A pretend SGLang that queues as the real one does, for tests, the demo and load on the clients.
//!
//! [`engine`] is the model, free of IO; [`server`] its HTTP face, whose streams have the very shape of
//! those recorded from SGLang 0.5.23. A request goes: `route` reads it, `call` understands it, `driver`
//! lets the engine work on it in real time, `reply` turns what happens into bytes by `wire` and
//! `openai`, and tells of it when it has ended: by `spans`, `request_log`, `metrics`, and `served`, the
//! server's own account.

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
    /// A value that cannot be: the flag, and what would be right.
    #[error("{0}")]
    Usage(String),
    /// The system gave no address, thread, socket or runtime.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    fn start(error: impl std::fmt::Display) -> Error {
        Error::Failed(format!("the simulator cannot start: {error}"))
    }

    /// Whether the command line is wrong, rather than the machine in the way.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_))
    }
}
