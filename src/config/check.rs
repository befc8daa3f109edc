//! The check of what a proxy was told, and its values parsed.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock::NANOS;
use crate::config_error::ConfigError;
use crate::edge::tls;
use crate::proxy::limits::Limits;
use crate::proxy::shared::Role;
use crate::proxy::shared::StampsPolicy;
use crate::secret::Secret;
use crate::telemetry::rotation::Rotation;
use crate::upstream::{self, Address, Policy, Rules, Trust};

use super::proxy::{Config, Worker};

mod addresses;
mod paths;
mod secrets;

use addresses::{Addresses, Hop};

/// A [`Config`] whose values have been parsed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The front's listener.
    pub listen: SocketAddr,
    /// The front's upstreams.
    pub upstream: Vec<Address>,
    /// The admin listener.
    pub admin: SocketAddr,
    /// The hops: name, listener, server.
    pub workers: Vec<(String, SocketAddr, Address)>,
    /// See [`Config::policy`].
    pub policy: Policy,
    /// See [`Config::upstream_out_s`].
    pub upstream_out: Duration,
    /// See [`Config::upstream_ca`].
    pub upstream_ca: Option<PathBuf>,
    /// See [`Config::resend_broken`].
    pub resend_broken: bool,
    /// The limits on clients.
    pub limits: Limits,
    /// The limits on upstreams.
    pub upstream_timeouts: upstream::Timeouts,
    /// When a new records file is begun.
    pub rotation: Rotation,
    /// What the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// What hops of other processes sign their stamps with.
    pub hop_secret: Option<Secret>,
    /// The certificate of the front's listener.
    pub tls: Option<tls::Files>,
}

const NO_UPSTREAM: &str = "no upstream given; add the router's or server's address, as in \
                           upstream = [\"http://127.0.0.1:30000\"] or --upstream http://127.0.0.1:30000 (or a \
                           `[[worker]]`: a process may have hops only)";

/// What is wrong so far.
#[derive(Debug, Default)]
struct Faults(Vec<ConfigError>);

impl Config {
    /// Parses the values.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn check(&self) -> Result<Plan, ConfigError> {
        // There is at least one fault where there is no plan.
        self.check_all().map_err(|mut faults| faults.swap_remove(0))
    }

    /// Parses the values, all of them.
    ///
    /// # Errors
    /// Every value that cannot be used; at least one.
    pub fn check_all(&self) -> Result<Plan, Vec<ConfigError>> {
        let mut faults = Faults::default();
        if self.upstream.is_empty() && self.workers.is_empty() {
            faults.push(ConfigError::new("upstream", "[]", NO_UPSTREAM));
        }
        self.check_numbers_and_words(&mut faults);
        self.check_paths(&mut faults);
        let upstream = self.upstream.iter().map(|text| address("upstream", text));
        let upstream: Vec<Address> = upstream
            .filter_map(|address| faults.keep(address))
            .collect();
        let listen = faults.keep(listener("listen", &self.listen));
        let admin = faults.keep(listener("admin", &self.admin));
        let admin_token = admin.and_then(|admin| faults.keep(self.check_admin(admin)));
        let hop_secret = faults.keep(self.check_hop_secret());
        let tls = faults.keep(self.check_tls());
        let workers = self.check_workers(&mut faults);
        let addresses = Addresses {
            // A process of hops only has no front.
            front: listen.filter(|_| !self.upstream.is_empty()),
            admin,
            upstream: &upstream,
            workers: &workers,
        };
        faults.0.extend(addresses.check());
        let limits = self.limits(&mut faults);
        let upstream_out = faults.keep(above("upstream_out_s", self.upstream_out_s));
        let rotation = self.rotation(&mut faults);
        let (
            Some(listen),
            Some(admin),
            Some(admin_token),
            Some(hop_secret),
            Some(tls),
            Some((limits, upstream_timeouts)),
            Some(upstream_out),
            Some(rotation),
        ) = (
            listen,
            admin,
            admin_token,
            hop_secret,
            tls,
            limits,
            upstream_out,
            rotation,
        )
        else {
            return Err(faults.0);
        };
        let plan = Plan {
            listen,
            upstream,
            admin,
            admin_token,
            hop_secret,
            tls,
            workers: workers.into_iter().filter_map(Hop::whole).collect(),
            policy: self.policy,
            upstream_out,
            upstream_ca: self.upstream_ca.clone(),
            resend_broken: self.resend_broken,
            limits,
            upstream_timeouts,
            rotation,
        };
        match faults.0.is_empty() {
            true => Ok(plan),
            false => Err(faults.0),
        }
    }

    fn check_numbers_and_words(&self, faults: &mut Faults) {
        if self.threads == 0 || self.threads > 1024 {
            let wrong = "must be from 1 to 1024";
            faults.push(ConfigError::new("threads", self.threads, wrong));
        }
        if self.record_queue == 0 || self.record_queue > 16_777_216 {
            let wrong = "must be from 1 to 16777216";
            faults.push(ConfigError::new("record_queue", self.record_queue, wrong));
        }
        let has_token = self.stamps_token.as_ref().is_some_and(|t| !t.is_empty());
        if self.stamps == StampsPolicy::Token && !has_token {
            let wrong = "needs stamps_token, the secret that such clients send";
            faults.push(ConfigError::new("stamps", "\"token\"", wrong));
        }
    }

    fn check_admin(&self, admin: SocketAddr) -> Result<Option<Secret>, ConfigError> {
        let token = self.admin_secret()?;
        if self.fault_injection && token.is_none() && !admin.ip().to_canonical().is_loopback() {
            let wrong = "whoever reaches the admin listener could inject faults; give admin_token, or an \
                         admin address on this machine, as in 127.0.0.1:8801";
            return Err(ConfigError::new("fault_injection", true, wrong));
        }
        Ok(token)
    }

    fn check_tls(&self) -> Result<Option<tls::Files>, ConfigError> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(tls::Files {
                cert: cert.clone(),
                key: key.clone(),
            })),
            (Some(cert), None) => {
                let wrong = "needs tls_key, the PEM file with its private key";
                Err(ConfigError::new("tls_cert", quoted(cert), wrong))
            }
            (None, Some(key)) => {
                let wrong = "needs tls_cert, the PEM file with its certificate";
                Err(ConfigError::new("tls_key", quoted(key), wrong))
            }
        }
    }

    fn check_workers(&self, faults: &mut Faults) -> Vec<Hop> {
        let mut hops = Vec::new();
        for (at, worker) in self.workers.iter().enumerate() {
            let name = &worker.name;
            if let Some(wrong) = wrong_in_name(name) {
                faults.push(ConfigError::new("worker.name", format!("{name:?}"), wrong));
            }
            let mut earlier = self.workers.iter().take(at);
            if earlier.any(|other| other.name == *name) {
                let wrong = "two workers have this name; give each its own";
                faults.push(ConfigError::new("worker.name", format!("{name:?}"), wrong));
            }
            let key = |what| format!("worker {}: {what}", name.escape_debug());
            let called = |worker: &Worker| worker.host.clone().unwrap_or(worker.upstream.clone());
            let mut earlier = self.workers.iter().take(at);
            let other = earlier
                .find(|other| called(other) == called(worker) && other.upstream != worker.upstream);
            if let Some(other) = other {
                let wrong = format!(
                    "worker {} calls another server so, and rows could not tell them apart; give each its own",
                    other.name.escape_debug()
                );
                faults.push(ConfigError::new(
                    &key("host"),
                    format!("{:?}", called(worker)),
                    wrong,
                ));
            }
            // It goes into a header, as a word among others.
            let given = worker.host.as_ref();
            if let Some(host) = given.filter(|host| !is_word(host, HOST_MOST, b"._:-[]")) {
                let wrong = "must be 1 to 128 of A-Z a-z 0-9 . _ : - [ ], as in gpu1:30000";
                faults.push(ConfigError::new(&key("host"), format!("{host:?}"), wrong));
            }
            hops.push(Hop {
                listen: faults.keep(listener(&key("listen"), &worker.listen)),
                upstream: faults.keep(address(&key("upstream"), &worker.upstream)),
                name: name.clone(),
            });
        }
        hops
    }

    fn check_connections(&self) -> Result<usize, ConfigError> {
        if (1..=1_000_000).contains(&self.max_connections) {
            return Ok(self.max_connections);
        }
        let wrong = "must be from 1 to 1000000";
        Err(ConfigError::new(
            "max_connections",
            self.max_connections,
            wrong,
        ))
    }

    fn rotation(&self, faults: &mut Faults) -> Option<Rotation> {
        let mut at_most = |key, value: f64, most: f64, unit| {
            if value == 0.0 || (0.001..=most).contains(&value) {
                return Some(value);
            }
            let wrong = format!("must be 0 (no limit), or from 0.001 to {most} {unit}");
            faults.push(ConfigError::new(key, value, wrong));
            None
        };
        let mb = at_most("records_rotate_mb", self.records_rotate_mb, 1e6, "MB");
        let hours = self.records_rotate_hours;
        let hours = at_most("records_rotate_hours", hours, 87_600.0, "hours");
        Some(Rotation {
            bytes: (mb? * 1e6).round() as u64,
            age_nanos: (hours? * 3600.0 * NANOS as f64).round() as i64,
            keep: self.records_keep,
        })
    }

    fn limits(&self, faults: &mut Faults) -> Option<(Limits, upstream::Timeouts)> {
        if self.client_idle_timeout_s == 0 {
            let wrong = "must be at least 1 second";
            faults.push(ConfigError::new("client_idle_timeout_s", 0, wrong));
        }
        let drain = faults.keep(limit("drain_timeout_s", self.drain_timeout_s, 0.0));
        let mut above = |key, seconds| faults.keep(above(key, seconds));
        let upstream_connect = above(
            "upstream_connect_timeout_s",
            self.upstream_connect_timeout_s,
        );
        let upstream_read = above("upstream_read_timeout_s", self.upstream_read_timeout_s);
        let upstream_write = above("upstream_write_timeout_s", self.upstream_write_timeout_s);
        let upstream_idle = above("upstream_idle_timeout_s", self.upstream_idle_timeout_s);
        let client_read = above("client_read_timeout_s", self.client_read_timeout_s);
        let client_write = above("client_write_timeout_s", self.client_write_timeout_s);
        let client_head = above("client_head_timeout_s", self.client_head_timeout_s);
        let client_body = above("client_body_timeout_s", self.client_body_timeout_s);
        let client_stall = above("client_stall_timeout_s", self.client_stall_timeout_s);
        let (head, body) = (self.request_head_max_bytes, self.request_body_max_bytes);
        let head_bytes = faults.keep(bytes("request_head_max_bytes", head, 256..=HEAD_MOST));
        let body_bytes = faults.keep(bytes("request_body_max_bytes", body, 1..=u64::MAX));
        let connections = faults.keep(self.check_connections());
        let upstream = upstream::Timeouts {
            connect: upstream_connect?,
            read: upstream_read?,
            write: upstream_write?,
            idle: upstream_idle?,
        };
        let clients = Limits {
            drain: drain?,
            client_idle_s: self.client_idle_timeout_s,
            client_read: client_read?,
            client_write: client_write?,
            client_head: client_head?,
            client_body: client_body?,
            client_stall: client_stall?,
            request_head_bytes: head_bytes?,
            request_body_bytes: body_bytes?,
            connections: connections?,
        };
        Some((clients, upstream))
    }
}

impl Faults {
    fn push(&mut self, wrong: ConfigError) {
        self.0.push(wrong);
    }

    fn keep<T>(&mut self, checked: Result<T, ConfigError>) -> Option<T> {
        checked.map_err(|wrong| self.push(wrong)).ok()
    }
}

impl Plan {
    /// How the upstreams of a listener of this role are dealt with.
    ///
    /// # Errors
    /// `upstream_ca` cannot be used, or the system has no roots and an upstream needs them.
    pub fn rules(&self, role: &Role) -> Result<Rules, ConfigError> {
        let is_front = *role == Role::Front;
        Ok(Rules {
            policy: if is_front {
                self.policy
            } else {
                Policy::RoundRobin
            },
            out: self.upstream_out,
            trust: self.trust()?,
            // A hop has one server, which would get the request twice.
            resend_broken: self.resend_broken && is_front,
            timeouts: self.upstream_timeouts,
        })
    }

    /// Who may sign the certificates of upstreams.
    fn trust(&self) -> Result<Option<Trust>, ConfigError> {
        if let Some(path) = &self.upstream_ca {
            let wrong =
                |wrong| ConfigError::new("upstream_ca", format!("\"{}\"", path.display()), wrong);
            return Trust::file(path).map(Some).map_err(wrong);
        }
        let servers = self.workers.iter().map(|(_, _, server)| server);
        let mut all = self.upstream.iter().chain(servers);
        let Some(tls) = all.find(|upstream| upstream.is_tls()) else {
            return Ok(None);
        };
        let wrong =
            |wrong| ConfigError::new("upstream", format!("\"https://{}\"", tls.name()), wrong);
        Trust::system().map(Some).map_err(wrong)
    }
}

/// A day is more than any of the limits can mean.
const LONGEST_S: f64 = 86_400.0;

/// The longest name of a worker.
const NAME_MOST: usize = 64;
/// Bytes of what records call a server.
const HOST_MOST: usize = 128;

/// Pingora takes no larger head.
const HEAD_MOST: u64 = 1_048_575;

fn bytes(key: &str, bytes: u64, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    let wrong = format!("must be from {} to {} bytes", range.start(), range.end());
    Err(ConfigError::new(key, bytes, wrong))
}

/// Whether a text is of letters, digits and these marks, and not too long.
fn is_word(text: &str, most: usize, marks: &[u8]) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(is_fit)
}

/// A name goes into a header, a metric's label and a path, as it is.
fn wrong_in_name(name: &str) -> Option<&'static str> {
    if !is_word(name, NAME_MOST, b"._:-") {
        return Some("must be 1 to 64 of the characters A-Z a-z 0-9 . _ : -, as in w0");
    }
    (name == "log")
        .then_some("is taken: /faults/log is the log of faults; give another name, as in w0")
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

fn above(key: &str, seconds: f64) -> Result<Duration, ConfigError> {
    limit(key, seconds, 0.001)
}

fn limit(key: &str, seconds: f64, least: f64) -> Result<Duration, ConfigError> {
    if (least..=LONGEST_S).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let wrong = format!("must be from {least} to {LONGEST_S} seconds");
    Err(ConfigError::new(key, seconds, wrong))
}

fn listener(key: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let local = text.strip_prefix("localhost:");
    let local = local.map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        let wrong =
            "not an address to listen on; give IP:PORT, as in 127.0.0.1:8800, or localhost:PORT";
        ConfigError::new(key, format!("\"{text}\""), wrong)
    })
}

fn address(key: &str, text: &str) -> Result<Address, ConfigError> {
    Address::parse(text).map_err(|wrong| {
        // What stands before an `@` or behind a `?` may be a password or token.
        let shown = if text.contains(['@', '?']) {
            "…"
        } else {
            text
        };
        ConfigError::new(key, format!("\"{shown}\""), wrong)
    })
}

/// What is wrong with a certificate's files.
pub(super) fn tls_fault(error: tls::Error) -> ConfigError {
    let path = format!("\"{}\"", error.path.display());
    ConfigError::new(error.key, path, error.problem)
}

#[cfg(test)]
mod tests;
