//! The `[telemetry.otlp]` section: where traces go, and which.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::config_error::ConfigError;
use crate::secret::Secret;
use crate::telemetry::otlp::sampling::{Sampling, UpstreamFlag};
use crate::telemetry::otlp::settings::{Given, Headers, Protocol, Resolved, Settings, Wrong};

use super::keys::keys;
use super::values::{Seconds, Share, Whole};

keys! {
/// Traces: one a request, to an OpenTelemetry collector or a backend that speaks OTLP (docs/TRACES.md). What is not given
/// here may be said by the standard OTEL_* variables; a key here, or a flag, wins. A key is taken on at a start.
Otlp {
    /// The collector of traces: http:// or https://, host and port. Without it (and without OTEL_EXPORTER_OTLP_ENDPOINT or
    /// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) there are no traces and they cost nothing. Over HTTP a URL without a path gets
    /// /v1/traces. It takes no query: a key goes into headers.
    endpoint: Option<String> = None, Restart "--otlp-endpoint URL" like "http://127.0.0.1:4317";
    /// How spans travel: "grpc" or "http/protobuf". By default grpc to port 4317, else http/protobuf.
    protocol: Option<Protocol> = None, Restart "--otlp-protocol PROTOCOL" in "Running it" like "grpc";
    /// Headers of each export, as hosted backends want them for a key. They are never shown. Or a file with such lines.
    headers: Vec<Secret> as headers = Vec::new(), Restart like ["x-api-key: KEY"];
    /// File with such lines, in place of `headers` or beside it.
    headers_file: Option<PathBuf> = None, Restart like "/run/secrets/otlp-headers";
    /// PEM file with the certificates of those who may sign that of an https:// collector; without it the system's roots.
    ca: Option<PathBuf> = None, Restart like "ca.pem";
    /// service.name of the spans; "queuescope" by default.
    service_name: Option<String> = None, Restart like "queuescope";
    /// Limit on an export, tries in between included; 10 by default. What is not taken by then is lost and counted.
    timeout_s: Option<Seconds> = None, Restart like 10.0;
    /// How long a trace may wait for others to be sent with; 1 by default.
    delay_s: Option<Seconds> = None, Restart like 1.0;
    /// Rows of requests (a request with n sequences has n) whose traces may wait, a few KB each; 4096 by default. Further ones
    /// are lost and counted.
    queue: Option<Whole<1, 1_048_576>> = None, Restart like 4096;
    /// What is kept is decided when a request has ended. All that did not go well:
    keep_errors: bool = true, Restart;
    /// All that took longer to its first token; 0: no such limit.
    keep_ttft_over_s: Seconds<0> = Seconds::of::<0>(), Restart;
    /// All that took longer in all; 0: no such limit.
    keep_total_over_s: Seconds<0> = Seconds::of::<0>(), Restart;
    /// The slowest share of those that went well, by the last 1000 requests; 0: none.
    keep_slowest: Share = Share::default(), Restart;
    /// All that a client had sampled, or that went upstream sampled, is kept. Of the rest this share, by trace id; 1 by
    /// default, or what OTEL_TRACES_SAMPLER says.
    ratio: Option<Share> = None, Restart like 1.0;
    /// Whether a request whose client sent a trace that is not sampled is none of the rest; true by default.
    follow_client: Option<bool> = None, Restart like true;
    /// Whether the sampled flag goes upstream, where it turns on the tracing of a router or engine that was started with it,
    /// which costs them time: "client" (as the client sent it; a trace that begins here goes without), "ratio" (in a
    /// trace that begins here for the share `ratio`), "always" or "never". An engine started with --enable-trace makes no
    /// spans of requests without the flag: where clients send none, "always" has it trace all of them, as it does by itself.
    /// By default "client"; "ratio" where [engine.traces] listens, which needs those spans.
    upstream_flag: Option<UpstreamFlag> = None, Restart like "client";
}}

impl Otlp {
    /// All that exporting needs, the environment included.
    ///
    /// # Errors
    /// The key or the variable that cannot be used.
    pub fn settings(&self) -> Result<Resolved, ConfigError> {
        let headers = self.all_headers()?;
        let limit = |limit: Duration| {
            (!limit.is_zero()).then(|| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX))
        };
        let given = Given {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            headers: Some(headers),
            ca: self.ca.clone(),
            service_name: self.service_name.clone(),
            timeout: self.timeout_s.map(Seconds::get),
            delay: self.delay_s.map(Seconds::get),
            queue: self.queue.map(|queue| queue.get() as usize),
            ratio: self.ratio.map(Share::get),
            follow_client: self.follow_client,
            keep: Sampling {
                errors: self.keep_errors,
                ttft_over: limit(self.keep_ttft_over_s.get()),
                total_over: limit(self.keep_total_over_s.get()),
                slowest: self.keep_slowest.get(),
                ..Sampling::default()
            },
        };
        let env = |name: &str| std::env::var(name).ok();
        Settings::resolve(&given, "queuescope", &env).map_err(|wrong| self.told(wrong))
    }

    fn all_headers(&self) -> Result<Headers, ConfigError> {
        let mut headers = Headers::default();
        let file = match &self.headers_file {
            None => String::new(),
            Some(file) => std::fs::read_to_string(file).map_err(|error| {
                let problem = format!("{error}; give a file with lines like \"name: value\"");
                ConfigError::text("headers_file", file.display(), problem)
            })?,
        };
        let of_file = file.lines().map(|line| ("headers_file", line));
        let given = self.headers.iter();
        let given = given.map(|line| std::str::from_utf8(line.bytes()).unwrap_or_default());
        let given = given.map(|line| ("headers", line));
        for (key, line) in given
            .chain(of_file)
            .filter(|(_, line)| !line.trim().is_empty())
        {
            let read = headers.read(line);
            read.map_err(|problem| ConfigError::new(key, "***", problem))?;
        }
        Ok(headers)
    }

    fn told(&self, Wrong { name, problem }: Wrong) -> ConfigError {
        let endpoint = self.endpoint.as_deref().filter(|_| name == "endpoint");
        // Any other value is in the words, or in the environment, where it may be secret.
        match endpoint.filter(|url| !may_hold_a_secret(url)) {
            Some(url) => ConfigError::text(&name, url, problem),
            None => ConfigError::new(&name, "…", problem),
        }
    }
}

/// Whether a URL has a part that may be secret: a user, a query.
pub(super) fn may_hold_a_secret(url: &str) -> bool {
    url.contains(['@', '?', '#'])
}

/// Headers are checked as they are read; no message shows one.
fn headers<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Secret>, D::Error> {
    let all = Vec::<String>::deserialize(value)?;
    for header in &all {
        Headers::default().read(header).map_err(D::Error::custom)?;
    }
    Ok(all.iter().map(|header| header.as_str().into()).collect())
}
