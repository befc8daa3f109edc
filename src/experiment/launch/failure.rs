//! What is said of a process that ended, or was not ready in time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::cause::{Cause, cause};
use super::command::CommandLine;
use crate::secret::MASK;

/// A process that does not do what it was started for.
#[derive(Debug)]
pub struct Failure {
    name: String,
    command: String,
    what: What,
    log: PathBuf,
    tail: String,
    cause: Option<Cause>,
}

/// What happened to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// It ended, of itself or by a signal of somebody else's.
    Ended(ExitStatus),
    /// It was not ready after so long.
    NotReady(Duration),
    /// It said that it cannot do it, and goes on.
    Hopeless,
}

/// Whether a start that failed would fail again with other settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lasts {
    /// It would, unless one of these keys of the plan is another; `NAME.` is any of a table.
    Unless(&'static [&'static str]),
    /// Perhaps: it was not ready in time, and nobody knows why.
    Perhaps,
    /// Nothing says so.
    No,
}

/// Lines of its log that are shown.
const LINES: usize = 20;
/// Bytes of its log that are looked at for a cause: SGLang says more than a screen after it.
const LOOKED_AT: usize = 65_536;

/// What a process wrote to its log last, since it was started with `command` last.
pub(super) fn said(log: &Path, command: &str) -> String {
    let said = std::fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(LOOKED_AT)..]).into_owned();
    match said.rsplit_once(&format!("$ {command}\n")) {
        Some((_, last)) => last.to_owned(),
        None => said,
    }
}

impl Failure {
    pub(super) fn new(name: &str, line: &CommandLine, what: What, log: &Path) -> Failure {
        let command = line.to_string();
        let mut said = said(log, &command);
        for secret in line.secrets() {
            said = said.replace(secret, MASK);
        }
        let status = match what {
            What::Ended(status) => Some(status),
            What::NotReady(_) | What::Hopeless => None,
        };
        let lines: Vec<&str> = said
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        Failure {
            name: name.to_owned(),
            cause: cause(&said, status),
            tail: lines[lines.len().saturating_sub(LINES)..].join("\n  "),
            command,
            what,
            log: log.to_owned(),
        }
    }

    /// Whether it would fail again.
    pub fn lasts(&self) -> Lasts {
        match (&self.cause, self.what) {
            (Some(Cause { keys, .. }), _) if !keys.is_empty() => Lasts::Unless(keys),
            (None, What::NotReady(_)) => Lasts::Perhaps,
            _ => Lasts::No,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            name,
            command,
            what,
            log,
            tail,
            cause,
        } = self;
        match what {
            What::Ended(status) => write!(f, "{name} ended ({status})")?,
            What::Hopeless => write!(f, "{name} cannot become ready")?,
            What::NotReady(limit) => {
                write!(f, "{name} was not ready after {} s", limit.as_secs_f64())?
            }
        }
        match cause {
            Some(Cause { what, remedy, .. }) => write!(f, ": {what}. {remedy}")?,
            None => write!(f, ": its log may say why")?,
        }
        write!(f, "\n  command: {command}\n  log: {}", log.display())?;
        match tail.is_empty() {
            true => write!(f, " (empty)"),
            false => write!(f, ", which ends with\n  {tail}"),
        }
    }
}

impl std::error::Error for Failure {}
