//! The grid of a plan: keys with their values, read from a file or flags, and every combination of those that are varied, in a fixed order;
//! labels and folders of runs.

use serde_json::{Map, json};
use toml::map::Map as TomlMap;
use toml::{Table, Value};

use super::{is_key, is_table};
use crate::config::sections::syntax_error;
use crate::error::Error;
use crate::report::files::plain;

/// A key with its value. The key of a table begins with the table's name: `sim.decode_step_ms`.
pub type Entry = (String, Value);

/// A key with the values that it takes in turn.
pub type Sweep = (String, Vec<Value>);

/// Keys in order, each with at least one value.
pub type Sweeps = TomlMap<String, Vec<Value>>;

/// More runs are taken for a mistake.
const MAX_RUNS: usize = 2_000;
/// The longest label in a folder's name, in characters.
const MAX_LABEL_CHARS: usize = 100;

/// Reads a plan's file. Entries keep its order.
///
/// # Errors
/// It is not TOML: names the line, its key and the problem.
pub fn file(text: &str) -> Result<Vec<Entry>, Error> {
    let table: Table = text.parse().map_err(|error| {
        let is_mixed = |key: &str| {
            let has = |is_such: fn(&u8) -> bool| key.bytes().any(|b| is_such(&b));
            has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase)
        };
        let is_known = |table: &str, key: &str| match table {
            "" => is_key(key),
            // A program's table takes any key: what mixes cases may be a secret on a line of its own.
            _ => !is_mixed(key) && is_key(&format!("{table}.{key}")),
        };
        let (line, key, why) = syntax_error(text, &error, is_known);
        Error::usage(format!("line {line}: {key}{why}"))
    })?;
    let mut entries = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if is_table(&key) => {
                let of_table = |(name, value)| (format!("{key}.{name}"), value);
                entries.extend(inner.into_iter().map(of_table));
            }
            value => entries.push((key, value)),
        }
    }
    Ok(entries)
}

/// Returns the value of a flag that was given with these texts. Several make a list, which is varied unless the key itself takes
/// a list. Commas between plain words or numbers separate values, too.
pub fn flag_value(texts: &[&str], is_list: bool) -> Value {
    if is_list {
        return texts.to_vec().into();
    }
    let is_plain = |piece: &str| {
        let is_plain = |c: char| c.is_alphanumeric() || "_-./%".contains(c);
        !piece.trim().is_empty() && piece.trim().chars().all(is_plain)
    };
    let pieces = texts
        .iter()
        .flat_map(|text| match text.split(',').all(is_plain) {
            true => text.split(',').map(str::trim).collect(),
            false => vec![*text],
        });
    let mut values: Vec<Value> = pieces.map(scalar).collect();
    match values.len() {
        1 => values.remove(0),
        _ => Value::Array(values),
    }
}

/// Reads `KEY=VALUE`. A value that is not TOML is taken as text.
///
/// # Errors
/// There is no `=`.
pub fn assignment(text: &str) -> Result<Entry, String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("must be KEY=VALUE, such as num_gpus=2")?;
    let value = value.trim();
    let read = value.parse().unwrap_or_else(|_| value.into());
    Ok((key.trim().to_owned(), read))
}

/// Reads a number, a boolean or a table. Anything else is text, also a number that would be written differently, such as `007`.
pub(super) fn scalar(text: &str) -> Value {
    match text.parse() {
        Ok(value @ (Value::Integer(_) | Value::Boolean(_))) if value.to_string() == text => value,
        Ok(value @ (Value::Float(_) | Value::Table(_))) => value,
        _ => text.into(),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_flags_are_values_or_lists_of_them() {
        for (texts, read) in [
            (&["32"][..], "32"),
            (&["32,64"], "[32, 64]"),
            (&["32", "64"], "[32, 64]"),
            (&["random,round_robin"], "[\"random\", \"round_robin\"]"),
            (&["/a b,c"], "\"/a b,c\""),
            (&["{ 3 = [1], 5 = [] }"], "{ 3 = [1], 5 = [] }"),
            (&["inf"], "inf"),
            (&["5,10.5"], "[5, 10.5]"),
            (&["300/min,6"], "[\"300/min\", 6]"),
            (&["1min,90"], "[\"1min\", 90]"),
            (&["true"], "true"),
            // A rate curve is one value.
            (&["0:5,60:50"], "\"0:5,60:50\""),
        ] {
            let value = flag_value(texts, false);
            assert_eq!(value.to_string(), read, "{texts:?}");
        }
        let several = flag_value(&["a", "b"], true);
        assert_eq!(several.to_string(), "[\"a\", \"b\"]");
        let assigned = |text| assignment(text).unwrap().1;
        assert_eq!(assigned("sim.x = 8"), Value::Integer(8));
        assert_eq!(assigned("a=b c"), Value::String("b c".to_owned()));
    }
}
