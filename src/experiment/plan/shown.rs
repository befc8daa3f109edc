//! Keys and values of a plan as they are written, and as they are shown: without secrets.

use toml::{Table, Value};

use super::grid::Sweep;
use super::line::text;
use super::read::Entry;
use crate::secret;

/// A key as TOML has it; of a table's what comes behind its name is one word.
pub(super) fn quoted(key: &str) -> String {
    let word = |word: &str| {
        let line = Table::from_iter([(word.to_owned(), Value::from(true))]).to_string();
        line.trim_end().trim_end_matches(" = true").to_owned()
    };
    match key.split_once('.') {
        Some((table, rest)) => format!("{}.{}", word(table), word(rest)),
        None => word(key),
    }
}

/// A value without what may be secret.
pub(super) fn shown(key: &str, value: &Value) -> Value {
    match value {
        Value::Array(all) => all
            .iter()
            .map(|value| shown(key, value))
            .collect::<Vec<_>>()
            .into(),
        value => {
            let written = text(value);
            let shown = secret::shown(key, &written);
            if shown == written {
                value.clone()
            } else {
                shown.into()
            }
        }
    }
}

/// What varies as it is shown: of a secret, which of the values it is.
pub(super) fn told(sweeps: &[Sweep], varied: &[Entry]) -> Vec<Entry> {
    let told = |(key, value): &Entry| {
        let sweep = sweeps.iter().find(|sweep| sweep.key == *key);
        let number = sweep.and_then(|sweep| sweep.values.iter().position(|one| one == value));
        let told = match number {
            Some(number) if shown(key, value) != *value => format!("#{}", number + 1).into(),
            _ => value.clone(),
        };
        (key.clone(), told)
    };
    varied.iter().map(told).collect()
}
