//! Where goes what the server tells beside its responses: spans to a collector, from two processes of the server, each
//! with a bounded queue and an exporter of its own; lines of the request log to files, one an hour.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use parking_lot::Mutex;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, NANOS, Stamp};

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
    /// Of the tokenizer; those of the ranks' schedulers follow.
    pub(super) pid: i64,
    level: AtomicU8,
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
    settings: Telemetry,
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

impl Tracer {
    /// Starts both on the current Tokio runtime; they end with `stop`.
    ///
    /// # Errors
    /// An endpoint that is none.
    pub(super) fn start(
        settings: &Telemetry,
        clock: &Clock,
        stop: &CancellationToken,
    ) -> Result<Tracer, ExporterBuildError> {
        let start = |stream| -> Result<_, ExporterBuildError> {
            let (sender, spans) = mpsc::channel(QUEUE);
            let mut exporter = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(format!("http://{}", settings.otlp_traces_endpoint))
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
        Ok(Tracer {
            host: format!("{:032x}", rand::random::<u128>()),
            pid: i64::from(std::process::id()),
            level: AtomicU8::new(settings.trace_level),
            clock: clock.clone(),
            tokenizer: start(0)?,
            scheduler: start(1)?,
        })
    }

    /// The spans a request: 0 none, 1 stages, 2 their parts too, 3 every token too.
    pub(super) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// Another level for the requests that end from now on.
    pub(super) fn set_level(&self, level: u8) {
        self.level.store(level, Ordering::Relaxed);
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
            let most = match self.settings.trace_shuffle {
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
            if self.settings.trace_shuffle {
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
        let delay = i64::from(self.settings.trace_delay_ms) * 1_000_000;
        let left = delay - self.clock.now().nanos_since(since);
        if left > 0 {
            sleep(Duration::from_nanos(left.min(NANOS * 3_600).unsigned_abs())).await;
        }
    }

    /// Sends a batch once. One that does not arrive is lost, and told when it is the first.
    async fn export(&mut self, batch: Vec<SpanData>) {
        if self.rng.random_bool(self.settings.trace_loss) {
            return;
        }
        let sent = self.exporter.export(batch).await;
        if let (Err(error), false) = (&sent, self.is_down) {
            let endpoint = &self.settings.otlp_traces_endpoint;
            log::warn!("--otlp-traces-endpoint {endpoint}: spans are lost: {error}");
        }
        self.is_down = sent.is_err();
    }
}

/// Where the lines go.
#[derive(Debug)]
pub(super) struct RequestLog {
    folder: PathBuf,
    open: Mutex<Option<Hour>>,
}

/// The file of one hour.
#[derive(Debug)]
struct Hour {
    name: String,
    file: File,
}

impl RequestLog {
    /// A log in `folder`, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn create(folder: PathBuf) -> std::io::Result<RequestLog> {
        std::fs::create_dir_all(&folder)?;
        Ok(RequestLog {
            folder,
            open: Mutex::new(None),
        })
    }

    /// Appends a line of JSON to the file of the hour (UTC; the real one takes the machine's time zone). One that
    /// cannot be written is lost, with a word in our own log.
    pub(super) fn append(&self, line: &str, now: Stamp) {
        let mut open = self.open.lock();
        if let Err(error) = self.write(&mut open, line, now) {
            log::error!(
                "--export-metrics-to-file-dir {}: {error}; a line is lost",
                self.folder.display()
            );
            *open = None;
        }
    }

    fn write(&self, open: &mut Option<Hour>, line: &str, now: Stamp) -> std::io::Result<()> {
        let hour = now.utc().strftime("%Y%m%d_%H");
        let name = format!("sglang-request-metrics-{hour}.log");
        if open.as_ref().is_none_or(|open| open.name != name) {
            let path = self.folder.join(&name);
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            *open = Some(Hour { name, file });
        }
        match open {
            Some(hour) => hour.file.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}
