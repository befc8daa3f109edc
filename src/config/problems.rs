//! Every problem of a config file and of the flags over it, not only the first: each line and each key is read on its
//! own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Table, Value};

use super::args::Args;
use super::engine::Engine;
use super::proxy::{Config, Worker};
use super::syntax::{line_of, mend};
use super::words::{Section, shown};

/// What a file and flags say, and what they cannot.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// The keys of `[proxy]` that are right.
    proxy: Table,
    /// Those of `[telemetry.otlp]`.
    otlp: Table,
    /// Those of `[engine]`, and of the sections below it.
    engine: Table,
    engine_traces: Table,
    engine_logs: Table,
    workers: Vec<Worker>,
    /// By line, from 1.
    pub(super) of_file: Vec<(usize, String)>,
    pub(super) of_flags: Vec<String>,
    /// The keys of `[proxy]` at fault.
    pub(super) keys: Vec<String>,
}

/// A file as it is read.
#[derive(Debug)]
struct Reading<'i> {
    text: &'i str,
    /// Lines that are told already.
    broken: &'i BTreeMap<usize, String>,
    found: BTreeSet<(usize, String)>,
    parsed: Parsed,
}

/// What stands in the place of what is at fault: it goes with anything.
const FREE_ADDRESS: &str = "127.0.0.1:0";
const ELSEWHERE: &str = "filled-in.invalid:1";

impl Parsed {
    /// Reads a file.
    pub(super) fn of(text: &str) -> Parsed {
        let mended = mend(text);
        let mut reading = Reading {
            text: &mended.text,
            broken: &mended.broken,
            found: BTreeSet::new(),
            parsed: Parsed::default(),
        };
        if mended.is_any || mended.is_unclear {
            // It may well be there.
            reading.parsed.keys.push("upstream".into());
        }
        if !mended.is_unclear {
            let (document, _) = DeTable::parse_recoverable(&mended.text);
            for (name, value) in document.into_inner() {
                reading.section(name, value);
            }
        }
        let Reading {
            mut found,
            mut parsed,
            ..
        } = reading;
        found.extend(mended.broken);
        parsed.of_file = found.into_iter().collect();
        parsed
    }

    /// Puts flags over it.
    pub(super) fn put(&mut self, flags: &Args) {
        for (key, given) in flags.given() {
            if key == "worker" {
                self.put_workers(&given);
                continue;
            }
            let (section, name) = match key.strip_prefix("otlp_") {
                Some(name) => (Section::Otlp, name),
                None if key == "engine_traces" => (Section::EngineTraces, "listen"),
                None if key == "engine_logs" => (Section::EngineLogs, "path"),
                None => (Section::Proxy, key.as_str()),
            };
            let is_list = given.is_array();
            let in_place = |value: Value| if is_list { vec![value].into() } else { value };
            let mut good = Vec::new();
            for value in as_list(&given) {
                let text = value.as_str().unwrap_or_default();
                let value = match value {
                    Value::String(text) => section.value_of(name, text),
                    other => other.clone(),
                };
                match section.problem(name, &in_place(value.clone()), text) {
                    Some(problem) => self.wrong_flag(&key, text, &problem),
                    None => good.push(value),
                }
            }
            if key == "hop_secret_file" {
                self.proxy.remove("hop_secret");
            }
            if let Some(table) = self.below(section) {
                table.extend(good.pop().map(|value| (name.to_owned(), value)));
            } else if good.is_empty() {
                self.keys.push(name.to_owned());
            } else if is_list {
                self.proxy.insert(key, good.into());
            } else {
                self.proxy.extend(good.pop().map(|value| (key, value)));
            }
        }
    }

    /// What is right of a section that needs nothing beside it.
    fn below(&mut self, section: Section) -> Option<&mut Table> {
        match section {
            Section::Proxy | Section::Worker => None,
            Section::Otlp => Some(&mut self.otlp),
            Section::Engine => Some(&mut self.engine),
            Section::EngineTraces => Some(&mut self.engine_traces),
            Section::EngineLogs => Some(&mut self.engine_logs),
        }
    }

    /// They replace those of the file.
    fn put_workers(&mut self, given: &Value) {
        self.workers.clear();
        for text in as_list(given).iter().filter_map(Value::as_str) {
            match text.parse() {
                Ok(worker) => self.workers.push(worker),
                Err(problem) => self.wrong_flag("worker", text, &problem),
            }
        }
        if self.workers.is_empty() && !self.proxy.contains_key("upstream") {
            // Hops alone would do.
            self.keys.push("upstream".into());
        }
    }

    fn wrong_flag(&mut self, key: &str, value: &str, problem: &str) {
        let flag = key.replace('_', "-");
        // Quotes and `key = value` are the file's.
        let (problem, _) = problem
            .split_once(&format!(", as in {key} = "))
            .unwrap_or((problem, ""));
        let problem = match problem.strip_prefix("must be one of ") {
            Some(choices) => format!("must be one of {}", choices.replace('"', "")),
            None => problem.to_owned(),
        };
        // What stands before an `@` or behind a `?` may be a password or token.
        let shown = if value.contains(['@', '?']) {
            ""
        } else {
            value
        };
        let space = if shown.is_empty() { "" } else { " " };
        self.of_flags
            .push(format!("--{flag}{space}{shown}: {problem}"));
    }

    /// The config; what is at fault has its default, or what goes with all else.
    pub(super) fn config(&self) -> Config {
        let mut proxy = self.proxy.clone();
        for key in &self.keys {
            let filled: Value = match key.as_str() {
                "listen" | "admin" => FREE_ADDRESS.into(),
                "upstream" => vec![ELSEWHERE].into(),
                _ => continue,
            };
            proxy.entry(key).or_insert(filled);
        }
        Config {
            otlp: self.otlp.clone().try_into().unwrap_or_default(),
            engine: Engine {
                traces: self.engine_traces.clone().try_into().unwrap_or_default(),
                logs: self.engine_logs.clone().try_into().unwrap_or_default(),
                ..self.engine.clone().try_into().unwrap_or_default()
            },
            workers: self.workers.clone(),
            // Each key has been read.
            ..proxy.try_into().unwrap_or_default()
        }
    }
}

impl<'i> Reading<'i> {
    /// One of the file's top-level entries. What stands in a place where it does not belong is read all the same, so
    /// that its own faults show, and none that comes only of its place.
    fn section(&mut self, name: Spanned<Cow<'i, str>>, value: Spanned<DeValue<'i>>) {
        let at = name.span().start;
        // A section whose header is told already has faults of its own.
        let is_told = self.is_broken(at);
        if is_told && tables(&value).is_empty() {
            return;
        }
        let key = name.get_ref().to_string();
        let near = Section::near(&key);
        let is_proxy_key = Section::Proxy.keys().contains(&key.replace('-', "_"));
        let is_list = matches!(value.get_ref(), DeValue::Array(_));
        let wrong = match (near, tables(&value)) {
            (Some(section), tables) if !tables.is_empty() => {
                for (place, table) in tables {
                    match section {
                        Section::Proxy => self.proxy(table),
                        Section::Worker => self.worker(place, table),
                        Section::Otlp => self.telemetry(table),
                        Section::Engine => self.engine(table),
                        Section::EngineTraces | Section::EngineLogs => self.alone(section, table),
                    }
                }
                let is_right = key == section.name() && is_list == (section == Section::Worker);
                if is_right {
                    return;
                }
                let written = if is_list { format!("[[{key}]]") } else { format!("[{key}]") };
                format!("{written}: write {}", section.written())
            }
            (Some(Section::Worker), _) => {
                "worker: is a section of its own; write `[[worker]]` on a line for each, and below it name, listen and \
                 upstream"
                    .to_owned()
            }
            (_, tables) if is_proxy_key && tables.is_empty() => {
                let mut alone = DeTable::new();
                alone.insert(name, value);
                self.proxy(&alone);
                format!("{key}: belongs under `[proxy]`; write that line above it")
            }
            _ if is_proxy_key => {
                let wanted = Section::Proxy.wanted(&key, "");
                self.parsed.keys.push(key.clone());
                format!("[{key}]: is no section but a key under `[proxy]`, and {wanted}")
            }
            (_, tables) if tables.is_empty() => Section::Proxy.unknown(&key).0,
            _ => format!("unknown section `[{key}]`; there are `[proxy]`, `[[worker]]`, `[telemetry.otlp]` and `[engine]`"),
        };
        if !is_told {
            self.push(at, wrong);
        }
    }

    /// The keys of `[proxy]`.
    fn proxy(&mut self, table: &DeTable<'i>) {
        let (good, wrong) = self.sift(Section::Proxy, table);
        self.parsed.proxy.extend(good);
        self.parsed.keys.extend(wrong);
    }

    /// What stands under `[engine]`: keys, and sections.
    fn engine(&mut self, table: &DeTable<'i>) {
        let mut keys = DeTable::new();
        for (name, value) in table {
            let section = match name.get_ref().as_ref() {
                "traces" => Some(Section::EngineTraces),
                "logs" => Some(Section::EngineLogs),
                _ => None,
            };
            match (section, value.get_ref()) {
                (Some(section), DeValue::Table(table)) => self.alone(section, table),
                (None, DeValue::Table(_)) => {
                    let wrong = format!(
                        "unknown section `[engine.{}]`; there are `[engine]`, `[engine.traces]` and `[engine.logs]`",
                        name.get_ref()
                    );
                    self.push(name.span().start, wrong);
                }
                _ => drop(keys.insert(name.clone(), value.clone())),
            }
        }
        self.alone(Section::Engine, &keys);
    }

    /// The keys of a section that needs nothing beside it.
    fn alone(&mut self, section: Section, table: &DeTable<'i>) {
        let (good, _) = self.sift(section, table);
        if let Some(table) = self.parsed.below(section) {
            table.extend(good);
        }
    }

    /// What stands under `[telemetry]`: sections alone.
    fn telemetry(&mut self, table: &DeTable<'i>) {
        for (name, value) in table {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("otlp", DeValue::Table(table)) => {
                    let (good, wrong) = self.sift(Section::Otlp, table);
                    self.parsed.otlp.extend(good);
                    self.parsed.keys.extend(wrong);
                }
                (other, _) => {
                    let wrong =
                        format!("telemetry.{other}: there is only the section `[telemetry.otlp]`");
                    self.push(name.span().start, wrong);
                }
            }
        }
    }

    /// Reads each key of a section on its own; gives those that are right, and the names of the others.
    fn sift(&mut self, section: Section, table: &DeTable<'i>) -> (Table, Vec<String>) {
        let keys = section.keys();
        let (mut good, mut wrong) = (Table::new(), Vec::new());
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref());
            if self.is_broken(at) {
                wrong.push(name.to_string());
                // The rest of a section that is there twice.
                if let DeValue::Table(rest) = value.get_ref() {
                    let (more, also) = self.sift(section, rest);
                    good.extend(more);
                    wrong.extend(also);
                }
            } else if keys.iter().any(|known| known == name) {
                match self.value(section, at, name, value) {
                    Some(value) => drop(good.insert(name.to_string(), value)),
                    None => wrong.push(name.to_string()),
                }
            } else {
                let (problem, meant) = section.unknown(name);
                self.push(at, problem);
                wrong.extend(meant);
            }
        }
        (good, wrong)
    }

    /// What a key has, as far as it is right; what is wrong with a list of values is told of each.
    fn value(
        &mut self,
        section: Section,
        at: usize,
        key: &str,
        value: &Spanned<DeValue<'i>>,
    ) -> Option<Value> {
        let read = plain(value);
        let Some(problem) = section.problem(key, &read, self.written(value)) else {
            return Some(read);
        };
        let is_texts = || {
            read.as_array()
                .is_some_and(|all| all.iter().all(Value::is_str))
        };
        let all = match value.get_ref() {
            DeValue::Array(all) if section.takes_list(key) && is_texts() => all,
            _ => {
                self.push(
                    at,
                    format!("{}: {problem}", shown(key, self.written(value))),
                );
                return None;
            }
        };
        let mut good = Vec::new();
        for one in all.iter() {
            let list = Value::Array(vec![plain(one)]);
            match section.problem(key, &list, "") {
                Some(problem) => {
                    let shown = shown(key, self.written(one));
                    self.push(one.span().start, format!("{shown}: {problem}"));
                }
                None => good.push(plain(one)),
            }
        }
        (!good.is_empty()).then_some(Value::Array(good))
    }

    /// A value as it was written; a table is many lines.
    fn written(&self, value: &Spanned<DeValue<'i>>) -> &'i str {
        match value.get_ref() {
            DeValue::Table(_) => "",
            _ => self.text.get(value.span()).unwrap_or_default(),
        }
    }

    /// The worker at `place`. What it lacks or has wrong is filled in with what is right anywhere, so that the rest of it
    /// can be checked.
    fn worker(&mut self, place: usize, table: &DeTable<'i>) {
        let (mut good, wrong) = self.sift(Section::Worker, table);
        let number = self.parsed.workers.len() + 1;
        for (key, filled) in [
            ("name", format!("number-{number}")),
            ("listen", FREE_ADDRESS.to_owned()),
            ("upstream", ELSEWHERE.to_owned()),
        ] {
            if !good.contains_key(key) && !wrong.iter().any(|wrong| wrong == key) {
                let wanted = Section::Worker.wanted(key, "");
                self.push(
                    place,
                    format!("this `[[worker]]` has no {key}; it {wanted}"),
                );
            }
            good.entry(key).or_insert(filled.into());
        }
        self.parsed.workers.extend(good.try_into::<Worker>());
    }

    fn is_broken(&self, at: usize) -> bool {
        self.broken.contains_key(&line_of(self.text, at))
    }

    fn push(&mut self, at: usize, problem: String) {
        self.found.insert((line_of(self.text, at), problem));
    }
}

/// A value by itself. A number that is too large for any key is no value.
fn plain(value: &Spanned<DeValue<'_>>) -> Value {
    let read = Value::deserialize(ValueDeserializer::from(value.clone()));
    read.unwrap_or_else(|_| Table::new().into())
}

/// The values of a list, or the one that there is.
fn as_list(value: &Value) -> &[Value] {
    value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice)
}

/// The tables that a section is written as, one or a list of them, and where each begins.
fn tables<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Vec<(usize, &'a DeTable<'i>)> {
    let table = |one: &'a Spanned<DeValue<'i>>| match one.get_ref() {
        DeValue::Table(table) => Some((one.span().start, table)),
        _ => None,
    };
    match value.get_ref() {
        DeValue::Array(all) => all.iter().filter_map(table).collect(),
        _ => table(value).into_iter().collect(),
    }
}

#[cfg(test)]
mod ranges;
#[cfg(test)]
mod tests;
