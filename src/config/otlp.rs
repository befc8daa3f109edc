//! The `[telemetry.otlp]` section: where traces go, and which.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::config_error::ConfigError;
use crate::secret::Secret;
use crate::telemetry::otlp::sampling::{Sampling, UpstreamFlag};
use crate::telemetry::otlp::settings::{Given, Headers, Protocol, Resolved, Settings, Wrong};

use super::values::{Seconds, Share, Whole};

/// The `[telemetry.otlp]` section. Keys, units and defaults: `config.toml`. What is absent may be said by an `OTEL_*`
/// variable.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// The collector's URL; traces are exported where it or the environment names one.
    pub endpoint: Option<String>,
    /// How spans travel.
    pub protocol: Option<Protocol>,
    /// Headers of each export, `name: value`.
    #[serde(deserialize_with = "headers")]
    pub headers: Vec<Secret>,
    /// File with such lines.
    pub headers_file: Option<PathBuf>,
    /// PEM file with who may sign the collector's certificate; none: the system's roots.
    pub ca: Option<PathBuf>,
    /// `service.name` of the spans.
    pub service_name: Option<String>,
    /// Limit on an export.
    pub timeout_s: Option<Seconds>,
    /// How long traces may wait to be sent together.
    pub delay_s: Option<Seconds>,
    /// Rows of requests whose traces may wait.
    pub queue: Option<Whole<1, 1_048_576>>,
    /// Whether all that did not go well is kept.
    pub keep_errors: bool,
    /// Keep what took longer to its first token; 0: no limit.
    pub keep_ttft_over_s: Seconds<0>,
    /// Keep what took longer in all; 0: no limit.
    pub keep_total_over_s: Seconds<0>,
    /// Keep this share of those that went well: the slowest of late.
    pub keep_slowest: Share,
    /// Share of the rest that is kept.
    pub ratio: Option<Share>,
    /// Whether what a client sent without the sampled flag is none of the rest.
    pub follow_client: Option<bool>,
    /// Whether the sampled flag goes upstream.
    pub upstream_flag: Option<UpstreamFlag>,
}

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp {
            endpoint: None,
            protocol: None,
            headers: Vec::new(),
            headers_file: None,
            ca: None,
            service_name: None,
            timeout_s: None,
            delay_s: None,
            queue: None,
            keep_errors: true,
            keep_ttft_over_s: Seconds::of::<0>(),
            keep_total_over_s: Seconds::of::<0>(),
            keep_slowest: Share::default(),
            ratio: None,
            follow_client: None,
            upstream_flag: None,
        }
    }
}

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
        let value = match name.as_str() {
            "endpoint" => self
                .endpoint
                .as_deref()
                .filter(|url| !url.contains(['@', '?', '#'])),
            // It is in the words, or in the environment, where it may be secret.
            _ => None,
        };
        match value {
            Some(value) => ConfigError::text(&name, value, problem),
            None => ConfigError::new(&name, "…", problem),
        }
    }
}

/// Headers are checked as they are read; no message shows one.
fn headers<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Secret>, D::Error> {
    let all = Vec::<String>::deserialize(value)?;
    for header in &all {
        Headers::default().read(header).map_err(D::Error::custom)?;
    }
    Ok(all.iter().map(|header| header.as_str().into()).collect())
}
