//! The settings of `--set KEY=VALUE`; several values of a key make a grid.

use std::collections::HashMap;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args as _, Command, FromArgMatches as _};
use toml::Value;

use crate::error::Error;
use crate::experiment::plan::grid::{Entry, Sweep, flag_value};
use crate::experiment::plan::settings::{flag_text, given_twice, key_of, plan_error};
use crate::sim::engine::Profile;
use crate::units::{between, rate};
use crate::upstream::policy::Policy;

use super::replay::Deployment;

/// The key of the number of servers.
pub const SERVERS: &str = "num_gpus";
/// The key of the rate, requests a second.
pub const RATE: &str = "request_rate";
/// The lowest rate that can be set, requests a second.
pub const MIN_RATE: f64 = 0.001;
/// The highest rate.
pub const MAX_RATE: f64 = 1e6;
/// More servers are taken for a typo.
pub const MAX_SERVERS: usize = 1024;
/// The key of the most requests that a server runs at once.
pub const SLOTS: &str = "max_running_requests";

/// The key that turns the prefix cache off.
pub const NO_CACHE: &str = "disable_radix_cache";

/// The keys of `--set`, as flags.
#[derive(Clone, Debug, Default, clap::Args)]
struct Changed {
    /// So many times as many requests a second.
    #[arg(long, value_parser = between(0.001, 1000.0))]
    rate: Option<f64>,
    /// Requests a second.
    #[arg(long, value_parser = rate(MIN_RATE, MAX_RATE), conflicts_with = "rate")]
    request_rate: Option<f64>,
    /// Servers.
    #[arg(long, value_parser = between(1, MAX_SERVERS))]
    num_gpus: Option<usize>,
    /// Chooses the server of a request.
    #[arg(long, value_parser = policy)]
    routing_policy: Option<Policy>,
    /// The engine of each server.
    #[command(flatten)]
    profile: Profile,
}

/// Returns the keys of `--set` with their values, in the order given.
pub fn sweeps(given: &[Entry]) -> Vec<Sweep> {
    let sweep = |(key, value): &Entry| {
        let value = match value {
            Value::Array(_) => value.clone(),
            value => flag_value(&[&flag_text(value)], false),
        };
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        (key.replace('-', "_"), values)
    };
    given.iter().map(sweep).collect()
}

/// Checks that no key is given twice, no value of one, and none that `--find` looks for. Both keys of the rate are one.
///
/// # Errors
/// One is.
pub fn each_once(sweeps: &[Sweep], looked_for: Option<&str>) -> Result<(), Error> {
    let what = |key: &str| key.replace(RATE, "rate");
    let by_find = looked_for.map(|key| (what(key), "--find".to_owned()));
    let mut changed: HashMap<String, String> = by_find.into_iter().collect();
    for (key, values) in sweeps {
        if let Some(twice) = given_twice(values.iter().cloned()) {
            let value = flag_text(&twice);
            return Err(Error::usage(format!(
                "--set {key} = {value}: is given twice: once is enough, as a prediction is the same each time"
            )));
        }
        if let Some(by) = changed.insert(what(key), format!("--set {key}")) {
            let why = format!(
                "is changed by {by} already: give one of the two, several values as {key}=A,B"
            );
            return Err(error_of(key, &why));
        }
    }
    Ok(())
}

/// Applies settings to the servers of a load, whose requests arrived at `own_rate` a second.
///
/// # Errors
/// A key is unknown, or a value is invalid.
pub fn deployment(
    mut made: Deployment,
    own_rate: f64,
    settings: &[Entry],
) -> Result<Deployment, Error> {
    let is_set = |key| value(settings, key).is_some();
    if is_set(SERVERS) {
        // Each has a GPU of its own.
        made.model.profile.gpu_share = 1.0;
    }
    let changed = read(made.model.profile, settings)?;
    if is_set(SLOTS) {
        made.slots.fill(changed.profile.max_running_requests);
    }
    if let Some(count) = changed.num_gpus.filter(|count| *count != made.slots.len()) {
        made.slots = vec![made.slots.first().copied().unwrap_or(usize::MAX); count];
        made.policy = Some(Policy::RoundRobin);
    }
    let by_rate = changed.request_rate.map(|rate| rate / own_rate);
    let pace = changed.rate.or(by_rate);
    if pace.is_some() && own_rate > MAX_RATE {
        let key = if is_set(RATE) { RATE } else { "rate" };
        let why = "its requests all come at once: there is no rate to change";
        return Err(error_of(key, why));
    }
    made.model.profile = changed.profile;
    Ok(Deployment {
        pace: pace.unwrap_or(made.pace),
        policy: changed.routing_policy.or(made.policy),
        ..made
    })
}

/// The value of a key.
pub fn value<'s>(settings: &'s [Entry], wanted: &str) -> Option<&'s Value> {
    let entry = settings.iter().find(|(key, _)| key == wanted);
    entry.map(|(_, value)| value)
}

/// A parser of settings without defaults, so that what is not given stays as it is.
fn command() -> Command {
    let plain = |arg: clap::Arg| {
        let arg = arg.action(ArgAction::Set);
        arg.default_value(Resettable::Reset)
    };
    Changed::augment_args(Command::new("sim").no_binary_name(true)).mut_args(plain)
}

/// Parses settings as a command line, over a profile.
fn read(profile: Profile, settings: &[Entry]) -> Result<Changed, Error> {
    let flag = |(key, value): &Entry| format!("--{}={}", key.replace('_', "-"), flag_text(value));
    let read = command().try_get_matches_from(settings.iter().map(flag));
    let mut changed = Changed {
        profile,
        ..Changed::default()
    };
    let read = read.and_then(|matches| changed.update_from_arg_matches(&matches));
    read.map_err(|error| match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => error_of(
            &key_of(flag),
            "is no key that can be set: use rate, request_rate, num_gpus, routing_policy, or a flag of an engine (queuescope sim --help)",
        ),
        _ => Error::usage(format!("--set {}", plan_error(&error, ""))),
    })?;
    Ok(changed)
}

/// Whether a policy can be predicted.
pub fn predicted(policy: &Policy) -> bool {
    !policy.is_by_prompt()
}

fn policy(name: &str) -> Result<Policy, String> {
    let policy = Policy::named(name).filter(predicted);
    policy.ok_or_else(|| {
        let all = Policy::listed(predicted);
        format!(
            "must be one of {all} (rows do not tell which prompts share a beginning, which cache_aware goes by)"
        )
    })
}

fn error_of(key: &str, message: &str) -> Error {
    Error::usage(format!("--set {key}: {message}"))
}
