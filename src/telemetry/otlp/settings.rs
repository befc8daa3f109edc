//! Where traces go, and which: what a config or flags give, over the standard `OTEL_*` variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

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

/// Headers of each export; a value is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(HeaderName, HeaderValue)>);

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
    /// Variables that turn them off, or that are not heeded.
    pub notes: Vec<String>,
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
const MOST_QUEUED: usize = 1 << 20;

impl Settings {
    /// What is given over what the environment says. `service` names this program where nobody else does.
    ///
    /// # Errors
    /// The first value that cannot be used. A variable that asks for what this exporter does not do is none.
    pub fn resolve(given: &Given, service: &str, env: Env<'_>) -> Result<Resolved, Wrong> {
        // The specification takes an empty variable for an absent one.
        let env = &|name: &str| env(name).filter(|value| !value.trim().is_empty());
        let Some(named) = named(given, env) else {
            return Ok(Resolved::default());
        };
        if let Some(why) = turned_off(given, env) {
            let notes = vec![why.to_owned()];
            return Ok(Resolved {
                settings: None,
                notes,
            });
        }
        let mut notes = not_heeded(env);
        let protocol = protocol(given, env, &mut notes)?;
        let (endpoint, protocol) = endpoint(named, protocol)?;
        let settings = Settings {
            roots: roots(given, &endpoint, env)?,
            headers: headers(given, env)?,
            service_name: service_name(given, service, env),
            timeout: millis(given.timeout, "TIMEOUT", env)?.unwrap_or(TIMEOUT),
            delay: match given.delay {
                Some(delay) => delay,
                // Without any it would look for traces without end.
                None => number(env, "OTEL_BSP_SCHEDULE_DELAY")?
                    .map_or(DELAY, |millis| Duration::from_millis(millis.max(1))),
            },
            queue: match given.queue {
                Some(queue) => queue,
                None => number(env, "OTEL_BSP_MAX_QUEUE_SIZE")?
                    .filter(|queue| *queue > 0)
                    .map_or(QUEUE, |queue| (queue as usize).min(MOST_QUEUED)),
            },
            endpoint,
            protocol,
            sampling: sampling(given, env, &mut notes)?,
        };
        Ok(Resolved {
            settings: Some(settings),
            notes,
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

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
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
            .map_err(|_| "has a value that cannot stand in a header; give plain text")?;
        value.set_sensitive(true);
        self.0.push((name, value));
        Ok(())
    }
}

fn wrong(name: &str, problem: impl Into<String>) -> Wrong {
    Wrong {
        name: name.to_owned(),
        problem: problem.into(),
    }
}

/// The variable of traces, else that of all signals.
fn of_traces(what: &str, env: Env<'_>) -> Option<(String, String)> {
    [
        format!("OTEL_EXPORTER_OTLP_TRACES_{what}"),
        format!("OTEL_EXPORTER_OTLP_{what}"),
    ]
    .into_iter()
    .find_map(|name| env(&name).map(|value| (name, value)))
}

/// The variable that turns traces off, if one does; no variable is over an endpoint that is given.
fn turned_off(given: &Given, env: Env<'_>) -> Option<&'static str> {
    let is = |name: &str, value: &str| env(name).is_some_and(|v| v.trim() == value);
    let exporters = env("OTEL_TRACES_EXPORTER");
    if given.endpoint.is_some() {
        None
    } else if env("OTEL_SDK_DISABLED").is_some_and(|v| v.trim().eq_ignore_ascii_case("true")) {
        Some("OTEL_SDK_DISABLED turns them off")
    } else if exporters.is_some_and(|all| all.split(',').all(|one| one.trim() != "otlp")) {
        Some("OTEL_TRACES_EXPORTER names no otlp")
    } else if is("OTEL_TRACES_SAMPLER", "always_off") && given.ratio.is_none() {
        Some("OTEL_TRACES_SAMPLER=always_off turns them off")
    } else {
        None
    }
}

/// What variables ask for that is not done here.
fn not_heeded(env: Env<'_>) -> Vec<String> {
    let compression = of_traces("COMPRESSION", env).filter(|(_, value)| value.trim() != "none");
    let own = ["CLIENT_CERTIFICATE", "CLIENT_KEY"].map(|what| of_traces(what, env));
    let batches = ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_EXPORT_TIMEOUT"];
    let batches = batches.into_iter().filter(|name| env(name).is_some());
    let not_heeded = |name: &str, why: &str| format!("{name} is not heeded: {why}");
    compression
        .map(|(name, _)| not_heeded(&name, "spans go uncompressed"))
        .into_iter()
        .chain(
            own.into_iter()
                .flatten()
                .map(|(name, _)| not_heeded(&name, "no certificate of our own is shown")),
        )
        .chain(batches.map(|name| not_heeded(name, "batches have a size and a limit of their own")))
        .collect()
}

fn protocol(
    given: &Given,
    env: Env<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<Protocol>, Wrong> {
    if given.protocol.is_some() {
        return Ok(given.protocol);
    }
    match of_traces("PROTOCOL", env) {
        None => Ok(None),
        Some((name, value)) => match value.trim() {
            "grpc" => Ok(Some(Protocol::Grpc)),
            "http/protobuf" => Ok(Some(Protocol::Http)),
            "http/json" => {
                notes.push(format!("{name}: http/protobuf in place of http/json"));
                Ok(Some(Protocol::Http))
            }
            _ => Err(wrong(&name, "must be one of grpc, http/protobuf")),
        },
    }
}

const ENDPOINT_OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT_OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The collector that is named, with the key or variable that names it.
fn named(given: &Given, env: Env<'_>) -> Option<(&'static str, String)> {
    let given = given.endpoint.clone().map(|text| ("endpoint", text));
    let of = |name| env(name).map(|text| (name, text));
    given
        .or_else(|| of(ENDPOINT_OF_TRACES))
        .or_else(|| of(ENDPOINT_OF_ALL))
}

/// The collector's URL. Only the path of a whole URL is left as it is.
fn endpoint(
    (name, text): (&str, String),
    protocol: Option<Protocol>,
) -> Result<(String, Protocol), Wrong> {
    let text = text.trim();
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
        Protocol::Grpc => url.to_owned(),
        // As the specification wants: the variable of traces is whole, that of all signals a base.
        Protocol::Http if name == ENDPOINT_OF_TRACES || (has_path && name != ENDPOINT_OF_ALL) => {
            url.to_owned()
        }
        Protocol::Http => format!("{url}{PATH}"),
    };
    Ok((url, protocol))
}

fn roots(given: &Given, endpoint: &str, env: Env<'_>) -> Result<Option<Roots>, Wrong> {
    let file = match (&given.ca, of_traces("CERTIFICATE", env)) {
        (Some(path), _) => Some(("ca".to_owned(), path.clone())),
        (None, Some((name, path))) => Some((name, PathBuf::from(path))),
        (None, None) => None,
    };
    if !endpoint.starts_with("https://") {
        return Ok(None);
    }
    let roots = match file {
        Some((name, path)) => {
            Roots::file(&path).map_err(|why| wrong(&name, format!("{} {why}", path.display())))?
        }
        None => Roots::system().map_err(|why| wrong("ca", format!("{why}; give a PEM file")))?,
    };
    Ok(Some(roots))
}

/// Those of the environment, and given ones in their place.
fn headers(given: &Given, env: Env<'_>) -> Result<Headers, Wrong> {
    let mut headers = given.headers.clone().unwrap_or_default();
    if let Some((name, text)) = of_traces("HEADERS", env) {
        let mut others = Headers::default();
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| wrong(&name, "must be like name=value,name=value"))?;
            let value = decoded(value.trim());
            others.push(key, &value).map_err(|why| wrong(&name, why))?;
        }
        let is_new = |name: &HeaderName| headers.0.iter().all(|(given, _)| given != name);
        others.0.retain(|(name, _)| is_new(name));
        headers.0.extend(others.0);
    }
    Ok(headers)
}

/// Percent-encoding taken off, as in the W3C's baggage.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn service_name(given: &Given, service: &str, env: Env<'_>) -> String {
    let of_resource = || {
        let all = env("OTEL_RESOURCE_ATTRIBUTES")?;
        let mut pairs = all.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key.trim() == "service.name").then(|| decoded(value.trim())))
    };
    let given = given.service_name.clone();
    given
        .or_else(|| env("OTEL_SERVICE_NAME"))
        .or_else(of_resource)
        .unwrap_or_else(|| service.to_owned())
}

fn millis(given: Option<Duration>, what: &str, env: Env<'_>) -> Result<Option<Duration>, Wrong> {
    if given.is_some() {
        return Ok(given);
    }
    let Some((name, _)) = of_traces(what, env) else {
        return Ok(None);
    };
    // Without end it would hold the queue for ever; with none nothing would ever arrive: 0 is the default.
    let limit = |millis| Duration::from_millis(millis).min(Duration::from_secs(86_400));
    let given = number(env, &name)?.filter(|millis| *millis > 0);
    Ok(given.map(limit))
}

fn number(env: Env<'_>, name: &str) -> Result<Option<u64>, Wrong> {
    let number = |text: String| {
        text.trim()
            .parse()
            .map_err(|_| wrong(name, "must be a whole number, 0 or more"))
    };
    env(name).map(number).transpose()
}

fn sampling(given: &Given, env: Env<'_>, notes: &mut Vec<String>) -> Result<Sampling, Wrong> {
    let mut sampling = Sampling {
        ratio: 1.0,
        follow_client: true,
        ..given.keep
    };
    if let Some(sampler) = env("OTEL_TRACES_SAMPLER") {
        let arg = "OTEL_TRACES_SAMPLER_ARG";
        let ratio = || match env(arg).map(|text| text.trim().parse::<f64>()) {
            None => Ok(1.0),
            Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            Some(_) => Err(wrong(arg, "must be a number from 0 to 1")),
        };
        let sampler = sampler.trim();
        let of_parent = sampler.strip_prefix("parentbased_");
        let known = match of_parent.unwrap_or(sampler) {
            "always_on" => Some(1.0),
            "always_off" => Some(0.0),
            "traceidratio" => Some(ratio()?),
            _ => None,
        };
        match known {
            Some(ratio) => {
                sampling.ratio = ratio;
                sampling.follow_client = of_parent.is_some();
            }
            None => notes.push(format!(
                "OTEL_TRACES_SAMPLER={sampler:?} is not heeded: always_on, always_off and traceidratio are, \
                 and the same behind parentbased_"
            )),
        }
    }
    sampling.ratio = given.ratio.unwrap_or(sampling.ratio);
    sampling.follow_client = given.follow_client.unwrap_or(sampling.follow_client);
    Ok(sampling)
}

#[cfg(test)]
mod tests;
