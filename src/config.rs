//! The proxy's config: a file overridden by flags.

use std::path::Path;

use self::args::Args;
use self::check::Credentials;
use self::proxy::Config;
use self::read::Reading;
use crate::config_error::ConfigError;

pub mod args;
pub mod check;
pub mod proxy;
mod read;
pub mod sections;
pub mod topology;

/// Reads a file, applies the flags, and checks the config. Missing keys have their defaults.
///
/// # Errors
/// All problems, with key, value and what would be valid: those of the file in its order, then of the flags, then of the check. Of a
/// file that is not TOML, only its first line that is not.
pub fn load(path: Option<&Path>, flags: &Args) -> Result<(Config, Credentials), Vec<String>> {
    let text = path.map_or(Ok(String::new()), read);
    let text = text.map_err(|problem| vec![problem])?;
    load_text(&text, path, flags)
}

fn load_text(
    text: &str,
    path: Option<&Path>,
    flags: &Args,
) -> Result<(Config, Credentials), Vec<String>> {
    let at = |line| path.map(|path| format!("{}, line {line}: ", path.display()));
    let mut reading = Reading::new(text);
    reading.apply(flags);
    let of_check = |error: &ConfigError| {
        let line = reading.lines.get(&error.key);
        line.and_then(|line| at(*line)).unwrap_or_default() + &error.to_string()
    };
    let of_file = reading.file_problems.into_iter();
    let of_file = of_file.map(|(line, problem)| at(line).unwrap_or_default() + &problem);
    let mut problems: Vec<String> = of_file.chain(reading.flag_problems).collect();
    match reading.config.check() {
        Ok(credentials) if problems.is_empty() => return Ok((reading.config, credentials)),
        Err(mut errors) if reading.is_toml => {
            errors.retain(|error| !reading.invalid_keys.contains(&error.key));
            problems.extend(errors.iter().map(of_check));
        }
        _ => {}
    }
    Err(problems)
}

/// Returns all problems of a config file's text.
pub fn problems(text: &str) -> Vec<String> {
    let loaded = load_text(text, None, &Args::default());
    loaded.err().unwrap_or_default()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| {
        let path = path.display();
        format!("cannot read config file {path}: {error}; give the path of a text file, as in --config config.toml")
    })
}

#[cfg(test)]
mod tests;
