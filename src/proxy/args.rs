//! The flags of `queuescope proxy`. Each overrides the key of the same name in the config file.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::config::{Config, Worker};

/// Stands before a router or servers and records where each request waits.
#[derive(Clone, Debug, Default, ClapArgs)]
// Wrong signs are told by name and range, not as unknown flags.
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Config file; see config.toml in the repository for every key and default
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:8800]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// The router or a server; repeat for several. NEEDED, here or in --config, unless there are only hops
    #[arg(long, value_name = "URL")]
    upstream: Vec<String>,
    /// Which upstream gets the next request: `round_robin`, `random`, `shortest_queue` or `power_of_two`
    /// [default: round_robin]
    #[arg(long, value_name = "POLICY", value_parser = word::<super::upstream::Policy>)]
    #[arg(help_heading = "Upstreams")]
    policy: Option<super::upstream::Policy>,
    /// PEM file with who may sign the certificates of https upstreams; without it the system's roots
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "Upstreams")]
    upstream_ca: Option<PathBuf>,
    /// What the upstreams are: `router` or `server` [default: router]
    #[arg(long, value_name = "KIND", value_parser = word::<super::config::UpstreamKind>)]
    upstream_kind: Option<super::config::UpstreamKind>,
    /// A hop between the router and a server; repeat for several. Replaces those of the file. Without hops the
    /// router's own queue is not seen
    #[arg(long, value_name = "NAME=LISTEN=UPSTREAM")]
    worker: Vec<Worker>,
    /// File with the secret by which a front knows its hops in other processes: give both the same
    #[arg(long, value_name = "FILE")]
    hop_secret_file: Option<PathBuf>,
    /// CSV file that gets the records; without it requests are only counted
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// What time columns count from: `epoch` or `run` [default: epoch]
    #[arg(long, value_name = "BASE", value_parser = word::<super::config::Base>)]
    #[arg(help_heading = "Running it")]
    time_base: Option<super::config::Base>,
    /// Where /healthz, /readyz, /metrics and /faults are served [default: 127.0.0.1:8801]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Unix socket by which a new process takes all listeners over from the running one, without downtime
    #[arg(long, value_name = "PATH")]
    #[arg(help_heading = "Running it")]
    takeover: Option<PathBuf>,
    /// Which clients that ask get stamps: `loopback`, `token` or `never` [default: loopback]
    #[arg(long, value_name = "POLICY", value_parser = word::<super::config::StampsPolicy>)]
    #[arg(help_heading = "Running it")]
    stamps: Option<super::config::StampsPolicy>,
    /// How long open requests may go on after SIGTERM [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(help_heading = "Running it")]
    drain_timeout_s: Option<f64>,
    /// Limit on the silence of an upstream, before its response and within it [default: 1800]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(help_heading = "Upstreams")]
    upstream_read_timeout_s: Option<f64>,
    /// After how much idleness an upstream connection is closed [default: 4]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(help_heading = "Upstreams")]
    upstream_idle_timeout_s: Option<f64>,
    /// Take faults to inject at the hops, at /faults of the admin listener
    #[arg(long)]
    #[arg(help_heading = "Running it")]
    fault_injection: bool,
    /// Threads that move bytes [default: 2]
    #[arg(long, value_name = "N")]
    #[arg(help_heading = "Running it")]
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
        put(self.upstream_ca.map(Some), &mut config.upstream_ca);
        put(self.policy, &mut config.policy);
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
        if self.hop_secret_file.is_some() {
            config.hop_secret = None;
        }
        put(self.hop_secret_file.map(Some), &mut config.hop_secret_file);
        put(self.takeover.map(Some), &mut config.takeover);
        config.fault_injection |= self.fault_injection;
        if !self.upstream.is_empty() {
            config.upstream = self.upstream;
        }
        if !self.worker.is_empty() {
            config.workers = self.worker;
        }
    }
}

/// Whether it may be so many is the config's to say.
fn seconds(text: &str) -> Result<f64, String> {
    let not_a_number = |_| "must be a number of seconds, such as 4.5".to_owned();
    text.parse().map_err(not_a_number)
}

/// Reads one of an enum's words as the config file spells them.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
    T::deserialize(value).map_err(|error| {
        // The word that was given comes first.
        let error = error.to_string();
        let words: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        format!("must be one of {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        _args: Args,
    }

    #[test]
    fn the_help_names_the_true_defaults() {
        let config = Config::default();
        let help = CommandLine::command().term_width(0).render_help();
        let help = help.to_string();
        for (flag, default) in [
            ("--listen ", config.listen),
            ("--admin ", config.admin),
            ("--policy ", "round_robin".into()),
            ("--drain-timeout-s ", config.drain_timeout_s.to_string()),
            (
                "--upstream-read-timeout-s ",
                config.upstream_read_timeout_s.to_string(),
            ),
            (
                "--upstream-idle-timeout-s ",
                config.upstream_idle_timeout_s.to_string(),
            ),
            ("--threads ", config.threads.to_string()),
            (
                "--upstream-kind ",
                format!("{:?}", config.upstream_kind).to_lowercase(),
            ),
            (
                "--time-base ",
                format!("{:?}", config.time_base).to_lowercase(),
            ),
            ("--stamps ", format!("{:?}", config.stamps).to_lowercase()),
        ] {
            let (_, line) = help.split_once(flag).unwrap();
            let (line, _) = line.split_once("]").unwrap();
            let said = line.rsplit_once("[default: ").unwrap().1;
            assert_eq!(said, default, "{flag}");
        }
    }
}
