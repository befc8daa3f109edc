//! The queries of dashboards and rules, as they are sent.

use serde_json::Value;

use super::{read, root};

/// The dashboards of `grafana/dashboards`, by file name.
pub fn dashboards() -> Vec<(String, Value)> {
    let folder = std::fs::read_dir(root().join("grafana/dashboards")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let boards: Vec<(String, Value)> = names
        .map(|name| {
            let text = read(&format!("grafana/dashboards/{name}"));
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    assert_eq!(boards.len(), 3);
    boards
}

/// The panels that show something.
pub fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    let panels = board["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row")
}

/// Every query of a dashboard, with its variables in it; those of the variables themselves as the series they come from.
pub fn all(board: &Value) -> impl Iterator<Item = String> {
    let targets = panels(board).flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let variables = variables.filter_map(|variable| {
        let query = variable["query"]["query"].as_str()?;
        let (metric, label) = query
            .strip_prefix("label_values(")?
            .strip_suffix(')')?
            .split_once(", ")?;
        Some(format!("group by ({label}) ({metric}{{{label}!=\"\"}})"))
    });
    queries.chain(variables)
}

/// A query with everything chosen, and with one model, worker and endpoint chosen.
pub fn filled(query: &str) -> [String; 2] {
    let fill = |model, worker, endpoint| {
        query
            .replace("$__rate_interval", "1m")
            .replace("$model", model)
            .replace("$worker", worker)
            .replace("$endpoint", endpoint)
            .replace("$front", ".*")
    };
    let chosen = fill("demo-8b", "server-1", "/v1/chat/completions");
    assert!(
        !chosen.replace("$1", "").contains('$'),
        "a variable without a value: {chosen}"
    );
    [fill(".*", ".*", ".*"), chosen]
}

/// Picks what never happens in the demo: an alert that asks for it is asked for all.
const NEVER: &str = r#"{reason!="openai_stream"}"#;

/// What an alert compares, without the limits: each side must have a value for the alert to ever fire.
pub fn compared(alert: &str) -> Vec<String> {
    let alert = alert.replace(NEVER, "");
    let parts = alert.split(" and ");
    let sides = parts.flat_map(|part| {
        let limits = [" > ", " < ", " == "];
        let limit = limits.iter().find_map(|limit| part.split_once(limit));
        let (left, right) = limit.unwrap_or_else(|| panic!("no limit in {part}"));
        [left.to_owned(), right.to_owned()]
    });
    sides.filter(|side| side.parse::<f64>().is_err()).collect()
}
