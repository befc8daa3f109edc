//! Checks keys of the config against each other, and reads the files that they name.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::client::tls;
use crate::config_error::ConfigError;
use crate::engine::keys::Traces;
use crate::secret::Secret;
use crate::telemetry::otlp::settings::{InvalidSetting, Otlp, Settings};
use crate::upstream::{Address, Trust};

use super::proxy::{Config, StampsPolicy};

/// What a config refers to: contents of files and variables.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The token of the admin listener.
    pub admin_token: Option<Secret>,
    /// The secret by which hops of other processes sign their timestamps.
    pub hop_secret: Option<Secret>,
    /// The certificate of the front's listener.
    pub tls: Option<Arc<ServerConfig>>,
    /// The export of traces.
    pub traces: Option<Settings>,
    /// The collector to which spans of servers are forwarded.
    pub forward: Option<Settings>,
    /// The certificate authorities of upstreams, if one of them uses TLS or a file is given.
    pub trust: Option<Trust>,
}

const NO_UPSTREAM: &str = "no upstream given; add the router's or server's address, as in \
                           upstream = [\"http://127.0.0.1:30000\"] or --upstream http://127.0.0.1:30000 (or a \
                           `[[worker]]`: a process may have hops only)";

const FAULTS_FOR_ALL: &str = "anyone who reaches the admin listener could inject faults; give admin_token, or an admin address \
                              on this machine, as in 127.0.0.1:8801";

impl Config {
    /// Checks the values against each other, and reads what they refer to.
    ///
    /// # Errors
    /// All invalid values.
    pub fn check(&self) -> Result<Credentials, Vec<ConfigError>> {
        let mut found = Vec::new();
        if self.upstream.is_empty() && self.workers.is_empty() {
            found.push(ConfigError::new("upstream", "[]", NO_UPSTREAM));
        }
        if self.stamps == StampsPolicy::Token && self.stamps_token.is_none() {
            let problem = "needs stamps_token, the secret that such clients send";
            found.push(ConfigError::text("stamps", "token", problem));
        }
        found.extend(self.check_workers());
        let traces = or_default(&mut found, exporting(&self.otlp));
        let tls = self.tls();
        let tls = tls
            .map_err(|errors| found.extend(errors))
            .unwrap_or_default();
        let stamps_token = self.stamps_token.as_ref();
        found.extend(secret("stamps_token", stamps_token, None).err());
        let (given, file) = (self.admin_token.as_ref(), self.admin_token_file.as_deref());
        let is_local = self.admin.ip().to_canonical().is_loopback();
        if self.fault_injection && given.is_none() && file.is_none() && !is_local {
            found.push(ConfigError::new("fault_injection", true, FAULTS_FOR_ALL));
        }
        let admin_token = secret("admin_token", given, file);
        let (given, file) = (self.hop_secret.as_ref(), self.hop_secret_file.as_deref());
        let hop_secret = secret("hop_secret", given, file);
        let mut credentials = Credentials {
            admin_token: or_default(&mut found, admin_token),
            hop_secret: or_default(&mut found, hop_secret),
            tls,
            forward: or_default(&mut found, forward(&self.engine.traces, &traces)),
            traces,
            trust: None,
        };
        found.extend(own_addresses(self, credentials.forward.as_ref()));
        found.extend(paths(self));
        credentials.trust = or_default(&mut found, self.trust());
        match found.is_empty() {
            true => Ok(credentials),
            false => Err(found),
        }
    }

    fn tls(&self) -> Result<Option<Arc<ServerConfig>>, Vec<ConfigError>> {
        let (key, path, [other, content]) = match (&self.tls_cert, &self.tls_key) {
            (None, None) => return Ok(None),
            (Some(cert), Some(key)) => return tls::load(cert, key).map(Some),
            (Some(cert), None) => ("tls_cert", cert, ["tls_key", "private key"]),
            (None, Some(key)) => ("tls_key", key, ["tls_cert", "certificate"]),
        };
        let problem = format!("needs {other}, the PEM file with its {content}");
        Err(vec![ConfigError::text(key, path.display(), problem)])
    }

    /// Checks that names and hosts are unique.
    fn check_workers(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let mut earlier = self.workers.iter().take(index);
            if earlier.clone().any(|other| other.name == worker.name) {
                let problem = "two workers have this name; give each its own";
                let key = worker.key("name");
                found.push(ConfigError::text(&key, &worker.name, problem));
            }
            let (key, host) = (worker.key("host"), worker.server_name());
            let other = earlier
                .find(|other| other.server_name() == host && other.upstream != worker.upstream);
            if let Some(other) = other.map(|other| &other.name) {
                let problem =
                    format!("worker {other} has this name for another server; give each its own");
                found.push(ConfigError::text(&key, host, problem));
            }
        }
        found
    }

    fn trust(&self) -> Result<Option<Trust>, ConfigError> {
        if let Some(path) = &self.rules.upstream_ca {
            let error = |problem| ConfigError::text("upstream_ca", path.display(), problem);
            return Trust::from_file(path).map(Some).map_err(error);
        }
        let servers = self.workers.iter().map(|worker| &worker.upstream);
        let mut all = self.upstream.iter().chain(servers);
        let Some(tls) = all.find(|upstream| upstream.is_tls()) else {
            return Ok(None);
        };
        let error = |problem| {
            ConfigError::text("upstream", format_args!("https://{}", tls.name()), problem)
        };
        Trust::system().map(Some).map_err(error)
    }
}

/// Returns the value; or its default, and adds the error to `found`.
fn or_default<T: Default>(found: &mut Vec<ConfigError>, read: Result<T, ConfigError>) -> T {
    read.map_err(|error| found.push(error)).unwrap_or_default()
}

/// Whether two listeners clash. One on an unspecified address has its port on the others too.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && (is_any || one.ip() == other.ip())
}

/// Finds listeners whose address another one has, and upstreams and collectors that are listeners of this process: what is sent there
/// would go round for ever.
fn own_addresses(config: &Config, forward: Option<&Settings>) -> Vec<ConfigError> {
    let workers = || config.workers.iter();
    // A process that only has hops has no front.
    let front = (!config.upstream.is_empty()).then_some(("listen".to_owned(), config.listen));
    let hops = workers().map(|worker| (worker.key("listen"), worker.listen));
    let traces = config.engine.traces.listen;
    let traces = traces.map(|at| ("engine.traces: listen".to_owned(), at));
    let others = std::iter::once(("admin".to_owned(), config.admin)).chain(hops);
    let listeners: Vec<_> = front.into_iter().chain(others).chain(traces).collect();
    let clashes = listeners
        .iter()
        .enumerate()
        .filter_map(|(index, (key, at))| {
            let mut earlier = listeners.iter().take(index);
            let (other, its) = earlier.find(|(_, its)| overlap(*its, *at))?;
            let problem = format!("`{other}` has this address too, {its}; give each its own");
            Some(ConfigError::text(key, at, problem))
        });
    let upstream = config.upstream.iter();
    let upstream = upstream.map(|to| ("upstream".to_owned(), to.clone()));
    let servers = workers().map(|worker| (worker.key("upstream"), worker.upstream.clone()));
    let collector = forward.and_then(|to| {
        let url: http::Uri = to.endpoint.parse().ok()?;
        let address = Address::parse(url.authority()?.as_str()).ok()?;
        Some(("engine.traces: forward_to".to_owned(), address))
    });
    let round = upstream
        .chain(servers)
        .chain(collector)
        .filter_map(|(key, to)| {
            // The front may send to our own hops directly, without a router.
            let may_be = |of: &str| key == "upstream" && of.starts_with("worker ");
            let is_own = |(of, at): &(String, SocketAddr)| to.is_at(*at) && !may_be(of);
            let problem =
                "is this proxy's own listener; give the address of the router, server or collector";
            let error = || ConfigError::text(&key, to.name(), problem);
            listeners.iter().any(is_own).then(error)
        });
    round.chain(clashes).collect()
}

/// Finds unusable paths.
fn paths(config: &Config) -> Vec<ConfigError> {
    let mut found = Vec::new();
    let is_file = |path: &Path| {
        let folder = path.parent().map(|folder| Path::new(".").join(folder));
        folder.is_some_and(|folder| folder.is_dir()) && !path.is_dir()
    };
    if let Some(path) = config.records.as_deref().filter(|path| !is_file(path)) {
        let problem = "must be a file in a folder that is there, as in records.csv";
        found.push(ConfigError::text("records", path.display(), problem));
    }
    let logs = config.engine.logs.path.as_deref();
    if let Some(logs) = logs.filter(|logs| *logs == "" || (logs.exists() && !logs.is_dir())) {
        let problem = "is no folder; give that of the servers' --export-metrics-to-file-dir";
        let path = logs.display();
        found.push(ConfigError::text("engine.logs: path", path, problem));
    }
    found
}

/// The shortest secret. Shorter ones could be found by brute force, as an attacker can try them against signed timestamps or the
/// admin listener.
const MIN_SECRET_BYTES: usize = 16;

/// Returns the secret of `key`, or the one in the file of the key `{key}_file`.
fn secret(
    key: &str,
    given: Option<&Secret>,
    file: Option<&Path>,
) -> Result<Option<Secret>, ConfigError> {
    const HINT: &str = "give a file that holds the secret alone";
    let error = |problem| match file {
        Some(file) => ConfigError::text(&format!("{key}_file"), file.display(), problem),
        None => ConfigError::new(key, "***", problem),
    };
    if given.is_some() && file.is_some() {
        return Err(error(format!("{key} is given too; give one of the two")));
    }
    let text = file.map(std::fs::read_to_string).transpose();
    let text = text.map_err(|cause| error(format!("{cause}; {HINT}")))?;
    let text = text.as_deref().map(str::trim);
    if text.is_some_and(|text| text.contains('\n')) {
        return Err(error(format!("has several lines; {HINT}")));
    }
    let secret = text.map(Secret::from).or_else(|| given.cloned());
    match secret.as_ref().map(|secret| secret.bytes().len()) {
        Some(length @ ..MIN_SECRET_BYTES) => Err(error(format!(
            "has {length} characters; give at least {MIN_SECRET_BYTES}, as from `openssl rand -hex 32`"
        ))),
        _ => Ok(secret),
    }
}

/// Returns the settings of the export of traces, which also depend on environment variables.
///
/// # Errors
/// The first invalid key or variable.
fn exporting(given: &Otlp) -> Result<Option<Settings>, ConfigError> {
    let resolved = Settings::resolve(given, "queuescope", &|name| std::env::var(name).ok());
    resolved.map_err(|InvalidSetting { name, problem }| {
        let key = match name.starts_with("OTEL_") {
            true => name.clone(),
            false => format!("telemetry.otlp: {name}"),
        };
        match (&*name, &given.headers_file) {
            ("endpoint", _) => of_endpoint(&key, given.endpoint.as_deref(), problem),
            ("headers_file", Some(file)) => ConfigError::text(&key, file.display(), problem),
            // Any other value is in the problem, or in the environment, where it may be secret.
            _ => ConfigError::new(&key, "…", problem),
        }
    })
}

/// Returns the collector to which servers' spans are forwarded: that of `forward_to`, or `own`, that of our traces.
///
/// # Errors
/// `forward_to` is invalid.
fn forward(traces: &Traces, own: &Option<Settings>) -> Result<Option<Settings>, ConfigError> {
    let named = match traces.forward_to.as_deref() {
        _ if traces.listen.is_none() => return Ok(None),
        None => return Ok(own.clone()),
        Some("none") => return Ok(None),
        Some(named) => named,
    };
    // Without the headers of our own collector, which may be secret.
    let given = Otlp {
        endpoint: Some(named.to_owned()),
        protocol: traces.forward_protocol,
        ..Otlp::default()
    };
    let resolved = Settings::resolve(&given, "queuescope", &|_| None);
    let error = |InvalidSetting { problem, .. }| {
        of_endpoint("engine.traces: forward_to", Some(named), problem)
    };
    resolved.map_err(error)
}

/// The error of a collector's URL. The URL is not shown if it may contain a secret, in its user or query.
fn of_endpoint(key: &str, url: Option<&str>, problem: String) -> ConfigError {
    match url.filter(|url| !url.contains(['@', '?', '#'])) {
        Some(url) => ConfigError::text(key, url, problem),
        None => ConfigError::new(key, "…", problem),
    }
}
