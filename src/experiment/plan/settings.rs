//! The keys of one run, each with one value.

use std::collections::BTreeMap;

use toml::Value;

use super::error::PlanError;
use super::line::{Line, text};

/// The keys of a run: as they stand in a plan, and read.
#[derive(Clone, Debug)]
pub struct Settings {
    written: BTreeMap<String, Value>,
    /// What they mean: the experiment's own and the generator's.
    pub line: Line,
}

impl Settings {
    /// Reads the keys that have a value.
    ///
    /// # Errors
    /// The key and what would be right.
    pub fn read(written: BTreeMap<String, Value>) -> Result<Settings, PlanError> {
        let is_stored = written.contains_key("workload");
        let is_said = |(key, value): &(&String, &Value)| match key.as_str() {
            // All at once is the generator's own default, which a trace or a curve takes the place of.
            "request_rate" => value.as_float() != Some(f64::INFINITY),
            // What is stored says itself what it is of.
            "dataset_name" => !is_stored,
            _ => true,
        };
        let line = Line::parse(written.iter().filter(is_said))?;
        Ok(Settings { written, line })
    }

    /// The value of a key as it is written.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.written.get(key)
    }

    /// The same as a text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(text)
    }

    /// The keys of a table, without its name.
    pub fn table<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.written.iter().filter_map(move |(key, value)| {
            let key = key.strip_prefix(name)?.strip_prefix('.')?;
            Some((key, value))
        })
    }

    /// The objective's limits: `ttft:500`.
    pub fn goodput(&self) -> Vec<String> {
        let all = self.get("goodput").and_then(Value::as_array);
        all.into_iter().flatten().map(text).collect()
    }

    /// The names of all of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.written.keys().map(String::as_str)
    }
}
