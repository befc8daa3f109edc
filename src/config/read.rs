//! A config file and the flags over it, read key by key, so that every fault of them is told and not only the first.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use super::args::Args;
use super::proxy::{Config, Worker};
use super::sections::{Place, SECTIONS, header, shown};

/// What a file and flags say, and what they cannot.
#[derive(Debug, Default)]
pub(super) struct Reading<'i> {
    text: &'i str,
    pub(super) config: Config,
    /// What is wrong in the file, by line, from 1.
    pub(super) of_file: BTreeSet<(usize, String)>,
    /// What is wrong with flags.
    pub(super) of_flags: Vec<String>,
    /// The keys of `[proxy]` at fault: no more is said of them.
    pub(super) keys: Vec<String>,
    /// The file is no TOML, so that nothing is known of it.
    pub(super) is_unread: bool,
}

impl<'i> Reading<'i> {
    /// Reads a file.
    pub(super) fn of(text: &'i str) -> Reading<'i> {
        let mut reading = Reading {
            text,
            ..Reading::default()
        };
        let (document, errors) = DeTable::parse_recoverable(text);
        reading.is_unread = !errors.is_empty();
        if reading.is_unread {
            reading.of_file = syntax(text, &errors);
        } else {
            reading.table("", document.get_ref());
        }
        reading
    }

    /// What stands in the section of this name, at the top (there is no name), or where only sections stand.
    fn table(&mut self, name: &str, table: &DeTable<'i>) {
        let place = SECTIONS.iter().find(|place| place.name == name);
        let above = match name {
            "" => String::new(),
            name => format!("{name}."),
        };
        let has_parts = SECTIONS.iter().any(|below| below.name.starts_with(&above));
        for (name, value) in table {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            match place {
                Some(place) if !has_parts || tables(value).is_empty() => {
                    self.key(place, at, name, value);
                }
                _ => self.section(at, &format!("{above}{name}"), value),
            }
        }
    }

    /// A section, or what stands in the place of one. What stands where it does not belong is read all the same, so that its own
    /// faults show, and none that comes only of its place.
    fn section(&mut self, at: usize, path: &str, value: &Spanned<DeValue<'i>>) {
        let tables = tables(value);
        let is_list = value.get_ref().is_array();
        let [proxy, ..] = &SECTIONS;
        let wrong = match Place::near(path) {
            Some(place) if !tables.is_empty() => {
                for (at, table) in tables {
                    self.part(place, at, table);
                }
                if path == place.name && is_list == place.is_list() {
                    return;
                }
                format!("{}: write `{}`", header(path, is_list), place.header())
            }
            _ if path == "telemetry" && !is_list && !tables.is_empty() => {
                return tables.iter().for_each(|(_, all)| self.table(path, all));
            }
            _ if tables.is_empty() && proxy.key(path).is_some() => {
                self.key(proxy, at, path, value);
                format!("{path}: belongs under `[proxy]`; write that line above it")
            }
            _ if tables.is_empty() => proxy.unknown(path).0,
            _ => {
                let all = SECTIONS.each_ref().map(Place::header).join("`, `");
                format!("unknown section `[{path}]`; there are `{all}`")
            }
        };
        self.push(at, wrong);
    }

    /// The keys of one section. A worker must have some; what it lacks is filled in, so that the rest of it can be checked.
    fn part(&mut self, place: &'static Place, at: usize, table: &DeTable<'i>) {
        if !place.is_list() {
            return self.table(place.name, table);
        }
        let name = format!("number-{}", self.config.workers.len() + 1);
        self.config.workers.push(Worker {
            name,
            ..Worker::default()
        });
        self.table(place.name, table);
        let meant: Vec<&str> = table
            .keys()
            .filter_map(|key| place.unknown(key.get_ref()).1)
            .collect();
        let lacks = |key: &&str| !table.contains_key(*key) && !meant.contains(key);
        for key in ["name", "listen", "upstream"].into_iter().filter(lacks) {
            let wanted = place.wanted(key);
            self.push(at, format!("this `[[worker]]` has no {key}; it {wanted}"));
        }
    }

    /// A key of a section.
    fn key(&mut self, place: &Place, at: usize, key: &str, value: &Spanned<DeValue<'i>>) {
        if place.key(key).is_none() {
            let (problem, meant) = place.unknown(key);
            self.keys.extend(meant.map(str::to_owned));
            return self.push(at, problem);
        }
        for (which, problem) in self.set(place, key, plain(value)) {
            let each = value.get_ref().as_array();
            let one = which.and_then(|which| each?.get(which));
            let (at, one) = one.map_or((at, value), |one| (one.span().start, one));
            // A table is many lines.
            let written = self.text.get(one.span());
            let written = written.filter(|_| !one.get_ref().is_table());
            let shown = shown(key, written.unwrap_or_default());
            self.push(at, format!("{shown}: {problem}"));
        }
    }

    /// Sets a key. What is wrong is told of each text of a list that is wrong by itself, by its number, else of the whole value.
    fn set(&mut self, place: &Place, key: &str, value: Value) -> Vec<(Option<usize>, String)> {
        let Err(problem) = place.set(&mut self.config, key, value.clone()) else {
            return Vec::new();
        };
        // No more is said of it.
        self.keys
            .extend((place.name == "proxy").then(|| key.to_owned()));
        let texts = value.as_array().filter(|all| all.iter().all(Value::is_str));
        let texts = texts.filter(|_| place.takes_list(key));
        let wrong = |(which, one): (usize, &Value)| {
            let problem = place.problem(key, vec![one.clone()].into())?;
            Some((Some(which), problem))
        };
        let each = texts.into_iter().flatten().enumerate();
        let each: Vec<_> = each.filter_map(wrong).collect();
        match each.is_empty() {
            true => vec![(None, problem)],
            false => each,
        }
    }

    fn push(&mut self, at: usize, problem: String) {
        self.of_file.insert((line_of(self.text, at), problem));
    }

    /// Puts flags over the file. Those of workers replace the file's.
    pub(super) fn put(&mut self, flags: &Args) {
        for (flag, place, key, texts) in flags.given() {
            let key = key.name;
            if key == "hop_secret_file" {
                self.config.hop_secret = None;
            }
            let mut values = texts.iter().map(|text| place.value_of(key, text));
            let value = match place.takes_list(key) {
                true => Some(Value::Array(values.collect())),
                false => values.next(),
            };
            for (which, problem) in value.map_or(Vec::new(), |value| self.set(place, key, value)) {
                let text = texts.get(which.unwrap_or(0));
                self.wrong_flag(flag, text.map_or("", String::as_str), &problem);
            }
        }
        if !flags.worker.is_empty() {
            self.config.workers.clear();
        }
        for text in &flags.worker {
            match text.parse() {
                Ok(worker) => self.config.workers.push(worker),
                Err(problem) => {
                    self.wrong_flag("worker", text, &problem);
                    // Hops alone would do.
                    self.keys.push("upstream".into());
                }
            }
        }
    }

    fn wrong_flag(&mut self, flag: &str, text: &str, problem: &str) {
        // What stands before an `@` or behind a `?` may be a password or token.
        let text = match text.contains(['@', '?']) || text.is_empty() {
            true => String::new(),
            false => format!(" {text}"),
        };
        self.of_flags.push(format!("--{flag}{text}: {problem}"));
    }
}

/// What is wrong with lines of which TOML makes nothing, by line: what follows on the same line comes of the first.
fn syntax(text: &str, errors: &[toml::de::Error]) -> BTreeSet<(usize, String)> {
    let mut found = BTreeMap::new();
    for error in errors {
        let at = line_of(text, error.span().map_or(0, |span| span.start));
        let line = text.lines().nth(at - 1).unwrap_or_default().trim();
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let place = SECTIONS
            .iter()
            .find(|place| place.key(key.trim()).is_some());
        let why = error.message();
        found.entry(at).or_insert_with(|| match place {
            // No secret is twice: a key, or a header.
            _ if why == "duplicate key" && line.starts_with("[worker]") => {
                "[worker]: write `[[worker]]` above the keys of each".to_owned()
            }
            _ if why == "duplicate key" => {
                let key = key.trim();
                format!("{key}: is in the file twice; remove one of the two")
            }
            Some(place) if !why.contains(" array") => {
                format!("{}: {}", shown(key.trim(), value), place.wanted(key.trim()))
            }
            // Any of the line may be a secret.
            _ => format!(
                "is no TOML: {why}; write KEY = VALUE, as in threads = 2, text in quotes, commas between the values of a list, and \
                 [proxy] or [[worker]] above the keys of a section"
            ),
        });
        // A list without its end takes in every line below it.
        if why.contains(" array,") || why.contains("in array") || why.contains("array elements") {
            break;
        }
    }
    found.into_iter().collect()
}

/// The line, from 1, of a place in a text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// A value by itself. A number that is too large for any key is none, nor is a date.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    let read = Value::deserialize(ValueDeserializer::from(value.clone()));
    match read {
        Ok(value) if !value.is_datetime() => value,
        _ => Value::Float(f64::NAN),
    }
}

/// The tables that a section is written as, one or a list of them, and where each begins.
fn tables<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<(usize, &'a DeTable<'i>)> {
    let table = |one: &'a Spanned<DeValue<'i>>| {
        one.get_ref()
            .as_table()
            .map(|table| (one.span().start, table))
    };
    match value.get_ref() {
        DeValue::Array(all) => all.iter().filter_map(table).collect(),
        _ => table(value).into_iter().collect(),
    }
}
