//! The config: its file with the flags over it, or all that is wrong with them.

use std::io::ErrorKind;
use std::path::Path;

use self::args::Args;
use self::check::Credentials;
use self::proxy::Config;
use self::read::Reading;

pub mod args;
pub mod check;
pub mod proxy;
mod read;
pub mod sections;
pub mod topology;

/// Reads a file and the flags over it, and checks the config. Absent keys have their defaults.
///
/// # Errors
/// All that is wrong, with key, value and what would be right: in the order of the file, of the flags, then of the check. Of a file
/// that is no TOML its lines alone.
pub fn load(path: Option<&Path>, flags: &Args) -> Result<(Config, Credentials), Vec<String>> {
    let text = path.map(read).transpose().map_err(|wrong| vec![wrong])?;
    let at = |line| path.map(|path| format!("{}, line {line}: ", path.display()));
    load_text(&text.unwrap_or_default(), flags, at)
}

fn load_text(
    text: &str,
    flags: &Args,
    at: impl Fn(usize) -> Option<String>,
) -> Result<(Config, Credentials), Vec<String>> {
    let mut reading = Reading::of(text);
    reading.put(flags);
    let Reading { config, keys, .. } = reading;
    let of_file = reading.of_file.into_iter();
    let of_file = of_file.map(|(line, problem)| at(line).unwrap_or_default() + &problem);
    let mut wrong: Vec<String> = of_file.chain(reading.of_flags).collect();
    match config.check() {
        Ok(credentials) if wrong.is_empty() => return Ok((config, credentials)),
        Err(others) if !reading.is_unread => {
            let new = others.iter().filter(|other| !keys.contains(&other.key));
            wrong.extend(new.map(ToString::to_string));
        }
        _ => {}
    }
    Err(wrong)
}

/// What is wrong with the text of a config that is in no file yet.
pub fn wrong(text: &str) -> Vec<String> {
    let loaded = load_text(text, &Args::default(), |_| None);
    loaded.err().unwrap_or_default()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::InvalidData => "it is not text in UTF-8".into(),
            _ => error.to_string(),
        };
        let path = path.display();
        format!("cannot read config file {path}: {why}; give the path of a text file, as in --config config.toml")
    })
}

#[cfg(test)]
mod tests;
