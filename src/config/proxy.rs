//! What a proxy can be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use toml::{Table, Value};

use crate::proxy::shared::{StampsPolicy, UpstreamKind};
use crate::secret::Secret;
use crate::upstream::{Address, Policy};

use super::engine::Engine;
use super::otlp::Otlp;
use super::values::{self, Seconds, Share, Whole};

/// When a changed key is taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// At a start.
    Restart,
    /// At a reload, too.
    Reload,
}

/// Makes [`Config`] of a table with a line a key: name, type, default, and when a change of it is taken on.
macro_rules! keys {
    ($($(#[$about:meta])* $key:ident: $kind:ty = $default:expr, $taken:ident;)*) => {
        /// The `[proxy]` section, and the workers. Keys, units and defaults: `config.toml`.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Config {
            $($(#[$about])* pub $key: $kind,)*
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $($key: $default,)* }
            }
        }

        impl Config {
            /// The keys in which `new` differs, and when each is taken on.
            pub fn changes(&self, new: &Config) -> Vec<(&'static str, Taken)> {
                let all = [$((self.$key != new.$key, stringify!($key), Taken::$taken),)*];
                let changed = all.into_iter().filter(|(differs, ..)| *differs);
                changed.map(|(_, key, taken)| (key, taken)).collect()
            }
        }
    };
}

keys! {
    /// Where clients connect; port 0 takes a free one.
    #[serde(deserialize_with = "values::listen_address")]
    listen: SocketAddr = local(8800), Restart;
    /// The router or servers; requests are shared out among them.
    upstream: Vec<Address> = Vec::new(), Reload;
    /// Which upstream gets the next request.
    policy: Policy = Policy::RoundRobin, Reload;
    /// With `cache_aware`: the share of a prompt of which an upstream must know more.
    cache_threshold: Share = Share::of::<30>(), Reload;
    /// With `cache_aware`: requests by which the longest queue may be ahead of the shortest.
    balance_abs_threshold: Whole<0, { u64::MAX }> = Whole::of::<64>(), Reload;
    /// With `cache_aware`: how many times as long as the shortest it may be.
    #[serde(deserialize_with = "values::ratio")]
    balance_rel_threshold: f64 = 1.5, Reload;
    /// How long an upstream that cannot be connected to is left out before it is probed.
    upstream_out_s: Seconds = Seconds::of::<1>(), Reload;
    /// Whether a request whose connection broke before an answer is sent again, though it may have run.
    resend_broken: bool = false, Reload;
    /// PEM file with who may sign the certificates of `https://` upstreams; none: the system's roots.
    upstream_ca: Option<PathBuf> = None, Reload;
    /// What the upstreams are.
    upstream_kind: UpstreamKind = UpstreamKind::Router, Restart;
    /// File that gets the records; none: they are only counted.
    records: Option<PathBuf> = None, Restart;
    /// What the records' time columns count from.
    time_base: Base = Base::Epoch, Restart;
    /// A records file is at most this long, MB (1,000,000 bytes); 0: no limit.
    #[serde(deserialize_with = "values::megabytes")]
    records_rotate_mb: f64 = 0.0, Restart;
    /// Rows go to a records file for this long after its first, hours; 0: no limit.
    #[serde(deserialize_with = "values::hours")]
    records_rotate_hours: f64 = 0.0, Restart;
    /// Rotated records files that stay; 0: all.
    records_keep: usize = 0, Restart;
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    #[serde(deserialize_with = "values::listen_address")]
    admin: SocketAddr = local(8801), Restart;
    /// Whether `/readyz` also asks that an upstream can be connected to.
    ready_needs_upstream: bool = false, Reload;
    /// Unix socket by which a new process takes the listeners over from the running one.
    takeover: Option<PathBuf> = None, Restart;
    /// Which clients that ask get the proxy's stamps.
    stamps: StampsPolicy = StampsPolicy::Loopback, Reload;
    /// The value of `x-queuescope-token` that `stamps = "token"` asks for.
    stamps_token: Option<Secret> = None, Reload;
    /// What the admin listener asks for as `Authorization: Bearer`, but for `/healthz` and `/readyz`.
    admin_token: Option<Secret> = None, Restart;
    /// File that holds it instead.
    admin_token_file: Option<PathBuf> = None, Restart;
    /// Names by which a browser may ask the admin listener where it has no token, beside localhost and addresses.
    #[serde(deserialize_with = "values::names")]
    admin_hosts: Vec<String> = Vec::new(), Reload;
    /// By what a front knows the stamps of its hops in other processes, and they sign them.
    hop_secret: Option<Secret> = None, Restart;
    /// File that holds it instead.
    hop_secret_file: Option<PathBuf> = None, Restart;
    /// Whether the admin listener takes faults to inject at the worker hops.
    fault_injection: bool = false, Restart;
    /// Certificate chain of the front's listener, PEM; without it the listener speaks plain HTTP.
    tls_cert: Option<PathBuf> = None, Restart;
    /// Its private key, PEM.
    tls_key: Option<PathBuf> = None, Restart;
    /// How long open requests may go on after SIGTERM.
    drain_timeout_s: Seconds<0> = Seconds::of::<60>(), Reload;
    /// Limit on connecting to an upstream.
    upstream_connect_timeout_s: Seconds = Seconds::of::<5>(), Reload;
    /// Limit on the silence of an upstream within a response.
    upstream_read_timeout_s: Seconds = Seconds::of::<1800>(), Reload;
    /// Limit on a single write to an upstream.
    upstream_write_timeout_s: Seconds = Seconds::of::<60>(), Reload;
    /// After how much idleness an upstream connection is closed.
    upstream_idle_timeout_s: Seconds = Seconds::of::<4>(), Reload;
    /// After how much idleness a client's connection is closed, whole seconds.
    client_idle_timeout_s: Whole<1, { u64::MAX }> = Whole::of::<75>(), Reload;
    /// Limit on the silence of a client within its request body.
    client_read_timeout_s: Seconds = Seconds::of::<60>(), Reload;
    /// How long a client may take none of the response before it is given up.
    client_write_timeout_s: Seconds = Seconds::of::<300>(), Reload;
    /// How long the head of a request may take from its first byte to its last, and a TLS handshake.
    client_head_timeout_s: Seconds = Seconds::of::<30>(), Reload;
    /// How long a request body may be waited for in sum.
    client_body_timeout_s: Seconds = Seconds::of::<300>(), Reload;
    /// How long a client may hold up one response in sum.
    client_stall_timeout_s: Seconds = Seconds::of::<900>(), Reload;
    /// Limit on the head of a request, bytes. Pingora takes no larger one.
    request_head_max_bytes: Whole<256, 1_048_575> = Whole::of::<65_536>(), Reload;
    /// Limit on the body of a request, bytes.
    request_body_max_bytes: Whole<1, { u64::MAX }> = Whole::of::<536_870_912>(), Reload;
    /// Client connections that the front takes at once; without a front, each hop.
    max_connections: Whole<1, 1_000_000> = Whole::of::<16_384>(), Restart;
    /// Threads that move bytes.
    threads: Whole<1, 1024> = Whole::of::<2>(), Restart;
    /// Requests whose records may wait for the file.
    record_queue: Whole<1, 16_777_216> = Whole::of::<65_536>(), Restart;
    /// Label sets that a metric of `/metrics` has at most.
    metrics_label_sets: Whole<8, 4096> = Whole::of::<64>(), Restart;
    /// Traces: `[telemetry.otlp]` in the file.
    #[serde(skip)]
    otlp: Otlp = Otlp::default(), Restart;
    /// What engines tell: `[engine]` in the file, and the sections below it.
    #[serde(skip)]
    engine: Engine = Engine::default(), Restart;
    /// The worker hops: `[[worker]]` in the file.
    #[serde(skip)]
    workers: Vec<Worker> = Vec::new(), Reload;
}

/// A `[[worker]]` section: a hop between the router and one server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// A name for messages, headers and `/faults`: 1 to 64 of `A-Z a-z 0-9 . _ : -`, and not `log`.
    #[serde(deserialize_with = "values::worker_name")]
    pub name: String,
    /// Where the router connects.
    #[serde(deserialize_with = "values::listen_address")]
    pub listen: SocketAddr,
    /// The server.
    pub upstream: Address,
    /// What records call the server; its address in `upstream` by default, which other hosts may have too.
    #[serde(default, deserialize_with = "values::host")]
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

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Worker {
    /// What records call its server.
    pub fn called(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.upstream.name())
    }

    /// The key of one of its values, as messages name it.
    pub fn key(&self, what: &str) -> String {
        format!("worker {}: {what}", self.name)
    }
}

impl FromStr for Worker {
    type Err = String;

    /// `NAME=LISTEN=UPSTREAM`, as on the command line.
    fn from_str(text: &str) -> Result<Worker, String> {
        let mut parts = text.splitn(3, '=').map(Value::from);
        let (Some(name), Some(listen), Some(upstream)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(
                "give NAME=LISTEN=UPSTREAM, as in w0=127.0.0.1:9000=127.0.0.1:30000".into(),
            );
        };
        let keys = [("name", name), ("listen", listen), ("upstream", upstream)];
        let table: Table = keys
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect();
        table
            .try_into()
            .map_err(|error: toml::de::Error| error.message().to_owned())
    }
}
