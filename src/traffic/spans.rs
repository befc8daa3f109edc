//! Exports the generator's own spans if a collector is given: one for each request, in the trace that the request carried.

use crate::error::Error;
use crate::request::{Row, Rows, without_quotes};
use crate::telemetry::otlp::Traces;
use crate::telemetry::otlp::settings::{Otlp, Protocol, Settings};
use crate::telemetry::prometheus::Metrics;

use crate::units::count;

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

/// Exports spans to a collector.
#[derive(Debug)]
pub struct Spans {
    traces: Traces,
    metrics: Metrics,
    target: String,
}

impl OtlpArgs {
    /// Starts the exporter; `None` if neither a flag nor a variable names a collector. `instance` is the name of this process.
    ///
    /// # Errors
    /// [`Error::usage`] names the flag or variable, the problem, and what is expected.
    pub fn start(&self, instance: String) -> Result<Option<Spans>, Error> {
        let given = Otlp {
            endpoint: self.otlp_endpoint.clone(),
            protocol: self.otlp_protocol,
            ..Otlp::default()
        };
        let env = |name: &str| std::env::var(name).ok();
        let settings = Settings::resolve(&given, "queuescope-traffic", &env);
        let settings = settings.map_err(|all| {
            let told = all.into_iter().map(|error| match error.name.as_str() {
                "endpoint" => format!("--otlp-endpoint: {}", error.problem),
                _ => error.to_string(),
            });
            Error::usage(told.collect::<Vec<_>>().join("\nerror: "))
        })?;
        let Some(settings) = settings else {
            return Ok(None);
        };
        let metrics = Metrics::new().map_err(Error::usage)?;
        // The end of the run may take as long as an export: nothing else waits for it.
        let close_timeout = settings.given.timeout_s.get();
        let traces = Traces::start(&settings, instance, metrics.clone(), close_timeout);
        Ok(Some(Spans {
            traces: traces.map_err(Error::usage)?,
            metrics,
            target: settings.target(),
        }))
    }
}

impl Spans {
    /// Queues the spans of a request's rows.
    pub fn add(&self, rows: &[Row]) {
        let rows = without_quotes(&Rows::from(rows.to_vec()));
        self.traces.record(&rows);
    }

    /// Sends what is queued; returns a warning if spans were lost. Blocks.
    pub fn finish(self) -> Option<String> {
        self.traces.close();
        let lost = self.metrics.traces_dropped.sets();
        let lost: u64 = lost.iter().map(|(_, traces)| traces.get()).sum();
        (lost > 0).then(|| {
            let lost = count(lost, "request");
            let told = format!("the spans of {lost} did not get to {}", self.target);
            match self.traces.last_error() {
                Some(error) => format!("{told}; last error: {error}"),
                None => told,
            }
        })
    }
}
