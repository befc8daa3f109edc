//! The sections of a config file: access to their keys, and the messages for invalid values and unknown keys.

use toml::Value;

use crate::keys::{Key, Lines, Section};

use super::proxy::{Config, Worker};

/// A section of the config file.
#[derive(Debug)]
pub struct FileSection {
    /// Its name, without brackets.
    pub name: &'static str,
    select: Select,
}

/// Returns a section's part of the config; `None` if there is no worker.
type Select = fn(&mut Config) -> Option<&mut dyn Section>;

const fn section(name: &'static str, select: Select) -> FileSection {
    FileSection { name, select }
}

/// All sections, in the order of the file.
pub static SECTIONS: [FileSection; 6] = [
    section("proxy", |config| Some(config)),
    section("worker", |config| Some(config.workers.last_mut()?)),
    section("telemetry.otlp", |config| Some(&mut config.otlp)),
    section("engine", |config| Some(&mut config.engine)),
    section("engine.traces", |config| Some(&mut config.engine.traces)),
    section("engine.logs", |config| Some(&mut config.engine.logs)),
];

/// How many characters of a value are shown.
const MAX_SHOWN_CHARS: usize = 60;

impl FileSection {
    /// Its header in the file.
    pub fn header(&self) -> String {
        header(self.name, self.is_list())
    }

    /// Whether a file may have several of it.
    pub(super) fn is_list(&self) -> bool {
        self.name == "worker"
    }

    /// Finds the section that was probably meant by a name.
    pub(super) fn nearest(name: &str) -> Option<&'static FileSection> {
        let near = nearest(name, SECTIONS.iter().map(|section| section.name))?;
        SECTIONS.iter().find(|section| section.name == near)
    }

    /// Its description, in lines; none of `[proxy]`.
    pub fn about(&self) -> Lines {
        let of = |part: &mut dyn Section| part.about();
        match self.name {
            "proxy" => &[],
            _ => (self.select)(&mut defaults()).map_or(&[], of),
        }
    }

    /// Its keys, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + use<> {
        let all = (self.select)(&mut defaults()).map_or(&[][..], |part| part.keys());
        all.iter().copied().flatten()
    }

    /// Finds a key by its name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys().find(|key| key.name == name)
    }

    /// Returns a key's value in a config; `None` if it is not set.
    pub fn get(&self, config: &mut Config, key: &str) -> Option<Value> {
        (self.select)(config)?.get(key)
    }

    /// Returns a valid value of a key: its example, else its default.
    pub fn example(&self, key: &str) -> Option<Value> {
        (self.key(key)?.example)().or_else(|| self.default(key))
    }

    /// Returns a key's default.
    pub fn default(&self, key: &str) -> Option<Value> {
        self.get(&mut defaults(), key)
    }

    /// Whether a key takes a list.
    pub fn takes_list(&self, key: &str) -> bool {
        self.example(key).is_some_and(|example| example.is_array())
    }

    /// Sets a key.
    ///
    /// # Errors
    /// What would be valid.
    pub(super) fn set(&self, config: &mut Config, key: &str, value: Value) -> Result<(), String> {
        let Some(part) = (self.select)(config) else {
            return Ok(());
        };
        let set = part.set(key, value);
        set.map_err(|error| match error.message().split_once(", expected ") {
            // Messages of our value types are for users. Serde's own are not, except for its list of names.
            Some((_, one)) if error.message().starts_with("unknown variant") => {
                format!("must be {one}")
            }
            Some(_) => self.expected(key),
            None => error.message().to_owned(),
        })
    }

    /// Returns why a value of a key is invalid, if it is.
    pub(super) fn problem(&self, key: &str, value: Value) -> Option<String> {
        self.set(&mut defaults(), key, value).err()
    }

    /// Parses a flag's text as a value of the type that a key takes, or as text if that fails.
    pub(super) fn parse(&self, key: &str, text: &str) -> Value {
        match self.example(key) {
            Some(Value::String(_) | Value::Array(_)) => text.into(),
            _ => text.parse().unwrap_or_else(|_| text.into()),
        }
    }

    /// Says what a key takes, with an example.
    pub(super) fn expected(&self, key: &str) -> String {
        let example = self.example(key).unwrap_or_else(|| "".into());
        let kind = match &example {
            Value::Array(_) => "a list of texts in quotes",
            Value::Boolean(_) => "true or false",
            // The errors of numbers are their types' own.
            _ => "text in quotes",
        };
        format!("must be {kind}, as in {key} = {example}")
    }

    /// Returns the problem of a key that this section does not have.
    pub(super) fn unknown_key(&self, key: &str) -> String {
        let plain = key.replace('-', "_");
        let near = nearest(&plain, self.keys().map(|key| key.name));
        let mut others = SECTIONS.iter().filter(|other| other.name != self.name);
        // It may contain a line break.
        let shown = key.escape_debug();
        match (near, others.find(|other| other.key(&plain).is_some())) {
            (near, Some(other)) if near != Some(&plain) => {
                format!("{shown}: belongs under `{}`", other.header())
            }
            (Some(near), _) => format!("unknown key `{shown}`; did you mean `{near}`?"),
            (None, _) => {
                format!("unknown key `{shown}`; config.toml in the repository shows every key")
            }
        }
    }
}

/// Returns the header of a section.
pub(super) fn header(name: &str, is_list: bool) -> String {
    match is_list {
        true => format!("[[{name}]]"),
        false => format!("[{name}]"),
    }
}

/// Returns the default config, with a worker.
fn defaults() -> Config {
    Config {
        workers: vec![Worker::default()],
        ..Config::default()
    }
}

/// Whether the value of a key may be a secret; also of one that names a secret's file, unless it surely is a path.
pub(super) fn is_secret(key: &str, value: &str) -> bool {
    let is_path = key.ends_with("_file") && value.trim_matches(['"', '\'']).starts_with(['/', '.']);
    let mut words = ["token", "secret", "headers"].iter();
    key != "label_headers" && words.any(|word| key.contains(word)) && !is_path
}

/// Returns `key = value` on one line, without secrets. Of a key whose value is not set, the key alone.
pub(super) fn shown(key: &str, value: &str) -> String {
    let line = value.lines().next().unwrap_or_default();
    if is_secret(key, value) || line.is_empty() {
        return key.to_owned();
    }
    // The user or query of a URL may contain a secret.
    if line.contains(['@', '?', '#']) {
        return format!("{key} = …");
    }
    let shown: String = line.chars().take(MAX_SHOWN_CHARS).collect();
    let rest = if shown.len() < value.len() { "…" } else { "" };
    format!("{key} = {shown}{rest}")
}

/// Returns the line, from 1, of an offset in a text.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the line of a text that is no TOML; its key and a colon, if that is all before the `=` and `is_known` in its table (`""`: none);
/// and why. Nothing else of it is shown, as it may contain a secret.
pub fn syntax_error<'e>(
    text: &str,
    error: &'e toml::de::Error,
    is_known: impl Fn(&str, &str) -> bool,
) -> (usize, String, &'e str) {
    let line = line_of(text, error.span().map_or(0, |at| at.start));
    let key = text
        .lines()
        .nth(line - 1)
        .and_then(|line| line.split_once('='));
    let above = text.lines().take(line - 1);
    let tables = above.filter_map(|line| line.trim_start().strip_prefix('[')?.split_once(']'));
    let table = tables.last().map_or("", |(table, _)| table);
    let is_bare = |key: &&str| {
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        !key.is_empty() && key.bytes().all(is_part)
    };
    let key = key.map(|(key, _)| key.trim()).filter(is_bare);
    let key = key.filter(|key| is_known(table, key));
    let key = key.map_or_else(String::new, |key| format!("{key}: "));
    (line, key, error.message().trim())
}

/// Finds the word that was probably meant.
pub fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, known) = all
        .map(|known| (strsim::levenshtein(word, known), known))
        .min()?;
    (distance <= 1 + word.len() / 4).then_some(known)
}
