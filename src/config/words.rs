//! The words for what is wrong in a config file: what was written, and what would be right. `config.toml` shows for
//! every key what it takes.

use toml::{Table, Value};

use super::engine::{Engine, Logs, Traces};
use super::otlp::Otlp;
use super::proxy::{Config, Worker};

/// A section that a config may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// `[proxy]`.
    Proxy,
    /// `[[worker]]`.
    Worker,
    /// `[telemetry.otlp]`.
    Otlp,
    /// `[engine]`.
    Engine,
    /// `[engine.traces]`.
    EngineTraces,
    /// `[engine.logs]`.
    EngineLogs,
}

/// Every key with its default or an example.
const EXAMPLES: &str = include_str!("../../config.toml");
/// What stands in `config.toml` where the workers' keys begin.
const WORKERS: &str = "#[[worker]]";
/// The same of those of traces.
const OTLP: &str = "[telemetry.otlp]";
/// Those of what engines tell.
const ENGINE: &str = "\n[engine]";
const ENGINE_TRACES: &str = "\n[engine.traces]";
const ENGINE_LOGS: &str = "\n[engine.logs]";
/// Characters of a value that are shown.
const SHOWN: usize = 60;

impl Section {
    pub(super) const ALL: [Section; 6] = [
        Section::Proxy,
        Section::Worker,
        Section::Otlp,
        Section::Engine,
        Section::EngineTraces,
        Section::EngineLogs,
    ];

    /// Its name, in brackets as it is written.
    pub(super) const fn written(self) -> &'static str {
        match self {
            Section::Proxy => "`[proxy]`",
            Section::Worker => "`[[worker]]`",
            Section::Otlp => "`[telemetry.otlp]`",
            Section::Engine => "`[engine]`",
            Section::EngineTraces => "`[engine.traces]`",
            Section::EngineLogs => "`[engine.logs]`",
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Section::Proxy => "proxy",
            Section::Worker => "worker",
            Section::Otlp => "telemetry",
            Section::Engine => "engine",
            Section::EngineTraces => "engine.traces",
            Section::EngineLogs => "engine.logs",
        }
    }

    /// The section that was probably meant by this name.
    pub(super) fn near(name: &str) -> Option<Section> {
        let near = nearest(name, Section::ALL.map(Section::name).into_iter());
        Section::ALL.into_iter().find(|s| Some(s.name()) == near)
    }

    /// Every key it may have, from serde's own complaint about one that it may not.
    pub(super) fn keys(self) -> Vec<String> {
        let complaint = self.complaint("", true.into()).unwrap_or_default();
        quoted(&complaint).skip(1).map(str::to_owned).collect()
    }

    /// What serde says of a key with this value alone, if it does not take it.
    fn complaint(self, key: &str, value: Value) -> Option<String> {
        let table = Table::from_iter([(key.to_owned(), value)]);
        let read = match self {
            Section::Proxy => table.try_into::<Config>().map(drop),
            Section::Worker => table.try_into::<Worker>().map(drop),
            Section::Otlp => table.try_into::<Otlp>().map(drop),
            Section::Engine => table.try_into::<Engine>().map(drop),
            Section::EngineTraces => table.try_into::<Traces>().map(drop),
            Section::EngineLogs => table.try_into::<Logs>().map(drop),
        };
        let complaint = read.err()?.message().to_owned();
        // That others are absent is not this key's fault.
        (!complaint.starts_with("missing field")).then_some(complaint)
    }

    /// What `config.toml` gives a key.
    fn example(self, key: &str) -> Option<&'static str> {
        let (proxy, rest) = EXAMPLES.split_once(WORKERS)?;
        let (worker, rest) = rest.split_once(OTLP)?;
        let (otlp, rest) = rest.split_once(ENGINE)?;
        let (engine, rest) = rest.split_once(ENGINE_TRACES)?;
        let (traces, logs) = rest.split_once(ENGINE_LOGS)?;
        let mut lines = match self {
            Section::Proxy => proxy.lines(),
            Section::Worker => worker.lines(),
            Section::Otlp => otlp.lines(),
            Section::Engine => engine.lines(),
            Section::EngineTraces => traces.lines(),
            Section::EngineLogs => logs.lines(),
        };
        let value = lines.find_map(|line| {
            let rest = line.trim_start_matches('#').strip_prefix(key)?;
            rest.strip_prefix(" = ")
        })?;
        Some(match value {
            "[]" => "[\"http://127.0.0.1:30000\"]",
            value => value,
        })
    }

    /// Whether a key takes a list.
    pub(super) fn takes_list(self, key: &str) -> bool {
        self.example(key)
            .is_some_and(|example| example.starts_with('['))
    }

    /// A value of the kind that a key takes, of a text without quotes; a text where it cannot be one.
    pub(super) fn value_of(self, key: &str, text: &str) -> Value {
        let number = match self.example(key).and_then(|example| example.parse().ok()) {
            Some(Value::Integer(_)) => text.parse().map(Value::Integer).ok(),
            Some(Value::Float(_)) => text.parse().map(Value::Float).ok(),
            _ => None,
        };
        number.unwrap_or_else(|| text.into())
    }

    /// What is wrong with a key's value, which was written so, if anything is.
    pub(super) fn problem(self, key: &str, value: &Value, written: &str) -> Option<String> {
        let complaint = self.complaint(key, value.clone())?;
        let is_right_kind = match (self.example(key)?.parse().ok()?, value) {
            (Value::Integer(_), Value::Integer(number)) => *number >= 0,
            (Value::Float(_), Value::Integer(_)) => true,
            (Value::Array(_), Value::Array(all)) => all.iter().all(Value::is_str),
            (example, value) => example.same_type(value),
        };
        // What the types of values say is for users; serde's own words are not.
        let is_ours = is_right_kind && !complaint.starts_with("unknown variant");
        Some(if is_ours {
            complaint
        } else {
            self.wanted(key, written)
        })
    }

    /// What a key takes, with an example, for whoever gave it `value`.
    pub(super) fn wanted(self, key: &str, value: &str) -> String {
        let choices = self.complaint(key, "".into()).unwrap_or_default();
        if choices.starts_with("unknown variant") {
            let choices = quoted(&choices).skip(1);
            let choices: Vec<String> = choices.map(|choice| format!("\"{choice}\"")).collect();
            return format!("must be one of {}", choices.join(", "));
        }
        let Some(example) = self.example(key) else {
            return "has a value that cannot be used".to_owned();
        };
        let kind = match example.as_bytes().first() {
            Some(b'[') if value.starts_with('[') => {
                "a list of values in quotes with commas between them"
            }
            Some(b'[') => "a list in brackets",
            Some(b'"') => "text in quotes",
            Some(b't' | b'f') => "true or false",
            _ if example.contains('.') && key.ends_with("_s") => "a number of seconds",
            _ if example.contains('.') => "a number",
            _ => "a whole number, 0 or more",
        };
        let has_quotes = value.starts_with(['"', '\'']) && !example.starts_with(['"', '[']);
        let without = if has_quotes { ", without quotes" } else { "" };
        format!("must be {kind}{without}, as in {key} = {example}")
    }

    /// What is wrong with a key that this section does not have, and the key that was probably meant.
    pub(super) fn unknown(self, key: &str) -> (String, Option<String>) {
        let plain = key.replace('-', "_");
        let keys = self.keys();
        let others = Section::ALL.into_iter().filter(|other| *other != self);
        for other in others {
            if plain == other.name() {
                let wrong = format!(
                    "{key}: is a section of its own; write {} on a line, and its keys below it",
                    other.written()
                );
                return (wrong, None);
            }
            if other.keys().contains(&plain) && !keys.contains(&plain) {
                return (format!("{key}: belongs under {}", other.written()), None);
            }
        }
        if let Some(near) = nearest(&plain, keys.iter().map(String::as_str)) {
            let wrong = format!("unknown key `{key}`; did you mean `{near}`?");
            return (wrong, Some(near.to_owned()));
        }
        let like: Vec<String> = keys
            .iter()
            .filter(|known| known.contains(&plain))
            .map(|known| format!("`{known}`"))
            .collect();
        let wrong = match like.len() {
            1..=4 => format!("unknown key `{key}`; did you mean {}?", like.join(" or ")),
            _ => format!("unknown key `{key}`; config.toml in the repository shows every key"),
        };
        (wrong, None)
    }
}

/// What stands between backticks.
pub(super) fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
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
    let end = if is_long { "…" } else { "" };
    let line: String = line.chars().take(SHOWN).collect();
    format!("{key} = {line}{end}")
}

/// The one of these that was probably meant.
pub(super) fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = all.map(|known| (strsim::levenshtein(word, known), known));
    let (distance, known) = near.min()?;
    (distance <= 1 + word.len() / 4).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_says_what_it_takes() {
        for section in Section::ALL {
            let keys = section.keys();
            assert!(!keys.is_empty());
            for key in keys {
                let wanted = section.wanted(&key, "");
                let has_example = wanted.contains(&format!("as in {key} = "));
                assert!(
                    has_example || wanted.starts_with("must be one of \""),
                    "{key}: {wanted}"
                );
            }
        }
    }

    #[test]
    fn a_secret_is_not_shown_and_a_long_value_is_cut() {
        assert_eq!(shown("admin_token", "1234"), "admin_token");
        assert_eq!(shown("threads", "\"2\""), "threads = \"2\"");
        assert_eq!(shown("upstream", "[\n1\n]"), "upstream = […");
        assert!(shown("listen", &"x".repeat(1000)).len() < 80);
        assert_eq!(shown("upstream", "\"u:pw@a:1\""), "upstream = …");
    }
}
