//! Checks keys of the config against each other, and reads the files that they name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::client::listener::load_tls;
use crate::disk;
use crate::engine::Traces;
use crate::secret::Secret;
use crate::telemetry::otlp::settings::{ExportSettings, Otlp};
use crate::upstream::{Address, Trust};

use super::proxy::{Config, StampsPolicy, Worker};

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
    pub traces: Option<ExportSettings>,
    /// The collector to which spans of servers are forwarded.
    pub forward: Option<ExportSettings>,
    /// The certificate authorities of upstreams, if one of them uses TLS or a file is given.
    pub trust: Option<Trust>,
}

const NO_UPSTREAM: &str = "no upstream given; add the router's or server's address, as in \
                           upstream = [\"http://127.0.0.1:30000\"] or --upstream http://127.0.0.1:30000 (or a \
                           `[[worker]]`: a process may have hops only)";

const FAULTS_FOR_ALL: &str = "anyone who reaches the admin listener could inject faults; give admin_token, or an admin address \
                              on this machine, as in 127.0.0.1:8801";

/// Keys, as errors name them (`worker w: listen`), each with its problem: what is wrong and would be right.
pub type Problems = Vec<(String, String)>;

impl Config {
    /// Checks the values against each other, and reads what they refer to.
    ///
    /// # Errors
    /// All invalid values.
    pub fn check(&self) -> Result<Credentials, Problems> {
        let mut found = Vec::new();
        if self.upstream.is_empty() && self.workers.is_empty() {
            push(&mut found, "upstream", NO_UPSTREAM);
        }
        if self.stamps == StampsPolicy::Token && self.stamps_token.is_none() {
            let problem = "needs stamps_token, the secret that such clients send";
            push(&mut found, "stamps", problem);
        }
        let is_local = self.admin.ip().to_canonical().is_loopback();
        let has_token = self.admin_token.is_some() || self.admin_token_file.is_some();
        if self.fault_injection && !has_token && !is_local {
            push(&mut found, "fault_injection", FAULTS_FOR_ALL);
        }
        secret(&mut found, "stamps_token", &self.stamps_token, &None);
        let (token_file, secret_file) = (&self.admin_token_file, &self.hop_secret_file);
        let traces = exporting(&self.otlp, &mut found);
        let credentials = Credentials {
            admin_token: secret(&mut found, "admin_token", &self.admin_token, token_file),
            hop_secret: secret(&mut found, "hop_secret", &self.hop_secret, secret_file),
            tls: self.tls(&mut found),
            forward: or_default(
                &mut found,
                "engine.traces: forward_to",
                forward(&self.engine.traces, &traces),
            ),
            traces,
            trust: or_default(&mut found, "upstream_ca", self.trust()),
        };
        self.check_workers(&mut found);
        self.check_addresses(credentials.forward.as_ref(), &mut found);
        self.check_paths(&mut found);
        match found.is_empty() {
            true => Ok(credentials),
            false => Err(found),
        }
    }

    fn tls(&self, found: &mut Problems) -> Option<Arc<ServerConfig>> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => {}
            (Some(cert), Some(key)) => match load_tls(cert, key) {
                Ok(tls) => return Some(tls),
                Err(all) => all.iter().for_each(|(key, why)| push(found, *key, why)),
            },
            (Some(_), None) => {
                let problem = "needs tls_key, the PEM file with its private key";
                push(found, "tls_cert", problem);
            }
            (None, Some(_)) => {
                let problem = "needs tls_cert, the PEM file with its certificate";
                push(found, "tls_key", problem);
            }
        }
        None
    }

    /// Checks that hosts are unique.
    fn check_workers(&self, found: &mut Problems) {
        for (index, worker) in self.workers.iter().enumerate() {
            let mut earlier = self.workers.iter().take(index);
            let host = worker.server_name();
            let other = earlier
                .find(|other| other.server_name() == host && other.upstream != worker.upstream);
            if let Some(Worker { name, .. }) = other {
                let problem = format!(
                    "worker {name} has the name {host} too, for another server; give each its own"
                );
                push(found, worker.key("host"), problem);
            }
        }
    }

    fn trust(&self) -> Result<Option<Trust>, String> {
        if let Some(path) = &self.rules.upstream_ca {
            return Trust::from_file(path).map(Some);
        }
        let servers = self.workers.iter().map(|worker| &worker.upstream);
        let is_needed = self
            .upstream
            .iter()
            .chain(servers)
            .any(|address| address.is_tls);
        is_needed.then(Trust::system).transpose()
    }

    /// Finds listeners whose address another one has, and upstreams and collectors that are listeners of this process: what is sent
    /// there would go round for ever.
    fn check_addresses(&self, forward: Option<&ExportSettings>, found: &mut Problems) {
        let mut listeners = Vec::new();
        // A process that only has hops has no front.
        if !self.upstream.is_empty() {
            listeners.push(("listen".to_owned(), self.listen));
        }
        listeners.push(("admin".to_owned(), self.admin));
        let hops = self.workers.iter();
        listeners.extend(hops.map(|hop| (hop.key("listen"), hop.listen)));
        let traces = self.engine.traces.listen;
        listeners.extend(traces.map(|at| ("engine.traces: listen".to_owned(), at)));
        for (index, (key, at)) in listeners.iter().enumerate() {
            let mut earlier = listeners.iter().take(index);
            if let Some((other, its)) = earlier.find(|(_, its)| overlap(*its, *at)) {
                let problem = format!("`{other}` has this address too, {its}; give each its own");
                push(found, key, problem);
            }
        }
        let upstream = self.upstream.iter();
        let upstream = upstream.map(|to| ("upstream".to_owned(), to.clone()));
        let servers = self.workers.iter();
        let servers = servers.map(|hop| (hop.key("upstream"), hop.upstream.clone()));
        let collector = forward.and_then(|to| {
            let url: http::Uri = to.endpoint.parse().ok()?;
            let address = Address::parse(url.authority()?.as_str()).ok()?;
            Some(("engine.traces: forward_to".to_owned(), address))
        });
        for (key, to) in upstream.chain(servers).chain(collector) {
            // The front may send to our own hops directly, without a router.
            let may_be = |of: &str| key == "upstream" && of.starts_with("worker ");
            if listeners
                .iter()
                .any(|(of, at)| to.is_at(*at) && !may_be(of))
            {
                let problem = format!(
                    "{} is this proxy's own listener; give the address of the router, server or collector",
                    to.name()
                );
                push(found, key, problem);
            }
        }
    }

    /// Finds unusable paths.
    fn check_paths(&self, found: &mut Problems) {
        let is_file = |path: &Path| {
            let folder = path.parent().map(|folder| Path::new(".").join(folder));
            folder.is_some_and(|folder| folder.is_dir()) && !path.is_dir()
        };
        if self.records.as_deref().is_some_and(|path| !is_file(path)) {
            let problem = "must be a file in a folder that is there, as in records.csv";
            push(found, "records", problem);
        }
        let is_no_folder = |path: &Path| path == "" || (path.exists() && !path.is_dir());
        if self.engine.logs.path.as_deref().is_some_and(is_no_folder) {
            let problem = "is no folder; give that of the servers' --export-metrics-to-file-dir";
            push(found, "engine.logs: path", problem);
        }
    }
}

fn push(found: &mut Problems, key: impl Into<String>, problem: impl Into<String>) {
    found.push((key.into(), problem.into()));
}

/// Returns the value; or its default, and adds the problem of its key to `found`.
fn or_default<T: Default>(found: &mut Problems, key: &str, read: Result<T, String>) -> T {
    read.map_err(|problem| push(found, key, problem))
        .unwrap_or_default()
}

/// Whether two listeners clash. One on an unspecified address has its port on the others too.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && (is_any || one.ip() == other.ip())
}

/// The shortest secret. Shorter ones could be found by brute force, as an attacker can try them against signed timestamps or the
/// admin listener.
const MIN_SECRET_BYTES: usize = 16;

/// Returns the secret of `key`, or the one in the file of the key `{key}_file`.
fn secret(
    found: &mut Problems,
    key: &str,
    given: &Option<Secret>,
    file: &Option<PathBuf>,
) -> Option<Secret> {
    const HINT: &str = "give a file that holds the secret alone";
    let read = |file: &PathBuf| {
        if given.is_some() {
            return Err(format!("{key} is given too; give one of the two"));
        }
        let text = disk::read_text(file).map_err(|cause| format!("{cause}; {HINT}"))?;
        match text.trim() {
            text if text.contains('\n') => Err(format!("has several lines; {HINT}")),
            text => Ok(Secret::from(text)),
        }
    };
    let secret = file.as_ref().map(read).or_else(|| given.clone().map(Ok));
    let secret = secret.transpose().and_then(|secret| match &secret {
        Some(short) if short.bytes().len() < MIN_SECRET_BYTES => Err(format!(
            "has {} characters; give at least {MIN_SECRET_BYTES}, as from `openssl rand -hex 32`",
            short.bytes().len()
        )),
        _ => Ok(secret),
    });
    let file_key = format!("{key}_file");
    or_default(found, if file.is_some() { &file_key } else { key }, secret)
}

/// Returns the settings of the export of traces, which also depend on environment variables.
fn exporting(given: &Otlp, found: &mut Problems) -> Option<ExportSettings> {
    let resolved = ExportSettings::resolve(given, "queuescope", &|name| std::env::var(name).ok());
    resolved.unwrap_or_else(|all| {
        for (name, problem) in all {
            match name.starts_with("OTEL_") {
                true => push(found, name, problem),
                false => push(found, format!("telemetry.otlp: {name}"), problem),
            }
        }
        None
    })
}

/// Returns the collector to which servers' spans are forwarded: that of `forward_to`, or `own`, that of our traces.
///
/// # Errors
/// `forward_to` is invalid.
fn forward(
    traces: &Traces,
    own: &Option<ExportSettings>,
) -> Result<Option<ExportSettings>, String> {
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
    let resolved = ExportSettings::resolve(&given, "queuescope", &|_| None);
    resolved.map_err(|all| {
        let problems: Vec<String> = all.into_iter().map(|(_, problem)| problem).collect();
        problems.join("; ")
    })
}
