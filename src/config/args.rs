//! The flags of `queuescope proxy`. Each overrides the key of the same name in the config file.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::proxy::{Config, Worker};

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
    #[arg(long, value_name = "POLICY", value_parser = given(word::<crate::upstream::Policy>))]
    #[arg(help_heading = "Upstreams")]
    policy: Option<Given<crate::upstream::Policy>>,
    /// PEM file with who may sign the certificates of https upstreams; without it the system's roots
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = "Upstreams")]
    upstream_ca: Option<PathBuf>,
    /// What the upstreams are: `router` or `server` [default: router]
    #[arg(long, value_name = "KIND", value_parser = given(word::<crate::proxy::shared::UpstreamKind>))]
    upstream_kind: Option<Given<crate::proxy::shared::UpstreamKind>>,
    /// A hop between the router and a server; repeat for several. Replaces those of the file. Without hops the
    /// router's own queue is not seen
    #[arg(long, value_name = "NAME=LISTEN=UPSTREAM", value_parser = given(str::parse::<Worker>))]
    worker: Vec<Given<Worker>>,
    /// File with the secret by which a front knows its hops in other processes: give both the same
    #[arg(long, value_name = "FILE")]
    hop_secret_file: Option<PathBuf>,
    /// CSV file that gets the records; without it requests are only counted
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// What time columns count from: `epoch` or `run` [default: epoch]
    #[arg(long, value_name = "BASE", value_parser = given(word::<crate::config::proxy::Base>))]
    #[arg(help_heading = "Running it")]
    time_base: Option<Given<crate::config::proxy::Base>>,
    /// Where /healthz, /readyz, /metrics and /faults are served [default: 127.0.0.1:8801]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<String>,
    /// Unix socket by which a new process takes all listeners over from the running one, without downtime
    #[arg(long, value_name = "PATH")]
    #[arg(help_heading = "Running it")]
    takeover: Option<PathBuf>,
    /// Which clients that ask get stamps: `loopback`, `token` or `never` [default: loopback]
    #[arg(long, value_name = "POLICY", value_parser = given(word::<crate::proxy::shared::StampsPolicy>))]
    #[arg(help_heading = "Running it")]
    stamps: Option<Given<crate::proxy::shared::StampsPolicy>>,
    /// How long open requests may go on after SIGTERM [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = given(seconds))]
    #[arg(help_heading = "Running it")]
    drain_timeout_s: Option<Given<f64>>,
    /// Limit on the silence of an upstream, before its response and within it [default: 1800]
    #[arg(long, value_name = "SECONDS", value_parser = given(seconds))]
    #[arg(help_heading = "Upstreams")]
    upstream_read_timeout_s: Option<Given<f64>>,
    /// After how much idleness an upstream connection is closed [default: 4]
    #[arg(long, value_name = "SECONDS", value_parser = given(seconds))]
    #[arg(help_heading = "Upstreams")]
    upstream_idle_timeout_s: Option<Given<f64>>,
    /// Take faults to inject at the hops, at /faults of the admin listener
    #[arg(long)]
    #[arg(help_heading = "Running it")]
    fault_injection: bool,
    /// Threads that move bytes [default: 2]
    #[arg(long, value_name = "N", value_parser = given(str::parse::<usize>))]
    #[arg(help_heading = "Running it")]
    threads: Option<Given<usize>>,
}

/// What a flag says, or why it says nothing: that is told with all else that is wrong.
type Given<T> = Result<T, Unread>;

/// A flag's value that cannot be read.
#[derive(Clone, Debug)]
struct Unread {
    value: String,
    wrong: String,
}

/// A flag whose value cannot be read.
#[derive(Debug)]
pub struct WrongFlag {
    /// As it is written.
    pub flag: String,
    /// The config key that it stands for.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// What is wrong with it.
    pub wrong: String,
}

impl Args {
    /// Puts what was given over `config`. Gives what cannot be read; of such a flag the config is as before.
    pub fn override_config(self, config: &mut Config) -> Vec<WrongFlag> {
        fn put<T>(given: Option<T>, key: &mut T) {
            if let Some(value) = given {
                *key = value;
            }
        }
        let mut all = Vec::new();
        let wrong = &mut all;
        put(self.listen, &mut config.listen);
        put(self.upstream_ca.map(Some), &mut config.upstream_ca);
        put(read("policy", self.policy, wrong), &mut config.policy);
        let kind = read("upstream_kind", self.upstream_kind, wrong);
        put(kind, &mut config.upstream_kind);
        let base = read("time_base", self.time_base, wrong);
        put(base, &mut config.time_base);
        put(self.admin, &mut config.admin);
        put(read("stamps", self.stamps, wrong), &mut config.stamps);
        for (key, given, seconds) in [
            (
                "drain_timeout_s",
                self.drain_timeout_s,
                &mut config.drain_timeout_s,
            ),
            (
                "upstream_read_timeout_s",
                self.upstream_read_timeout_s,
                &mut config.upstream_read_timeout_s,
            ),
            (
                "upstream_idle_timeout_s",
                self.upstream_idle_timeout_s,
                &mut config.upstream_idle_timeout_s,
            ),
        ] {
            put(read(key, given, wrong), seconds);
        }
        put(read("threads", self.threads, wrong), &mut config.threads);
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
            let workers = self.worker.into_iter();
            config.workers = workers
                .filter_map(|worker| read("worker", Some(worker), wrong))
                .collect();
        }
        all
    }
}

/// The value of a flag that was given; what cannot be read goes to `wrong`.
fn read<T>(key: &'static str, given: Option<Given<T>>, wrong: &mut Vec<WrongFlag>) -> Option<T> {
    let unread = |unread: Unread| {
        wrong.push(WrongFlag {
            flag: format!("--{}", key.replace('_', "-")),
            key,
            value: unread.value,
            wrong: unread.wrong,
        });
    };
    given?.map_err(unread).ok()
}

/// A reader of values that leaves it to [`Args::override_config`] to say what is wrong: clap would stop there.
fn given<T, E: ToString>(
    read: impl Fn(&str) -> Result<T, E> + Clone,
) -> impl Fn(&str) -> Result<Given<T>, Infallible> + Clone {
    move |value| {
        Ok(read(value).map_err(|wrong| Unread {
            value: value.to_owned(),
            wrong: wrong.to_string(),
        }))
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
