//! What a request may take of us, by size and time. Where the head is not yet whole, its limits are those of
//! the connection.

use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};

use crate::telemetry::prometheus::{Limit, Metrics};

use super::config::Limits;
use super::connection::Connection;

/// Holds a request's head, and the length that it announces, to the limits.
///
/// # Errors
/// The status for the client.
pub fn of_head(session: &Session, limits: &Limits, metrics: &Metrics) -> Result<()> {
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
pub fn of_body(session: &Session, limits: &Limits, is_end: bool, metrics: &Metrics) -> Result<()> {
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
        _ => 408,
    };
    Err(Error::new_down(ErrorType::HTTPStatus(status)))
}
