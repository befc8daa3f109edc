//! The built-in example where flags ask for what its own values do not go with. Pure.

use toml::Value;

use super::generator::text;
use super::keys::Kind;
use super::read::Entry;

/// An example that goes with what was given.
#[derive(Debug, Default)]
pub struct Fitted {
    /// Its keys.
    pub entries: Vec<Entry>,
    /// What was changed, to be said.
    pub notes: Vec<String>,
}

/// What sglang-router 0.3.2 has in place of the example's policies; our balancer has them as well.
const ROUTER_POLICIES: [&str; 4] = ["cache_aware", "round_robin", "random", "power_of_two"];

/// The example, changed where `given` asks for sglang-router, for a router whose policy is not ours to set, or for a search.
pub fn fitted(kind: Kind, example: Vec<Entry>, given: &[Entry]) -> Fitted {
    let find = |key: &str| given.iter().find(|(known, _)| known == key);
    let routers = match find("router") {
        Some((_, Value::Array(all))) => all.iter().map(text).collect(),
        Some((_, one)) => vec![text(one)],
        None => Vec::new(),
    };
    let has_own = |router: &String| ["none", "external"].contains(&router.as_str());
    let is_own = !routers.is_empty() && routers.iter().all(has_own);
    let is_real = routers.iter().any(|router| router == "sglang-router");
    let is_search = find("find_max_rate").is_some_and(|(_, value)| value.as_bool() == Some(true));
    let mut fitted = Fitted::default();
    for (key, value) in example {
        let is_policy = key == "routing_policy";
        let why = match value.as_array().and_then(|all| all.first()) {
            Some(first) if find(&key).is_none() => {
                let default = kind.key(&key).and_then(|key| key.default());
                let one = default.unwrap_or_else(|| first.clone());
                let why = match (is_search, is_policy && is_own, is_policy && is_real) {
                    (true, ..) => Some((one, "a search has one setting")),
                    (_, true, _) => Some((one, "no router is started here that takes a policy")),
                    (_, _, true) => Some((
                        ROUTER_POLICIES.to_vec().into(),
                        "sglang-router has these, not those of the example",
                    )),
                    _ => None,
                };
                why
            }
            _ => None,
        };
        match why {
            Some((instead, why)) => {
                let note = format!("{key} = {instead}: {why} ({value})");
                fitted.notes.push(note);
                fitted.entries.push((key, instead));
            }
            None => fitted.entries.push((key, value)),
        }
    }
    fitted
}
