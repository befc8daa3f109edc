//! The `[proxy]` section, and the workers.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::client::limits::Limits;
use crate::engine::Keys as Engine;
use crate::keys::values::{self, Seconds, Whole};
use crate::keys::{Section, keys};
use crate::request::csv::Base;
use crate::request::{ServerRole, UpstreamKind};
use crate::secret::Secret;
use crate::telemetry::otlp::settings::Otlp;
use crate::upstream::{Address, Rules};

#[cfg(test)]
use super::tests::New;

keys! {
/// The `[proxy]` section, and all others below it.
Config {
    /// Where clients connect, IP:PORT; localhost:PORT is 127.0.0.1. Port 0 takes a free one.
    listen: SocketAddr as values::listen_address = local(8800), Restart "--listen IP:PORT";
    /// The router, or the servers: HOST:PORT, http://HOST:PORT or https://HOST[:PORT]. At least one is needed, here or as
    /// --upstream, unless there are only hops. Requests are shared out over several by `policy`. A name is one upstream, whatever
    /// addresses it has: the next is used when one cannot be connected to.
    upstream: Vec<Address> = Vec::new(), Reload "-u --upstream URL" like ["http://127.0.0.1:30000"];
    /// What the upstreams are: "router" or "server". When a router sends on is only known through a worker hop; our own send to
    /// a server is the send to it, and `host` names it.
    upstream_kind: UpstreamKind = UpstreamKind::Router, Restart "--upstream-kind KIND";
    /// CSV file that gets one row per generated sequence. Each process begins its own: at the start a file that is there
    /// is moved aside. Without `records` requests are only counted.
    records: Option<PathBuf> = None, Restart "--records FILE" like "records.csv";
    /// What the file's time columns count from: "epoch" (seconds since 1970) or "run" (the start of this process).
    time_base: Base = Base::Epoch, Restart "--time-base BASE" in "Running it";
    /// TLS for the clients: PEM files with the certificate chain and its private key. Without them the listener
    /// speaks plain HTTP. Both are read again on a reload.
    tls_cert: Option<PathBuf> = None, Restart "--tls-cert FILE" in "Running it" like "cert.pem";
    /// The private key of `tls_cert`, PEM.
    tls_key: Option<PathBuf> = None, Restart "--tls-key FILE" in "Running it" like "key.pem";
    /// A records file that would grow beyond this many MB is moved aside; 0: never. It is then records.csv.20261120T144800Z (UTC;
    /// a number follows when that name is taken), and a new one is begun. A MB is 1,000,000 bytes; a row takes about 700.
    records_rotate_mb: f64 as values::megabytes = 0.0, Restart "--records-rotate-mb MB" in "Running it";
    /// A records file is also moved aside at the first row that comes this many hours after its first row; 0: never.
    records_rotate_hours: f64 as values::hours = 0.0, Restart "--records-rotate-hours HOURS" in "Running it";
    /// How many records files that were moved aside stay; 0: all. The oldest are removed.
    records_keep: Whole<0, { u64::MAX }> = Whole::of::<0>(), Restart "--records-keep N" in "Running it";
    /// Where the live page, /healthz, /readyz, /metrics and /faults are. It should stay on this machine.
    admin: SocketAddr as values::listen_address = local(8801), Restart "--admin IP:PORT";
    /// Whether /readyz is 503 while no upstream can be connected to. Asked often it connects once a second at most.
    /// Otherwise /readyz says that this process takes requests, whether or not an upstream is there.
    ready_needs_upstream: bool = false, Reload "--ready-needs-upstream BOOL" in "Running it";
    /// What the live page, /metrics and /faults ask for as `Authorization: Bearer TOKEN`, or in a browser as the password
    /// of any user; without it they are open to whoever reaches the listener. At least 16 characters.
    admin_token: Option<Secret> = None, Restart like "16 characters or more";
    /// File that holds the token alone, in place of `admin_token`.
    admin_token_file: Option<PathBuf> = None, Restart "--admin-token-file FILE" in "Running it" like "/run/secrets/admin-token";
    /// Without a token: the host names, without a port, by which browsers may open the live page and /faults; localhost and IP
    /// addresses always may. By any other name a page of another site could read them (DNS rebinding).
    admin_hosts: Vec<String> as values::names = Vec::new(), Reload "--admin-hosts NAME" in "Running it" like ["gpu1.example"];
    /// Names of at most 4 request headers whose values label a request, such as a tenant's name: in the column `labels`, in metrics
    /// (`queuescope_label_requests_total`), and where a report says who waited and who held up others. A gateway should set them, as
    /// a client may send any value. Headers that hold a secret are refused.
    label_headers: Vec<String> as values::header_names = Vec::new(), Reload "--label-headers NAME" in "Running it" like ["x-tenant"];
    /// Whether the admin listener takes faults to inject at the worker hops, at /faults. For experiments only. On an
    /// admin address that is not this machine's own it needs a token.
    fault_injection: bool = false, Restart "--fault-injection BOOL" in "Running it";
    /// Which clients get the proxy's own stamps in a response header: "loopback", "token" or "never". They ask by
    /// `x-queuescope-stamps: 1`, and the header names hosts. "loopback": those on this machine; "token": those whose
    /// `x-queuescope-token` is stamps_token.
    stamps: StampsPolicy = StampsPolicy::Loopback, Reload "--stamps POLICY" in "Running it";
    /// What clients send as `x-queuescope-token` where `stamps` is "token". At least 16 characters.
    stamps_token: Option<Secret> = None, Reload like "16 characters or more";
    /// How long open requests may go on after SIGTERM or SIGINT. The process ends as soon as the last is done; a
    /// second signal ends it at once.
    drain_timeout_s: Seconds<0> = Seconds::of::<60>(), Reload "--drain-timeout-s S" in "Running it";
    /// Threads that move bytes.
    threads: Whole<1, 1024> = Whole::of::<2>(), Restart "--threads N" in "Running it";
    /// Requests whose rows may wait for the file; further rows are lost and counted.
    record_queue: Whole<1, 16_777_216> = Whole::of::<65_536>(), Restart "--record-queue N" in "Running it";
    /// The most label sets of one metric of /metrics. Beyond them, new models, workers, servers and clocks show as "other", so
    /// that nobody can fill Prometheus by inventing names. A worker needs about 10 (its stages): with more than 4 workers, set 12
    /// for each.
    metrics_label_sets: Whole<8, 4096> = Whole::of::<64>(), Restart "--metrics-label-sets N" in "Running it";
    /// The secret by which hops in other processes sign their stamps: give the same to the front and to each of them; hops in
    /// the front's own process need none. At least 16 characters, as from `openssl rand -hex 32`. The front takes off stamps
    /// with another signature and does not use them.
    hop_secret: Option<Secret> = None, Restart like "16 characters or more";
    /// File that holds the secret alone, in place of `hop_secret`.
    hop_secret_file: Option<PathBuf> = None, Restart "--hop-secret-file FILE" like "/run/secrets/hop-secret";
} with {
    /// How the upstreams are dealt with.
    rules: Rules;
    /// The limits on clients.
    limits: Limits;
    /// A key that only tests have.
    new: New if test;
} and {
    /// Traces: `[telemetry.otlp]` in the file.
    otlp: Otlp = "telemetry.otlp", Restart;
    /// What engines tell: `[engine]` in the file.
    engine: Engine = "engine", Restart;
    /// The worker hops: `[[worker]]` in the file.
    workers: Vec<Worker> = "workers", Reload;
}}

keys! {
/// A worker hop stands between the router and one server, and sees when the router sends and who serves. The
/// router gets the hops' addresses as its workers. One section each; by default there is none.
Worker {
    /// A name for messages, headers and /faults: 1 to 64 of A-Z a-z 0-9 . _ : -.
    name: String as values::worker_name = String::new(), Reload like "w0";
    /// Where the router connects, IP:PORT.
    listen: SocketAddr as values::listen_address = local(0), Reload like "127.0.0.1:9000";
    /// The server, as in `upstream`.
    upstream: Address = SocketAddr::from(([192, 0, 2, 1], 1)).into(), Reload like "http://127.0.0.1:30000";
    /// What records call the server; its address by default. Hops beside their servers need it: each of them may have a
    /// 127.0.0.1:30000.
    host: Option<String> as values::host = None, Reload like "gpu1:30000";
    /// What the server does where prefill and decode are servers of their own: "prefill" or "decode". By default the hop learns it of
    /// the server's `/server_info`, which routers ask for, and of its spans.
    role: Option<ServerRole> = None, Reload like "prefill";
}}

/// Which clients may get the proxy's timestamps, which name hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StampsPolicy {
    /// Clients on this machine.
    Loopback,
    /// Clients with the token.
    Token,
    /// None.
    Never,
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Config {
    /// Finds a worker by its name.
    pub fn worker(&self, name: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.name == name)
    }
}

impl Worker {
    /// The name of its server in records.
    pub fn server_name(&self) -> String {
        self.host.clone().unwrap_or_else(|| self.upstream.name())
    }

    /// Returns one of its keys as messages name it.
    pub fn key(&self, key: &str) -> String {
        format!("worker {}: {key}", self.name)
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
        let mut worker = Worker::default();
        for (key, value) in [("name", name), ("listen", listen), ("upstream", upstream)] {
            worker
                .set(key, value)
                .map_err(|error| format!("{key}: {}", error.message()))?;
        }
        Ok(worker)
    }
}
