//! The built-in example where flags ask for what its own values do not go with. Pure.

use super::read::Entry;
use super::texts;

/// What goes with our own balancer alone. Before another router the front's queue would pass for that one's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

/// The example without what does not go with `given`: with a search or another router, what it varies; with the latter, what is of
/// our balancer. And what was left out, to be said.
pub(super) fn fitted(example: Vec<Entry>, given: &[Entry]) -> (Vec<Entry>, Vec<String>) {
    let is_search = texts(given, "find_max_rate") == ["true"];
    let is_other = !texts(given, "num_prefill").is_empty()
        || texts(given, "router").iter().any(|name| name != "builtin");
    let stays = |(key, value): &Entry| {
        !((is_search || is_other) && value.is_array()
            || is_other && OF_BUILTIN.contains(&key.as_str()))
    };
    let (example, left_out): (_, Vec<Entry>) = example.into_iter().partition(stays);
    let why = if is_search {
        "a search has one setting"
    } else {
        "it goes with router = \"builtin\""
    };
    let notes = left_out
        .iter()
        .filter(|(key, _)| texts(given, key).is_empty())
        .map(|(key, value)| format!("{key} = {value} of the example is left out: {why}"));
    (example, notes.collect())
}
