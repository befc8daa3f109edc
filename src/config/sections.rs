//! The sections of a config file, and what is said of their keys: what one takes, and which was probably meant.

use toml::Value;

use super::engine::{Engine, Logs, Traces};
use super::keys::{Key, Section};
use super::otlp::Otlp;
use super::proxy::{Config, Worker};

/// A section's place in the file and in the config.
#[derive(Debug)]
pub struct Place {
    /// Its name, without brackets.
    pub name: &'static str,
    /// What it is, in lines.
    pub about: Lines,
    /// Its keys, in the order of the file.
    pub keys: &'static [Key],
    part: Part,
}

type Part = fn(&mut Config) -> Option<&mut dyn Section>;
type Lines = &'static [&'static str];

const fn place(name: &'static str, about: Lines, keys: &'static [Key], part: Part) -> Place {
    Place {
        name,
        about,
        keys,
        part,
    }
}

/// All of them, in the order of the file.
pub static SECTIONS: [Place; 6] = [
    place("proxy", &[], Config::KEYS, |config| Some(config)),
    place("worker", Worker::ABOUT, Worker::KEYS, |config| {
        Some(config.workers.last_mut()?)
    }),
    place("telemetry.otlp", Otlp::ABOUT, Otlp::KEYS, |config| {
        Some(&mut config.otlp)
    }),
    place("engine", Engine::ABOUT, Engine::KEYS, |config| {
        Some(&mut config.engine)
    }),
    place("engine.traces", Traces::ABOUT, Traces::KEYS, |config| {
        Some(&mut config.engine.traces)
    }),
    place("engine.logs", Logs::ABOUT, Logs::KEYS, |config| {
        Some(&mut config.engine.logs)
    }),
];

/// Characters of a value that are shown.
const SHOWN: usize = 60;

impl Place {
    /// How its header is written.
    pub fn header(&self) -> String {
        match self.is_list() {
            true => format!("[[{}]]", self.name),
            false => format!("[{}]", self.name),
        }
    }

    /// Whether it may stand in a file again and again.
    pub(super) fn is_list(&self) -> bool {
        self.name == "worker"
    }

    /// The one that was probably meant by this name.
    pub(super) fn near(name: &str) -> Option<&'static Place> {
        let near = nearest(name, SECTIONS.iter().map(|place| place.name))?;
        SECTIONS.iter().find(|place| place.name == near)
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// A key's value in a config; `None` where it is not set.
    pub fn get(&self, config: &mut Config, key: &str) -> Option<Value> {
        (self.part)(config)?.get(key)
    }

    /// A value that a key takes: its default, or an example where there is none.
    pub fn example(&self, key: &str) -> Option<Value> {
        let mut config = fresh();
        let part = (self.part)(&mut config)?;
        part.example(key).or_else(|| part.get(key))
    }

    /// A key's default; `None` where it has none.
    pub fn default(&self, key: &str) -> Option<Value> {
        self.get(&mut fresh(), key)
    }

    /// Whether a key takes a list.
    pub(super) fn takes_list(&self, key: &str) -> bool {
        self.example(key).is_some_and(|example| example.is_array())
    }

    /// Sets a key, or says what is wrong with the value, which was written so.
    pub(super) fn set(
        &self,
        config: &mut Config,
        key: &str,
        value: Value,
        written: &str,
    ) -> Result<(), String> {
        let Some(part) = (self.part)(config) else {
            return Ok(());
        };
        let example = self.example(key);
        let is_right_kind = match (&example, &value) {
            (Some(Value::Integer(_)), Value::Integer(number)) => *number >= 0,
            (Some(Value::Float(_)), Value::Integer(_)) => true,
            (Some(Value::Array(_)), Value::Array(all)) => all.iter().all(Value::is_str),
            (Some(example), value) => example.same_type(value),
            (None, _) => true,
        };
        match part.set(key, value) {
            Ok(()) => Ok(()),
            // What the types of values say is for users; serde's own words are not.
            Err(error) if is_right_kind && !error.message().starts_with(UNKNOWN) => {
                Err(error.message().to_owned())
            }
            Err(_) => Err(self.wanted(key, written)),
        }
    }

    /// The same of a config that nobody has.
    pub(super) fn problem(&self, key: &str, value: Value, written: &str) -> Option<String> {
        self.set(&mut fresh(), key, value, written).err()
    }

    /// What a key takes, with an example, for whoever gave it `value`.
    pub(super) fn wanted(&self, key: &str, value: &str) -> String {
        let mut config = fresh();
        let choices = (self.part)(&mut config).and_then(|part| part.set(key, "".into()).err());
        if let Some(choices) = choices.filter(|error| error.message().starts_with(UNKNOWN)) {
            let choices = choices.message().split('`').skip(3).step_by(2);
            let choices: Vec<String> = choices.map(|choice| format!("\"{choice}\"")).collect();
            return format!("must be one of {}", choices.join(", "));
        }
        let Some(example) = self.example(key) else {
            return "has a value that cannot be used".to_owned();
        };
        let kind = match &example {
            Value::Array(_) if value.starts_with('[') => {
                "a list of values in quotes with commas between them"
            }
            Value::Array(_) => "a list in brackets",
            Value::String(_) => "text in quotes",
            Value::Boolean(_) => "true or false",
            Value::Float(_) if key.ends_with("_s") => {
                "a number of seconds, or a text such as \"250ms\""
            }
            Value::Float(_) => "a number",
            _ if key.ends_with("_bytes") => "a whole number, or a text such as \"64KiB\"",
            _ => "a whole number, 0 or more",
        };
        let may_be_text = example.is_array() || kind.contains("text");
        let without = if value.starts_with(['"', '\'']) && !may_be_text {
            ", without quotes"
        } else {
            ""
        };
        format!("must be {kind}{without}, as in {key} = {example}")
    }

    /// What is wrong with a key that this section does not have, and the key that was probably meant.
    pub(super) fn unknown(&self, key: &str) -> (String, Option<&'static str>) {
        let plain = key.replace('-', "_");
        let others = || SECTIONS.iter().filter(|other| other.name != self.name);
        if let Some(other) = others().find(|other| other.name == plain) {
            let header = other.header();
            return (
                format!(
                    "{key}: is a section of its own; write `{header}` on a line, and its keys below it"
                ),
                None,
            );
        }
        let near = nearest(&plain, self.keys.iter().map(|key| key.name));
        if near != Some(plain.as_str())
            && let Some(other) = others().find(|other| other.key(&plain).is_some())
        {
            return (format!("{key}: belongs under `{}`", other.header()), None);
        }
        let mut like = self.keys.iter().map(|key| key.name);
        let near = near.or_else(|| like.find(|known| known.contains(&plain)));
        let wrong = match near {
            Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
            None => format!("unknown key `{key}`; config.toml in the repository shows every key"),
        };
        (wrong, near)
    }
}

/// How serde begins to tell of a word that is none of an enum's.
const UNKNOWN: &str = "unknown variant";

/// The defaults, with a worker.
fn fresh() -> Config {
    Config {
        workers: vec![Worker::default()],
        ..Config::default()
    }
}

/// `key = value` as it was written, on one line; a secret is not shown.
pub(super) fn shown(key: &str, value: &str) -> String {
    let line = value.lines().next().unwrap_or_default().trim();
    let key: String = key.chars().take(SHOWN).collect();
    let may_be_secret = |text: &str| {
        ["token", "secret", "header"]
            .iter()
            .any(|word| text.contains(word))
    };
    if may_be_secret(&key) || line.is_empty() {
        return key;
    }
    // What stands before an `@` or behind a `?` may be a password or token; another key may stand on the same line.
    if line.contains(['@', '?']) || may_be_secret(line) {
        return format!("{key} = …");
    }
    let is_long = line.len() < value.trim().len() || line.chars().count() > SHOWN;
    let line: String = line.chars().take(SHOWN).collect();
    format!("{key} = {line}{}", if is_long { "…" } else { "" })
}

/// The one of these that was probably meant.
fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, known) = all
        .map(|known| (strsim::levenshtein(word, known), known))
        .min()?;
    (distance <= 1 + word.len() / 4).then_some(known)
}
