//! Reads a config file and the flags key by key, so that all problems are reported and not only the first.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::args::Args;
use super::proxy::{Config, Worker};
use super::sections::{FileSection, SECTIONS, header, shown};

/// A config as far as it could be read, and the problems.
#[derive(Debug, Default)]
pub(super) struct Reading<'i> {
    text: &'i str,
    pub(super) config: Config,
    /// Problems of the file, with the line, from 1.
    pub(super) file_problems: BTreeSet<(usize, String)>,
    pub(super) flag_problems: Vec<String>,
    /// The lines of the keys, named as in the errors of a check.
    pub(super) lines: BTreeMap<String, usize>,
    /// Keys of `[proxy]` with a problem. No further one is reported of them.
    pub(super) invalid_keys: Vec<String>,
    /// Whether the file is TOML. Otherwise nothing of it was read.
    pub(super) is_toml: bool,
}

/// Problems of a value, each with the index of the list's item that has it, or of the whole value.
type ValueProblems = Vec<(Option<usize>, String)>;

impl<'i> Reading<'i> {
    /// Reads the text of a file.
    pub(super) fn new(text: &'i str) -> Reading<'i> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let mut reading = Reading {
            text,
            file_problems: syntax_problems(text, &errors),
            is_toml: errors.is_empty(),
            ..Reading::default()
        };
        if reading.is_toml {
            reading.table("", document.get_ref());
        }
        reading
    }

    /// Reads the table of this name: a section, the whole file (`""`), or a table that only contains sections.
    fn table(&mut self, name: &str, table: &DeTable<'i>) {
        let section = SECTIONS.iter().find(|section| section.name == name);
        let prefix = match name {
            "" => String::new(),
            name => format!("{name}."),
        };
        let has_subsections = SECTIONS.iter().any(|other| other.name.starts_with(&prefix));
        for (name, value) in table {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            match section {
                Some(section) if !has_subsections || tables(value).is_empty() => {
                    self.key(section, at, name, value);
                }
                _ => self.section(at, &format!("{prefix}{name}"), value),
            }
        }
    }

    /// Reads a section, or whatever stands in its place. A misplaced key or section is read all the same, so that its own problems are
    /// reported, too, but none that only follow from its place.
    fn section(&mut self, at: usize, path: &str, value: &Spanned<DeValue<'i>>) {
        let tables = tables(value);
        let is_list = value.get_ref().is_array();
        let [proxy, ..] = &SECTIONS;
        let problem = match FileSection::nearest(path) {
            Some(section) if !tables.is_empty() => {
                let is_named = path == section.name;
                for (at, table) in tables {
                    self.section_keys(section, is_named.then_some(at), table);
                }
                if is_named && is_list == section.is_list() {
                    return;
                }
                format!("{}: write `{}`", header(path, is_list), section.header())
            }
            _ if path == "telemetry" && !is_list && !tables.is_empty() => {
                return tables.iter().for_each(|(_, all)| self.table(path, all));
            }
            _ if tables.is_empty() && proxy.key(path).is_some() => {
                self.key(proxy, at, path, value);
                format!("{path}: belongs under `[proxy]`; write that line above it")
            }
            _ if tables.is_empty() => proxy.unknown_key(path),
            _ => {
                let all = SECTIONS.each_ref().map(FileSection::header).join("`, `");
                format!("unknown section `[{path}]`; there are `{all}`")
            }
        };
        self.push(at, problem);
    }

    /// Reads the keys of a section. A worker's missing keys get placeholders, so that the rest of it can be checked; they are a problem
    /// if the section, at `named_at`, is surely a worker's.
    fn section_keys(
        &mut self,
        section: &'static FileSection,
        named_at: Option<usize>,
        table: &DeTable<'i>,
    ) {
        if !section.is_list() {
            return self.table(section.name, table);
        }
        let name = format!("number-{}", self.config.workers.len() + 1);
        self.config.workers.push(Worker {
            name,
            ..Worker::default()
        });
        self.table(section.name, table);
        if let Some(worker) = self.config.workers.last() {
            let line = |key: &Spanned<_>| line_of(self.text, key.span().start);
            let keys = table.keys();
            let keys = keys.map(|key| (worker.key(key.get_ref()), line(key)));
            self.lines.extend(keys);
        }
        let is_missing = |key: &&str| !table.contains_key(*key);
        let required = ["name", "listen", "upstream"];
        let Some(at) = named_at else {
            return;
        };
        for key in required.into_iter().filter(is_missing) {
            let expected = section.expected(key);
            self.push(at, format!("this `[[worker]]` has no {key}; it {expected}"));
        }
    }

    /// Reads a key of a section.
    fn key(&mut self, section: &FileSection, at: usize, key: &str, value: &Spanned<DeValue<'i>>) {
        if section.key(key).is_none() {
            return self.push(at, section.unknown_key(key));
        }
        let line = line_of(self.text, at);
        self.lines.insert(section.full_key(key), line);
        for (index, problem) in self.set(section, key, to_value(value)) {
            let items = value.get_ref().as_array();
            let item = index.and_then(|index| items?.get(index));
            let (at, value) = item.map_or((at, value), |item| (item.span().start, item));
            // A table may have many lines.
            let text = self.text.get(value.span());
            let text = text.filter(|_| !value.get_ref().is_table());
            let shown = shown(key, text.unwrap_or_default());
            self.push(at, format!("{shown}: {problem}"));
        }
    }

    /// Sets a key. Returns a problem for each invalid item of a list of texts, with its index, or one of the whole value.
    fn set(&mut self, section: &FileSection, key: &str, value: Value) -> ValueProblems {
        let Err(problem) = section.set(&mut self.config, key, value.clone()) else {
            return Vec::new();
        };
        if section.name == "proxy" {
            self.invalid_keys.push(key.to_owned());
            // Without any, the front would not be checked.
            let example = section.example(key).filter(|_| key == "upstream");
            let _ = example.map(|example| section.set(&mut self.config, key, example));
        }
        let texts = value.as_array().filter(|all| all.iter().all(Value::is_str));
        let texts = texts.filter(|_| section.takes_list(key));
        let of_item = |(index, item): (usize, &Value)| {
            let problem = section.problem(key, vec![item.clone()].into())?;
            Some((Some(index), problem))
        };
        let items = texts.into_iter().flatten().enumerate();
        let of_items: Vec<_> = items.filter_map(of_item).collect();
        match of_items.is_empty() {
            true => vec![(None, problem)],
            false => of_items,
        }
    }

    fn push(&mut self, at: usize, problem: String) {
        self.file_problems.insert((line_of(self.text, at), problem));
    }

    /// Applies flags. Workers replace those of the file.
    pub(super) fn apply(&mut self, flags: &Args) {
        for ((flag, section, key), texts) in flags.given() {
            let key = key.name;
            self.lines.remove(&section.full_key(key));
            if key == "hop_secret_file" {
                self.config.hop_secret = None;
            }
            let mut values = texts.iter().map(|text| section.parse(key, text));
            let value = match section.takes_list(key) {
                true => Some(Value::Array(values.collect())),
                false => values.next(),
            };
            for (index, problem) in value.map_or(Vec::new(), |value| self.set(section, key, value))
            {
                let text = texts.get(index.unwrap_or(0));
                self.push_flag(flag, text.map_or("", String::as_str), &problem);
            }
        }
        if !flags.worker.is_empty() {
            self.config.workers.clear();
            self.lines.retain(|key, _| !key.starts_with("worker "));
        }
        for text in &flags.worker {
            match text.parse() {
                Ok(worker) => self.config.workers.push(worker),
                Err(problem) => {
                    self.push_flag("worker", text, &problem);
                    // With this worker, `upstream` would not be required.
                    self.invalid_keys.push("upstream".into());
                }
            }
        }
    }

    fn push_flag(&mut self, flag: &str, text: &str, problem: &str) {
        // The user or query of a URL may contain a secret.
        let text = match text.contains(['@', '?']) || text.is_empty() {
            true => String::new(),
            false => format!(" {text}"),
        };
        self.flag_problems
            .push(format!("--{flag}{text}: {problem}"));
    }
}

/// Returns the problems of lines that are not TOML. Only the first of each line counts: the others follow from it.
fn syntax_problems(text: &str, errors: &[toml::de::Error]) -> BTreeSet<(usize, String)> {
    let mut found = BTreeMap::new();
    for error in errors {
        let at = line_of(text, error.span().map_or(0, |span| span.start));
        let line = text.lines().nth(at - 1).unwrap_or_default().trim();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = key.trim();
        let section = SECTIONS.iter().find(|section| section.key(key).is_some());
        let message = error.message();
        found.entry(at).or_insert_with(|| match section {
            _ if message == "duplicate key" && line.starts_with("[worker]") => {
                "[worker]: write `[[worker]]` above the keys of each".to_owned()
            }
            _ if message == "duplicate key" => {
                format!("{key}: is in the file twice; remove one of the two")
            }
            Some(section) if !message.contains(" array") => {
                format!("{}: {}", shown(key, value), section.expected(key))
            }
            // The line is not shown, as it may contain a secret.
            _ => format!(
                "is no TOML: {message}; write KEY = VALUE, as in threads = 2, text in quotes, commas between the values of a list, and \
                 [proxy] or [[worker]] above the keys of a section"
            ),
        });
        // An unclosed list extends over all lines below.
        if [" array,", "in array", "array elements"]
            .iter()
            .any(|part| message.contains(part))
        {
            break;
        }
    }
    found.into_iter().collect()
}

/// Returns the line, from 1, of an offset in a text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Converts a value. A number that is too large and a date become NaN, which no key accepts.
fn to_value(value: &Spanned<DeValue<'_>>) -> Value {
    let read = Value::deserialize(ValueDeserializer::from(value.clone()));
    match read {
        Ok(value) if !value.is_datetime() => value,
        _ => Value::Float(f64::NAN),
    }
}

/// Returns the table or tables of a section, with their offsets.
fn tables<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<(usize, &'a DeTable<'i>)> {
    let table = |one: &'a Spanned<DeValue<'i>>| Some((one.span().start, one.get_ref().as_table()?));
    match value.get_ref() {
        DeValue::Array(all) => all.iter().filter_map(table).collect(),
        _ => table(value).into_iter().collect(),
    }
}
