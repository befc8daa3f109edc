//! The counters of a proxy, for Prometheus.

use prometheus::core::Collector;
use prometheus::{
    Encoder, IntCounter, IntCounterVec, IntGauge, Opts, Registry, Result, TextEncoder,
};

use crate::request::endpoint::Endpoint;
use crate::request::record::Outcome;

/// What a proxy counts. Cheap to clone; the clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    rows_written: IntCounter,
    rows_lost: IntCounterVec,
    passed_through: IntCounter,
    broken_heads: IntCounter,
    in_flight: IntGauge,
}

/// Why a row was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The recorder's queue was full.
    QueueFull,
    /// The file could not be written.
    Write,
}

impl Loss {
    /// The name in the metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::QueueFull => "queue_full",
            Loss::Write => "write",
        }
    }
}

impl Metrics {
    /// Counters at zero, in a registry of their own.
    ///
    /// # Errors
    /// When Prometheus refuses a name, which a test rules out.
    pub fn new() -> Result<Metrics> {
        let registry = Registry::new();
        let counter = |name, help| registered(&registry, IntCounter::new(name, help)?);
        let by = |name, help, labels: &[&str]| {
            registered(
                &registry,
                IntCounterVec::new(Opts::new(name, help), labels)?,
            )
        };
        Ok(Metrics {
            requests: by(
                "queuescope_requests_total",
                "Generation requests that have ended.",
                &["endpoint", "outcome"],
            )?,
            rows_written: counter("queuescope_rows_written_total", "Rows on disk.")?,
            rows_lost: by(
                "queuescope_rows_lost_total",
                "Rows that never reached the disk.",
                &["reason"],
            )?,
            passed_through: counter(
                "queuescope_passed_through_total",
                "Requests to paths that are not recorded.",
            )?,
            broken_heads: counter(
                "queuescope_broken_heads_total",
                "Connections on which bytes came that made no request.",
            )?,
            in_flight: registered(
                &registry,
                IntGauge::new("queuescope_in_flight", "Generation requests under way.")?,
            )?,
            registry,
        })
    }

    /// A generation request came.
    pub fn request_began(&self) {
        self.in_flight.inc();
    }

    /// A generation request ended.
    pub fn request_ended(&self, endpoint: Endpoint, outcome: Outcome) {
        self.in_flight.dec();
        self.requests
            .with_label_values(&[endpoint.path(), outcome.name()])
            .inc();
    }

    /// Rows reached the file.
    pub fn rows_written(&self, rows: u64) {
        self.rows_written.inc_by(rows);
    }

    /// Rows are lost.
    pub fn rows_lost(&self, why: Loss, rows: u64) {
        self.rows_lost.with_label_values(&[why.name()]).inc_by(rows);
    }

    /// A request to an unrecorded path came.
    pub fn passed_through(&self) {
        self.passed_through.inc();
    }

    /// Bytes came that made no request.
    pub fn broken_head(&self) {
        self.broken_heads.inc();
    }

    /// Generation requests under way.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.get()
    }

    /// All counters in Prometheus's text format.
    ///
    /// # Errors
    /// What the encoder answers.
    pub fn text(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let metrics = Metrics::new().unwrap();
        metrics.request_began();
        metrics.request_began();
        metrics.request_ended(Endpoint::Chat, Outcome::ClientAbort);
        metrics.rows_lost(Loss::Write, 3);
        metrics.clone().broken_head();
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        for line in [
            r#"queuescope_requests_total{endpoint="/v1/chat/completions",outcome="client_abort"} 1"#,
            r#"queuescope_rows_lost_total{reason="write"} 3"#,
            "queuescope_broken_heads_total 1",
            "queuescope_in_flight 1",
            "queuescope_passed_through_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
