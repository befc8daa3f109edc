//! The subcommands: parse, call the module, print its error, choose the exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::clock::Clock;
use crate::config::Config;
use crate::proxy;

/// Shows where every LLM request waits: client, router, server queue, prefill or decode.
#[derive(Debug, Parser)]
#[command(name = "queuescope", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stand before a router or servers and record where each request waits.
    Proxy(Box<proxy::Args>),
}

/// A failure as the shell sees it.
#[derive(Debug)]
pub enum Failure {
    /// The command line, config or input file is wrong: exit code 2.
    Usage(anyhow::Error),
    /// It was right, but did not work out: exit code 1.
    Runtime(anyhow::Error),
}

/// `queuescope`: parses the process's arguments and runs the subcommand.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Proxy(args) => run_proxy(*args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn run_proxy(args: proxy::Args) -> Result<(), Failure> {
    log_to_stderr();
    let usage = |error| Failure::Usage(anyhow::Error::from(error));
    let loaded = args.config.as_deref().map(Config::load).transpose();
    let mut config = loaded.map_err(usage)?.unwrap_or_default().into_proxy();
    args.override_config(&mut config);
    proxy::run(config, Clock::system()).map_err(|error| {
        let is_usage = error.is_usage();
        let error = anyhow::Error::from(error);
        if is_usage {
            Failure::Usage(error)
        } else {
            Failure::Runtime(error)
        }
    })
}

/// Our own news go to stderr; `RUST_LOG` asks for more or less.
fn log_to_stderr() {
    let news = env_logger::Env::default().default_filter_or("error,queuescope=info");
    // A second logger in the process is refused; the first one serves.
    let _ = env_logger::Builder::from_env(news).try_init();
}

/// Prints a failure as one line (causes joined by `: `) and gives its exit code.
#[expect(clippy::print_stderr, reason = "the CLI speaks to its user")]
pub fn report(failure: &Failure) -> ExitCode {
    let (error, code) = match failure {
        Failure::Usage(error) => (error, 2),
        Failure::Runtime(error) => (error, 1),
    };
    eprintln!("error: {error:#}");
    ExitCode::from(code)
}
