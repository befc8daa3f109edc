//! The commands of what is started.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::sglang::Sglang;
use crate::secret;

/// A program, its arguments, and variables of its environment beside ours. Shown as a shell takes it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::experiment) struct CommandLine {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
}

impl CommandLine {
    fn new(program: &Path, args: &[&str]) -> CommandLine {
        CommandLine {
            program: program.to_owned(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
        }
    }

    pub(super) fn with_env(mut self, env: &[(String, String)]) -> CommandLine {
        self.env = env.to_vec();
        self
    }

    fn with(mut self, more: impl IntoIterator<Item = String>) -> CommandLine {
        self.args.extend(more);
        self
    }

    fn at(self, addr: SocketAddr) -> CommandLine {
        let pairs = [
            "--host".to_owned(),
            addr.ip().to_string(),
            "--port".to_owned(),
            addr.port().to_string(),
        ];
        self.with(pairs)
    }
}

/// A simulated server.
pub(super) fn sim(program: &Path, addr: SocketAddr, flags: &[String]) -> CommandLine {
    CommandLine::new(program, &["sim"])
        .at(addr)
        .with(flags.iter().cloned())
}

/// SGLang, the server of this number from 0.
pub(super) fn sglang(
    python: &Path,
    addr: SocketAddr,
    settings: &Sglang,
    number: usize,
) -> CommandLine {
    CommandLine::new(python, &["-m", "sglang.launch_server"])
        .at(addr)
        .with(settings.flags(number))
}

/// Our proxy.
pub(super) fn proxy(program: &Path, config: &Path) -> CommandLine {
    CommandLine::new(program, &["proxy", "--config"]).with([config.display().to_string()])
}

/// sglang-router before `workers`, with its metrics on `metrics`.
pub(in crate::experiment) fn router(
    program: &Path,
    addr: SocketAddr,
    metrics: SocketAddr,
    policy: &str,
    workers: &[String],
    flags: &[String],
) -> CommandLine {
    let prometheus = [
        "--prometheus-host".to_owned(),
        metrics.ip().to_string(),
        "--prometheus-port".to_owned(),
        metrics.port().to_string(),
    ];
    CommandLine::new(program, &["launch"])
        .at(addr)
        .with(prometheus)
        .with([
            "--policy".to_owned(),
            policy.to_owned(),
            "--worker-urls".to_owned(),
        ])
        .with(workers.iter().cloned())
        .with(flags.iter().cloned())
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(&secret::shown(name, value)))?;
        }
        write!(f, "{}", quoted(&self.program.display().to_string()))?;
        self.shown()
            .try_for_each(|arg| write!(f, " {}", quoted(&arg)))
    }
}

impl CommandLine {
    /// The arguments without what may be secret.
    fn shown(&self) -> impl Iterator<Item = String> {
        let mut flag = "";
        self.args.iter().map(move |arg| match arg.split_once('=') {
            _ if !arg.starts_with('-') => secret::shown(flag, arg),
            Some((flag, value)) => format!("{flag}={}", secret::shown(flag, value)),
            None => {
                flag = arg;
                arg.clone()
            }
        })
    }

    /// What is not shown of it; no empty one, which would be found between all characters.
    pub(super) fn secrets(&self) -> Vec<&str> {
        let hidden = self.args.iter().zip(self.shown());
        let hidden = hidden.filter(|(arg, shown)| *arg != shown);
        let hidden = hidden.map(|(arg, _)| {
            arg.split_once('=')
                .filter(|_| arg.starts_with('-'))
                .map_or(arg.as_str(), |(_, value)| value)
        });
        let env = self.env.iter();
        let env = env.filter(|(name, value)| secret::shown(name, value) != *value);
        let all = hidden.chain(env.map(|(_, value)| value.as_str()));
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

    #[test]
    fn secrets_of_a_command_are_not_shown() {
        let args = ["--api-key", "S 1", "--model", "m", "--admin-api-key=S2"];
        let line = CommandLine::new(Path::new("a"), &args);
        let shown = line.to_string();
        assert_eq!(shown, "a --api-key '***' --model m '--admin-api-key=***'");
        assert_eq!(line.secrets(), ["S 1", "S2"]);
        let env = [("MYTOKEN", "S3"), ("PROXY", "http://me:S4@h"), ("HOW", "x")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let line = CommandLine::new(Path::new("a"), &["--api-key", "", "--token="]).with_env(&env);
        let shown = line.to_string();
        let seen = "MYTOKEN='***' PROXY='http://***@h' HOW=x a --api-key '***' '--token=***'";
        assert_eq!(shown, seen);
        assert_eq!(line.secrets(), ["S3", "http://me:S4@h"]);
    }

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 30001));
        let flags = ["--model".to_owned(), "it's a {model}".to_owned()];
        let env = [("CUDA_VISIBLE_DEVICES".to_owned(), "0, 1".to_owned())];
        let shown = sim(Path::new("/my bin/queuescope"), addr, &flags);
        let shown = shown.with_env(&env).to_string();
        assert_eq!(
            shown,
            r"CUDA_VISIBLE_DEVICES='0, 1' '/my bin/queuescope' sim --host 127.0.0.1 --port 30001 --model 'it'\''s a {model}'"
        );
        let echoed = std::process::Command::new("sh")
            .args([
                "-c",
                &shown.replace(" '/my bin/queuescope'", " printf '%s|'"),
            ])
            .output();
        let echoed = String::from_utf8(echoed.unwrap().stdout).unwrap();
        assert!(echoed.ends_with("|--model|it's a {model}|"), "{echoed}");
    }
}
