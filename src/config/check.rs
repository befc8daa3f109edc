//! The check of what no key can tell by itself, and what is found beside the config.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::client::tls;
use crate::config_error::ConfigError;
use crate::secret::Secret;
use crate::telemetry::otlp::settings::{Resolved, Settings};
use crate::upstream::Trust;

use super::otlp;
use super::proxy::{Config, StampsPolicy};

mod addresses;
mod paths;
mod secrets;

/// What a config names and does not hold.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// What the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// What hops of other processes sign their stamps with.
    pub hop_secret: Option<Secret>,
    /// The certificate of the front's listener.
    pub tls: Option<Arc<ServerConfig>>,
    /// Where traces go, and which.
    pub traces: Resolved,
    /// Where the spans of servers go on to.
    pub forward: Option<Settings>,
    /// Who may sign the certificates of upstreams; there when one of them speaks TLS or a file is given.
    pub trust: Option<Trust>,
}

const NO_UPSTREAM: &str = "no upstream given; add the router's or server's address, as in \
                           upstream = [\"http://127.0.0.1:30000\"] or --upstream http://127.0.0.1:30000 (or a \
                           `[[worker]]`: a process may have hops only)";

const FAULTS_FOR_ALL: &str = "anyone who reaches the admin listener could inject faults; give admin_token, or an admin address \
                              on this machine, as in 127.0.0.1:8801";

impl Config {
    /// Checks the values against one another, and reads what they name.
    ///
    /// # Errors
    /// Every value that cannot be used; at least one.
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
        found.extend(addresses::check(self));
        let traces = or_default(&mut found, otlp::settings(&self.otlp));
        let tls = self.tls();
        let tls = tls.map_err(|wrong| found.extend(wrong)).unwrap_or_default();
        let stamps_token = self.stamps_token.as_ref();
        found.extend(secrets::read("stamps_token", stamps_token, None, "").err());
        let (given, file) = (self.admin_token.as_ref(), self.admin_token_file.as_deref());
        let is_here = self.admin.ip().to_canonical().is_loopback();
        if self.fault_injection && given.is_none() && file.is_none() && !is_here {
            found.push(ConfigError::new("fault_injection", true, FAULTS_FOR_ALL));
        }
        let admin_token = secrets::read("admin_token", given, file, "");
        let (given, file) = (self.hop_secret.as_ref(), self.hop_secret_file.as_deref());
        let to_all = ", the same to the front and to its hops";
        let hop_secret = secrets::read("hop_secret", given, file, to_all);
        let mut credentials = Credentials {
            admin_token: or_default(&mut found, admin_token),
            hop_secret: or_default(&mut found, hop_secret),
            tls,
            forward: or_default(&mut found, otlp::forward(&self.engine.traces, &traces)),
            traces,
            trust: None,
        };
        found.extend(addresses::forward_loop(self, credentials.forward.as_ref()));
        found.extend(paths::check(self));
        credentials.trust = or_default(&mut found, self.trust());
        match found.is_empty() {
            true => Ok(credentials),
            false => Err(found),
        }
    }

    fn tls(&self) -> Result<Option<Arc<ServerConfig>>, Vec<ConfigError>> {
        let lacks = |key, path: &PathBuf, problem| {
            Err(vec![ConfigError::text(key, path.display(), problem)])
        };
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => tls::load(cert, key).map(Some),
            (Some(cert), None) => {
                let problem = "needs tls_key, the PEM file with its private key";
                lacks("tls_cert", cert, problem)
            }
            (None, Some(key)) => {
                let problem = "needs tls_cert, the PEM file with its certificate";
                lacks("tls_key", key, problem)
            }
        }
    }

    /// Names and hosts tell workers and their servers apart.
    fn check_workers(&self) -> Vec<ConfigError> {
        let mut found = Vec::new();
        for (at, worker) in self.workers.iter().enumerate() {
            let mut earlier = self.workers.iter().take(at);
            if earlier.clone().any(|other| other.name == worker.name) {
                let problem = "two workers have this name; give each its own";
                found.push(ConfigError::text("worker.name", &worker.name, problem));
            }
            let (key, host) = (worker.key("host"), worker.called());
            let other =
                earlier.find(|other| other.called() == host && other.upstream != worker.upstream);
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
            let wrong = |problem| ConfigError::text("upstream_ca", path.display(), problem);
            return Trust::file(path).map(Some).map_err(wrong);
        }
        let servers = self.workers.iter().map(|worker| &worker.upstream);
        let mut all = self.upstream.iter().chain(servers);
        let Some(tls) = all.find(|upstream| upstream.is_tls()) else {
            return Ok(None);
        };
        let wrong = |problem| {
            ConfigError::text("upstream", format_args!("https://{}", tls.name()), problem)
        };
        Trust::system().map(Some).map_err(wrong)
    }
}

/// What could be read; what could not is found.
fn or_default<T: Default>(found: &mut Vec<ConfigError>, read: Result<T, ConfigError>) -> T {
    read.map_err(|wrong| found.push(wrong)).unwrap_or_default()
}
