//! The keys of one run, each with one value.

use std::collections::BTreeMap;

use toml::Value;

use super::keys::number;

/// The keys of a run that have a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// Sets a key.
    pub fn set(&mut self, key: &str, value: Value) {
        self.0.insert(key.to_owned(), value);
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A text; a number is one too.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(super::generator::text)
    }

    /// A whole number.
    pub fn whole(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_integer()
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        number(self.get(key)?)
    }

    /// Whether a key says `true`.
    pub fn is(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Vec<String> {
        let all = self.get(key).and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .map(super::generator::text)
            .collect()
    }

    /// The keys of a table, without its name.
    pub fn table<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.0.iter().filter_map(move |(key, value)| {
            let key = key.strip_prefix(name)?.strip_prefix('.')?;
            Some((key, value))
        })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}
