//! Which keys a plan may have.

use toml::{Table, Value};

use super::error::PlanError;
use super::keys::Kind;
use super::line::{self, KEYS, SIM, text};
use super::read::Entry;
use super::{EXPERIMENT, TABLES, values};
use crate::config::sections::nearest;
use crate::secret;

/// The entries by their keys' own names, if all are known. What values mean is known with all of a run's.
pub(super) fn known(
    kind: Kind,
    entries: impl IntoIterator<Item = Entry>,
) -> Result<Table, PlanError> {
    let mut all = Table::new();
    for (name, value) in entries {
        if name == EXPERIMENT {
            let name = kind.name();
            if value.as_str() != Some(name) {
                return Err(PlanError(format!(
                    "{EXPERIMENT} = {value}: this is queuescope {name}; queuescope node and queuescope routing are two commands"
                )));
            }
            continue;
        }
        let of_load = name.strip_prefix("traffic.");
        let of_load = of_load.filter(|key| !line::key(key).is_some_and(line::is_own));
        let key = of_load.unwrap_or(&name).to_owned();
        check(kind, &key, &value)?;
        if is_masked(&key, &value) {
            let wrong = "is in place of a hidden value; give the value itself";
            return Err(PlanError::of(&name, format!("{} {wrong}", secret::MASK)));
        }
        if all.insert(key, value).is_some() {
            return Err(PlanError::of(&name, "is given twice"));
        }
    }
    Ok(all)
}

fn check(kind: Kind, name: &str, value: &Value) -> Result<(), PlanError> {
    let is_known = match name.split_once('.') {
        Some(("sim", _)) => SIM.iter().any(|known| known == name),
        Some((table, _)) => {
            ["prefill", "decode", "sglang", "sglang_router", "proxy"].contains(&table)
        }
        None => line::key(name).is_some(),
    };
    if !is_known {
        return Err(unknown(kind, name, value));
    }
    match values(name, value).len() {
        0 => Err(PlanError::of(name, "must not be an empty list")),
        2.. if name == "repeats" => {
            Err(PlanError::of(name, "must be one number: it is not varied"))
        }
        _ => Ok(()),
    }
}

fn unknown(kind: Kind, name: &str, value: &Value) -> PlanError {
    // It may have a line break in it.
    let shown = name.escape_debug().to_string();
    if TABLES.contains(&name) {
        let right = format!("is a table; write [{name}] above its keys, or {name}.KEY = VALUE");
        return PlanError::of(name, right);
    }
    if value.is_table() {
        let right = format!("is no key and no table; tables are {}", TABLES.join(", "));
        return PlanError::of(&shown, right);
    }
    let keys = KEYS.iter().map(|key| key.get_id().as_str());
    let all = keys.chain(SIM.iter().map(String::as_str));
    let right = match nearest(name, all) {
        Some(near) => format!("{near} is one"),
        None => format!("`queuescope {} --help-all` names all", kind.name()),
    };
    PlanError::of(&shown, format!("no such key; {right}"))
}

/// Whether it was copied from where a secret was not shown.
fn is_masked(key: &str, value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(|value| is_masked(key, value)),
        value => secret::is_masked(key, &text(value)),
    }
}
