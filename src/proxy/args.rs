//! The flags of `queuescope proxy`. Each overrides the key of the same name in the config file.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::config::{Config, Worker};

/// Stands before a router or servers and records where each request waits.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Args {
    /// Config file; see config.toml in the repository for every key.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// The router or a server; repeat for several.
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// What the upstreams are: `router` or `server`.
    #[arg(long, value_name = "KIND", value_parser = word::<super::config::UpstreamKind>)]
    upstream_kind: Option<super::config::UpstreamKind>,
    /// A hop between the router and a server; repeat for several. Replaces those of the file.
    #[arg(long, value_name = "NAME=LISTEN=UPSTREAM")]
    worker: Vec<Worker>,
    /// File that gets the records.
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// What time columns count from: `epoch` or `run`.
    #[arg(long, value_name = "BASE", value_parser = word::<super::config::Base>)]
    time_base: Option<super::config::Base>,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Which clients that ask get stamps: `loopback`, `token` or `never`.
    #[arg(long, value_name = "POLICY", value_parser = word::<super::config::StampsPolicy>)]
    stamps: Option<super::config::StampsPolicy>,
    /// How long open requests may go on after SIGTERM.
    #[arg(long, value_name = "SECONDS")]
    drain_timeout_s: Option<f64>,
    /// Limit on the silence of an upstream within a response.
    #[arg(long, value_name = "SECONDS")]
    upstream_read_timeout_s: Option<f64>,
    /// After how much idleness an upstream connection is closed.
    #[arg(long, value_name = "SECONDS")]
    upstream_idle_timeout_s: Option<f64>,
    /// Threads that move bytes.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Args {
    /// Puts what was given over `config`.
    pub fn override_config(self, config: &mut Config) {
        fn put<T>(given: Option<T>, key: &mut T) {
            if let Some(value) = given {
                *key = value;
            }
        }
        put(self.listen, &mut config.listen);
        put(self.upstream_kind, &mut config.upstream_kind);
        put(self.time_base, &mut config.time_base);
        put(self.admin, &mut config.admin);
        put(self.stamps, &mut config.stamps);
        put(self.drain_timeout_s, &mut config.drain_timeout_s);
        put(
            self.upstream_read_timeout_s,
            &mut config.upstream_read_timeout_s,
        );
        put(
            self.upstream_idle_timeout_s,
            &mut config.upstream_idle_timeout_s,
        );
        put(self.threads, &mut config.threads);
        put(self.records.map(Some), &mut config.records);
        if !self.upstream.is_empty() {
            config.upstream = self.upstream;
        }
        if !self.worker.is_empty() {
            config.workers = self.worker;
        }
    }
}

/// Reads one of an enum's words as the config file spells them.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
    T::deserialize(value).map_err(|error| error.to_string())
}
