//! The queries of dashboards and rules, as they are sent.

use std::collections::BTreeSet;

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

/// The expressions of a file of rules, each in one line.
pub fn of_rules(yaml: &str) -> impl Iterator<Item = String> {
    let parts = yaml.split("expr: ").skip(1);
    parts.map(|part| {
        // A folded one goes on while lines are deeper than their key.
        let mut lines = part.lines();
        let first = lines.next().unwrap().trim();
        let folded = lines.take_while(|line| line.starts_with("          "));
        match first {
            ">-" => folded.map(str::trim).collect::<Vec<_>>().join(" "),
            one => one.to_owned(),
        }
    })
}

/// The metrics that a query names: words that are no function, label, keyword nor text.
pub fn metrics_in(query: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_:$".contains(c);
    let mut rest = without_labels(query);
    while let Some(start) = rest.find(is_word) {
        let tail = rest[start..].to_owned();
        let end = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
        let (word, after) = tail.split_at(end);
        let is_keyword = word == "group_left";
        let is_name = !is_keyword && (word.contains(['_', ':']) || word == "up");
        if is_name && !after.trim_start().starts_with('(') && !word.starts_with('$') {
            names.insert(word.to_owned());
        }
        rest = after.to_owned();
    }
    names
}

/// The query without texts, `{…}`, `[…]` and the lists behind `by`.
fn without_labels(query: &str) -> String {
    let plain: Vec<&str> = query.split('"').step_by(2).collect();
    let query = plain.concat();
    let mut text = String::new();
    let mut rest = query.as_str();
    while let Some(at) = rest.find(['{', '[']) {
        let close = if rest[at..].starts_with('{') {
            '}'
        } else {
            ']'
        };
        text.push_str(&rest[..at]);
        rest = rest[at..].split_once(close).unwrap().1;
    }
    text.push_str(rest);
    while let Some(at) = text.find(" by (") {
        let end = at + text[at..].find(')').unwrap();
        text.replace_range(at..=end, " ");
    }
    text
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
