//! The proxy's config: a file overridden by flags, both read key by key, so that all problems are reported and not only the first; and the
//! text of `queuescope check`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

use crate::disk;
use crate::request::UpstreamKind;
use crate::telemetry::otlp::settings::ExportSettings;
use crate::upstream::Address;

pub mod args;
pub mod check;
pub mod proxy;
pub mod sections;

use args::Args;
use check::Credentials;
use proxy::{Config, Worker};
use sections::{FileSection, SECTIONS, header, is_secret, line_of, shown, syntax_error};

/// A config as far as it could be read, and the problems.
#[derive(Debug, Default)]
struct Reading<'i> {
    text: &'i str,
    config: Config,
    /// Problems of the file in its order, with the line, from 1; then those of flags.
    problems: Vec<(Option<usize>, String)>,
    /// Where keys, named as in the errors of a check, were given: the line, if it was in the file, and how they are shown.
    given: BTreeMap<String, (Option<usize>, String)>,
    /// Keys of `[proxy]` with a problem. No further one is reported of them.
    invalid_keys: Vec<String>,
}

/// What is wrong with the second of two workers.
const SAME_NAME: &str = "two workers have this name; give each its own";

/// Reads a file, applies the flags, and checks the config. Missing keys have their defaults.
///
/// # Errors
/// All problems, with key, value and what would be valid: those of the file in its order, then of the flags, then of the check. Of a
/// file that is not TOML, only its first line that is not.
pub fn load(path: Option<&Path>, flags: &Args) -> Result<(Config, Credentials), Vec<String>> {
    let read = |path: &Path| {
        disk::read_text(path).map_err(|error| {
            let path = path.display();
            vec![format!("cannot read config file {path}: {error}; give the path of a text file, as in --config config.toml")]
        })
    };
    load_text(&path.map_or(Ok(String::new()), read)?, path, flags)
}

fn load_text(
    text: &str,
    path: Option<&Path>,
    flags: &Args,
) -> Result<(Config, Credentials), Vec<String>> {
    let placed = |(line, problem): (Option<usize>, String)| match (path, line) {
        (Some(path), Some(line)) => format!("{}, line {line}: {problem}", path.display()),
        _ => problem,
    };
    let mut reading = Reading::new(text).map_err(|(line, why)| vec![placed((Some(line), why))])?;
    reading.apply(flags);
    let checked = reading.config.check();
    let of_check = |(key, problem): &(String, String)| {
        let given = reading.given.get(key).cloned();
        let (line, given) = given.unwrap_or((None, key.clone()));
        let is_new = !reading.invalid_keys.contains(key);
        is_new.then(|| (line, format!("{given}: {problem}")))
    };
    let found = checked.as_ref().err().into_iter().flatten();
    let problems = reading.problems.iter().cloned();
    let problems = problems.chain(found.filter_map(of_check));
    let problems: Vec<String> = problems.map(placed).collect();
    match checked {
        Ok(credentials) if problems.is_empty() => Ok((reading.config, credentials)),
        _ => Err(problems),
    }
}

/// Returns all problems of a config file's text.
pub fn problems(text: &str) -> Vec<String> {
    let loaded = load_text(text, None, &Args::default());
    loaded.err().unwrap_or_default()
}

impl<'i> Reading<'i> {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first line that is not TOML, its key, and why. Nothing else of it is shown, as it may contain a secret.
    fn new(text: &'i str) -> Result<Reading<'i>, (usize, String)> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let is_known =
            |_: &str, key: &str| SECTIONS.iter().any(|section| section.key(key).is_some());
        let places = errors
            .iter()
            .map(|error| syntax_error(text, error, is_known));
        if let Some((line, key, why)) = places.min_by_key(|(line, ..)| *line) {
            let problem = format!(
                "{key}is no TOML: {why}; write each key once and as KEY = VALUE, as in threads = 2, text in quotes, commas between the values \
                 of a list, and [proxy] or [[worker]] above the keys of a section"
            );
            return Err((line, problem));
        }
        let mut reading = Reading {
            text,
            ..Reading::default()
        };
        reading.table("", document.get_ref());
        reading.problems.sort();
        reading.problems.dedup();
        Ok(reading)
    }

    /// Reads the table of this name: the whole file (`""`), a section, or one that only contains sections. A misplaced key is read all
    /// the same, so that its own problems are reported, too.
    fn table(&mut self, name: &str, table: &DeTable<'i>) {
        let [proxy, ..] = &SECTIONS;
        let section = SECTIONS.iter().find(|section| section.name == name);
        for (key, value) in table {
            let (at, key) = (key.span().start, key.get_ref().as_ref());
            let path = match name {
                "" => key.to_owned(),
                _ => format!("{name}.{key}"),
            };
            match section {
                // Of a key that it has, the value is wrong.
                _ if !tables(value).is_empty()
                    && section.is_none_or(|section| section.key(key).is_none()) =>
                {
                    self.section(at, &path, value);
                }
                Some(section) => self.key(section, at, key, value),
                None => {
                    self.key(proxy, at, &path, value);
                    if proxy.key(&path).is_some() {
                        let problem = "belongs under `[proxy]`; write that line above it";
                        self.push(at, format!("{path}: {problem}"));
                    }
                }
            }
        }
    }

    /// Reads a section, or one of a similar name.
    fn section(&mut self, at: usize, path: &str, value: &Spanned<DeValue<'i>>) {
        let (tables, is_list) = (tables(value), value.get_ref().is_array());
        if path == "telemetry" {
            return tables.iter().for_each(|(_, all)| self.table(path, all));
        }
        let Some(section) = FileSection::nearest(path) else {
            let all = SECTIONS.each_ref().map(FileSection::header).join("`, `");
            let path = header(path, is_list);
            return self.push(at, format!("unknown section `{path}`; there are `{all}`"));
        };
        let is_named = path == section.name;
        if !is_named || is_list != section.is_list() {
            let (path, right) = (header(path, is_list), section.header());
            self.push(at, format!("{path}: write `{right}`"));
        }
        for (at, table) in tables {
            match section.is_list() {
                true => self.worker(section, is_named.then_some(at), table),
                false => self.table(section.name, table),
            }
        }
    }

    /// Reads a worker. Its missing keys get placeholders, so that the rest of it can be checked; they are a problem if the section, at
    /// `named_at`, is surely a worker's.
    fn worker(&mut self, section: &FileSection, named_at: Option<usize>, table: &DeTable<'i>) {
        let name = table.get("name").and_then(|name| name.get_ref().as_str());
        let name = name.filter(|name| section.problem("name", (*name).into()).is_none());
        let namesake = name.and_then(|name| self.config.worker(name));
        let namesake = namesake.map(|one| (one.key("name"), self.given.clone()));
        let number = || format!("number-{}", self.config.workers.len() + 1);
        let name = name.map_or_else(number, str::to_owned);
        self.config.workers.push(Worker {
            name,
            ..Worker::default()
        });
        self.table(section.name, table);
        for key in ["name", "listen", "upstream"] {
            if let Some(at) = named_at.filter(|_| !table.contains_key(key)) {
                let expected = section.expected(key);
                self.push(at, format!("this `[[worker]]` has no {key}; it {expected}"));
            }
        }
        if let Some((key, given)) = namesake {
            // What else is wrong with it would be told of the other one.
            self.config.workers.pop();
            self.given = given;
            let mut keys = table.keys().filter(|key| key.get_ref() == "name");
            let at = keys.next().map_or(0, |key| key.span().start);
            self.push(at, format!("{key}: {SAME_NAME}"));
        }
    }

    /// A key as the errors of a check name it.
    fn full_key(&self, section: &FileSection, key: &str) -> String {
        match (section.name, self.config.workers.last()) {
            ("proxy", _) => key.to_owned(),
            ("worker", Some(worker)) => worker.key(key),
            (name, _) => format!("{name}: {key}"),
        }
    }

    /// Reads a key of a section.
    fn key(&mut self, section: &FileSection, at: usize, key: &str, value: &Spanned<DeValue<'i>>) {
        if section.key(key).is_none() {
            return self.push(at, section.unknown_key(key));
        }
        let full_key = self.full_key(section, key);
        let given = shown(&full_key, self.text.get(value.span()).unwrap_or_default());
        let line = line_of(self.text, at);
        self.given.insert(full_key, (Some(line), given));
        // A number that is too large becomes NaN, which no key accepts.
        let read = Value::deserialize(ValueDeserializer::from(value.clone()));
        let read = read.unwrap_or(Value::Float(f64::NAN));
        for (index, problem) in self.set(section, key, read) {
            let items = value.get_ref().as_array();
            let item = index.and_then(|index| items?.get(index));
            let (at, value) = item.map_or((at, value), |item| (item.span().start, item));
            let text = self.text.get(value.span()).unwrap_or_default();
            self.push(at, format!("{}: {problem}", shown(key, text)));
        }
    }

    /// Sets a key. Returns its problems: of a list, those of its items, each with the item's index.
    fn set(
        &mut self,
        section: &FileSection,
        key: &str,
        value: Value,
    ) -> Vec<(Option<usize>, String)> {
        let Err(problem) = section.set(&mut self.config, key, value.clone()) else {
            return Vec::new();
        };
        if section.name == "proxy" {
            self.invalid_keys.push(key.to_owned());
            // Without any, the front would not be checked.
            let example = section.example(key).filter(|_| key == "upstream");
            let _ = example.map(|example| section.set(&mut self.config, key, example));
        }
        let items = value.as_array().filter(|_| section.takes_list(key));
        let of_item = |(index, item): (usize, &Value)| {
            Some((
                Some(index),
                section.problem(key, vec![item.clone()].into())?,
            ))
        };
        let items = items.into_iter().flatten().enumerate();
        let of_items: Vec<_> = items.filter_map(of_item).collect();
        match of_items.is_empty() {
            true => vec![(None, problem)],
            false => of_items,
        }
    }

    fn push(&mut self, at: usize, problem: String) {
        let line = line_of(self.text, at);
        self.problems.push((Some(line), problem));
    }

    /// Applies flags. Workers replace those of the file.
    fn apply(&mut self, flags: &Args) {
        for ((flag, section, key), texts) in &flags.keys.0 {
            let key = key.name;
            let given = (None, shown_flag(flag, &texts.join(", ")));
            self.given.insert(self.full_key(section, key), given);
            match key {
                "hop_secret_file" => self.config.hop_secret = None,
                "admin_token_file" => self.config.admin_token = None,
                _ => {}
            }
            let values = texts.iter().map(|text| section.parse(key, text));
            let value = match section.takes_list(key) {
                true => Value::Array(values.collect()),
                false => section.parse(key, &texts.concat()),
            };
            for (index, problem) in self.set(section, key, value) {
                let text = texts.get(index.unwrap_or(0));
                self.push_flag(flag, text.map_or("", String::as_str), &problem);
            }
        }
        if !flags.worker.is_empty() {
            self.config.workers.clear();
            self.given.retain(|key, _| !key.starts_with("worker "));
        }
        for text in &flags.worker {
            match text.parse::<Worker>() {
                Ok(worker) if self.config.worker(&worker.name).is_some() => {
                    self.push_flag("worker", text, SAME_NAME);
                }
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
        let problem = format!("{}: {problem}", shown_flag(flag, text));
        self.problems.push((None, problem));
    }
}

/// Returns a flag with its value. The user or query of a URL may contain a secret.
fn shown_flag(flag: &str, text: &str) -> String {
    let is_hidden = is_secret(&flag.replace('-', "_"), text) || text.contains(['@', '?', '#']);
    match is_hidden || text.is_empty() {
        true => format!("--{flag}"),
        false => format!("--{flag} {text}"),
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

/// Describes a checked config: its topology, the keys that differ from their defaults, and where traces go.
pub fn describe(config: &Config, credentials: &Credentials) -> String {
    let traces = credentials.traces.as_ref();
    let traces = traces.map_or_else(|| "none".to_owned(), ExportSettings::target);
    format!("{}{}\ntraces: {traces}\n", picture(config), changes(config))
}

/// Returns the keys that differ from their defaults, as in a file.
fn changes(config: &Config) -> String {
    let (mut text, mut config) = (String::new(), config.clone());
    for section in SECTIONS.iter().filter(|section| !section.is_list()) {
        let mut header = Some(format!("\n{}\n", section.header()));
        for key in section.keys().map(|key| key.name) {
            let default = section.default(key);
            let value = section.get(&mut config, key);
            if let Some(value) = value.filter(|value| Some(value) != default.as_ref()) {
                text += &header.take().unwrap_or_default();
                text += &format!("{key} = {value}\n");
            }
        }
    }
    text
}

/// Describes an upstream: one of our own hops, a router or a server.
fn destination(config: &Config, address: &Address) -> String {
    let name = address.name();
    let hop = config
        .workers
        .iter()
        .find(|worker| address.is_at(worker.listen));
    match hop {
        Some(hop) => format!("hop {} {name} -> server {}", hop.name, hop.upstream.name()),
        None if config.upstream_kind == UpstreamKind::Router => format!("router {name}"),
        None => format!("server {name}"),
    }
}

/// Returns a line for each path of a request.
fn picture(config: &Config) -> String {
    let front = config.listen;
    let line = |to| format!("clients -> front {front} -> {}\n", destination(config, to));
    let mut text: String = config.upstream.iter().map(line).collect();
    if config.upstream.is_empty() {
        text += "a front elsewhere -> its router\n";
    } else if config.upstream_kind == UpstreamKind::Server {
        return text;
    } else if config.workers.is_empty() {
        return text + "router -> servers that it knows\n";
    }
    let is_behind_router =
        |worker: &&Worker| !config.upstream.iter().any(|to| to.is_at(worker.listen));
    for worker in config.workers.iter().filter(is_behind_router) {
        let (name, listen, server) = (&worker.name, worker.listen, worker.upstream.name());
        text += &format!("router -> hop {name} {listen} -> server {server}\n");
    }
    text += "the router must be started with --worker-urls";
    let urls = config.workers.iter().map(|worker| worker.listen);
    urls.for_each(|listen| text += &format!(" http://{listen}"));
    text + "\n"
}

#[cfg(test)]
mod tests;
