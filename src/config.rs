//! The proxy's config: a file overridden by flags.

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
    let placed = |(line, problem): (Option<usize>, String)| match (path, line) {
        (Some(path), Some(line)) => format!("{}, line {line}: {problem}", path.display()),
        _ => problem,
    };
    let mut reading = Reading::new(text).map_err(|(line, why)| vec![placed((Some(line), why))])?;
    reading.apply(flags);
    let checked = reading.config.check();
    let of_check = |(key, problem): &(String, String)| {
        let (line, given) = reading
            .given
            .get(key)
            .cloned()
            .unwrap_or((None, key.clone()));
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

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| {
        let path = path.display();
        format!("cannot read config file {path}: {error}; give the path of a text file, as in --config config.toml")
    })
}

#[cfg(test)]
mod tests;
