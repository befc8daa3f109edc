//! Every fault of a config file, not only the first: each line and each key is read on its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::proxy::{Config, Worker};
use super::syntax::{line_of, mend};
use super::words::{Section, quoted, read, shown};

/// What a text says, and what it cannot.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) config: Config,
    /// By line, from 1.
    pub(super) faults: Vec<(usize, String)>,
    /// The keys of `[proxy]` at fault.
    pub(super) keys: Vec<String>,
}

/// Faults by line, from 1.
#[derive(Debug)]
struct Faults<'i> {
    text: &'i str,
    /// Lines that are told already.
    broken: &'i BTreeMap<usize, String>,
    found: BTreeSet<(usize, String)>,
    keys: Vec<String>,
}

pub(super) fn parse(text: &str) -> Parsed {
    let mended = mend(text);
    let mut faults = Faults {
        text: &mended.text,
        broken: &mended.broken,
        found: BTreeSet::new(),
        keys: Vec::new(),
    };
    if mended.is_any || mended.is_unclear {
        // It may well be there.
        faults.keys.push("upstream".into());
    }
    let (mut proxy, mut workers) = (DeTable::new(), Vec::new());
    if !mended.is_unclear {
        let (document, _) = DeTable::parse_recoverable(&mended.text);
        for (name, value) in document.into_inner() {
            faults.section(name, value, &mut proxy, &mut workers);
        }
    }
    let keys = faults.keys;
    let mut found: Vec<(usize, String)> = faults.found.into_iter().collect();
    found.extend(mended.broken.clone());
    found.sort();
    Parsed {
        config: Config {
            workers,
            // Each key has been read.
            ..read(proxy).unwrap_or_default()
        },
        faults: found,
        keys,
    }
}

impl<'i> Faults<'i> {
    /// One of the file's top-level entries. What stands in a place where it does not belong is read all the same, so
    /// that its own faults show, and none that comes only of its place.
    fn section(
        &mut self,
        name: Spanned<Cow<'i, str>>,
        value: Spanned<DeValue<'i>>,
        proxy: &mut DeTable<'i>,
        workers: &mut Vec<Worker>,
    ) {
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
                        Section::Proxy => self.proxy(table, proxy),
                        Section::Worker => workers.extend(self.worker(place, table, workers.len())),
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
                self.proxy(&alone, proxy);
                format!("{key}: belongs under `[proxy]`; write that line above it")
            }
            _ if is_proxy_key => {
                let wanted = Section::Proxy.wanted(&key, "");
                self.keys.push(key.clone());
                format!("[{key}]: is no section but a key under `[proxy]`, and {wanted}")
            }
            (_, tables) if tables.is_empty() => Section::Proxy.unknown(&key).0,
            _ => format!("unknown section `[{key}]`; there are `[proxy]` and `[[worker]]`"),
        };
        if !is_told {
            self.push(at, wrong);
        }
    }

    /// The keys of `[proxy]`: those that are right go to `good`.
    fn proxy(&mut self, table: &DeTable<'i>, good: &mut DeTable<'i>) {
        let (right, wrong) = self.sift(Section::Proxy, table);
        good.extend(right);
        self.keys.extend(wrong);
    }

    /// Reads each key of a section on its own; gives those that are right, and the names of the others.
    fn sift(&mut self, section: Section, table: &DeTable<'i>) -> (DeTable<'i>, Vec<String>) {
        let keys = section.keys();
        let (mut good, mut at_fault) = (DeTable::new(), Vec::new());
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref());
            if self.is_broken(at) {
                at_fault.push(name.to_string());
                // The rest of a section that is there twice.
                if let DeValue::Table(rest) = value.get_ref() {
                    let (more, wrong) = self.sift(section, rest);
                    good.extend(more);
                    at_fault.extend(wrong);
                }
                continue;
            }
            if !keys.iter().any(|known| known == name) {
                let (wrong, meant) = section.unknown(name);
                self.push(at, wrong);
                at_fault.extend(meant);
                continue;
            }
            let said = section.complaint(name, value.get_ref().clone());
            // That others are absent is not this key's fault.
            if said.is_empty() || said.starts_with("missing field") {
                good.insert(key.clone(), value.clone());
                continue;
            }
            let written = match value.get_ref() {
                DeValue::Table(_) => "",
                _ => self.text.get(value.span()).unwrap_or_default(),
            };
            let wanted = section.wanted(name, written);
            self.push(at, format!("{}: {wanted}", shown(name, written)));
            at_fault.push(name.to_string());
        }
        (good, at_fault)
    }

    /// The worker at `place`, after `before` others. What it lacks or has wrong is filled in with what is right anywhere,
    /// so that the rest of it can be checked.
    fn worker(&mut self, place: usize, table: &DeTable<'i>, before: usize) -> Option<Worker> {
        let (mut good, at_fault) = self.sift(Section::Worker, table);
        loop {
            let error = match read(good.clone()) {
                Ok(worker) => return Some(worker),
                Err(error) => error,
            };
            let absent = error.message().strip_prefix("missing field ")?;
            let absent = quoted(absent).next()?.to_owned();
            if !at_fault.contains(&absent) {
                let wanted = Section::Worker.wanted(&absent, "");
                let wrong = format!("this `[[worker]]` has no {absent}; it {wanted}");
                self.push(place, wrong);
            }
            let filled = match absent.as_str() {
                "name" => format!("number-{}", before + 1),
                "listen" => "127.0.0.1:0".to_owned(),
                _ => "filled-in.invalid:1".to_owned(),
            };
            let value = Spanned::new(0..0, DeValue::String(filled.into()));
            good.insert(Spanned::new(0..0, absent.into()), value);
        }
    }

    fn is_broken(&self, at: usize) -> bool {
        self.broken.contains_key(&line_of(self.text, at))
    }

    fn push(&mut self, at: usize, wrong: String) {
        self.found.insert((line_of(self.text, at), wrong));
    }
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
mod tests;
