//! What a proxy can be told, and the check of it.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use crate::proxy::shared::{StampsPolicy, UpstreamKind};
use crate::secret::Secret;
use crate::upstream::Policy;

/// The `[proxy]` section. Keys, units and defaults: `config.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where clients connect, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// The router or servers, `host:port`, `http://host:port` or `https://host[:port]`; requests are shared out among them.
    pub upstream: Vec<String>,
    /// Which upstream gets the next request.
    pub policy: Policy,
    /// How long an upstream that cannot be connected to is left out before it is probed, seconds.
    pub upstream_out_s: f64,
    /// Whether a request whose connection broke before an answer is sent again, though it may have run.
    pub resend_broken: bool,
    /// PEM file with who may sign the certificates of `https://` upstreams; none: the system's roots.
    pub upstream_ca: Option<PathBuf>,
    /// What the upstreams are.
    pub upstream_kind: UpstreamKind,
    /// File that gets the records; none: they are only counted.
    pub records: Option<PathBuf>,
    /// What the records' time columns count from.
    pub time_base: Base,
    /// A records file is at most this long, MB (1,000,000 bytes); 0: no limit.
    pub records_rotate_mb: f64,
    /// Rows go to a records file for this long after its first, hours; 0: no limit.
    pub records_rotate_hours: f64,
    /// Rotated records files that stay; 0: all.
    pub records_keep: usize,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    pub admin: String,
    /// Whether `/readyz` also asks that an upstream can be connected to.
    pub ready_needs_upstream: bool,
    /// Unix socket by which a new process takes the listeners over from the running one.
    pub takeover: Option<PathBuf>,
    /// Which clients that ask get the proxy's stamps.
    pub stamps: StampsPolicy,
    /// The value of `x-queuescope-token` that `stamps = "token"` asks for.
    pub stamps_token: Option<Secret>,
    /// What the admin listener asks for as `Authorization: Bearer`, but for `/healthz` and `/readyz`.
    pub admin_token: Option<Secret>,
    /// File that holds it instead.
    pub admin_token_file: Option<PathBuf>,
    /// By what a front knows the stamps of its hops in other processes, and they sign them.
    pub hop_secret: Option<Secret>,
    /// File that holds it instead.
    pub hop_secret_file: Option<PathBuf>,
    /// Whether the admin listener takes faults to inject at the worker hops.
    pub fault_injection: bool,
    /// Certificate chain of the front's listener, PEM; without it the listener speaks plain HTTP.
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// How long open requests may go on after SIGTERM, seconds.
    pub drain_timeout_s: f64,
    /// Limit on connecting to an upstream, seconds.
    pub upstream_connect_timeout_s: f64,
    /// Limit on the silence of an upstream within a response, seconds.
    pub upstream_read_timeout_s: f64,
    /// Limit on a single write to an upstream, seconds.
    pub upstream_write_timeout_s: f64,
    /// After how much idleness an upstream connection is closed, seconds.
    pub upstream_idle_timeout_s: f64,
    /// After how much idleness a client's connection is closed, whole seconds.
    pub client_idle_timeout_s: u64,
    /// Limit on the silence of a client within its request body, seconds.
    pub client_read_timeout_s: f64,
    /// How long a client may take none of the response before it is given up, seconds.
    pub client_write_timeout_s: f64,
    /// How long the head of a request may take from its first byte to its last, and a TLS handshake, seconds.
    pub client_head_timeout_s: f64,
    /// How long a request body may be waited for in sum, seconds.
    pub client_body_timeout_s: f64,
    /// How long a client may hold up one response in sum, seconds.
    pub client_stall_timeout_s: f64,
    /// Limit on the head of a request, bytes.
    pub request_head_max_bytes: u64,
    /// Limit on the body of a request, bytes.
    pub request_body_max_bytes: u64,
    /// Client connections that the front takes at once; without a front, each hop.
    pub max_connections: usize,
    /// Threads that move bytes.
    pub threads: usize,
    /// Requests whose records may wait for the file.
    pub record_queue: usize,
    /// The worker hops: `[[worker]]` in the file.
    #[serde(skip)]
    pub workers: Vec<Worker>,
}

/// A `[[worker]]` section: a hop between the router and one server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// A name for messages, headers and `/faults`: 1 to 64 of `A-Z a-z 0-9 . _ : -`, and not `log`.
    pub name: String,
    /// Where the router connects, `host:port`.
    pub listen: String,
    /// The server, as in [`Config::upstream`].
    pub upstream: String,
    /// What records call the server; its address in `upstream` by default, which other hosts may have too.
    #[serde(default)]
    pub host: Option<String>,
}

/// What time columns count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// The Unix epoch.
    Epoch,
    /// The start of this process.
    Run,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: "127.0.0.1:8800".into(),
            upstream: Vec::new(),
            policy: Policy::RoundRobin,
            upstream_out_s: 1.0,
            resend_broken: false,
            upstream_ca: None,
            upstream_kind: UpstreamKind::Router,
            records: None,
            time_base: Base::Epoch,
            records_rotate_mb: 0.0,
            records_rotate_hours: 0.0,
            records_keep: 0,
            admin: "127.0.0.1:8801".into(),
            ready_needs_upstream: false,
            takeover: None,
            stamps: StampsPolicy::Loopback,
            stamps_token: None,
            admin_token: None,
            admin_token_file: None,
            hop_secret: None,
            hop_secret_file: None,
            fault_injection: false,
            tls_cert: None,
            tls_key: None,
            drain_timeout_s: 60.0,
            upstream_connect_timeout_s: 5.0,
            upstream_read_timeout_s: 1800.0,
            upstream_write_timeout_s: 60.0,
            upstream_idle_timeout_s: 4.0,
            client_idle_timeout_s: 75,
            client_read_timeout_s: 60.0,
            client_write_timeout_s: 300.0,
            client_head_timeout_s: 30.0,
            client_body_timeout_s: 300.0,
            client_stall_timeout_s: 900.0,
            request_head_max_bytes: 65_536,
            request_body_max_bytes: 536_870_912,
            max_connections: 16_384,
            threads: 2,
            record_queue: 65_536,
            workers: Vec::new(),
        }
    }
}

impl FromStr for Worker {
    type Err = String;

    /// `NAME=LISTEN=UPSTREAM`, as on the command line.
    fn from_str(text: &str) -> Result<Worker, String> {
        let mut parts = text.splitn(3, '=');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(listen), Some(upstream)) if !name.is_empty() => Ok(Worker {
                name: name.into(),
                listen: listen.into(),
                upstream: upstream.into(),
                host: None,
            }),
            _ => Err("give NAME=LISTEN=UPSTREAM, as in w0=127.0.0.1:9000=127.0.0.1:30000".into()),
        }
    }
}
