//! The built-in example where flags ask for what its own values do not go with. Pure.

use toml::Value;

use super::line::{self, text};
use super::read::Entry;
use super::values;
use crate::experiment::launch::ROUTER_POLICIES;

/// The example, changed where `given` asks for sglang-router, for a router whose policy is not ours to set, or for a search;
/// and what was changed, to be said.
pub(super) fn fitted(mut example: Vec<Entry>, given: &[Entry]) -> (Vec<Entry>, Vec<String>) {
    let find = |key: &str| {
        given
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value)
    };
    let routers = find("router").map_or(Vec::new(), |value| values("router", value));
    let routers: Vec<String> = routers.iter().map(text).collect();
    let is_own = !routers.is_empty()
        && routers
            .iter()
            .all(|name| ["none", "external"].contains(&name.as_str()));
    let is_real = routers.iter().any(|router| router == "sglang-router");
    let is_search = find("find_max_rate").and_then(Value::as_bool) == Some(true);
    let mut notes = Vec::new();
    for (key, value) in &mut example {
        let Some(first) = value.as_array().and_then(|all| all.first()) else {
            continue;
        };
        let one = line::key(key).and_then(line::default);
        let one = one.unwrap_or_else(|| first.clone());
        let (instead, why) = match key == "routing_policy" {
            _ if find(key).is_some() => continue,
            _ if is_search => (one, "a search has one setting"),
            true if is_own => (one, "no router is started here that takes a policy"),
            true if is_real => (
                ROUTER_POLICIES.to_vec().into(),
                "sglang-router has these, not those of the example",
            ),
            _ => continue,
        };
        notes.push(format!("{key} = {instead}: {why} ({value})"));
        *value = instead;
    }
    (example, notes)
}
