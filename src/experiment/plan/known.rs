//! Which keys a plan may have.

use toml::Value;

use super::keys::Kind;
use super::line::{self, KEYS, SIM, text};
use super::read::Entry;
use super::usage::Usage;
use super::{EXPERIMENT, TABLES, values};
use crate::secret;

/// The entries by their keys' own names, if all are known. What values mean is known with all of a run's.
pub(super) fn known(kind: Kind, entries: Vec<Entry>) -> Result<Vec<Entry>, Usage> {
    let mut all: Vec<Entry> = Vec::new();
    for (name, value) in entries {
        if name == EXPERIMENT {
            is_meant(kind, &value)?;
            continue;
        }
        let of_load = name.strip_prefix("traffic.");
        let key = of_load.filter(|key| line::key(key).is_none_or(line::Key::is_of_load));
        let key = key.unwrap_or(&name).to_owned();
        check(kind, &key, &value)?;
        if is_masked(&key, &value) {
            let wrong = format!(
                "{} stands for what was not shown; give it again",
                secret::MASK
            );
            return Err(Usage::of(&name, wrong));
        }
        if all.iter().any(|(known, _)| *known == key) {
            return Err(Usage::of(&name, "is given twice"));
        }
        all.push((key, value));
    }
    Ok(all)
}

fn is_meant(kind: Kind, value: &Value) -> Result<(), Usage> {
    let name = kind.name();
    match value.as_str() == Some(name) {
        true => Ok(()),
        false => Err(Usage(format!(
            "{EXPERIMENT} = {value}: this is queuescope {name}; queuescope node and queuescope routing are two commands"
        ))),
    }
}

fn check(kind: Kind, name: &str, value: &Value) -> Result<(), Usage> {
    let is_known = match name.split_once('.') {
        Some(("sim", _)) => SIM.iter().any(|known| known == name),
        Some(("env", variable)) => return check_variable(variable, name, value),
        Some((table, _)) => ["sglang", "sglang_router", "proxy"].contains(&table),
        None => line::key(name).is_some(),
    };
    if !is_known {
        return Err(unknown(kind, name, value));
    }
    match values(name, value).len() {
        0 => Err(Usage::of(name, "must not be an empty list")),
        2.. if name == "repeats" => Err(Usage::of(name, "must be one number: it is not varied")),
        _ => Ok(()),
    }
}

fn unknown(kind: Kind, name: &str, value: &Value) -> Usage {
    if value.is_table() && !TABLES.contains(&name) {
        let right = format!("is no key and no table; tables are {}", TABLES.join(", "));
        return Usage::of(name, right);
    }
    let known: Vec<&String> = match name.contains('.') {
        true => SIM.iter().collect(),
        false => KEYS.iter().map(|key| &key.name).collect(),
    };
    let near = known
        .into_iter()
        .map(|known| (strsim::levenshtein(name, known), known));
    match near
        .min()
        .filter(|(distance, _)| *distance <= 1 + name.len() / 4)
    {
        Some((_, near)) => Usage::of(name, format!("no such key; {near} is one")),
        None => {
            let help = format!("no such key; `queuescope {} --help` names all", kind.name());
            Usage::of(name, help)
        }
    }
}

/// Whether a variable of the environment may stand in a plan: secrets may not, as its files are kept and shown.
fn check_variable(variable: &str, key: &str, value: &Value) -> Result<(), Usage> {
    const SECRET: &str = "TOKEN KEY APIKEY SECRET PASS PASSWORD PASSWD CREDENTIALS AUTH HEADERS";
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let upper = variable.to_ascii_uppercase();
    let mut words = upper.split('_');
    let all = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    let is_plain = |value: &Value| !(value.is_array() || value.is_table() || value.is_datetime());
    let wrong = if variable.is_empty() || !variable.chars().all(is_name) {
        "is no name of a variable, such as env.CUDA_VISIBLE_DEVICES"
    } else if words.any(|word| SECRET.split(' ').any(|secret| secret == word)) {
        "looks like a secret, which files of an experiment would show: leave it out and export it, servers inherit the \
         environment"
    } else if all.is_empty() || !all.iter().all(is_plain) {
        "must be a text, a number, true or false"
    } else {
        return Ok(());
    };
    Err(Usage::of(key, wrong))
}

/// Whether it was copied from where a secret was not shown.
fn is_masked(key: &str, value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(|value| is_masked(key, value)),
        value => secret::is_masked(key, &text(value)),
    }
}
