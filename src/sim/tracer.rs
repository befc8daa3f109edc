//! Exports spans to a collector as two processes of the server, each with a bounded queue of its own.

use std::time::Duration;

use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter as _, SpanProcessor as _,
};

use super::config::Telemetry;

/// The process of the server that reports a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    Tokenizer,
    Scheduler,
}

/// The values that all spans of a server share, and the queues of both processes.
#[derive(Debug)]
pub(super) struct Tracer {
    /// 32 hexadecimal digits.
    pub(super) host: String,
    /// The tokenizer's process id; the scheduler's is the next number.
    pub(super) pid: i64,
    /// By [`Process`].
    queues: [BatchSpanProcessor; 2],
}

/// Spans queued in a process. More are lost, as in SGLang, whose queue holds 2,048; here enough that none is lost while the
/// collector keeps up.
const MAX_QUEUED_SPANS: usize = 32_768;
/// Spans in a batch, as SGLang sets it.
const MAX_BATCH_SPANS: usize = 64;
/// The longest that a span waits for a full batch, as SGLang sets it.
const BATCH_INTERVAL: Duration = Duration::from_millis(500);

impl Tracer {
    /// Starts the exports of both processes, on the current Tokio runtime.
    ///
    /// # Errors
    /// If the endpoint is invalid.
    pub(super) fn start(settings: &Telemetry) -> Result<Tracer, ExporterBuildError> {
        let process = || -> Result<_, ExporterBuildError> {
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(format!("http://{}", settings.otlp_traces_endpoint))
                .build()?;
            exporter.set_resource(&Resource::builder().with_service_name("sglang").build());
            let batches = BatchConfigBuilder::default()
                .with_max_queue_size(MAX_QUEUED_SPANS)
                .with_max_export_batch_size(MAX_BATCH_SPANS)
                .with_scheduled_delay(BATCH_INTERVAL);
            let processor = BatchSpanProcessor::builder(exporter);
            Ok(processor.with_batch_config(batches.build()).build())
        };
        Ok(Tracer {
            host: format!("{:032x}", rand::random::<u128>()),
            pid: i64::from(std::process::id()),
            queues: [process()?, process()?],
        })
    }

    /// Queues a span of a process; never blocks. A batch that cannot be sent is lost.
    pub(super) fn send(&self, process: Process, span: SpanData) {
        self.queues[process as usize].on_end(span);
    }
}
