//! The command lines of started processes, and where the router's program is.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::secret;

/// A program with its arguments and additional environment variables. Its `Display` is quoted for a shell, with secrets masked.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandLine {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Names and values of environment variables.
    pub env: Vec<(String, String)>,
    /// How many arguments, at the beginning, select a subcommand or module of the program.
    leading: usize,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(&secret::masked(name, value)))?;
        }
        write!(f, "{}", quoted(&self.program.display().to_string()))?;
        let mut args = self.masked_args();
        args.try_for_each(|(arg, _)| write!(f, " {}", quoted(&arg)))
    }
}

impl CommandLine {
    /// Makes a command line. All arguments that are added later stand behind `args`.
    pub fn new(program: impl Into<PathBuf>, args: &[&str]) -> CommandLine {
        CommandLine {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
            leading: args.len(),
        }
    }

    /// Adds arguments.
    pub fn with<T: ToString>(mut self, args: impl IntoIterator<Item = T>) -> CommandLine {
        self.args
            .extend(args.into_iter().map(|arg| arg.to_string()));
        self
    }

    /// Adds the address to listen on. It stands before other flags, so that they can override it.
    pub(super) fn listening_on(mut self, addr: SocketAddr) -> CommandLine {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let flags = ["--host", &host, "--port", &port].map(str::to_owned);
        self.args.splice(self.leading..self.leading, flags);
        self
    }

    /// Returns each argument with secrets masked, and the secret if there is one.
    fn masked_args(&self) -> impl Iterator<Item = (String, Option<&str>)> {
        let mut flag = "";
        self.args.iter().map(move |arg| {
            let (before, name, value) = match arg.split_once('=') {
                _ if !arg.starts_with('-') => ("", flag, arg.as_str()),
                Some((name, value)) => (arg.strip_suffix(value).unwrap_or_default(), name, value),
                None => {
                    flag = arg;
                    (flag, "", "")
                }
            };
            let shown = secret::masked(name, value);
            let secret = (shown != value).then_some(value);
            (format!("{before}{shown}"), secret)
        })
    }

    /// The secrets in the command line, without empty ones, which would match everywhere in a log.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let env = self.env.iter();
        let env = env.filter(|(name, value)| secret::masked(name, value) != *value);
        let all = self.masked_args().filter_map(|(_, secret)| secret);
        let all = all.chain(env.map(|(_, value)| value.as_str()));
        all.filter(|secret| !secret.is_empty()).collect()
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Finds the `given` program of the router, or `smg`, in PATH or at its path.
///
/// # Errors
/// It is not there. Says how to get one.
pub fn find_router(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = given.unwrap_or(Path::new("smg"));
    let at_path = || Some(program.to_owned()).filter(|program| program.is_file());
    in_path(program).or_else(at_path).with_context(|| {
        let program = program.display();
        format!(
            "the router's program {program} is not there; `pip install sglang-router` brings smg, and router_program names another"
        )
    })
}

/// Finds a program in PATH.
pub(in crate::experiment) fn in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).map(|folder| folder.join(&name));
    programs.find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(env: &[(&str, &str)], args: &[&str]) -> CommandLine {
        let env = env.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        CommandLine {
            env: env.collect(),
            ..CommandLine::new("/my bin/a", args)
        }
    }

    #[test]
    fn secrets_of_a_command_are_not_shown() {
        let env = [("MYTOKEN", "S3"), ("PROXY", "http://me:S4@h"), ("HOW", "x")];
        let flags = ["--api-key", "S 1", "--model", "m", "--admin-api-key=S2"];
        let all = line(&env, &flags);
        assert_eq!(
            all.to_string(),
            "MYTOKEN='***' PROXY='http://***@h' HOW=x '/my bin/a' --api-key '***' --model m '--admin-api-key=***'"
        );
        assert_eq!(all.secrets(), ["S 1", "S2", "S3", "http://me:S4@h"]);
        let empty = line(&[], &["--api-key", "", "--token="]);
        assert_eq!(
            empty.to_string(),
            "'/my bin/a' --api-key '***' '--token=***'"
        );
        assert_eq!(empty.secrets(), [""; 0]);
    }

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 30001));
        let line = line(&[("CUDA_VISIBLE_DEVICES", "0, 1")], &["sim"]);
        let shown = line
            .with(["--model", "it's a {model}"])
            .listening_on(addr)
            .to_string();
        assert_eq!(
            shown,
            r"CUDA_VISIBLE_DEVICES='0, 1' '/my bin/a' sim --host 127.0.0.1 --port 30001 --model 'it'\''s a {model}'"
        );
        let echoed = shown.replace(" '/my bin/a'", " printf '%s|'");
        let echoed = std::process::Command::new("sh")
            .args(["-c", &echoed])
            .output();
        let echoed = String::from_utf8(echoed.unwrap().stdout).unwrap();
        assert!(echoed.contains("|--model|it's a {model}|"), "{echoed}");
    }
}
