//! Where traces go, and which: what a config or flags give, over the standard `OTEL_*` variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::trust::Roots;

use super::sampling::Sampling;

/// How spans travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Protocol {
    /// OTLP/gRPC.
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP/HTTP with protobuf bodies.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// Headers of each export; each value is marked as one that is never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub HeaderMap);

/// What a config or flags say; what they leave open is the environment's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    /// The collector's URL.
    pub endpoint: Option<String>,
    /// How spans travel.
    pub protocol: Option<Protocol>,
    /// Headers of each export.
    pub headers: Option<Headers>,
    /// PEM file with who may sign the collector's certificate.
    pub ca: Option<PathBuf>,
    /// `service.name` of the spans.
    pub service_name: Option<String>,
    /// Limit on an export.
    pub timeout: Option<Duration>,
    /// How long traces may wait for others to be sent with.
    pub delay: Option<Duration>,
    /// Rows of requests (sequences) whose traces may wait.
    pub queue: Option<usize>,
    /// Share of the rest that is kept.
    pub ratio: Option<f64>,
    /// Whether what a client did not sample is none of the rest.
    pub follow_client: Option<bool>,
    /// What is kept whatever the ratio; its ratio and `follow_client` are those above.
    pub keep: Sampling,
}

/// All that exporting needs.
#[derive(Clone)]
pub struct Settings {
    /// The collector's URL, whole.
    pub endpoint: String,
    /// How spans travel.
    pub protocol: Protocol,
    /// Headers of each export.
    pub headers: Headers,
    /// Who may sign the collector's certificate; `None` is in the clear.
    pub roots: Option<Roots>,
    /// `service.name` of the spans.
    pub service_name: String,
    /// Limit on an export.
    pub timeout: Duration,
    /// How long traces may wait for others to be sent with.
    pub delay: Duration,
    /// Rows of requests (sequences) whose traces may wait.
    pub queue: usize,
    /// Which traces are kept.
    pub sampling: Sampling,
}

/// What came of it all.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// `None`: there are no traces.
    pub settings: Option<Settings>,
    /// The variable that turns them off.
    pub off: Option<&'static str>,
}

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct Wrong {
    /// The key of a config, or the variable's name.
    pub name: String,
    /// What is wrong, and what would be right; no value that may be secret.
    pub problem: String,
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The path of traces below a collector's base URL (OTLP/HTTP).
const PATH: &str = "/v1/traces";
const GRPC_PORT: u16 = 4317;
const TIMEOUT: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_secs(1);
const QUEUE: usize = 4096;

const ENDPOINT_OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT_OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
/// What turns traces off where a variable names the collector; no variable is over an endpoint that is given.
const OFF: [(&str, &str); 2] = [("OTEL_SDK_DISABLED", "true"), (SAMPLER, "always_off")];

impl Settings {
    /// What is given over what the environment says. `service` names this program where nobody else does.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn resolve(given: &Given, service: &str, env: Env<'_>) -> Result<Resolved, Wrong> {
        // The specification takes an empty variable for an absent one.
        let env = &|name: &str| {
            let text = env(name)?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let own = given.endpoint.clone();
        let own = own.map(|url| ("endpoint".to_owned(), url.trim().to_owned()));
        let is_given = own.is_some();
        let Some((name, url)) = own.or_else(|| variable("ENDPOINT", env)) else {
            return Ok(Resolved::default());
        };
        let says = |name, value: &str| env(name).is_some_and(|it| it.eq_ignore_ascii_case(value));
        let mut off = OFF.into_iter().filter(|(name, value)| says(name, value));
        if let (Some((off, _)), false) = (off.next(), is_given) {
            return Ok(Resolved {
                settings: None,
                off: Some(off),
            });
        }
        let protocol = match (given.protocol, variable("PROTOCOL", env)) {
            (None, Some((name, text))) => Some(text.parse().map_err(|why| wrong(&name, why))?),
            (given, _) => given,
        };
        let (ratio, follow_client) = sampler(env)?;
        let (endpoint, protocol) = endpoint(&name, &url, protocol)?;
        let named = given.service_name.clone().or_else(|| service_name(env));
        let settings = Settings {
            roots: roots(given.ca.as_deref(), &endpoint, env)?,
            headers: headers(given.headers.clone().unwrap_or_default(), env)?,
            service_name: named.unwrap_or_else(|| service.to_owned()),
            timeout: given.timeout.unwrap_or(TIMEOUT),
            delay: given.delay.unwrap_or(DELAY),
            queue: given.queue.unwrap_or(QUEUE),
            endpoint,
            protocol,
            sampling: Sampling {
                ratio: given.ratio.unwrap_or(ratio),
                follow_client: given.follow_client.unwrap_or(follow_client),
                ..given.keep
            },
        };
        Ok(Resolved {
            settings: Some(settings),
            off: None,
        })
    }

    /// Where to, in words.
    pub fn target(&self) -> String {
        format!("{} by {}", self.endpoint, self.protocol.name())
    }
}

/// Shows no header's value.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target())
    }
}

impl Protocol {
    /// Its name in the config and in `OTEL_EXPORTER_OTLP_PROTOCOL`.
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

impl Headers {
    /// Reads `name: value`.
    ///
    /// # Errors
    /// Says what would be right, and nothing of the value.
    pub fn read(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text
            .split_once([':', '='])
            .ok_or("must be like \"name: value\"")?;
        self.push(name, value.trim())
    }

    fn push(&mut self, name: &str, value: &str) -> Result<(), String> {
        let name = name.trim().to_ascii_lowercase();
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "must begin with a header's name, as in \"x-api-key: value\"")?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| "has characters that are not allowed in a header; give plain text")?;
        value.set_sensitive(true);
        self.0.append(name, value);
        Ok(())
    }
}

fn wrong(name: &str, problem: impl Into<String>) -> Wrong {
    Wrong {
        name: name.to_owned(),
        problem: problem.into(),
    }
}

/// The variable of traces, else that of all signals, and what it says.
fn variable(name: &str, env: Env<'_>) -> Option<(String, String)> {
    let names = ["TRACES_", ""].map(|of| format!("OTEL_EXPORTER_OTLP_{of}{name}"));
    names
        .into_iter()
        .find_map(|name| env(&name).map(|text| (name, text)))
}

/// The given ones, and those of the environment with other names.
fn headers(given: Headers, env: Env<'_>) -> Result<Headers, Wrong> {
    let mut headers = given.clone();
    let (variable, text) = variable("HEADERS", env).unwrap_or_default();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let pair = pair.split_once('=');
        let (name, value) =
            pair.ok_or_else(|| wrong(&variable, "must be like name=value,name=value"))?;
        if !given.0.contains_key(name.trim()) {
            let pushed = headers.push(name, &decoded(value));
            pushed.map_err(|why| wrong(&variable, why))?;
        }
    }
    Ok(headers)
}

fn service_name(env: Env<'_>) -> Option<String> {
    let of_resource = || {
        let attributes = env("OTEL_RESOURCE_ATTRIBUTES")?;
        let mut pairs = attributes
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        let (_, name) = pairs.find(|(key, _)| key.trim() == "service.name")?;
        Some(decoded(name))
    };
    env("OTEL_SERVICE_NAME").or_else(of_resource)
}

/// The collector's URL. Only the path of a whole URL is left as it is.
fn endpoint(
    name: &str,
    text: &str,
    protocol: Option<Protocol>,
) -> Result<(String, Protocol), Wrong> {
    let url = match text.contains("://") {
        true => text.to_owned(),
        false => format!("http://{text}"),
    };
    let right = "give the collector's URL, as in http://127.0.0.1:4317";
    let uri: Uri = url
        .parse()
        .map_err(|_| wrong(name, format!("is no URL; {right}")))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let host = uri.host().filter(|host| is_http && !host.is_empty());
    let has_user = uri.authority().is_some_and(|a| a.as_str().contains('@'));
    // Where traces go is shown, and what stands there may be a key.
    if host.is_none() || has_user || url.contains(['?', '#']) {
        let problem = format!(
            "must be http:// or https:// with a host and no query, and a key goes into headers; {right}"
        );
        return Err(wrong(name, problem));
    }
    // Whoever names gRPC's own port means gRPC; else the specification's default.
    let guess = match uri.port_u16() {
        Some(GRPC_PORT) => Protocol::Grpc,
        _ => Protocol::Http,
    };
    let protocol = protocol.unwrap_or(guess);
    let has_path = !matches!(uri.path(), "" | "/");
    let url = url.trim_end_matches('/');
    let url = match protocol {
        // gRPC has paths of its own.
        Protocol::Grpc => url[..url.len() - uri.path().trim_end_matches('/').len()].to_owned(),
        // As the specification wants: the variable of traces is whole, that of all signals a base.
        Protocol::Http if name == ENDPOINT_OF_TRACES || (has_path && name != ENDPOINT_OF_ALL) => {
            url.to_owned()
        }
        Protocol::Http => format!("{url}{PATH}"),
    };
    Ok((url, protocol))
}

fn roots(given: Option<&Path>, endpoint: &str, env: Env<'_>) -> Result<Option<Roots>, Wrong> {
    if !endpoint.starts_with("https://") {
        return Ok(None);
    }
    let given = given.map(|path| ("ca".to_owned(), path.to_owned()));
    let named = || variable("CERTIFICATE", env).map(|(name, path)| (name, path.into()));
    let roots = match given.or_else(named) {
        Some((name, path)) => {
            Roots::file(&path).map_err(|why| wrong(&name, format!("{} {why}", path.display())))?
        }
        None => Roots::system().map_err(|why| wrong("ca", format!("{why}; give a PEM file")))?,
    };
    Ok(Some(roots))
}

/// Percent-encoding taken off, as in the W3C's baggage.
fn decoded(text: &str) -> String {
    let text = percent_decode_str(text.trim());
    text.decode_utf8_lossy().into_owned()
}

/// The ratio that the environment's sampler keeps, and whether it follows the client.
fn sampler(env: Env<'_>) -> Result<(f64, bool), Wrong> {
    let Some(sampler) = env(SAMPLER) else {
        return Ok((1.0, true));
    };
    let of_parent = sampler.strip_prefix("parentbased_");
    let ratio = match of_parent.unwrap_or(&sampler) {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match env(SAMPLER_ARG).map_or(Ok(1.0), |text| text.parse()) {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            _ => return Err(wrong(SAMPLER_ARG, "must be a number from 0 to 1")),
        },
        _ => {
            let right =
                "must be always_on, always_off or traceidratio, or one of them behind parentbased_";
            return Err(wrong(SAMPLER, right));
        }
    };
    Ok((ratio, of_parent.is_some()))
}

#[cfg(test)]
mod tests;
