//! Every combination of the values of varied keys, in a fixed order; labels and folders of runs.

use serde_json::{Map, json};
use toml::Value;

use super::read::Entry;
use crate::error::Error;
use crate::report::files::plain;

/// A varied key with its values, in order.
pub type Sweep = (String, Vec<Value>);

/// More runs are taken for a mistake.
const MAX_RUNS: usize = 2_000;
/// The longest label in a folder's name, in characters.
const MAX_LABEL_CHARS: usize = 100;

/// Returns every combination of the values; the last key changes fastest. Each is to be done `repeats` times.
///
/// # Errors
/// There would be too many runs.
pub fn combinations(sweeps: &[Sweep], repeats: u32) -> Result<Vec<Vec<Entry>>, Error> {
    let lengths = sweeps.iter().map(|(_, values)| values.len());
    let count = lengths.fold(repeats as usize, usize::saturating_mul);
    if count > MAX_RUNS {
        let keys: Vec<&str> = sweeps.iter().map(|(key, _)| key.as_str()).collect();
        let keys = keys.join(", ");
        return Err(Error::usage(format!(
            "{keys} and repeats: make {count} runs; {MAX_RUNS} are the most"
        )));
    }
    let mut all = vec![Vec::new()];
    for (key, values) in sweeps {
        let extended = |run: Vec<Entry>| {
            let with = move |value: &Value| [&run[..], &[(key.clone(), value.clone())]].concat();
            values.iter().map(with)
        };
        all = all.into_iter().flat_map(extended).collect();
    }
    Ok(all)
}

/// Returns the label of a combination: `routing_policy=random,request_rate=5`.
pub fn label(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "run".to_owned();
    }
    let pair = |(key, value): &Entry| format!("{key}={}", plain(&json_of(value)));
    entries.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Returns the name of the folder of the `number`th run, counted from 1.
pub fn folder(number: usize, label: &str, repeat: u32) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() || "=,._+-".contains(c) {
        true => c,
        false => '_',
    };
    let label: String = label.chars().map(plain).take(MAX_LABEL_CHARS).collect();
    let repeat = match repeat {
        0 => String::new(),
        repeat => format!("-r{}", repeat + 1),
    };
    format!("{number:02}-{label}{repeat}")
}

/// Returns a combination as it stands in `run.json`.
pub fn json(entries: &[Entry]) -> Map<String, serde_json::Value> {
    let entry = |(key, value): &Entry| (key.clone(), json_of(value));
    entries.iter().map(entry).collect()
}

fn json_of(value: &Value) -> serde_json::Value {
    match value {
        // JSON has no infinity.
        Value::Float(number) if !number.is_finite() => json!(value.to_string()),
        value => json!(value),
    }
}
