//! The command line: parses it, runs the subcommand, prints its error and returns the exit code.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::error::{Error, FAILED, INVALID, SIGNALLED, TOO_MANY_FAILED};
use crate::experiment::launch::Access;
use crate::experiment::launch::process::{KEEPER, be_kept, keep};
use crate::experiment::plan::keys::ExperimentKind;
use crate::experiment::plan::settings::invalid_value;
use crate::experiment::run::Finished;
use crate::experiment::run::single::RunResult;
use crate::experiment::{command, probe};
use crate::report::files::{RunState, SUMMARY};
use crate::traffic::client::INSECURE_WARNING;
use crate::{config, disk, report, secret, serve, sim, terminal, traffic, whatif};

mod logging;

/// Shows where every LLM request waits: client, router, server queue, prefill or decode.
#[derive(Debug, Parser)]
#[command(name = "queuescope", version, max_term_width = 100)]
#[command(propagate_version = true, disable_help_flag = true)]
struct Cli {
    /// How lines of the log are written
    #[arg(long, global = true, hide_short_help = true, help_heading = "Log")]
    #[arg(value_enum, value_name = "FORMAT", default_value = "text")]
    log_format: logging::Format,
    #[command(flatten)]
    help: Help,
    #[command(subcommand)]
    command: Command,
}

/// The flags of the help, which has three lengths where clap has two: see [`with_help`].
#[derive(Debug, clap::Args)]
struct Help {
    /// Print help: -h the most used flags, --help all flags
    #[arg(short, long, global = true, display_order = 998, action = ArgAction::HelpShort)]
    help: Option<bool>,
    /// Print all flags with all that is to say of each; so does `queuescope help COMMAND`
    #[arg(long, global = true, display_order = 999, action = ArgAction::HelpLong)]
    #[arg(hide_short_help = true)]
    help_all: Option<bool>,
}

/// The ends of the commands' helps, each below the command's name. The first line of each is an example.
const EXAMPLES: &str = include_str!("cli/examples.txt");
/// The last line of each command's help.
const MORE: &str = "--help-all says more of each flag, and has that of all commands: --log-format";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it all with one command: two simulated servers, hops, a front and 100 requests
    Demo(command::DemoArgs),
    /// Send Poisson traffic and show where every request waited
    Traffic(Box<traffic::Args>),
    /// Test one server: start it, load it with each setting of a plan, compare
    Node(Box<command::Args>),
    /// Test several servers behind a router: compare policies, let servers fail
    Routing(Box<command::Args>),
    /// Run the proxy before a router or servers and record where each request waits
    Proxy(Box<config::args::Args>),
    /// Check a config of the proxy and draw its topology; exit code 2 when it is wrong
    Check(Box<config::args::Args>),
    /// Simulate an SGLang server that queues as the real one does
    Sim(sim::config::Config),
    /// Send one streamed request and show all that could be seen of it
    Probe(probe::Args),
    /// Show what runs and experiments found: on the terminal, as a page, as tables
    Report(report::command::Args),
    /// Predict what other limits, servers or rates would do to a measured load
    Whatif(whatif::command::Args),
    /// Run a command that ends when standard input ends: for experiments, should they be killed
    #[command(name = KEEPER, hide = true)]
    EndWithParent {
        /// Be the command, below this process, which ends it
        #[arg(long)]
        kept_by: Option<u32>,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Check that a proxy is running; exit code 1 when it is not
    Health {
        /// Its admin listener
        #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:8801", value_parser = address)]
        admin: SocketAddr,
    },
    /// Print the completion script of a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a man page for each subcommand
    Man {
        /// Folder for them
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// `queuescope`: parses the process's arguments and runs the subcommand.
pub fn main() -> ExitCode {
    start(std::env::args_os().collect())
}

/// `queuescope-traffic`: the same as `queuescope traffic`.
pub fn traffic_main() -> ExitCode {
    let ours = ["queuescope", "traffic"].map(OsString::from);
    let args = ours.into_iter().chain(std::env::args_os().skip(1));
    start(args.collect())
}

fn start(args: Vec<OsString>) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(code) => return exit_code(Ok(code)),
    };
    // The keeper must not change what its command inherits, such as limits and signals.
    if !matches!(cli.command, Command::EndWithParent { .. }) {
        set_up(matches!(cli.command, Command::Proxy(_)), cli.log_format);
    }
    exit_code(run(cli.command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => check_results(&command::run_demo(&args)?)?,
        Command::Traffic(args) => run_traffic(&args)?,
        Command::Node(args) => run_experiment(&args, ExperimentKind::Node)?,
        Command::Routing(args) => run_experiment(&args, ExperimentKind::Routing)?,
        Command::Proxy(args) => run_proxy(&args)?,
        Command::Check(args) => run_check(&args)?,
        Command::Sim(args) => sim::run(args)?,
        Command::Probe(args) => return run_probe(&args),
        Command::Report(args) => run_report(args)?,
        Command::Whatif(args) => run_whatif(&args)?,
        Command::EndWithParent {
            command,
            kept_by: Some(keeper),
        } => return Ok(be_kept(keeper, &command)),
        Command::EndWithParent { command, .. } => return Ok(keep(&command)),
        Command::Health { admin } => run_health(admin)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "queuescope", &mut script);
            terminal::print_raw(&String::from_utf8_lossy(&script));
        }
        Command::Man { folder } => {
            let command = with_help(Cli::command(), false);
            std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(command, &folder))
                .map_err(|error| {
                    let dir = folder.display();
                    anyhow!("DIR {dir}: cannot be written: {error}; name a folder that can be made or written")
                })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does what is left at the end of the process: removes drafts of files, and prints an error. Returns the exit code.
fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    // After a signal, threads may still be writing files.
    disk::remove_drafts();
    let code = result.unwrap_or_else(|error| fail(&error));
    let lost = terminal::lost_output()
        .map(|error| fail(&anyhow!("standard output cannot be written: {error}")));
    lost.filter(|_| code == ExitCode::SUCCESS).unwrap_or(code)
}

/// Sets up the log, signals and the limit on open files. Only the proxy logs information; all other commands log warnings, without those
/// of Pingora's connectors.
fn set_up(is_proxy: bool, format: logging::Format) {
    let filter = match is_proxy {
        true => "error,queuescope=info",
        false => "error,pingora_core::connectors=off,queuescope=warn",
    };
    logging::start(filter, format);
    if let Err(error) = ignore_signals().and(allow_many_files()) {
        log::warn!("cannot set up signals and the limit on open files: {error}");
    }
}

/// Ignores SIGXFSZ (a file reached the limit of `ulimit -f`: writing it then fails, which is reported), SIGUSR1, which other programs
/// take as "write statistics" or "reopen the log", and SIGUSR2, which a proxy handles later.
fn ignore_signals() -> std::io::Result<()> {
    for signal in [Signal::SIGXFSZ, Signal::SIGUSR1, Signal::SIGUSR2] {
        signal_hook::flag::register(signal as i32, Arc::default())?;
    }
    Ok(())
}

/// Raises the soft limit on open files. A request takes a socket, two in the proxy; the usual limit of 1024 is for programs that use
/// `select`.
fn allow_many_files() -> std::io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Adds an example and [`MORE`] to the help of a command and of its subcommands. A brief help has only the most used flags, which are
/// those without a heading.
fn with_help(command: clap::Command, is_brief: bool) -> clap::Command {
    let of_name = |text: &'static str| text.strip_prefix(command.get_name())?.strip_prefix('\n');
    let example = EXAMPLES.split("# ").find_map(of_name);
    let end = example.map(|example| format!("Example:\n{example}\n{MORE}"));
    let command = command.mut_args(|arg| match arg.get_help_heading() {
        Some(_) if is_brief => arg.hide_short_help(true),
        _ => arg,
    });
    let command = command.mut_subcommands(|below| with_help(below, is_brief));
    command.after_help(end.unwrap_or_default())
}

/// Parses the command line. The error of an invalid value is one line: flag, value, what would be valid.
fn parse(args: Vec<OsString>) -> Result<Cli, ExitCode> {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let mut command = with_help(Cli::command(), has("-h"));
    let matches = command.try_get_matches_from_mut(args);
    let parsed = matches.and_then(|mut matches| {
        let json = matches.subcommand().map(|(_, of)| of.try_get_one("json"));
        terminal::set_json_output(matches!(json, Some(Ok(Some(true)))));
        Cli::from_arg_matches_mut(&mut matches)
    });
    parsed.map_err(|error| match invalid_value(&error) {
        Some((flag, value, hint)) if error.kind() != ErrorKind::TooManyValues => {
            let message = format!("{flag}{}: {hint}", masked(&flag, &value));
            fail(&Error::usage(message).into())
        }
        _ => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            terminal::note_write(error.format(&mut command).print());
            ExitCode::from(code)
        }
    })
}

/// Returns a value for an error, without secrets: a header's value, a URL's user or query.
fn masked(flag: &str, value: &str) -> String {
    match flag {
        "--base-url" | "URL" if value.contains(['@', '?']) => String::new(),
        // A text without `=` may still be the key and value of a secret.
        "--set" => String::new(),
        _ => format!(" {}", secret::masked(flag, value)),
    }
}

fn run_traffic(args: &traffic::Args) -> anyhow::Result<()> {
    if args.tls.insecure {
        terminal::print_error(&format!("warning: {INSECURE_WARNING}\n"));
    }
    let outcome = traffic::run(args, Clock::system())?;
    terminal::print(&outcome.to_text());
    terminal::print_json_file(&outcome.output_dir.join(SUMMARY));
    Ok(outcome.failure.map_or(Ok(()), Err)?)
}

fn run_experiment(args: &command::Args, kind: ExperimentKind) -> anyhow::Result<()> {
    let finished = args.run(kind)?;
    Ok(finished.iter().try_for_each(check_results)?)
}

/// Prints the JSON of an experiment, and returns its failure with the exit code.
fn check_results(finished: &Finished) -> Result<(), Error> {
    terminal::print_json_file(&finished.dir.join(report::command::COMPARISON));
    let too_often = |run: &RunResult| run.file.has_failed_too_often;
    // What --resume can repair comes first.
    let again = |run: &RunResult| run.file.state == RunState::Failed;
    let (message, code) = match finished.signal {
        Some(signal) => (
            "the experiment was stopped before its end",
            SIGNALLED + signal,
        ),
        None if finished.runs.iter().any(again) => ("a run failed; --resume does it again", FAILED),
        None if finished.failed().next().is_some() => ("a run failed", FAILED),
        None if finished.is_invalid() => (
            "a run is INVALID: its figures say nothing of the servers",
            INVALID,
        ),
        None if finished.runs.iter().any(too_often) => (
            "more requests of a run failed than max_failed allows, or without it more than half",
            TOO_MANY_FAILED,
        ),
        None => return Ok(()),
    };
    Err(Error::new(code, message))
}

fn run_proxy(args: &config::args::Args) -> anyhow::Result<()> {
    let given = args.clone();
    let load: serve::Load = Arc::new(move || config::load(given.config.as_deref(), &given));
    let (config, credentials) = load().map_err(invalid_config)?;
    let path = |path: Option<&Path>| path.map_or("none".into(), |path| path.display().to_string());
    log::info!(
        "queuescope {} begins, process {}: config {}, records {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        path(args.config.as_deref()),
        path(config.records.as_deref()),
    );
    serve::run(&load, (config, credentials), Clock::system())
}

/// Describes the config, or prints all its problems.
fn run_check(args: &config::args::Args) -> anyhow::Result<()> {
    let loaded = config::load(args.config.as_deref(), args);
    let (config, credentials) = loaded.map_err(invalid_config)?;
    terminal::print(&config::describe(&config, &credentials));
    Ok(())
}

fn run_probe(args: &probe::Args) -> anyhow::Result<ExitCode> {
    let probe = probe::probe(args, Clock::system());
    let result = tokio::runtime::Runtime::new()?.block_on(probe)?;
    terminal::print(&result.text);
    terminal::print_json(&format!("{:#}\n", result.row.to_json()));
    Ok(ExitCode::from(u8::from(result.problem.is_some())))
}

fn run_report(args: report::command::Args) -> anyhow::Result<()> {
    use report::command::Format;
    let (width, format, is_file) = (terminal::width(), args.format, args.output.is_some());
    let report = move || report::command::run(&args, width);
    let text = traffic::runtime()?.block_on(traffic::unless_signalled(report))??;
    // Only text for people is wrapped.
    match format {
        Format::Text => terminal::print_within(&text, width),
        Format::Json | Format::Csv if !is_file => terminal::print_raw(&text),
        _ => terminal::print_within(&text, None),
    }
    Ok(())
}

fn run_whatif(args: &whatif::command::Args) -> anyhow::Result<()> {
    let (text, refused) = whatif::command::run(args)?;
    terminal::print_raw(&text);
    refused.map_or(Ok(()), |message| Err(Error::failed(message).into()))
}

/// How long a proxy may take to answer that it lives.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Parses the address of an admin listener.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let address = text.parse();
    address.map_err(|_| "must be IP:PORT, as in 127.0.0.1:8801")
}

/// Requests `/healthz`, which needs no token: for containers, as their image has no shell and no curl.
fn run_health(admin: SocketAddr) -> anyhow::Result<()> {
    let hint = "give the admin listener (key admin) of a proxy that runs";
    let (access, url) = (Access::default(), format!("http://{admin}"));
    let answered = async { timeout(HEALTH_TIMEOUT, access.get(&url, "/healthz")).await };
    let answered = tokio::runtime::Runtime::new()?.block_on(answered);
    let late = |_| Err(format!("not within {} s", HEALTH_TIMEOUT.as_secs()));
    let answered = answered.unwrap_or_else(late);
    let (status, _) =
        answered.map_err(|why| anyhow!("IP:PORT {admin}: no answer ({why}); {hint}"))?;
    ensure!(
        status == 200,
        "IP:PORT {admin}: /healthz answers {status}, not 200; {hint}"
    );
    Ok(())
}

/// The error of an invalid config, whose problems are printed in a line each.
fn invalid_config(problems: Vec<String>) -> Error {
    Error::usage(problems.join("\nerror: "))
}

/// Prints an error, wrapped at the terminal's width. Returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    terminal::print_error(&format!("error: {}\n", line(error)));
    let code = error.downcast_ref::<Error>().map(|error| error.code);
    ExitCode::from(code.unwrap_or(FAILED))
}

/// Joins an error and its causes by `: `, without causes that the line contains already.
fn line(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |line, cause| match line {
            line if line.is_empty() => cause,
            line if line.contains(&cause) => line,
            line => format!("{line}: {cause}"),
        })
}

#[cfg(test)]
mod tests;
