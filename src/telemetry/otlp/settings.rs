//! Where traces go, and which: what a config or flags give, over the standard `OTEL_*` variables
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::fmt;
use std::path::PathBuf;
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
/// Takes what a variable says where nothing is given. Gives why it is not heeded, if it is not, or what would be right.
type Read = fn(&mut Given, &str) -> Result<Option<&'static str>, String>;

/// The path of traces below a collector's base URL (OTLP/HTTP).
const PATH: &str = "/v1/traces";
const GRPC_PORT: u16 = 4317;
const TIMEOUT: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_secs(1);
const QUEUE: usize = 4096;
const MOST_QUEUED: usize = 1 << 20;
/// Without end an export would hold the queue for ever.
const LONGEST: Duration = Duration::from_secs(86_400);

const ENDPOINT_OF_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const ENDPOINT_OF_ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// What variables say of a collector that is named. `*`: that of traces, else that of all signals.
const VARIABLES: [(&str, Read); 12] = [
    ("OTEL_EXPORTER_OTLP_*PROTOCOL", |given, text| {
        let protocol = match text {
            _ if given.protocol.is_some() => return Ok(None),
            "grpc" => Protocol::Grpc,
            "http/protobuf" | "http/json" => Protocol::Http,
            _ => return Err("must be one of grpc, http/protobuf".into()),
        };
        given.protocol = Some(protocol);
        Ok((text == "http/json").then_some("http/protobuf in place of http/json"))
    }),
    ("OTEL_EXPORTER_OTLP_*HEADERS", |given, text| {
        let mut headers = given.headers.take().unwrap_or_default();
        let own = headers.0.clone();
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let pair = pair.split_once('=');
            let (key, value) = pair.ok_or("must be like name=value,name=value")?;
            if !own.contains_key(key.trim()) {
                headers.push(key, &decoded(value.trim()))?;
            }
        }
        given.headers = Some(headers);
        Ok(None)
    }),
    ("OTEL_EXPORTER_OTLP_*TIMEOUT", |given, text| {
        // With none at all nothing would ever arrive: 0 is the default.
        number(&mut given.timeout, text, |millis| {
            (millis > 0).then(|| Duration::from_millis(millis).min(LONGEST))
        })
    }),
    ("OTEL_BSP_SCHEDULE_DELAY", |given, text| {
        // Without any it would look for traces without end.
        number(&mut given.delay, text, |millis| {
            Some(Duration::from_millis(millis.max(1)))
        })
    }),
    ("OTEL_BSP_MAX_QUEUE_SIZE", |given, text| {
        number(&mut given.queue, text, |rows| {
            (rows > 0).then(|| (rows as usize).min(MOST_QUEUED))
        })
    }),
    ("OTEL_SERVICE_NAME", |given, text| {
        given.service_name.get_or_insert_with(|| text.to_owned());
        Ok(None)
    }),
    ("OTEL_RESOURCE_ATTRIBUTES", |given, text| {
        let mut pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        let name = pairs.find(|(key, _)| key.trim() == "service.name");
        let name = name.map(|(_, value)| decoded(value.trim()));
        given.service_name = given.service_name.take().or(name);
        Ok(None)
    }),
    ("OTEL_EXPORTER_OTLP_*COMPRESSION", |_, text| {
        Ok((text != "none").then_some("spans go uncompressed"))
    }),
    ("OTEL_EXPORTER_OTLP_*CLIENT_CERTIFICATE", OWN_CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_*CLIENT_KEY", OWN_CERTIFICATE),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCHES),
    ("OTEL_BSP_EXPORT_TIMEOUT", BATCHES),
];
const OWN_CERTIFICATE: Read = |_, _| Ok(Some("no certificate of our own is shown"));
const BATCHES: Read = |_, _| Ok(Some("batches have a size and a limit of their own"));

impl Settings {
    /// What is given over what the environment says. `service` names this program where nobody else does.
    ///
    /// # Errors
    /// The first value that cannot be used. A variable that asks for what this exporter does not do is none.
    pub fn resolve(given: &Given, service: &str, env: Env<'_>) -> Result<Resolved, Wrong> {
        // The specification takes an empty variable for an absent one.
        let env = &|name: &str| env(name).filter(|value| !value.trim().is_empty());
        let own = given.endpoint.clone().map(|url| ("endpoint", url));
        let of = |name| Some((name, env(name)?));
        let named = own.or_else(|| of(ENDPOINT_OF_TRACES));
        let Some((name, url)) = named.or_else(|| of(ENDPOINT_OF_ALL)) else {
            return Ok(Resolved::default());
        };
        if let Some(why) = turned_off(given, env) {
            let notes = vec![why.to_owned()];
            return Ok(Resolved {
                settings: None,
                notes,
            });
        }
        let (mut given, mut notes) = (given.clone(), Vec::new());
        for (name, read) in VARIABLES {
            if let Some((name, text)) = variable(name, env) {
                let why = read(&mut given, text.trim()).map_err(|problem| wrong(&name, problem))?;
                notes.extend(why.map(|why| format!("{name} is not heeded: {why}")));
            }
        }
        let (ratio, follow_client) = sampler(env, &mut notes)?;
        let (endpoint, protocol) = endpoint(name, url.trim(), given.protocol)?;
        let settings = Settings {
            roots: roots(given.ca, &endpoint, env)?,
            headers: given.headers.unwrap_or_default(),
            service_name: given.service_name.unwrap_or_else(|| service.to_owned()),
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

/// The variable of this name that is there, and what it says.
fn variable(name: &str, env: Env<'_>) -> Option<(String, String)> {
    let names = ["TRACES_", ""].map(|of| name.replace('*', of));
    names
        .into_iter()
        .find_map(|name| Some((name.clone(), env(&name)?)))
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

fn roots(given: Option<PathBuf>, endpoint: &str, env: Env<'_>) -> Result<Option<Roots>, Wrong> {
    if !endpoint.starts_with("https://") {
        return Ok(None);
    }
    let given = given.map(|path| ("ca".to_owned(), path));
    let file = given.or_else(|| {
        let (name, path) = variable("OTEL_EXPORTER_OTLP_*CERTIFICATE", env)?;
        Some((name, path.into()))
    });
    let roots = match file {
        Some((name, path)) => {
            Roots::file(&path).map_err(|why| wrong(&name, format!("{} {why}", path.display())))?
        }
        None => Roots::system().map_err(|why| wrong("ca", format!("{why}; give a PEM file")))?,
    };
    Ok(Some(roots))
}

/// Percent-encoding taken off, as in the W3C's baggage.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Puts a variable's number where nothing is given.
fn number<T>(
    to: &mut Option<T>,
    text: &str,
    take: fn(u64) -> Option<T>,
) -> Result<Option<&'static str>, String> {
    if to.is_none() {
        let number = text.parse();
        *to = take(number.map_err(|_| "must be a whole number, 0 or more")?);
    }
    Ok(None)
}

/// The ratio that the environment's sampler keeps, and whether it follows the client.
fn sampler(env: Env<'_>, notes: &mut Vec<String>) -> Result<(f64, bool), Wrong> {
    let (name, arg) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
    let Some(sampler) = env(name) else {
        return Ok((1.0, true));
    };
    let of_parent = sampler.trim().strip_prefix("parentbased_");
    let ratio = match of_parent.unwrap_or(sampler.trim()) {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match env(arg).map_or(Ok(1.0), |text| text.trim().parse()) {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
            _ => return Err(wrong(arg, "must be a number from 0 to 1")),
        },
        _ => {
            let known =
                "always_on, always_off and traceidratio are, and the same behind parentbased_";
            notes.push(format!("{name} is not heeded: {known}"));
            return Ok((1.0, true));
        }
    };
    Ok((ratio, of_parent.is_some()))
}

#[cfg(test)]
mod tests;
