//! The check of what a proxy was told, and its values parsed.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Config, StampsPolicy, Wrong};
use crate::clock::NANOS;
use crate::proxy::connection::ClientLimits;
use crate::proxy::secret::Secret;
use crate::proxy::shared::Role;
use crate::proxy::tls;
use crate::proxy::upstream::{Address, Policy, Rules, Trust};
use crate::telemetry::rotation::Rotation;

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
    /// The limits.
    pub limits: Limits,
    /// When a new records file is begun.
    pub rotation: Rotation,
    /// What the admin listener asks for.
    pub admin_token: Option<Secret>,
    /// The certificate of the front's listener.
    pub tls: Option<tls::Files>,
}

/// The limits, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// See [`Config::drain_timeout_s`].
    pub drain: Duration,
    /// See [`Config::upstream_connect_timeout_s`].
    pub upstream_connect: Duration,
    /// See [`Config::upstream_read_timeout_s`].
    pub upstream_read: Duration,
    /// See [`Config::upstream_write_timeout_s`].
    pub upstream_write: Duration,
    /// See [`Config::upstream_idle_timeout_s`].
    pub upstream_idle: Duration,
    /// See [`Config::client_idle_timeout_s`], seconds.
    pub client_idle_s: u64,
    /// See [`Config::client_read_timeout_s`].
    pub client_read: Duration,
    /// See [`Config::client_write_timeout_s`].
    pub client_write: Duration,
    /// See [`Config::client_head_timeout_s`].
    pub client_head: Duration,
    /// See [`Config::client_body_timeout_s`].
    pub client_body: Duration,
    /// See [`Config::client_stall_timeout_s`].
    pub client_stall: Duration,
    /// See [`Config::request_head_max_bytes`].
    pub request_head_bytes: u64,
    /// See [`Config::request_body_max_bytes`].
    pub request_body_bytes: u64,
    /// See [`Config::max_connections`].
    pub connections: usize,
}

impl Limits {
    /// What one connection may take. A hop's client is the router: what is slow or large has passed the front, and
    /// must not break off twice.
    pub fn client(&self, role: &Role) -> ClientLimits {
        let is_front = *role == Role::Front;
        ClientLimits {
            head_bytes: if is_front {
                self.request_head_bytes
            } else {
                u64::MAX
            },
            head: self.client_head,
            stall: if is_front {
                self.client_stall
            } else {
                Duration::MAX
            },
        }
    }
}

impl Config {
    /// Parses the values.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn check(&self) -> Result<Plan, Wrong> {
        if self.upstream.is_empty() && self.workers.is_empty() {
            let wrong = "no upstream given; add the router's or server's address, as in \
                         --upstream http://127.0.0.1:30000 (or a --worker: a process may have hops only)";
            return Err(Wrong::new("upstream", "[]", wrong));
        }
        if self.threads == 0 || self.threads > 1024 {
            return Err(Wrong::new(
                "threads",
                self.threads,
                "must be from 1 to 1024",
            ));
        }
        if self.record_queue == 0 || self.record_queue > 16_777_216 {
            let wrong = "must be from 1 to 16777216";
            return Err(Wrong::new("record_queue", self.record_queue, wrong));
        }
        let has_token = self.stamps_token.as_ref().is_some_and(|t| !t.is_empty());
        if self.stamps == StampsPolicy::Token && !has_token {
            let wrong = "needs stamps_token, the secret that such clients send";
            return Err(Wrong::new("stamps", "\"token\"", wrong));
        }
        let upstream = self.upstream.iter().map(|text| address("upstream", text));
        let upstream = upstream.collect::<Result<Vec<_>, _>>()?;
        let workers = self.check_workers()?;
        let admin = listener("admin", &self.admin)?;
        let admin_token = self.check_admin(admin)?;
        let plan = Plan {
            upstream_ca: self.upstream_ca.clone(),
            resend_broken: self.resend_broken,
            listen: listener("listen", &self.listen)?,
            upstream,
            admin,
            admin_token,
            tls: self.check_tls()?,
            workers,
            policy: self.policy,
            upstream_out: above("upstream_out_s", self.upstream_out_s)?,
            limits: self.limits()?,
            rotation: self.rotation()?,
        };
        plan.check_loops()?;
        Ok(plan)
    }

    fn check_admin(&self, admin: SocketAddr) -> Result<Option<Secret>, Wrong> {
        let token = match (&self.admin_token, &self.admin_token_file) {
            (Some(_), Some(file)) => {
                let wrong = "admin_token is given too; give one of the two";
                return Err(Wrong::new("admin_token_file", quoted(file), wrong));
            }
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file).map_err(|error| {
                    let wrong = format!("{error}; give a file that holds the token alone");
                    Wrong::new("admin_token_file", quoted(file), wrong)
                })?;
                Some(Secret::from(text.trim()))
            }
            (token, None) => token.clone(),
        };
        if token.as_ref().is_some_and(Secret::is_empty) {
            let wrong = "is empty; give a long secret, or leave it out";
            return Err(Wrong::new("admin_token", "\"\"", wrong));
        }
        if self.fault_injection && token.is_none() && !admin.ip().to_canonical().is_loopback() {
            let wrong = "whoever reaches the admin listener could inject faults; give admin_token, or an \
                         admin address on this machine, as in 127.0.0.1:8801";
            return Err(Wrong::new("fault_injection", true, wrong));
        }
        Ok(token)
    }

    fn check_tls(&self) -> Result<Option<tls::Files>, Wrong> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(tls::Files {
                cert: cert.clone(),
                key: key.clone(),
            })),
            (Some(cert), None) => {
                let wrong = "needs tls_key, the PEM file with its private key";
                Err(Wrong::new("tls_cert", quoted(cert), wrong))
            }
            (None, Some(key)) => {
                let wrong = "needs tls_cert, the PEM file with its certificate";
                Err(Wrong::new("tls_key", quoted(key), wrong))
            }
        }
    }

    fn check_workers(&self) -> Result<Vec<(String, SocketAddr, Address)>, Wrong> {
        let mut workers = Vec::new();
        for worker in &self.workers {
            if workers.iter().any(|(name, _, _)| *name == worker.name) {
                let wrong = "two workers have this name; give each its own";
                return Err(Wrong::new("worker.name", &worker.name, wrong));
            }
            workers.push((
                worker.name.clone(),
                listener("worker.listen", &worker.listen)?,
                address("worker.upstream", &worker.upstream)?,
            ));
        }
        Ok(workers)
    }

    fn check_connections(&self) -> Result<usize, Wrong> {
        if (1..=1_000_000).contains(&self.max_connections) {
            return Ok(self.max_connections);
        }
        let wrong = "must be from 1 to 1000000";
        Err(Wrong::new("max_connections", self.max_connections, wrong))
    }

    fn rotation(&self) -> Result<Rotation, Wrong> {
        let at_most = |key, value: f64, most: f64, unit| {
            if value == 0.0 || (0.001..=most).contains(&value) {
                return Ok(value);
            }
            let wrong = format!("must be 0 (no limit), or from 0.001 to {most} {unit}");
            Err(Wrong::new(key, value, wrong))
        };
        let mb = at_most("records_rotate_mb", self.records_rotate_mb, 1e6, "MB")?;
        let hours = self.records_rotate_hours;
        let hours = at_most("records_rotate_hours", hours, 87_600.0, "hours")?;
        Ok(Rotation {
            bytes: (mb * 1e6).round() as u64,
            age_nanos: (hours * 3600.0 * NANOS as f64).round() as i64,
            keep: self.records_keep,
        })
    }

    fn limits(&self) -> Result<Limits, Wrong> {
        if self.client_idle_timeout_s == 0 {
            let wrong = "must be at least 1 second";
            return Err(Wrong::new("client_idle_timeout_s", 0, wrong));
        }
        Ok(Limits {
            drain: limit("drain_timeout_s", self.drain_timeout_s, 0.0)?,
            upstream_connect: above(
                "upstream_connect_timeout_s",
                self.upstream_connect_timeout_s,
            )?,
            upstream_read: above("upstream_read_timeout_s", self.upstream_read_timeout_s)?,
            upstream_write: above("upstream_write_timeout_s", self.upstream_write_timeout_s)?,
            upstream_idle: above("upstream_idle_timeout_s", self.upstream_idle_timeout_s)?,
            client_idle_s: self.client_idle_timeout_s,
            client_read: above("client_read_timeout_s", self.client_read_timeout_s)?,
            client_write: above("client_write_timeout_s", self.client_write_timeout_s)?,
            client_head: above("client_head_timeout_s", self.client_head_timeout_s)?,
            client_body: above("client_body_timeout_s", self.client_body_timeout_s)?,
            client_stall: above("client_stall_timeout_s", self.client_stall_timeout_s)?,
            request_head_bytes: bytes(
                "request_head_max_bytes",
                self.request_head_max_bytes,
                256..=HEAD_MOST,
            )?,
            request_body_bytes: bytes(
                "request_body_max_bytes",
                self.request_body_max_bytes,
                1..=u64::MAX,
            )?,
            connections: self.check_connections()?,
        })
    }
}

impl Plan {
    /// How the upstreams of a listener of this role are dealt with.
    ///
    /// # Errors
    /// `upstream_ca` cannot be used, or the system has no roots and an upstream needs them.
    pub fn rules(&self, role: &Role) -> Result<Rules, Wrong> {
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
            limits: self.limits,
        })
    }

    /// Who may sign the certificates of upstreams.
    fn trust(&self) -> Result<Option<Trust>, Wrong> {
        if let Some(path) = &self.upstream_ca {
            let wrong = |wrong| Wrong::new("upstream_ca", format!("\"{}\"", path.display()), wrong);
            return Trust::file(path).map(Some).map_err(wrong);
        }
        let servers = self.workers.iter().map(|(_, _, server)| server);
        let mut all = self.upstream.iter().chain(servers);
        let Some(tls) = all.find(|upstream| upstream.is_tls()) else {
            return Ok(None);
        };
        let wrong = |wrong| Wrong::new("upstream", format!("\"https://{}\"", tls.name()), wrong);
        Trust::system().map(Some).map_err(wrong)
    }

    /// A request that comes back to where it was would go round for ever.
    fn check_loops(&self) -> Result<(), Wrong> {
        let wrong = |key, address: &Address| {
            let wrong = "is this proxy's own listener; give the router's or server's address";
            Err(Wrong::new(key, format!("\"{}\"", address.name()), wrong))
        };
        // The front may send to our own hops, in a router's place.
        if let Some(own) = self.upstream.iter().find(|to| to.is_at(self.listen)) {
            return wrong("upstream", own);
        }
        let hops = self.workers.iter().map(|(_, listen, _)| *listen);
        let listeners: Vec<SocketAddr> = hops.chain([self.listen]).collect();
        let servers = self.workers.iter().map(|(_, _, server)| server);
        let own = servers.into_iter().find(|to| {
            let mut listeners = listeners.iter();
            listeners.any(|listener| to.is_at(*listener))
        });
        own.map_or(Ok(()), |own| wrong("worker.upstream", own))
    }
}

/// A day is more than any of the limits can mean.
const LONGEST_S: f64 = 86_400.0;

/// Pingora takes no larger head.
const HEAD_MOST: u64 = 1_048_575;

fn bytes(key: &str, bytes: u64, range: RangeInclusive<u64>) -> Result<u64, Wrong> {
    if range.contains(&bytes) {
        return Ok(bytes);
    }
    let wrong = format!("must be from {} to {} bytes", range.start(), range.end());
    Err(Wrong::new(key, bytes, wrong))
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

fn above(key: &str, seconds: f64) -> Result<Duration, Wrong> {
    limit(key, seconds, 0.001)
}

fn limit(key: &str, seconds: f64, least: f64) -> Result<Duration, Wrong> {
    if (least..=LONGEST_S).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let wrong = format!("must be from {least} to {LONGEST_S} seconds");
    Err(Wrong::new(key, seconds, wrong))
}

fn listener(key: &str, text: &str) -> Result<SocketAddr, Wrong> {
    let text = text.replace("localhost:", "127.0.0.1:");
    text.parse().map_err(|_| {
        let wrong = "not an address to listen on; give IP:PORT, as in 127.0.0.1:8800";
        Wrong::new(key, format!("\"{text}\""), wrong)
    })
}

fn address(key: &str, text: &str) -> Result<Address, Wrong> {
    Address::parse(text).map_err(|wrong| Wrong::new(key, format!("\"{text}\""), wrong))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::config::Worker;

    fn wrong(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config {
            upstream: vec!["127.0.0.1:1".into()],
            ..Config::default()
        };
        assert!(config.check().is_ok());
        change(&mut config);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn an_error_names_the_key_the_value_and_what_is_right() {
        assert_eq!(
            wrong(|c| c.upstream = vec!["https://a:x".into()]),
            "upstream = \"https://a:x\": the port must be a number from 1 to 65535, as in \
             http://127.0.0.1:30000"
        );
        assert!(wrong(|c| c.upstream.clear()).contains("--upstream http://"));
        assert!(wrong(|c| c.listen = "8800".into()).starts_with("listen = \"8800\": not an"));
        let message = wrong(|c| c.drain_timeout_s = -1.0);
        assert_eq!(
            message,
            "drain_timeout_s = -1: must be from 0 to 86400 seconds"
        );
        assert!(wrong(|c| c.upstream_read_timeout_s = f64::NAN).contains("NaN"));
        assert!(wrong(|c| c.stamps = StampsPolicy::Token).contains("stamps_token"));
        assert!(wrong(|c| c.upstream_out_s = 0.0).starts_with("upstream_out_s = 0: must"));
        assert!(wrong(|c| c.threads = 0).starts_with("threads = 0"));
        let message = wrong(|c| c.records_rotate_mb = -1.0);
        assert_eq!(
            message,
            "records_rotate_mb = -1: must be 0 (no limit), or from 0.001 to 1000000 MB"
        );
        assert!(wrong(|c| c.records_rotate_hours = 1e9).contains("to 87600 hours"));
    }

    #[test]
    fn a_loop_is_refused_however_it_is_written() {
        for (listen, upstream) in [
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("127.0.0.1:7", "http://localhost:7/"),
            ("localhost:7", "127.0.0.1:7"),
            ("0.0.0.0:7", "127.0.0.1:7"),
            ("[::]:7", "[::1]:7"),
        ] {
            let message = wrong(|c| {
                c.listen = listen.into();
                c.upstream = vec!["a:7".into(), upstream.into()];
            });
            assert!(message.starts_with("upstream = "), "{message}");
            assert!(message.contains("own listener"), "{message}");
        }
        let worker = |text: &str| text.parse::<Worker>().unwrap();
        for workers in [
            &["w=127.0.0.1:8=127.0.0.1:8"][..],
            &["w=127.0.0.1:8=127.0.0.1:7"],
            &["w=127.0.0.1:8=127.0.0.1:9", "v=127.0.0.1:9=127.0.0.1:8"],
        ] {
            let message = wrong(|c| {
                c.listen = "127.0.0.1:7".into();
                c.workers = workers.iter().map(|text| worker(text)).collect();
            });
            assert!(message.starts_with("worker.upstream = "), "{message}");
        }
        // Another machine, another port, a free port, and our own hop in a router's place.
        for (listen, upstream) in [
            ("127.0.0.1:7", "10.0.0.1:7"),
            ("0.0.0.0:7", "10.0.0.1:7"),
            ("127.0.0.1:7", "127.0.0.1:8"),
            ("127.0.0.1:0", "127.0.0.1:1"),
        ] {
            let config = Config {
                listen: listen.into(),
                upstream: vec![upstream.into()],
                workers: vec![worker("w=127.0.0.1:8=127.0.0.1:9")],
                ..Config::default()
            };
            assert!(config.check().is_ok(), "{listen} {upstream}");
        }
    }

    #[test]
    fn a_worker_is_three_parts() {
        let worker: Worker = "w=127.0.0.1:1=http://b:2".parse().unwrap();
        assert_eq!(worker.upstream, "http://b:2");
        assert!("w=127.0.0.1:1".parse::<Worker>().is_err());
        let twice = vec![worker.clone(), worker];
        assert!(wrong(|c| c.workers = twice).contains("two workers"));
    }
}
