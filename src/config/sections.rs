//! The sections of a config file, and what is said of their keys: what one takes, and which was probably meant.

use toml::Value;

use crate::keys::{Key, Lines, Section};
use crate::units;

use super::proxy::{Config, Worker};

/// A section's place in the file and in the config.
#[derive(Debug)]
pub struct Place {
    /// Its name, without brackets.
    pub name: &'static str,
    part: Part,
}

type Part = fn(&mut Config) -> Option<&mut dyn Section>;

const fn place(name: &'static str, part: Part) -> Place {
    Place { name, part }
}

/// All of them, in the order of the file.
pub static SECTIONS: [Place; 6] = [
    place("proxy", |config| Some(config)),
    place("worker", |config| Some(config.workers.last_mut()?)),
    place("telemetry.otlp", |config| Some(&mut config.otlp)),
    place("engine", |config| Some(&mut config.engine)),
    place("engine.traces", |config| Some(&mut config.engine.traces)),
    place("engine.logs", |config| Some(&mut config.engine.logs)),
];

/// Characters of a value that are shown.
const SHOWN: usize = 60;

impl Place {
    /// How its header is written.
    pub fn header(&self) -> String {
        header(self.name, self.is_list())
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

    /// What it is. `[proxy]` is what it is named for.
    pub fn about(&self) -> Lines {
        let of = |part: &mut dyn Section| part.about();
        match self.name {
            "proxy" => &[],
            _ => (self.part)(&mut fresh()).map_or(&[], of),
        }
    }

    /// Its keys, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        let all = (self.part)(&mut fresh()).map_or(&[][..], |part| part.keys());
        all.iter().copied().flatten()
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// A key's value in a config; `None` where it is not set.
    pub fn get(&self, config: &mut Config, key: &str) -> Option<Value> {
        (self.part)(config)?.get(key)
    }

    /// A value that a key takes: its default, or an example where there is none.
    pub fn example(&self, key: &str) -> Option<Value> {
        (self.key(key)?.example)().or_else(|| self.default(key))
    }

    /// A key's default; `None` where it has none.
    pub fn default(&self, key: &str) -> Option<Value> {
        self.get(&mut fresh(), key)
    }

    /// Whether a key takes a list.
    pub(super) fn takes_list(&self, key: &str) -> bool {
        self.example(key).is_some_and(|example| example.is_array())
    }

    /// Sets a key, or says what is wrong with the value.
    pub(super) fn set(&self, config: &mut Config, key: &str, value: Value) -> Result<(), String> {
        let Some(part) = (self.part)(config) else {
            return Ok(());
        };
        let set = part.set(key, self.in_its_unit(key, value));
        set.map_err(|error| match error.message().split_once(", expected ") {
            // What the types of values say is for users; serde's own words are not, but for its list of names.
            Some((_, one)) if error.message().starts_with("unknown variant") => {
                format!("must be {one}")
            }
            Some(_) => self.wanted(key),
            None => error.message().to_owned(),
        })
    }

    /// The same of a config that nobody has.
    pub(super) fn problem(&self, key: &str, value: Value) -> Option<String> {
        self.set(&mut fresh(), key, value).err()
    }

    /// A value of the kind that a key takes, of a text without quotes; a text where it cannot be one.
    pub(super) fn value_of(&self, key: &str, text: &str) -> Value {
        match self.example(key) {
            Some(Value::String(_) | Value::Array(_)) => text.into(),
            _ => text.parse().unwrap_or_else(|_| text.into()),
        }
    }

    /// A text with a unit as the number that it is.
    fn in_its_unit(&self, key: &str, value: Value) -> Value {
        let number = value.as_str().and_then(|text| units::in_unit_of(key, text));
        match (number, self.example(key)) {
            (Some(whole), Some(Value::Integer(_))) if whole.fract() == 0.0 => {
                Value::Integer(whole as i64)
            }
            (Some(number), Some(Value::Float(_))) => Value::Float(number),
            _ => value,
        }
    }

    /// What a key takes, with an example, for whoever wrote something else.
    pub(super) fn wanted(&self, key: &str) -> String {
        let Some(example) = self.example(key) else {
            return "has a value that cannot be used".to_owned();
        };
        let of_unit =
            |(.., of, text): &units::Unit| format!("a {of}, or a text such as \"{text}\"");
        let of_unit = units::of_key(key).map(of_unit);
        let kind = match &example {
            Value::Array(_) => "a list of texts in quotes",
            Value::String(_) => "text in quotes",
            Value::Boolean(_) => "true or false",
            Value::Float(_) => of_unit.as_deref().unwrap_or("a number"),
            _ if key.ends_with("_bytes") => of_unit.as_deref().unwrap_or_default(),
            // What is below all of them is told the range.
            _ => match self.problem(key, i64::MIN.into()) {
                Some(range) => &range.replacen("must be", "a whole number,", 1),
                None => "a whole number",
            },
        };
        format!("must be {kind}, as in {key} = {example}")
    }

    /// What is wrong with a key that this section does not have, and the key that was probably meant.
    pub(super) fn unknown(&self, key: &str) -> (String, Option<&'static str>) {
        let plain = key.replace('-', "_");
        let mut others = SECTIONS.iter().filter(|other| other.name != self.name);
        let near = nearest(&plain, self.keys().map(|key| key.name));
        if near != Some(plain.as_str())
            && let Some(other) = others.find(|other| other.key(&plain).is_some())
        {
            return (format!("{key}: belongs under `{}`", other.header()), None);
        }
        // It may have a line break in it.
        let shown = key.escape_debug();
        let wrong = match near {
            Some(near) => format!("unknown key `{shown}`; did you mean `{near}`?"),
            None => format!("unknown key `{shown}`; config.toml in the repository shows every key"),
        };
        (wrong, near)
    }
}

/// A value as the key at this path of a plan's `[proxy]` reads it, where that is a number: of the key's own unit, whatever unit it was
/// written with.
pub fn as_read(path: &str, value: &Value) -> Option<f64> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("proxy", path));
    let place = SECTIONS.iter().find(|place| place.name == section)?;
    let mut read = fresh();
    place.set(&mut read, key, value.clone()).ok()?;
    match place.get(&mut read, key)? {
        Value::Float(number) => Some(number),
        value => Some(value.as_integer()? as f64),
    }
}

/// How the header of a section is written.
pub(super) fn header(name: &str, is_list: bool) -> String {
    match is_list {
        true => format!("[[{name}]]"),
        false => format!("[{name}]"),
    }
}

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
    let words = ["token", "secret", "header"];
    let may_be_secret = |text: &str| words.iter().any(|word| text.contains(word));
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
pub fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, known) = all
        .map(|known| (strsim::levenshtein(word, known), known))
        .min()?;
    (distance <= 1 + word.len() / 4).then_some(known)
}
