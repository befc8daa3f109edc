//! The check of secrets: given, or in a file of their own.

use std::path::{Path, PathBuf};

use crate::config::check::Plan;
use crate::config::check::quoted;
use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::secret::Secret;

/// Who sees what a hop signed may try secrets until one fits: that many bytes cannot be tried.
const HOP_SECRET_LEAST: usize = 16;

impl Config {
    pub(super) fn admin_secret(&self) -> Result<Option<Secret>, ConfigError> {
        let token = one_of("admin_token", &self.admin_token, &self.admin_token_file)?;
        if token.as_ref().is_some_and(Secret::is_empty) {
            let wrong = "is empty; give a long secret, or leave it out";
            return Err(ConfigError::new("admin_token", "\"\"", wrong));
        }
        Ok(token)
    }

    pub(super) fn check_hop_secret(&self) -> Result<Option<Secret>, ConfigError> {
        let secret = one_of("hop_secret", &self.hop_secret, &self.hop_secret_file)?;
        let length = secret.as_ref().map(|secret| secret.bytes().len());
        if let Some(length @ ..HOP_SECRET_LEAST) = length {
            let wrong = format!(
                "has {length} characters; give at least {HOP_SECRET_LEAST}, as from `openssl rand -hex 32`, the \
                 same to the front and to its hops"
            );
            return Err(ConfigError::new("hop_secret", "***", wrong));
        }
        Ok(secret)
    }
}

impl Plan {
    /// By what the front and its hops know each other, in words.
    pub fn hops_known_by(&self) -> &'static str {
        match (self.upstream.is_empty(), self.hop_secret.is_some()) {
            (false, false) => {
                "those of this process; others need the same hop_secret here and there"
            }
            (false, true) => "those of this process, and others that have the same hop_secret",
            (true, false) => "no front believes what they stamp: there is no hop_secret",
            (true, true) => "believed by fronts that have the same hop_secret",
        }
    }
}

/// The secret `key`, or what the file under `key`_file holds.
fn one_of(
    key: &str,
    given: &Option<Secret>,
    file: &Option<PathBuf>,
) -> Result<Option<Secret>, ConfigError> {
    let wrong =
        |file: &Path, wrong: String| ConfigError::new(&format!("{key}_file"), quoted(file), wrong);
    match (given, file) {
        (Some(_), Some(file)) => Err(wrong(
            file,
            format!("{key} is given too; give one of the two"),
        )),
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(text) => Ok(Some(Secret::from(text.trim()))),
            Err(error) => Err(wrong(
                file,
                format!("{error}; give a file that holds the secret alone"),
            )),
        },
        (given, None) => Ok(given.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const GOOD: &str = "sixteen bytes of it";

    fn config(given: Option<&str>, file: Option<&Path>) -> Config {
        Config {
            upstream: vec!["127.0.0.1:1".into()],
            hop_secret: given.map(Secret::from),
            hop_secret_file: file.map(PathBuf::from),
            ..Config::default()
        }
    }

    #[test]
    fn a_hop_secret_is_long_and_given_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{GOOD}").unwrap();
        let plan = config(None, Some(file.path())).check().unwrap();
        assert_eq!(plan.hop_secret, Some(GOOD.into()), "without its line's end");
        let wrong = |given, file| config(given, file).check().unwrap_err().to_string();
        let both = wrong(Some(GOOD), Some(file.path()));
        assert!(both.contains("hop_secret is given too"), "{both}");
        let short = wrong(Some("sesame"), None);
        assert!(
            short.starts_with("hop_secret = ***: has 6 characters; give at least 16"),
            "{short}"
        );
        assert!(!short.contains("sesame"), "{short}");
        let none = wrong(None, Some(Path::new("/none")));
        assert!(
            none.starts_with("hop_secret_file = \"/none\": No such file"),
            "{none}"
        );
    }

    #[test]
    fn by_what_hops_are_known() {
        let mut hops = Config {
            workers: vec!["w=127.0.0.1:9000=127.0.0.1:30000".parse().unwrap()],
            ..config(None, None)
        };
        let known_by = |config: &Config| config.check().unwrap().hops_known_by();
        assert!(known_by(&hops).contains("others need the same hop_secret"));
        hops.hop_secret = Some(GOOD.into());
        assert!(known_by(&hops).contains("others that have the same"));
        hops.upstream.clear();
        assert!(known_by(&hops).starts_with("believed by fronts"));
        hops.hop_secret = None;
        assert!(known_by(&hops).starts_with("no front believes"));
    }
}
