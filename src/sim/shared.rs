//! What all requests of a simulated server share, and what is known of one of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use http::HeaderMap;

use crate::clock::{NANOS, Stamp};

use super::call::Call;
use super::config::Config;
use super::driver::{Driver, EngineClock};
use super::export::{RequestLog, Tracer};
use super::failures::Fates;
use super::metrics::Metrics;
use super::script::Script;
use super::served::ServedLog;

/// What all requests share.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub addr: SocketAddr,
    pub clock: EngineClock,
    /// When the server started.
    pub started: Stamp,
    pub script: Script,
    pub driver: Driver,
    pub metrics: Metrics,
    pub served: ServedLog,
    pub tracer: Option<Tracer>,
    pub request_log: Option<RequestLog>,
    pub fates: Fates,
    pub next_id: AtomicU64,
}

/// A generation request with its answers.
#[derive(Debug)]
pub(super) struct Exchange {
    pub shared: Arc<Shared>,
    pub call: Call,
    pub headers: Headers,
    pub body: Bytes,
    pub received: Stamp,
    /// Tokenized and handed to the scheduler.
    pub dispatched: Stamp,
}

/// What a request's headers call it.
#[derive(Debug, Default)]
pub(super) struct Headers {
    pub x_request_id: Option<String>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub trace: u128,
    pub span: u64,
    pub is_sampled: bool,
}

impl Shared {
    /// Seconds of Python's `perf_counter`, which counts from some moment before the server's start.
    pub(super) fn perf(&self, at: Stamp) -> f64 {
        1_000.0 + at.since(self.started)
    }
}

impl Exchange {
    /// When it came, in whole seconds.
    pub(super) fn created(&self) -> i64 {
        self.received.nanos().div_euclid(NANOS)
    }
}

impl Headers {
    pub(super) fn of(headers: &HeaderMap) -> Headers {
        let text = |name| Some(headers.get(name)?.to_str().ok()?.to_owned());
        Headers {
            x_request_id: text("x-request-id"),
            traceparent: text("traceparent"),
            tracestate: text("tracestate"),
        }
    }
    /// The span that the request is to be a child of; `None` without a `traceparent` that can be read.
    pub(super) fn parent(&self) -> Option<Parent> {
        let mut parts = self.traceparent.as_deref()?.trim().splitn(5, '-');
        let mut number = |digits: usize| {
            let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            let part = parts.next()?;
            let is_right = part.len() == digits && part.bytes().all(is_hex);
            is_right.then(|| u128::from_str_radix(part, 16).ok())?
        };
        let (version, trace, span, flags) = (number(2)?, number(32)?, number(16)?, number(2)?);
        // Version 00 has exactly four parts.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let span = u64::try_from(span).ok()?;
        (trace > 0 && span > 0).then_some(Parent {
            trace,
            span,
            is_sampled: flags & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_that_is_none_begins_no_span() {
        let parent = |text: &str| {
            let traceparent = Some(text.to_owned());
            let headers = Headers {
                traceparent,
                ..Headers::default()
            };
            headers.parent()
        };
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let right = parent(&format!("00-{ids}-01")).unwrap();
        assert_eq!(
            (right.span, right.is_sampled),
            (0xb7ad_6b71_6920_3331, true)
        );
        assert_eq!(parent(&format!("cc-{ids}-01-more")), Some(right));
        for wrong in [
            format!("ff-{ids}-01"),
            format!("00-{ids}-01-more"),
            format!("00-{ids}-+1"),
            format!("{ids}-01"),
            format!("00-{}-01", ids.to_uppercase()),
            format!("0-{ids}-01"),
        ] {
            assert_eq!(parent(&wrong), None, "{wrong}");
        }
    }
}
