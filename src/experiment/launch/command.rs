//! The commands of what is started.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::spec::{DeploymentSpec, Engine};
use crate::secret;

/// A program, its arguments, and variables of its environment beside ours. Shown as a shell takes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CommandLine {
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

/// The server of this number from 0 at `addr`; `None`: it is not ours to start.
pub(super) fn server(
    spec: &DeploymentSpec,
    addr: SocketAddr,
    number: usize,
) -> Option<CommandLine> {
    let mut line = match &spec.engine {
        Engine::Sim { flags } => {
            let flags = flags.get(number).or(flags.last()).into_iter().flatten();
            let sim = CommandLine::new(&spec.program, &["sim"]).at(addr);
            sim.with(flags.cloned())
        }
        Engine::Sglang {
            python,
            flags,
            first_gpu,
            gpus,
            servers_per_gpu,
        } => {
            // Each has GPUs of its own, or shares them with so many.
            let gpu = first_gpu + number as u64 / servers_per_gpu.max(&1) * gpus;
            let sglang = CommandLine::new(python, &["-m", "sglang.launch_server"]).at(addr);
            let gpu = ["--base-gpu-id".to_owned(), gpu.to_string()];
            sglang.with(gpu).with(flags.iter().cloned())
        }
        Engine::External { .. } => return None,
    };
    line.env.clone_from(&spec.env);
    Some(line)
}

/// Our proxy.
pub(super) fn proxy(program: &Path, config: &Path) -> CommandLine {
    CommandLine::new(program, &["proxy", "--config"]).with([config.display().to_string()])
}

/// sglang-router before `workers`, with its metrics on `metrics`.
pub(super) fn router(
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
        let mut line = CommandLine::new(Path::new("a"), &["--api-key", "", "--token="]);
        line.env = env.to_vec();
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
        let sim = Engine::Sim {
            flags: vec![flags.to_vec()],
        };
        let mut spec = DeploymentSpec::new(sim, 1, "/my bin/queuescope".into(), Path::new(""));
        spec.env = env.to_vec();
        let shown = server(&spec, addr, 3).unwrap().to_string();
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

    #[test]
    fn each_server_has_gpus_of_its_own_or_shares_them() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 30001));
        for (gpus, servers_per_gpu, ids) in [(2, 1, ["1", "3", "5"]), (1, 2, ["1", "1", "2"])] {
            let engine = Engine::Sglang {
                python: "python3".into(),
                flags: vec!["--tp-size".into(), gpus.to_string()],
                first_gpu: 1,
                gpus,
                servers_per_gpu,
            };
            let spec = DeploymentSpec::new(engine, 3, "".into(), Path::new(""));
            for (number, id) in ids.iter().enumerate() {
                let line = server(&spec, addr, number).unwrap().to_string();
                let flags = format!("--port 30001 --base-gpu-id {id} --tp-size {gpus}");
                assert!(line.ends_with(&flags), "{line}");
            }
        }
    }
}
