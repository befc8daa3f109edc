//! The check of secrets: given, or in a file of their own.

use std::path::Path;

use crate::config_error::ConfigError;
use crate::secret::Secret;

/// Who sees what a hop signed, or may ask again and again, may try secrets until one fits: that many bytes cannot be
/// tried.
const LEAST: usize = 16;

/// The secret `key`, or what the file under `key`_file holds; `to_whom` it is to be given, too.
pub(super) fn read(
    key: &str,
    given: Option<&Secret>,
    file: Option<&Path>,
    to_whom: &str,
) -> Result<Option<Secret>, ConfigError> {
    let wrong =
        |file: &Path, problem| ConfigError::text(&format!("{key}_file"), file.display(), problem);
    let secret = match (given.cloned(), file) {
        (Some(_), Some(file)) => {
            let problem = format!("{key} is given too; give one of the two");
            return Err(wrong(file, problem));
        }
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            let lacks =
                |error: std::io::Error| format!("{error}; give a file that holds the secret alone");
            let text = text.map_err(|error| wrong(file, lacks(error)))?;
            let text = text.trim();
            if text.contains('\n') {
                let problem = "has several lines; give a file that holds the secret alone";
                return Err(wrong(file, problem.into()));
            }
            Some(Secret::from(text))
        }
        (given, None) => given,
    };
    let Some(length @ ..LEAST) = secret.as_ref().map(|secret| secret.bytes().len()) else {
        return Ok(secret);
    };
    let problem = format!(
        "has {length} characters; give at least {LEAST}, as from `openssl rand -hex 32`{to_whom}"
    );
    Err(match file {
        Some(file) => wrong(file, problem),
        None => ConfigError::new(key, "***", problem),
    })
}
