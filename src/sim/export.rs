//! The way of spans to a collector, from two processes of the server, each with a bounded queue of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter as _, SpanProcessor as _,
};

use super::config::Telemetry;

/// Which process of the server tells a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    Tokenizer,
    Scheduler,
}

/// What is the same for all spans of a server, and the queues of both processes.
#[derive(Debug)]
pub(super) struct Tracer {
    /// 32 hexadecimal digits.
    pub(super) host: String,
    /// Of the tokenizer; that of the scheduler follows.
    pub(super) pid: i64,
    /// The spans a request: 0 none, 1 stages, 2 their parts too, 3 every token too.
    pub(super) level: u8,
    /// By [`Process`].
    queues: [BatchSpanProcessor; 2],
}

/// Sends batches, each once. One that does not arrive is lost, and told when it is the first.
#[derive(Debug)]
struct Told {
    endpoint: String,
    exporter: SpanExporter,
    is_down: AtomicBool,
}

/// Spans that wait in a process. What comes while it is full is lost, as in the real one (whose queue holds
/// 2,048): so much that a collector which keeps up loses none.
const QUEUE: usize = 32_768;
/// Spans a batch, as SGLang sets it.
const BATCH: usize = 64;
/// The first span of a batch waits no longer for others, as SGLang sets it.
const PATIENCE: Duration = Duration::from_millis(500);
/// For an answer of the collector.
const ANSWER: Duration = Duration::from_secs(10);

impl Tracer {
    /// Starts both, on the current Tokio runtime.
    ///
    /// # Errors
    /// An endpoint that is none.
    pub(super) fn start(settings: &Telemetry) -> Result<Tracer, ExporterBuildError> {
        let process = || -> Result<_, ExporterBuildError> {
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(format!("http://{}", settings.otlp_traces_endpoint))
                .with_timeout(ANSWER)
                .build()?;
            exporter.set_resource(&Resource::builder().with_service_name("sglang").build());
            let batches = BatchConfigBuilder::default()
                .with_max_queue_size(QUEUE)
                .with_max_export_batch_size(BATCH)
                .with_scheduled_delay(PATIENCE);
            let processor = BatchSpanProcessor::builder(Told {
                endpoint: settings.otlp_traces_endpoint.clone(),
                exporter,
                is_down: AtomicBool::new(false),
            });
            Ok(processor.with_batch_config(batches.build()).build())
        };
        Ok(Tracer {
            host: format!("{:032x}", rand::random::<u128>()),
            pid: i64::from(std::process::id()),
            level: settings.trace_level,
            queues: [process()?, process()?],
        })
    }

    /// Takes a span of a process; never waits.
    pub(super) fn send(&self, process: Process, span: SpanData) {
        self.queues[process as usize].on_end(span);
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Told {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        let was_down = self.is_down.swap(sent.is_err(), Ordering::Relaxed);
        if let (Err(error), false) = (&sent, was_down) {
            let endpoint = &self.endpoint;
            log::warn!("--otlp-traces-endpoint {endpoint}: spans are lost: {error}");
        }
        sent
    }
}
