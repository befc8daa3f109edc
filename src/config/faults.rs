//! Every fault of a config file, not only the first: each key is read on its own.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::{Config, Error, explain, line_of};

/// A config file as far as it can be read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What could be read; the keys that could not have their defaults, workers that could not are left out.
    pub config: Config,
    /// What could not, in the order of the file.
    pub faults: Vec<Error>,
    /// The keys at fault: to say no more of their defaults.
    pub keys: Vec<String>,
}

/// Faults by line, from 1.
#[derive(Debug, Default)]
struct Faults<'i> {
    text: &'i str,
    found: Vec<(usize, String)>,
    keys: Vec<String>,
}

impl Config {
    /// Reads a file as [`Config::load`] does, and goes on after a fault.
    ///
    /// # Errors
    /// When the file cannot be read, or is no TOML.
    pub fn load_all(path: &Path) -> Result<Loaded, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let error = |(line, problem)| Error::Content {
            path: path.into(),
            line,
            problem,
        };
        let (config, faults, keys) = parse_all(&text).map_err(error)?;
        Ok(Loaded {
            config,
            faults: faults.into_iter().map(error).collect(),
            keys,
        })
    }
}

type Parsed = (Config, Vec<(usize, String)>, Vec<String>);

fn parse_all(text: &str) -> Result<Parsed, (usize, String)> {
    let whole = match Config::parse(text) {
        Ok(config) => return Ok((config, Vec::new(), Vec::new())),
        Err(first) => first,
    };
    // What is no TOML at all has only the one fault.
    let Ok(document) = DeTable::parse(text) else {
        return Err(whole);
    };
    let mut faults = Faults {
        text,
        ..Faults::default()
    };
    let mut config = Config::default();
    for (name, value) in document.into_inner() {
        match (name.get_ref().as_ref(), value.get_ref()) {
            ("proxy", DeValue::Table(table)) => {
                let good = faults.sift(table, |table| read::<crate::proxy::Config>(table));
                config.proxy = read(good).unwrap_or_default();
            }
            ("worker", DeValue::Array(workers)) => {
                for worker in workers.iter() {
                    config.worker.extend(faults.worker(worker));
                }
            }
            _ => {
                let mut one = DeTable::new();
                one.insert(name, value);
                let _ = faults.sift(&one, |table| read::<Config>(table));
            }
        }
    }
    if faults.found.is_empty() {
        faults.found.push(whole);
    }
    faults.found.sort();
    Ok((config, faults.found, faults.keys))
}

fn read<T: DeserializeOwned>(table: DeTable<'_>) -> Result<T, toml::de::Error> {
    T::deserialize(Deserializer::from(Spanned::new(0..0, table)))
}

impl<'i> Faults<'i> {
    /// Reads each key of a table on its own; gives the table without those at fault.
    fn sift<T>(
        &mut self,
        table: &DeTable<'i>,
        read: impl Fn(DeTable<'i>) -> Result<T, toml::de::Error>,
    ) -> DeTable<'i> {
        let mut good = DeTable::new();
        for (key, value) in table {
            let mut one = DeTable::new();
            one.insert(key.clone(), value.clone());
            match read(one) {
                // That others are absent is not this key's fault.
                Err(error) if !error.message().starts_with("missing field") => {
                    self.push(key.span().start, error.message(), key.get_ref());
                }
                _ => {
                    good.insert(key.clone(), value.clone());
                }
            }
        }
        good
    }

    fn worker(&mut self, worker: &Spanned<DeValue<'i>>) -> Option<crate::proxy::Worker> {
        let DeValue::Table(table) = worker.get_ref() else {
            self.push(
                worker.span().start,
                "invalid type: expected a table",
                "worker",
            );
            return None;
        };
        let good = self.sift(table, |table| read::<crate::proxy::Worker>(table));
        if good.len() < table.len() {
            return None;
        }
        read(good)
            .map_err(|error| self.push(worker.span().start, error.message(), "worker"))
            .ok()
    }

    fn push(&mut self, at: usize, message: &str, key: &str) {
        let line = line_of(self.text, at);
        self.found.push((line, explain(message, Some(key))));
        self.keys.push(key.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_told_with_its_line() {
        let text = "[proxy]\nthreads = \"two\"\nupstraem = []\nlisten = \"127.0.0.1:1\"\n\
                    stamps = \"always\"\n[[worker]]\nname = \"w\"\n[[worker]]\nname = 3\n[poxy]\n";
        let (config, faults, keys) = parse_all(text).unwrap();
        let lines: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 5, 6, 9, 10], "{faults:?}");
        for ((_, problem), piece) in faults.iter().zip([
            "threads: invalid type",
            "did you mean `upstream`",
            "stamps: unknown variant `always`",
            "missing field",
            "name: invalid type",
            "did you mean `proxy`",
        ]) {
            assert!(problem.contains(piece), "{problem}");
        }
        assert_eq!(config.proxy.listen, "127.0.0.1:1");
        assert!(config.worker.is_empty());
        assert!(keys.iter().any(|key| key == "threads"));
    }

    #[test]
    fn a_good_file_has_none_and_no_toml_has_one() {
        let (config, faults, _) = parse_all("[proxy]\nthreads = 3\n").unwrap();
        assert_eq!((config.proxy.threads, faults.len()), (3, 0));
        assert_eq!(parse_all("[proxy]\nthreads =\n").unwrap_err().0, 2);
    }
}
