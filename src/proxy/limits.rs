//! The limits on clients, and requests held to them by size and time. Until a head is whole, its limits are those of the
//! connection.

use std::time::Duration;

use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use crate::edge::app::ClientLimits;
use crate::edge::connection::Connection;
use crate::telemetry::prometheus::{Limit, Metrics};

/// The limits on clients, and on the end of the proxy. Keys: `config.toml`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `drain_timeout_s`.
    pub drain: Duration,
    /// `client_idle_timeout_s`, seconds.
    pub client_idle_s: u64,
    /// `client_read_timeout_s`.
    pub client_read: Duration,
    /// `client_write_timeout_s`.
    pub client_write: Duration,
    /// `client_head_timeout_s`.
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
    /// What one connection may take, of a listener whose clients are held to the limits or not. The head's time is
    /// for all: a peer that stops within a head is of no use.
    pub fn client(&self, is_limited: bool) -> ClientLimits {
        ClientLimits {
            head_bytes: if is_limited {
                self.request_head_bytes
            } else {
                u64::MAX
            },
            head: self.client_head,
            idle_s: self.client_idle_s,
            stall: if is_limited {
                self.client_stall
            } else {
                Duration::MAX
            },
        }
    }
}

/// Holds a request's head, and the length that it announces, to the limits.
///
/// # Errors
/// The status for the client.
pub fn check_head(session: &Session, limits: &Limits, metrics: &Metrics) -> Result<()> {
    let head = session.as_http1().map_or(0, |http1| {
        let bytes = http1.get_headers_raw_bytes();
        bytes.len() as u64
    });
    if head > limits.request_head_bytes {
        return refuse(Limit::HeadBytes, metrics);
    }
    let length = session.get_header(http::header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.request_body_bytes) {
        return refuse(Limit::BodyBytes, metrics);
    }
    Ok(())
}

/// Holds a request's body, of which a piece has come, to the limits.
///
/// # Errors
/// The status for the client.
pub fn check_body(
    session: &Session,
    limits: &Limits,
    is_end: bool,
    metrics: &Metrics,
) -> Result<()> {
    let read = session.downstream_session.body_bytes_read() as u64;
    if read > limits.request_body_bytes {
        return refuse(Limit::BodyBytes, metrics);
    }
    let waited = Connection::current().map(|connection| connection.waited_for_body());
    if !is_end && waited.is_some_and(|waited| waited > limits.client_body) {
        return refuse(Limit::BodyTime, metrics);
    }
    Ok(())
}

fn refuse(limit: Limit, metrics: &Metrics) -> Result<()> {
    metrics.client_limit(limit);
    let status = match limit {
        Limit::HeadBytes => 431,
        Limit::BodyBytes => 413,
        Limit::HeadTime | Limit::BodyTime => 408,
        // Met where there is no request.
        Limit::Stall | Limit::Connections => 503,
    };
    Err(Error::new_down(ErrorType::HTTPStatus(status)))
}
