//! The check of secrets: given, or in a file of their own.

use std::path::PathBuf;

use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::secret::Secret;

/// Who sees what a hop signed, or may ask again and again, may try secrets until one fits: that many bytes cannot be
/// tried.
const LEAST: usize = 16;

pub(super) fn admin_token(config: &Config) -> Result<Option<Secret>, ConfigError> {
    let (given, file) = (&config.admin_token, &config.admin_token_file);
    let token = one_of("admin_token", given, file)?;
    is_long("admin_token", token.as_ref(), "")?;
    if config.fault_injection && token.is_none() && !config.admin.ip().to_canonical().is_loopback()
    {
        let problem = "whoever reaches the admin listener could inject faults; give admin_token, or an admin address \
                       on this machine, as in 127.0.0.1:8801";
        return Err(ConfigError::new("fault_injection", true, problem));
    }
    Ok(token)
}

pub(super) fn hop_secret(config: &Config) -> Result<Option<Secret>, ConfigError> {
    let secret = one_of("hop_secret", &config.hop_secret, &config.hop_secret_file)?;
    let to_all = ", the same to the front and to its hops";
    is_long("hop_secret", secret.as_ref(), to_all)?;
    Ok(secret)
}

pub(super) fn stamps_token(config: &Config) -> Result<(), ConfigError> {
    is_long("stamps_token", config.stamps_token.as_ref(), "")
}

fn is_long(key: &str, secret: Option<&Secret>, to_whom: &str) -> Result<(), ConfigError> {
    let Some(length @ ..LEAST) = secret.map(|secret| secret.bytes().len()) else {
        return Ok(());
    };
    let problem = format!(
        "has {length} characters; give at least {LEAST}, as from `openssl rand -hex 32`{to_whom}"
    );
    Err(ConfigError::new(key, "***", problem))
}

/// The secret `key`, or what the file under `key`_file holds.
fn one_of(
    key: &str,
    given: &Option<Secret>,
    file: &Option<PathBuf>,
) -> Result<Option<Secret>, ConfigError> {
    let Some(file) = file else {
        return Ok(given.clone());
    };
    let wrong =
        |problem: String| ConfigError::text(&format!("{key}_file"), file.display(), problem);
    if given.is_some() {
        return Err(wrong(format!("{key} is given too; give one of the two")));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| wrong(format!("{error}; give a file that holds the secret alone")))?;
    Ok(Some(Secret::from(text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;

    const GOOD: &str = "sixteen bytes of it";

    fn config(given: Option<&str>, file: Option<&Path>) -> Config {
        Config {
            upstream: vec!["127.0.0.1:1".to_owned().try_into().unwrap()],
            hop_secret: given.map(Secret::from),
            hop_secret_file: file.map(PathBuf::from),
            ..Config::default()
        }
    }

    #[test]
    fn a_hop_secret_is_long_and_given_once() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{GOOD}").unwrap();
        let credentials = config(None, Some(file.path())).check().unwrap();
        assert_eq!(
            credentials.hop_secret,
            Some(GOOD.into()),
            "without its line's end"
        );
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
}
