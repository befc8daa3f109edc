//! What is to be changed: `--set KEY=VALUE`, of which several values of a key make a grid.

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, Command, FromArgMatches as _};
use toml::Value;

use crate::experiment::plan::grid::Sweep;
use crate::experiment::plan::line::text;
use crate::experiment::plan::read::{Entry, flag};
use crate::sim::engine::Profile;
use crate::upstream::policy::Policy;

use super::Error;
use super::load::Load;
use super::replay::Deployment;

/// Keys that are no figure of an engine.
pub const SERVERS: &str = "num_gpus";
const POLICY: &str = "routing_policy";
/// So many times the load's own rate.
pub const FACTOR: &str = "rate";
/// Requests a second.
pub const RATE: &str = "request_rate";
/// Requests a second that are none.
pub const MOST_RATE: f64 = 1e6;
/// More servers are taken for a slip.
pub const MOST_SERVERS: usize = 1024;

/// Reads `--set`, in its order.
///
/// # Errors
/// One is no `KEY=VALUE`, or a key stands twice.
pub fn sweeps(given: &[String]) -> Result<Vec<Sweep>, Error> {
    let mut all: Vec<Sweep> = Vec::new();
    for given in given {
        let (key, value) = given
            .split_once('=')
            .ok_or_else(|| wrong(given, "must be KEY=VALUE, such as max_running_requests=64"))?;
        let key = key.trim().replace('-', "_");
        let inner = value.trim().trim_start_matches('[').trim_end_matches(']');
        let values = match flag(&[inner], false, true) {
            Value::Array(values) => values,
            value => vec![value],
        };
        if all.iter().any(|known| known.key == key) {
            return Err(wrong(&key, "stands twice: several values are KEY=A,B"));
        }
        all.push(Sweep { key, values });
    }
    if [FACTOR, RATE]
        .iter()
        .all(|key| all.iter().any(|of| of.key == *key))
    {
        return Err(wrong(
            FACTOR,
            "stands beside request_rate, which says how many requests a second too: give one of them",
        ));
    }
    Ok(all)
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
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|n| n as f64));
    for (key, value) in settings {
        let positive = || {
            let number = number(value).filter(|number| *number > 0.0 && number.is_finite());
            number.ok_or_else(|| wrong(key, "must be a number above 0"))
        };
        match key.as_str() {
            FACTOR => made.pace = positive()?,
            RATE if load.rate() > MOST_RATE => {
                return Err(wrong(
                    key,
                    "the load's requests all come at once: there is no rate to change",
                ));
            }
            RATE => made.pace = positive()? / load.rate(),
            SERVERS => {
                let count = value.as_integer().and_then(|n| usize::try_from(n).ok());
                let count = count.filter(|n| (1..=MOST_SERVERS).contains(n));
                let count =
                    count.ok_or_else(|| wrong(key, "must be a whole number from 1 to 1024"))?;
                if count != made.servers.len() {
                    let server = made.servers.first().cloned().ok_or(Error::Empty)?;
                    made.servers = vec![server; count];
                    made.policy.get_or_insert(Policy::RoundRobin);
                }
                // Each has a GPU of its own.
                let servers = made.servers.iter_mut();
                servers.for_each(|server| server.profile.gpu_share = 1.0);
            }
            POLICY => made.policy = Some(policy(key, value)?),
            _ => {
                for server in &mut made.servers {
                    engine(&mut server.profile, key, value)?;
                }
            }
        }
    }
    Ok(made)
}

fn policy(key: &str, value: &Value) -> Result<Policy, Error> {
    let policy = value.clone().try_into().ok();
    let policy = policy.filter(|policy| *policy != Policy::CacheAware);
    policy.ok_or_else(|| {
        wrong(
            key,
            "must be round_robin, random, shortest_queue or power_of_two (rows do not tell which prompts share a beginning, \
             which cache_aware goes by)",
        )
    })
}

/// Sets a figure of an engine, by its flag of `queuescope sim`.
fn engine(profile: &mut Profile, key: &str, value: &Value) -> Result<(), Error> {
    let command = Profile::augment_args(Command::new("sim").no_binary_name(true));
    // What is not given stays as it is.
    let command = command.mut_args(|arg| arg.default_value(Resettable::Reset));
    let long = key.replace('_', "-");
    let flag = match value {
        Value::Boolean(_) => format!("--{long}"),
        value => format!("--{long}={}", text(value)),
    };
    let matches = command.try_get_matches_from([flag]).map_err(|error| {
        let near = match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(flag)) => {
                format!("; is {} meant?", flag.trim_start_matches('-').replace('-', "_"))
            }
            _ => ".".to_owned(),
        };
        let said = error.to_string();
        let said = said.lines().next().unwrap_or_default();
        wrong(key, &match error.kind() {
            ErrorKind::UnknownArgument => format!(
                "is no key that can be set{near} Keys are rate, request_rate, num_gpus, routing_policy, and those of \
                 an engine (queuescope sim --help)"
            ),
            _ => said.rsplit_once(": ").map_or(said, |(_, said)| said).to_owned(),
        })
    })?;
    if *value == Value::Boolean(false) {
        return Ok(());
    }
    let updated = profile.update_from_arg_matches(&matches);
    updated.map_err(|error| wrong(key, &error.to_string()))
}

fn wrong(key: &str, what: &str) -> Error {
    Error::Setting(format!("--set {key}: {what}"))
}
