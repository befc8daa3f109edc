//! The built-in example where flags ask for what its own values do not go with. Pure.

use super::keys::STARTED;
use super::line;
use super::read::Entry;
use super::texts;

/// What goes with our own balancer alone. Before another router the front's queue would pass for that one's.
const OF_BUILTIN: [&str; 2] = ["hops", "proxy.max_concurrent_requests"];

/// The example without what does not go with `given`: with a search or another router, what it varies; with the latter, what is of
/// our balancer; with servers that run already, what it varies of those that are started. And what was left out, to be said.
pub(super) fn fitted(example: Vec<Entry>, given: &[Entry]) -> (Vec<Entry>, Vec<String>) {
    let is_search = texts(given, "find_max_rate") == ["true"];
    let is_other = !texts(given, "num_prefill").is_empty()
        || texts(given, "router").iter().any(|name| name != "builtin");
    let is_external = texts(given, "engine") == ["external"];
    let is_started =
        |key: &str| line::key(key).and_then(|key| key.get_help_heading()) == Some(STARTED);
    let why_not = |(key, value): &Entry| {
        let is_varied = value.is_array();
        if is_external && is_varied && is_started(key) {
            Some("it means nothing to servers that run already")
        } else if is_search && is_varied {
            Some("a search has one setting")
        } else if is_other && (is_varied || OF_BUILTIN.contains(&key.as_str())) {
            Some("it goes with router = \"builtin\"")
        } else {
            None
        }
    };
    let (mut fitted, mut notes) = (Vec::new(), Vec::new());
    for entry in example {
        let (key, value) = &entry;
        match why_not(&entry) {
            None => fitted.push(entry),
            Some(_) if !texts(given, key).is_empty() => {}
            Some(why) => notes.push(format!("{key} = {value} of the example is left out: {why}")),
        }
    }
    (fitted, notes)
}
