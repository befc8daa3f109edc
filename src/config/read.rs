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

impl<'i> Reading<'i> {
    /// Reads the text of a file.
    pub(super) fn new(text: &'i str) -> Reading<'i> {
        let mut reading = Reading {
            text,
            is_toml: true,
            ..Reading::default()
        };
        let (document, errors) = DeTable::parse_recoverable(text);
        let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
        let errors = errors.iter();
        match errors.min_by_key(|error| line_of(text, start(error))) {
            None => reading.table("", document.get_ref()),
            Some(error) => reading.push_syntax(start(error), error.message()),
        }
        reading
    }

    /// Reports the first line that is not TOML.
    fn push_syntax(&mut self, at: usize, message: &str) {
        self.is_toml = false;
        let mut lines = self.text.lines();
        let line = lines.nth(line_of(self.text, at) - 1).unwrap_or_default();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let key = key.trim();
        let section = SECTIONS.iter().find(|section| section.key(key).is_some());
        let problem = match (message, section) {
            ("duplicate key", _) => format!(
                "{key}: is in the file twice; remove one of the two, and write `[[worker]]` above the keys of each worker"
            ),
            (_, Some(section)) if !message.contains(" array") => {
                format!("{}: {}", shown(key, value), section.expected(key))
            }
            // The line is not shown, as it may contain a secret.
            _ => format!(
                "is no TOML: {message}; write KEY = VALUE, as in threads = 2, text in quotes, commas between the values of a list, and \
                 [proxy] or [[worker]] above the keys of a section"
            ),
        };
        self.push(at, problem);
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
        let required = ["name", "listen", "upstream"].into_iter();
        let Some(at) = named_at else { return };
        for key in required.filter(|key| !table.contains_key(*key)) {
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
        // A number that is too large becomes NaN, which no key accepts.
        let read = Value::deserialize(ValueDeserializer::from(value.clone()));
        let read = read.unwrap_or(Value::Float(f64::NAN));
        if let Err((index, problem)) = self.set(section, key, read) {
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

    /// Sets a key.
    ///
    /// # Errors
    /// The problem of the value; of a list, that of its first invalid item, with the item's index.
    fn set(
        &mut self,
        section: &FileSection,
        key: &str,
        value: Value,
    ) -> Result<(), (Option<usize>, String)> {
        let Err(problem) = section.set(&mut self.config, key, value.clone()) else {
            return Ok(());
        };
        if section.name == "proxy" {
            self.invalid_keys.push(key.to_owned());
            // Without any, the front would not be checked.
            let example = section.example(key).filter(|_| key == "upstream");
            let _ = example.map(|example| section.set(&mut self.config, key, example));
        }
        let items = value.as_array().filter(|_| section.takes_list(key));
        let mut items = items.into_iter().flatten().enumerate();
        let of_item = items.find_map(|(index, item)| {
            let problem = section.problem(key, vec![item.clone()].into())?;
            Some((Some(index), problem))
        });
        Err(of_item.unwrap_or((None, problem)))
    }

    fn push(&mut self, at: usize, problem: String) {
        self.file_problems.insert((line_of(self.text, at), problem));
    }

    /// Applies flags. Workers replace those of the file.
    pub(super) fn apply(&mut self, flags: &Args) {
        for ((flag, section, key), texts) in &flags.keys.0 {
            let key = key.name;
            self.lines.remove(&section.full_key(key));
            match key {
                "hop_secret_file" => self.config.hop_secret = None,
                "admin_token_file" => self.config.admin_token = None,
                _ => {}
            }
            let mut values = texts.iter().map(|text| section.parse(key, text));
            let value = match section.takes_list(key) {
                true => Some(Value::Array(values.collect())),
                false => values.next(),
            };
            let set = value.map_or(Ok(()), |value| self.set(section, key, value));
            if let Err((index, problem)) = set {
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

/// Returns the line, from 1, of an offset in a text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the table or tables of a section, with their offsets.
fn tables<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<(usize, &'a DeTable<'i>)> {
    let table = |one: &'a Spanned<DeValue<'i>>| Some((one.span().start, one.get_ref().as_table()?));
    match value.get_ref() {
        DeValue::Array(all) => all.iter().filter_map(table).collect(),
        _ => table(value).into_iter().collect(),
    }
}
