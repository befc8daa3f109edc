//! The subcommands: parse, call the module, print its error, choose the exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Shows where every LLM request waits: client, router, server queue, prefill or decode.
#[derive(Debug, Parser)]
#[command(name = "queuescope", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sim(crate::sim::Args),
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
    let result = match cli.command {
        Command::Sim(args) => sim(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn sim(args: crate::sim::Args) -> Result<(), Failure> {
    crate::sim::run(args).map_err(|error| match error.is_usage() {
        true => Failure::Usage(error.into()),
        false => Failure::Runtime(error.into()),
    })
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
