//! The commands of what is started.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::secret;

/// A program, its arguments, and variables of its environment beside ours. Shown as a shell takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandLine {
    /// What is started.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Names and values.
    pub env: Vec<(String, String)>,
    /// So many arguments say what the program is, and stand before all others.
    lead: usize,
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(&secret::shown(name, value)))?;
        }
        write!(f, "{}", quoted(&self.program.display().to_string()))?;
        let mut args = self.shown();
        args.try_for_each(|(arg, _)| write!(f, " {}", quoted(&arg)))
    }
}

impl CommandLine {
    /// One that begins with these arguments.
    pub fn new(program: impl Into<PathBuf>, args: &[&str]) -> CommandLine {
        CommandLine {
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
            lead: args.len(),
        }
    }

    /// The same with further arguments.
    pub fn with<T: ToString>(mut self, args: impl IntoIterator<Item = T>) -> CommandLine {
        self.args
            .extend(args.into_iter().map(|arg| arg.to_string()));
        self
    }

    /// The same, told where to listen: before its flags, of which the last wins.
    pub(super) fn at(mut self, addr: SocketAddr) -> CommandLine {
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let listens = ["--host", &host, "--port", &port].map(str::to_owned);
        self.args.splice(self.lead..self.lead, listens);
        self
    }

    /// What is shown of each argument, and its value where that is a secret.
    fn shown(&self) -> impl Iterator<Item = (String, Option<&str>)> {
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
            let shown = secret::shown(name, value);
            let secret = (shown != value).then_some(value);
            (format!("{before}{shown}"), secret)
        })
    }

    /// What is not shown of it; no empty one, which would be found between all characters.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let env = self.env.iter();
        let env = env.filter(|(name, value)| secret::shown(name, value) != *value);
        let all = self.shown().filter_map(|(_, secret)| secret);
        let all = all.chain(env.map(|(_, value)| value.as_str()));
        all.filter(|secret| !secret.is_empty()).collect()
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
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
    fn a_command_is_shown_as_a_shell_takes_it() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 30001));
        let line = line(&[("CUDA_VISIBLE_DEVICES", "0, 1")], &["sim"]);
        let shown = line
            .with(["--model", "it's a {model}"])
            .at(addr)
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
