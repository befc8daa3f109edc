//! The built-in example where flags ask for what its own values do not go with. Pure.

use toml::Table;

use super::keys::STARTED;
use super::line;
use super::texts;

/// What goes with our own balancer alone. Before another router the front's queue would pass for that one's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

/// The example without what does not go with `given`: with a search or another router, what it varies; with the latter, what is of
/// our balancer; with servers that run already, what it varies of those that are started. And what was left out, to be said.
pub(super) fn fitted(example: Table, given: &Table) -> (Table, Vec<String>) {
    let is_search = texts(given, "find_max_rate") == ["true"];
    let is_other = given.contains_key("num_prefill")
        || texts(given, "router").iter().any(|name| name != "builtin");
    let is_external = texts(given, "engine") == ["external"];
    let is_started =
        |key: &str| line::key(key).and_then(|key| key.get_help_heading()) == Some(STARTED);
    let (left_out, fitted): (Table, Table) = example.into_iter().partition(|(key, value)| {
        let is_alone = is_search || is_other || (is_external && is_started(key));
        (is_alone && value.is_array()) || (is_other && OF_BUILTIN.contains(&key.as_str()))
    });
    let told = left_out.iter().filter(|(key, _)| !given.contains_key(*key));
    let told = told.map(|(key, value)| {
        format!("{key} = {value} of the example is left out: it does not go with what you gave")
    });
    let notes = told.collect();
    (fitted, notes)
}
