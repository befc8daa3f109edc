//! The flags of what the server tells beside its responses: traces and a request log, as SGLang spells them, and
//! what goes wrong with them.

use std::path::PathBuf;

use super::Error;

/// What the server tells beside its responses.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = "What it tells beside its responses")]
pub struct Tells {
    /// Send spans of requests to a collector (OTLP over gRPC), as SGLang does
    #[arg(long)]
    pub enable_trace: bool,
    /// The collector of --enable-trace
    #[arg(long, value_name = "HOST:PORT", default_value_t = Tells::default().otlp_traces_endpoint)]
    pub otlp_traces_endpoint: String,
    /// Spans a request: 0 none, 1 stages, 2 their parts too, 3 every token too (SGLang: SGLANG_TRACE_LEVEL)
    #[arg(long, value_name = "N", default_value_t = Tells::default().trace_level)]
    pub trace_level: u8,
    /// Hold spans back by this before they are sent, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub trace_delay_ms: u32,
    /// Lose this share of the batches of spans, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub trace_loss: f64,
    /// Send spans in a random order
    #[arg(long)]
    pub trace_shuffle: bool,
    /// Append a JSON line a request to --export-metrics-to-file-dir, as SGLang does
    #[arg(long, requires = "export_metrics_to_file_dir")]
    pub export_metrics_to_file: bool,
    /// The folder of those lines, in sglang-request-metrics-YYYYMMDD_HH.log
    #[arg(long, value_name = "DIR")]
    pub export_metrics_to_file_dir: Option<PathBuf>,
    /// Makes --log-requests-level count; without it those lines hold prompts
    #[arg(long)]
    pub log_requests: bool,
    /// What those lines repeat: 0 no prompt and no sampling parameters, 1 no prompt, 2 or 3 both
    #[arg(long, value_name = "N", default_value_t = Tells::default().log_requests_level)]
    pub log_requests_level: u8,
}

impl Default for Tells {
    fn default() -> Tells {
        Tells {
            enable_trace: false,
            otlp_traces_endpoint: "localhost:4317".to_owned(),
            trace_level: 3,
            trace_delay_ms: 0,
            trace_loss: 0.0,
            trace_shuffle: false,
            export_metrics_to_file: false,
            export_metrics_to_file_dir: None,
            log_requests: false,
            log_requests_level: 2,
        }
    }
}

impl Tells {
    /// The flags with a number, its value and what it may be.
    pub(super) fn ranges(&self) -> [(&'static str, f64, f64, f64); 3] {
        [
            ("--trace-level", f64::from(self.trace_level), 0.0, 3.0),
            ("--trace-loss", self.trace_loss, 0.0, 1.0),
            (
                "--log-requests-level",
                f64::from(self.log_requests_level),
                0.0,
                3.0,
            ),
        ]
    }

    /// Checks what is no number.
    ///
    /// # Errors
    /// [`Error::Value`] for an endpoint that is none.
    pub(super) fn validate(&self) -> Result<(), Error> {
        let endpoint = &self.otlp_traces_endpoint;
        let parsed = endpoint.parse::<http::uri::Authority>().ok();
        if parsed.and_then(|parsed| parsed.port_u16()).is_some() {
            return Ok(());
        }
        Err(Error::Value {
            flag: "--otlp-traces-endpoint",
            value: endpoint.clone(),
            want: "HOST:PORT of a collector that speaks gRPC, such as localhost:4317".to_owned(),
        })
    }
}
