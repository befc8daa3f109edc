//! The check of `records` and of the folder of servers' logs.

use crate::config::proxy::Config;
use crate::config_error::ConfigError;

/// What is wrong with them.
pub(super) fn check(config: &Config) -> Vec<ConfigError> {
    let mut found = Vec::new();
    if let Some(path) = config.records.as_deref() {
        let folder = path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        let problem = match folder {
            _ if path == "" => Some("is empty; give a path, or leave it out".into()),
            Some(folder) => {
                let folder = folder.display();
                Some(format!("there is no folder {folder}; make it first"))
            }
            None if path.is_dir() => {
                Some("is a folder; give a file in it, as in records.csv".into())
            }
            None => None,
        };
        let wrong = |problem: String| ConfigError::text("records", path.display(), problem);
        found.extend(problem.map(wrong));
    }
    let logs = config.engine.logs.path.as_deref();
    if let Some(logs) = logs.filter(|logs| *logs == "" || (logs.exists() && !logs.is_dir())) {
        let problem = "is no folder; give that of the servers' --export-metrics-to-file-dir";
        let path = logs.display();
        found.push(ConfigError::text("engine.logs: path", path, problem));
    }
    found
}
