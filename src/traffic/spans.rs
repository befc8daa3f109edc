//! The generator's own spans, where a collector is named: one a request, in the trace that the request carried.

use std::time::Duration;

use crate::request::row::{Row, Rows, without_quotes};
use crate::telemetry::otlp::Traces;
use crate::telemetry::otlp::settings::{Otlp, Protocol, Settings};
use crate::telemetry::prometheus::Metrics;

use crate::units::count;

use super::error::Error;

/// Where the generator's own spans go.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "What is written")]
pub struct OtlpArgs {
    /// OpenTelemetry collector that gets a span a request
    ///
    /// As in http://127.0.0.1:4317 (gRPC); with another port http/protobuf. The OTEL_* variables do, too.
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// How spans travel: grpc or http/protobuf [default: by the port]
    #[arg(long, value_name = "PROTOCOL")]
    pub otlp_protocol: Option<Protocol>,
}

/// The way of spans to a collector.
#[derive(Debug)]
pub struct Spans {
    traces: Traces,
    metrics: Metrics,
    target: String,
    /// Share of the requests whose spans are kept, by trace id: those go out with the sampled flag.
    pub ratio: f64,
}

/// How long a row waits for room: longer than a collector takes for a batch.
const PATIENCE: Duration = Duration::from_secs(5);

impl OtlpArgs {
    /// Begins to export, where somebody names a collector; `instance` tells this process from others.
    ///
    /// # Errors
    /// [`Error::Usage`]: the flag or variable, what is wrong, and what would be right.
    pub fn start(&self, instance: String) -> Result<Option<Spans>, Error> {
        let given = Otlp {
            endpoint: self.otlp_endpoint.clone(),
            protocol: self.otlp_protocol,
            ..Otlp::default()
        };
        let env = |name: &str| std::env::var(name).ok();
        let settings = Settings::resolve(&given, "queuescope-traffic", &env);
        let settings = settings.map_err(|wrong| match wrong.name.as_str() {
            "endpoint" => Error::Usage(format!("--otlp-endpoint: {}", wrong.problem)),
            _ => Error::Usage(wrong.to_string()),
        })?;
        if let Some(off) = settings.off {
            log::warn!("traces: {off} turns them off");
        }
        let Some(settings) = settings.settings else {
            return Ok(None);
        };
        let wrong = |error: &dyn std::error::Error| Error::Usage(error.to_string());
        let metrics = Metrics::new().map_err(|error| wrong(&error))?;
        // Nobody waits for its end but whoever wants the spans.
        let last = settings.given.timeout_s.get();
        let traces = Traces::start(&settings, instance, metrics.clone(), last);
        Ok(Some(Spans {
            traces: traces.map_err(|error| wrong(&error))?,
            metrics,
            target: settings.target(),
            ratio: settings.given.ratio.unwrap_or(1.0),
        }))
    }
}

impl Spans {
    /// The rows of a request. Waits for room, unless spans are lost anyway.
    pub fn add(&self, rows: &[Row]) {
        let shown = without_quotes(&Rows::from(rows.to_vec()));
        self.traces.record_in_time(&shown, PATIENCE);
    }

    /// Sends what waits. Gives what the user must know. Blocks.
    pub fn finish(self) -> Option<String> {
        self.traces.close();
        let lost = self.metrics.traces_dropped.sets();
        let lost: u64 = lost.iter().map(|(_, traces)| traces.get()).sum();
        (lost > 0).then(|| {
            let lost = count(lost, "request");
            format!("the spans of {lost} did not get to {}", self.target)
        })
    }
}
