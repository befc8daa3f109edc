//! The way of spans to a collector: two processes of the server, each with a bounded queue and an exporter of its own.

use std::collections::VecDeque;
use std::time::Duration;

use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, NANOS, Stamp};

use super::spans::Process;

/// How spans are sent, and what goes wrong on the way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// `HOST:PORT` of a collector that speaks gRPC.
    pub(super) endpoint: String,
    /// Every batch is held back by this time.
    pub(super) delay: Duration,
    /// This share of the batches is lost, from 0 to 1.
    pub(super) loss: f64,
    /// Spans and batches of about a second go in a random order.
    pub(super) is_shuffled: bool,
}

/// The queues of both processes.
#[derive(Debug)]
pub(super) struct Exports {
    clock: Clock,
    tokenizer: mpsc::Sender<Ended>,
    scheduler: mpsc::Sender<Ended>,
}

/// A span, and when it was told.
#[derive(Debug)]
struct Ended {
    at: Stamp,
    span: SpanData,
}

/// One process's sending.
struct Sending {
    clock: Clock,
    settings: Settings,
    spans: mpsc::Receiver<Ended>,
    exporter: SpanExporter,
    rng: ChaCha8Rng,
    is_down: bool,
}

/// Spans that wait in a process. What comes while it is full is lost, as in the real one (whose queue holds
/// 2,048): so much that a collector which keeps up loses none.
const QUEUE: usize = 32_768;
/// Spans a batch, as SGLang sets it.
const BATCH: usize = 64;
/// Spans that are shuffled together at most.
const SHUFFLED: usize = 8_192;
/// The first span of a batch waits no longer for others, as SGLang sets it.
const PATIENCE: Duration = Duration::from_millis(500);
/// For an answer of the collector.
const ANSWER: Duration = Duration::from_secs(10);

impl Exports {
    /// Starts both on the current Tokio runtime; they end with `stop`.
    ///
    /// # Errors
    /// An endpoint that is none.
    pub(super) fn start(
        settings: &Settings,
        clock: &Clock,
        stop: &CancellationToken,
    ) -> Result<Exports, ExporterBuildError> {
        let start = |stream| -> Result<_, ExporterBuildError> {
            let (sender, spans) = mpsc::channel(QUEUE);
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(format!("http://{}", settings.endpoint))
                .with_timeout(ANSWER)
                .build()?;
            exporter.set_resource(&Resource::builder().with_service_name("sglang").build());
            let mut rng = ChaCha8Rng::seed_from_u64(0);
            rng.set_stream(stream);
            let sending = Sending {
                clock: clock.clone(),
                settings: settings.clone(),
                spans,
                exporter,
                rng,
                is_down: false,
            };
            tokio::spawn(stop.clone().run_until_cancelled_owned(sending.run()));
            Ok(sender)
        };
        Ok(Exports {
            clock: clock.clone(),
            tokenizer: start(0)?,
            scheduler: start(1)?,
        })
    }

    /// Takes a span of a process; never waits.
    pub(super) fn send(&self, process: Process, span: SpanData) {
        let queue = match process {
            Process::Tokenizer => &self.tokenizer,
            Process::Scheduler => &self.scheduler,
        };
        let at = self.clock.now();
        // A full queue loses it.
        let _ = queue.try_send(Ended { at, span });
    }
}

impl Sending {
    async fn run(mut self) {
        while let Some(first) = self.spans.recv().await {
            let most = match self.settings.is_shuffled {
                true => SHUFFLED,
                false => BATCH,
            };
            let (mut spans, mut last) = (vec![first.span], first.at);
            let fill = async {
                while spans.len() < most {
                    match self.spans.recv().await {
                        Some(ended) => {
                            last = ended.at;
                            spans.push(ended.span);
                        }
                        None => break,
                    }
                }
            };
            let _ = timeout(PATIENCE, fill).await;
            self.hold_back(last).await;
            if self.settings.is_shuffled {
                spans.shuffle(&mut self.rng);
            }
            let mut spans = VecDeque::from(spans);
            while !spans.is_empty() {
                let batch = spans.drain(..BATCH.min(spans.len())).collect();
                self.export(batch).await;
            }
        }
    }

    async fn hold_back(&self, since: Stamp) {
        let delay = self.settings.delay.as_nanos() as i64;
        let left = delay - self.clock.now().nanos_since(since);
        if left > 0 {
            sleep(Duration::from_nanos(left.min(NANOS * 3_600).unsigned_abs())).await;
        }
    }

    /// Sends a batch once. One that does not arrive is lost, and told when it is the first.
    async fn export(&mut self, batch: Vec<SpanData>) {
        if self.rng.random_bool(self.settings.loss) {
            return;
        }
        let sent = self.exporter.export(batch).await;
        if let (Err(error), false) = (&sent, self.is_down) {
            let endpoint = &self.settings.endpoint;
            log::warn!("--otlp-traces-endpoint {endpoint}: spans are lost: {error}");
        }
        self.is_down = sent.is_err();
    }
}
