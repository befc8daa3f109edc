//! The limits on clients.

use std::time::Duration;

/// The limits of a listener. Keys: `config.toml`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// `client_idle_timeout_s`, seconds.
    pub client_idle_s: u64,
    /// `client_read_timeout_s`.
    pub client_read: Duration,
    /// `client_write_timeout_s`.
    pub client_write: Duration,
    /// `client_head_timeout_s`; for a TLS handshake too.
    pub client_head: Duration,
    /// `client_body_timeout_s`.
    pub client_body: Duration,
    /// `client_stall_timeout_s`.
    pub client_stall: Duration,
    /// `request_head_max_bytes`.
    pub request_head_bytes: u64,
    /// `request_body_max_bytes`.
    pub request_body_bytes: u64,
    /// `max_connections`.
    pub connections: usize,
}

impl Limits {
    /// For a listener whose clients may be slow and large: a router behind a front of ours. The head's time stays: a peer
    /// that stops within a head is of no use.
    #[must_use]
    pub fn lifted(self) -> Limits {
        Limits {
            client_body: Duration::MAX,
            client_stall: Duration::MAX,
            request_head_bytes: u64::MAX,
            request_body_bytes: u64::MAX,
            connections: usize::MAX,
            ..self
        }
    }
}
