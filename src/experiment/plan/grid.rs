//! The runs of keys that have several values: every combination, in a stated order.

use serde_json::{Map, json};
use toml::Value;

use super::error::PlanError;
use super::read::Entry;
use crate::report::files::plain;

/// A key with its several values, in order.
pub type Sweep = (String, Vec<Value>);

/// More runs than this are taken for a slip.
const MOST_RUNS: usize = 2_000;
/// Characters of a folder's name.
const LONGEST: usize = 100;

/// Every combination of the values, each of which is to be done so often: the last key changes fastest.
///
/// # Errors
/// There are too many.
pub fn combinations(sweeps: &[Sweep], repeats: u32) -> Result<Vec<Vec<Entry>>, PlanError> {
    let lengths = sweeps.iter().map(|(_, values)| values.len());
    let count = lengths.fold(repeats as usize, usize::saturating_mul);
    if count > MOST_RUNS {
        let keys: Vec<&str> = sweeps.iter().map(|(key, _)| key.as_str()).collect();
        return Err(PlanError(format!(
            "{} and repeats: make {count} runs; {MOST_RUNS} are the most",
            keys.join(", ")
        )));
    }
    let mut all = vec![Vec::new()];
    for (key, values) in sweeps {
        let entries = values.iter().map(|value| (key.clone(), value.clone()));
        let with = |before: &Vec<Entry>| {
            let before = before.clone();
            entries
                .clone()
                .map(move |entry| [&before[..], &[entry]].concat())
        };
        all = all.iter().flat_map(with).collect();
    }
    Ok(all)
}

/// What tells a combination from the others: `routing_policy=random,request_rate=5`.
pub fn label(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "run".to_owned();
    }
    let pair = |(key, value): &Entry| format!("{key}={}", plain(&json_of(value)));
    entries.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// The folder of the `number`th run, from 1.
pub fn folder(number: usize, label: &str, repeat: u32) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() || "=,._+-".contains(c) {
        true => c,
        false => '_',
    };
    let label: String = label.chars().map(plain).take(LONGEST).collect();
    let repeat = match repeat {
        0 => String::new(),
        repeat => format!("-r{}", repeat + 1),
    };
    format!("{number:02}-{label}{repeat}")
}

/// A combination as `run.json` has it.
pub fn json(entries: &[Entry]) -> Map<String, serde_json::Value> {
    let entry = |(key, value): &Entry| (key.clone(), json_of(value));
    entries.iter().map(entry).collect()
}

fn json_of(value: &Value) -> serde_json::Value {
    match value {
        // JSON has no number for it.
        Value::Float(number) if !number.is_finite() => json!(value.to_string()),
        value => json!(value),
    }
}
