//! What is to be changed: `--set KEY=VALUE`, of which several values of a key make a grid.

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args as _, Command, FromArgMatches as _};
use toml::Value;

use crate::experiment::plan::grid::Sweep;
use crate::experiment::plan::read::{Entry, flag};
use crate::experiment::plan::settings::{distinct, key_of, text, usage, value_of};
use crate::sim::engine::Profile;
use crate::units::{between, rate};
use crate::upstream::policy::Policy;

use super::Error;
use super::load::Load;
use super::replay::Deployment;

/// How many servers there are.
pub const SERVERS: &str = "num_gpus";
/// Requests a second.
pub const RATE: &str = "request_rate";
/// The least requests a second that can be set.
pub const LEAST_RATE: f64 = 0.001;
/// The most.
pub const MOST_RATE: f64 = 1e6;
/// More servers are taken for a slip.
pub const MOST_SERVERS: usize = 1024;
/// How many requests a server runs at once.
pub const SLOTS: &str = "max_running_requests";

/// What can be changed: each key is a flag here.
#[derive(Clone, Debug, Default, clap::Args)]
struct Changed {
    /// So many times as many requests a second.
    #[arg(long, value_parser = between(0.001, 1000.0))]
    rate: Option<f64>,
    /// Requests a second.
    #[arg(long, value_parser = rate(LEAST_RATE, MOST_RATE), conflicts_with = "rate")]
    request_rate: Option<f64>,
    /// Servers.
    #[arg(long, value_parser = between(1, MOST_SERVERS))]
    num_gpus: Option<usize>,
    /// Who gets a request.
    #[arg(long, value_parser = policy)]
    routing_policy: Option<Policy>,
    /// The engine of each server.
    #[command(flatten)]
    profile: Profile,
}

/// Reads `--set`, in its order.
///
/// # Errors
/// One is no `KEY=VALUE`.
pub fn sweeps(given: &[String]) -> Result<Vec<Sweep>, Error> {
    let sweep = |given: &String| {
        let right = "must be KEY=VALUE, such as max_running_requests=64";
        let (key, value) = given.split_once('=').ok_or_else(|| wrong(given, right))?;
        let key = key.trim().replace('-', "_");
        let inner = value.trim().trim_start_matches('[').trim_end_matches(']');
        let values = match flag(&[inner], false, true) {
            Value::Array(values) => values,
            value => vec![value],
        };
        let read = |value| {
            let set = vec![flag_of(&key, &value)];
            value_of(command(), set, &key, value)
        };
        match distinct(values.into_iter().map(read)) {
            Ok(values) => Ok((key, values)),
            Err(twice) => Err(wrong(&key, &format!("{} is given twice", text(&twice)))),
        }
    };
    given.iter().map(sweep).collect()
}

/// What would serve a load under these settings, in place of what did.
///
/// # Errors
/// A key that nobody knows, or a value that it cannot have.
pub fn deployment(
    mut made: Deployment,
    load: &Load,
    settings: &[Entry],
) -> Result<Deployment, Error> {
    let is_set = |wanted: &str| settings.iter().any(|(key, _)| key == wanted);
    if is_set(SERVERS) {
        // Each has a GPU of its own.
        made.model.profile.gpu_share = 1.0;
    }
    let changed = read(made.model.profile, settings)?;
    if is_set(SLOTS) {
        made.slots.fill(changed.profile.max_running_requests);
    }
    if let Some(count) = changed.num_gpus.filter(|count| *count != made.slots.len()) {
        made.slots = vec![*made.slots.first().ok_or(Error::Empty)?; count];
        made.policy = Some(Policy::RoundRobin);
    }
    let own = load.rate();
    let pace = changed.rate.or(changed.request_rate.map(|rate| rate / own));
    if pace.is_some() && own > MOST_RATE {
        return Err(wrong(
            if is_set(RATE) { RATE } else { "rate" },
            "the load's requests all come at once: there is no rate to change",
        ));
    }
    made.model.profile = changed.profile;
    Ok(Deployment {
        pace: pace.unwrap_or(made.pace),
        policy: changed.routing_policy.or(made.policy),
        ..made
    })
}

/// What reads settings: all that is not given stays as it is.
fn command() -> Command {
    let plain = |arg: clap::Arg| {
        let arg = arg.action(ArgAction::Set);
        arg.default_value(Resettable::Reset)
    };
    Changed::augment_args(Command::new("sim").no_binary_name(true)).mut_args(plain)
}

fn flag_of(key: &str, value: &Value) -> String {
    format!("--{}={}", key.replace('_', "-"), text(value))
}

/// Settings as a command line; what is not given of a profile stays as it is.
fn read(profile: Profile, settings: &[Entry]) -> Result<Changed, Error> {
    let flags = settings.iter().map(|(key, value)| flag_of(key, value));
    let read = command().try_get_matches_from(flags);
    let mut changed = Changed {
        profile,
        ..Changed::default()
    };
    let read = read.and_then(|matches| changed.update_from_arg_matches(&matches));
    read.map_err(|error| explained(&error))?;
    Ok(changed)
}

/// What is wrong with a setting, by its key.
fn explained(error: &clap::Error) -> Error {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => wrong(
            &key_of(flag),
            "is no key that can be set: use rate, request_rate, num_gpus, routing_policy, or a flag of an engine (queuescope sim --help)",
        ),
        (ErrorKind::ArgumentConflict, Some(ContextValue::String(flag))) => wrong(
            &key_of(flag),
            "must be given once, not with --find of the same, and rate not with request_rate; several values are KEY=A,B",
        ),
        _ => Error::Setting(format!("--set {}", usage(error, ""))),
    }
}

fn policy(name: &str) -> Result<Policy, String> {
    let policy = Value::from(name).try_into().ok();
    let policy = policy.filter(|policy| *policy != Policy::CacheAware);
    policy.ok_or_else(|| {
        "must be round_robin, random, shortest_queue or power_of_two (rows do not tell which prompts share a beginning, \
         which cache_aware goes by)"
            .to_owned()
    })
}

fn wrong(key: &str, what: &str) -> Error {
    Error::Setting(format!("--set {key}: {what}"))
}
