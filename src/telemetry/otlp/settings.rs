//! Where traces go, and which are kept: the config or flags, which override the standard `OTEL_*` variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::path::{Path, PathBuf};
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio_rustls::rustls::RootCertStore;

use crate::disk;
use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};
use crate::names::names;
use crate::request::Row;
use crate::secret::Secret;
use crate::trust::Roots;

/// How spans travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Protocol {
    /// OTLP/gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP/HTTP with protobuf bodies.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// Whether the sampled flag goes upstream, where it turns on the engine's own tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamFlag {
    /// As the client sent it; not in a trace of our own.
    #[default]
    Client,
    /// As the client sent it, and of the others the share `ratio`.
    Ratio,
    /// Always.
    Always,
    /// Never.
    Never,
}

keys! {
/// Traces: one a request, to an OpenTelemetry collector or a backend that speaks OTLP (docs/TRACES.md). Keys that are not
/// given here come from the standard OTEL_* variables; a key here, or a flag, wins. Changed keys take effect at a restart.
Otlp {
    /// The collector of traces: http:// or https://, host and port. Without it (and without OTEL_EXPORTER_OTLP_ENDPOINT or
    /// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) there are no traces and they cost nothing. Over HTTP a URL without a path gets
    /// /v1/traces. It takes no query: a key goes into headers.
    endpoint: Option<String> = None, Restart "--otlp-endpoint URL" like "http://127.0.0.1:4317";
    /// How spans travel: "grpc" or "http/protobuf". By default grpc to port 4317, else http/protobuf.
    protocol: Option<Protocol> = None, Restart "--otlp-protocol PROTOCOL" in "Running it" like "grpc";
    /// Headers of each export, such as the API key of a hosted backend. They are never shown. Or a file with such lines.
    headers: Vec<Secret> as checked = Vec::new(), Restart like ["x-api-key: KEY"];
    /// File with such lines, in place of `headers` or beside it.
    headers_file: Option<PathBuf> = None, Restart like "/run/secrets/otlp-headers";
    /// PEM file with the CA certificates by which an https:// collector is verified; without it the system's roots.
    ca: Option<PathBuf> = None, Restart like "ca.pem";
    /// service.name of the spans; "queuescope" by default.
    service_name: Option<String> = None, Restart like "queuescope";
    /// Limit on an export, tries in between included. What is not taken by then is lost and counted.
    timeout_s: Seconds = Seconds::of::<10>(), Restart;
    /// How long a trace may wait for others to be sent with.
    delay_s: Seconds = Seconds::of::<1>(), Restart;
    /// Rows of requests (a request with n sequences has n) whose traces may wait, a few KB each. Further ones are lost and
    /// counted.
    queue: Whole<1, 1_048_576> = Whole::of::<4096>(), Restart;
    /// Whether traces of all requests that did not go well are kept. What is kept is decided when a request has ended.
    keep_errors: bool = true, Restart;
    /// Traces of requests that took longer than this to the first token are kept; 0: no such limit.
    keep_ttft_over_s: Seconds<0> = Seconds::of::<0>(), Restart;
    /// Traces of requests that took longer than this in all are kept; 0: no such limit.
    keep_total_over_s: Seconds<0> = Seconds::of::<0>(), Restart;
    /// The share of all other traces that is kept, chosen by trace id. Traces that the client marked as sampled, or that went
    /// upstream so, are all kept.
    ratio: f64 as values::share = 1.0, Restart;
    /// Whether traces that the client marked as not sampled are left out of the share `ratio`.
    follow_client: bool = true, Restart;
    /// Whether the sampled flag goes upstream, where it turns on the tracing of a router or engine that was started with it,
    /// which costs them time: "client" (as the client sent it; a trace that begins here goes without), "ratio" (in a
    /// trace that begins here for the share `ratio`), "always" or "never". An engine started with --enable-trace makes no
    /// spans of requests without the flag: where clients send none, "always" has it trace all of them, as it does by itself.
    /// By default "client"; "ratio" where [engine.traces] listens, which needs those spans.
    upstream_flag: Option<UpstreamFlag> = None, Restart like "client";
}}

names! {
/// Why a trace is kept.
pub enum KeepReason {
    /// The request failed.
    Error = "error",
    /// It exceeded a latency limit.
    Slow = "slow",
    /// The client sampled it, or it was sent upstream as sampled.
    Flagged = "flagged",
    /// By the share of all traces.
    Ratio = "ratio",
}}

/// The resolved settings of an exporter.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// The keys of config or flags.
    pub given: Otlp,
    /// The collector's complete URL.
    pub endpoint: String,
    /// How spans travel.
    pub protocol: Protocol,
    /// The headers of each export. The values are marked as sensitive and never shown.
    pub headers: HeaderMap,
    /// The certificate authorities trusted for the collector; none for a connection without TLS.
    pub roots: RootCertStore,
    /// `service.name` of the spans.
    pub service_name: String,
}

/// A value that cannot be used: the key of a config, or the variable's name; what is wrong and what to give instead, without values
/// that may be secret.
pub type InvalidSetting = (String, String);

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// OTLP/HTTP's path of traces below a collector's base URL.
pub const HTTP_PATH: &str = "/v1/traces";
const GRPC_PORT: u16 = 4317;

const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const BASE_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Turns traces off if a variable names the collector. An endpoint of the config is not affected.
const SDK_DISABLED: &str = "OTEL_SDK_DISABLED";

impl Otlp {
    /// Returns why the trace of a request is kept; `None` if it is dropped. `trace` is its id.
    pub fn keep_reason(&self, rows: &[Row], trace: u128) -> Option<KeepReason> {
        let first = rows.first()?;
        if self.keep_errors && !first.is_ok() {
            return Some(KeepReason::Error);
        }
        let is_over = |nanos: Option<i64>, limit: Seconds<0>| {
            let limit = limit.get().as_nanos() as i128;
            limit > 0 && nanos.is_some_and(|nanos| i128::from(nanos) > limit)
        };
        let ttft = rows.iter().filter_map(|row| row.ttft).max();
        if is_over(first.elapsed, self.keep_total_over_s) || is_over(ttft, self.keep_ttft_over_s) {
            return Some(KeepReason::Slow);
        }
        let flags = &first.internal.trace;
        if flags.received_sampled == Some(true) || flags.sent_sampled {
            return Some(KeepReason::Flagged);
        }
        let is_undecided = !self.follow_client || flags.received_sampled.is_none();
        (is_undecided && is_in_share(trace, self.ratio)).then_some(KeepReason::Ratio)
    }

    /// Reads the headers of both keys.
    fn headers(&self) -> Result<HeaderMap, InvalidSetting> {
        let mut headers = HeaderMap::new();
        for line in &self.headers {
            let line = std::str::from_utf8(line.bytes()).unwrap_or_default();
            read_header(&mut headers, line).map_err(|error| invalid("headers", error))?;
        }
        let Some(path) = &self.headers_file else {
            return Ok(headers);
        };
        let error = |problem| invalid("headers_file", problem);
        let text = disk::read_text(path).map_err(|cause| {
            error(format!(
                "{cause}; give a file with lines like \"name: value\""
            ))
        })?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            read_header(&mut headers, line).map_err(error)?;
        }
        Ok(headers)
    }
}

/// Whether a trace is in this share of all, as OpenTelemetry's `TraceIdRatioBased` decides it, so that all processes agree.
fn is_in_share(trace: u128, ratio: f64) -> bool {
    let bound = (ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
    (trace as u64) >> 1 < bound
}

impl UpstreamFlag {
    /// Whether the sampled flag is sent upstream. `received`: the client's flag; `None` if the trace began here.
    pub fn is_sent(self, received: Option<bool>, trace: u128, ratio: f64) -> bool {
        match self {
            UpstreamFlag::Client => received == Some(true),
            UpstreamFlag::Ratio => received.unwrap_or_else(|| is_in_share(trace, ratio)),
            UpstreamFlag::Always => true,
            UpstreamFlag::Never => false,
        }
    }
}

impl ExportSettings {
    /// Resolves the keys and the environment; `None` if no collector is named. `service` is the default service name.
    ///
    /// # Errors
    /// All invalid keys and variables.
    pub fn resolve(
        given: &Otlp,
        service: &str,
        env: Env<'_>,
    ) -> Result<Option<ExportSettings>, Vec<InvalidSetting>> {
        // By the specification, an empty variable counts as unset.
        let env = &|name: &str| {
            let text = env(name)?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let mut found = Vec::new();
        let own_headers = valid(given.headers(), &mut found);
        let own = given.endpoint.clone();
        let own = own.map(|url| ("endpoint".to_owned(), url.trim().to_owned()));
        let is_on = || env(SDK_DISABLED).is_none_or(|text| !text.eq_ignore_ascii_case("true"));
        // In a variable, which other programs read too, the scheme may be left out before host and port.
        let complete = |(name, url): (String, String)| match url.contains("://") {
            false if url.contains(':') => (name, format!("http://{url}")),
            _ => (name, url),
        };
        let named = || variable("ENDPOINT", env).filter(|_| is_on()).map(complete);
        let Some((name, url)) = own.or_else(named) else {
            return if found.is_empty() {
                Ok(None)
            } else {
                Err(found)
            };
        };
        let protocol = match (given.protocol, variable("PROTOCOL", env)) {
            (None, Some((name, text))) => {
                let named = text.parse().map_err(|error| invalid(&name, error));
                valid(named, &mut found)
            }
            (given, _) => given,
        };
        let endpoint = valid(endpoint(&name, &url, protocol), &mut found);
        let headers = valid(headers(own_headers.unwrap_or_default(), env), &mut found);
        let roots = endpoint
            .as_ref()
            .map(|(url, _)| roots(given.ca.as_deref(), url));
        let roots = roots.and_then(|roots| valid(roots, &mut found));
        let (Some((endpoint, protocol)), Some(headers), Some(roots), []) =
            (endpoint, headers, roots, &*found)
        else {
            return Err(found);
        };
        let named = given.service_name.clone();
        let named = named.or_else(|| env("OTEL_SERVICE_NAME"));
        Ok(Some(ExportSettings {
            roots,
            headers,
            service_name: named.unwrap_or_else(|| service.to_owned()),
            given: given.clone(),
            endpoint,
            protocol,
        }))
    }

    /// Returns the collector's name for logs and messages.
    pub fn target(&self) -> String {
        format!("{} by {}", self.endpoint, self.protocol.name())
    }
}

impl Protocol {
    /// Returns its name in the config and in `OTEL_EXPORTER_OTLP_PROTOCOL`.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::Http => "http/protobuf",
        }
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        let mut all = [Protocol::Grpc, Protocol::Http].into_iter();
        let named = all.find(|protocol| protocol.name() == text);
        named.ok_or_else(|| "must be one of grpc, http/protobuf".to_owned())
    }
}

/// Adds a header from a line like `name: value`. An error says what to give instead, without the value.
fn read_header(headers: &mut HeaderMap, line: &str) -> Result<(), String> {
    let (name, value) = line
        .split_once([':', '='])
        .ok_or("must be like \"name: value\" or name=value")?;
    let name = HeaderName::from_bytes(name.trim().as_bytes())
        .map_err(|_| "must begin with a header's name, as in \"x-api-key: value\"")?;
    let mut value = HeaderValue::from_str(value.trim())
        .map_err(|_| "has characters that are not allowed in a header; give plain text")?;
    value.set_sensitive(true);
    headers.append(name, value);
    Ok(())
}

/// Checks headers when the config is read. No message shows one.
fn checked<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Secret>, D::Error> {
    let all = Vec::<String>::deserialize(value)?;
    for header in &all {
        read_header(&mut HeaderMap::new(), header).map_err(D::Error::custom)?;
    }
    Ok(all.iter().map(|header| header.as_str().into()).collect())
}

fn invalid(name: &str, problem: impl Into<String>) -> InvalidSetting {
    (name.to_owned(), problem.into())
}

/// Returns the value, or adds what is wrong with it to `found`.
fn valid<T>(read: Result<T, InvalidSetting>, found: &mut Vec<InvalidSetting>) -> Option<T> {
    read.map_err(|invalid| found.push(invalid)).ok()
}

/// Returns the variable of traces, or else that of all signals, with its value.
fn variable(name: &str, env: Env<'_>) -> Option<(String, String)> {
    let names = ["TRACES_", ""].map(|signal| format!("OTEL_EXPORTER_OTLP_{signal}{name}"));
    names
        .into_iter()
        .find_map(|name| env(&name).map(|text| (name, text)))
}

/// Returns the headers of the environment, and the given ones, which replace those of the same name.
fn headers(given: HeaderMap, env: Env<'_>) -> Result<HeaderMap, InvalidSetting> {
    let mut headers = HeaderMap::new();
    let (variable, text) = variable("HEADERS", env).unwrap_or_default();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        // Percent-encoded, as W3C baggage is.
        let pair = percent_decode_str(pair).decode_utf8_lossy();
        read_header(&mut headers, &pair).map_err(|error| invalid(&variable, error))?;
    }
    headers.extend(given);
    Ok(headers)
}

/// Completes the collector's URL and chooses the protocol. Only a complete URL keeps its path unchanged.
fn endpoint(
    name: &str,
    text: &str,
    protocol: Option<Protocol>,
) -> Result<(String, Protocol), InvalidSetting> {
    let uri: Uri = text.parse().unwrap_or_default();
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().map(|port| format!(":{port}"));
    let expected = format!("{host}{}", port.unwrap_or_default());
    let is_plain = uri
        .authority()
        .is_some_and(|given| given.as_str() == expected);
    // The URL is shown in logs, and user or query may be a secret.
    if !is_http || host.is_empty() || !is_plain || text.contains(['?', '#']) {
        let problem = "must be http:// or https:// with a host and no query, and a key goes into headers; give the collector's URL, as in http://127.0.0.1:4317";
        return Err(invalid(name, problem));
    }
    // gRPC on its own port, otherwise the specification's default.
    let default = match uri.port_u16() {
        Some(GRPC_PORT) => Protocol::Grpc,
        _ => Protocol::Http,
    };
    let protocol = protocol.unwrap_or(default);
    let has_path = !matches!(uri.path(), "" | "/");
    let url = text.trim_end_matches('/');
    let url = match protocol {
        // gRPC has its own paths.
        Protocol::Grpc => url[..url.len() - uri.path().trim_end_matches('/').len()].to_owned(),
        // By the specification, the variable of traces holds the complete URL, that of all signals a base URL.
        Protocol::Http if name == TRACES_ENDPOINT || (has_path && name != BASE_ENDPOINT) => {
            url.to_owned()
        }
        Protocol::Http => format!("{url}{HTTP_PATH}"),
    };
    Ok((url, protocol))
}

fn roots(given: Option<&Path>, endpoint: &str) -> Result<RootCertStore, InvalidSetting> {
    if !endpoint.starts_with("https://") {
        return Ok(RootCertStore::empty());
    }
    let roots = match given {
        Some(path) => Roots::file(path).map_err(|error| format!("{} {error}", path.display())),
        None => Roots::system().map_err(|error| format!("{error}; give a PEM file")),
    };
    let store = roots.map(|roots| roots.store());
    store.map_err(|error| invalid("ca", error))
}

#[cfg(test)]
pub(super) mod tests;
