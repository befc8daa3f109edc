//! The built-in example where flags ask for what its own values do not go with. Pure.

use super::read::Entry;
use super::{line, texts};
use crate::experiment::launch::ROUTER_POLICIES;

/// What goes with our own balancer alone. Before another router the front's queue would pass for that one's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

/// The example, changed where `given` asks for sglang-router, for a router whose policy is not ours to set, or for a search;
/// and what was changed, to be said.
pub(super) fn fitted(mut example: Vec<Entry>, given: &[Entry]) -> (Vec<Entry>, Vec<String>) {
    let routers = texts(given, "router");
    let is_real = routers.iter().any(|router| router == "sglang-router");
    let is_ours = |router: &String| ["builtin", "sglang-router"].contains(&router.as_str());
    let is_others = !routers.is_empty() && !routers.iter().any(is_ours);
    let is_search = texts(given, "find_max_rate") == ["true"];
    let mut notes = Vec::new();
    let all = example.len();
    example.retain(|(key, _)| !(is_real || is_others) || !OF_BUILTIN.contains(&key.as_str()));
    if example.len() < all {
        let limit = OF_BUILTIN[1];
        notes.push(format!("{limit} is left out: a router has its own limit"));
    }
    for (key, value) in &mut example {
        let Some(first) = value.as_array().and_then(|all| all.first()) else {
            continue;
        };
        let one = line::key(key).and_then(line::default);
        let one = one.unwrap_or_else(|| first.clone());
        let is_policy = key == "routing_policy";
        let (instead, why) = match () {
            () if !texts(given, key).is_empty() => continue,
            () if is_search => (one, "a search has one setting"),
            () if is_policy && is_others => (one, "no router is started here that takes a policy"),
            () if is_policy && is_real => (
                ROUTER_POLICIES.to_vec().into(),
                "sglang-router has these, not those of the example",
            ),
            () => continue,
        };
        notes.push(format!("{key} = {instead}: {why} ({value})"));
        *value = instead;
    }
    (example, notes)
}
