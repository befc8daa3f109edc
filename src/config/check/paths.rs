//! The check of `records` and `takeover`: paths that only go together in some ways.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::config::proxy::Config;
use crate::config_error::ConfigError;
use crate::request::csv::Base;

/// The path of a Unix socket is at most this long, bytes: `sun_path` of unix(7), its final zero left out.
const SOCKET_MOST: usize = 107;

/// What is wrong with them.
pub(super) fn check(config: &Config) -> Vec<ConfigError> {
    let (records, takeover) = (config.records.as_deref(), config.takeover.as_deref());
    let mut found = Vec::new();
    for (key, path) in [("records", records), ("takeover", takeover)] {
        let Some(path) = path else { continue };
        let folder = path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        let problem = match folder {
            _ if path == "" => "is empty; give a path, or leave it out".into(),
            Some(folder) => format!("there is no folder {}; make it first", folder.display()),
            None if key == "records" && path.is_dir() => {
                "is a folder; give a file in it, as in records.csv".into()
            }
            None => continue,
        };
        found.push(ConfigError::text(key, path.display(), problem));
    }
    let logs = config.engine.logs.path.as_deref();
    if let Some(logs) = logs.filter(|logs| *logs == "" || (logs.exists() && !logs.is_dir())) {
        let problem = "is no folder; give that of the servers' --export-metrics-to-file-dir";
        let path = logs.display();
        found.push(ConfigError::text("engine.logs: path", path, problem));
    }
    let Some(takeover) = takeover else {
        return found;
    };
    let mut wrong = |problem: String| {
        found.push(ConfigError::text("takeover", takeover.display(), problem));
    };
    let length = takeover.as_os_str().as_bytes().len();
    if length > SOCKET_MOST {
        wrong(format!(
            "has {length} bytes; the path of a Unix socket may have {SOCKET_MOST}, give a shorter one"
        ));
    }
    let Some(records) = records else {
        return found;
    };
    // `./t` and `t` are one file.
    let plain = |path: &Path| path.strip_prefix(".").unwrap_or(path).to_owned();
    if plain(records) == plain(takeover) && records != "" {
        wrong("is the path of records, too; give each its own".into());
    }
    if config.time_base == Base::Run {
        wrong(
            "after a restart each process has a records file of its own, and with time_base = \"run\" each would count from its own start; \
             use time_base = \"epoch\""
                .into(),
        );
    }
    found
}
