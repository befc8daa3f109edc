//! The check of `records` and `takeover`: paths that only go together in some ways.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::config::check::{Faults, quoted};
use crate::config::proxy::{Base, Config};
use crate::config_error::ConfigError;

/// The path of a Unix socket is at most this long, bytes: `sun_path` of unix(7), its final zero left out.
const SOCKET_MOST: usize = 107;

impl Config {
    pub(super) fn check_paths(&self, faults: &mut Faults) {
        let mut wrong = |key: &str, path: &Path, wrong: String| {
            faults.push(ConfigError::new(key, quoted(path), wrong));
        };
        let is_empty = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path == "");
        for (key, path) in [("records", &self.records), ("takeover", &self.takeover)] {
            if is_empty(path) {
                wrong(
                    key,
                    Path::new(""),
                    "is empty; give a path, or leave it out".into(),
                );
            }
        }
        let Some(takeover) = &self.takeover else {
            return;
        };
        let length = takeover.as_os_str().as_bytes().len();
        if length > SOCKET_MOST {
            let why = format!(
                "has {length} bytes; the path of a Unix socket may have {SOCKET_MOST}, give a shorter one"
            );
            wrong("takeover", takeover, why);
        }
        let Some(records) = &self.records else {
            return;
        };
        // `./t` and `t` are one file.
        let plain = |path: &PathBuf| path.strip_prefix(".").unwrap_or(path).to_owned();
        if plain(records) == plain(takeover) && !is_empty(&self.records) {
            let why = "is the path of records, too; give each its own";
            wrong("takeover", takeover, why.into());
        }
        if self.time_base == Base::Run {
            let why = "two processes will write to records, and with time_base = \"run\" each would count from \
                       its own start; use time_base = \"epoch\"";
            wrong("takeover", takeover, why.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_cannot_go_together_are_refused() {
        let long = format!("/{}", "x".repeat(107));
        let short = &long[..107];
        for (records, takeover, base, wrong) in [
            (Some("r"), Some("t"), Base::Epoch, None),
            (Some("r"), Some(short), Base::Epoch, None),
            (Some("r"), None, Base::Run, None),
            (None, Some("t"), Base::Run, None),
            (
                Some("r"),
                Some("t"),
                Base::Run,
                Some("takeover = \"t\": two processes"),
            ),
            (
                Some("t"),
                Some("./t"),
                Base::Epoch,
                Some("is the path of records"),
            ),
            (
                Some("a/t"),
                Some("a//./t"),
                Base::Epoch,
                Some("is the path of records"),
            ),
            (
                Some(""),
                None,
                Base::Epoch,
                Some("records = \"\": is empty"),
            ),
            (
                None,
                Some(""),
                Base::Epoch,
                Some("takeover = \"\": is empty"),
            ),
            (
                None,
                Some(long.as_str()),
                Base::Epoch,
                Some("has 108 bytes"),
            ),
        ] {
            let config = Config {
                upstream: vec!["127.0.0.1:1".into()],
                records: records.map(PathBuf::from),
                takeover: takeover.map(PathBuf::from),
                time_base: base,
                ..Config::default()
            };
            let said = config.check().err().map(|wrong| wrong.to_string());
            let is_right = match (&said, wrong) {
                (None, None) => true,
                (Some(said), Some(wrong)) => said.contains(wrong),
                _ => false,
            };
            assert!(is_right, "{records:?} {takeover:?}: {said:?}");
        }
    }
}
