//! The subcommands: parse, call the module, print its error, choose the exit code.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::clock::Clock;
use crate::config;
use crate::config::topology;
use crate::config_error::ConfigError;
use crate::experiment::launch::process::{KEEPER, keep};
use crate::experiment::plan::keys::Kind;
use crate::experiment::plan::line::wrong_value;
use crate::experiment::run::Finished;
use crate::experiment::run::one::RunEnd;
use crate::experiment::{command, demo, probe};
use crate::report;
use crate::report::files::SUMMARY;
use crate::traffic::Unfit;
use crate::traffic::client::INSECURE;
use crate::{disk, secret, serve, sim, terminal, traffic, whatif};

mod health;
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

/// Help of three lengths, where clap has two: see [`with_help`].
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

/// An example a command, and what else its help ends in, below the command's name.
const EXAMPLES: &str = include_str!("cli/examples.txt");
/// The last line of each.
const MORE: &str = "--help-all says more of each flag, and has that of all commands: --log-format";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it all by one command: two simulated servers, hops, a front and 100 requests
    Demo(demo::Args),
    /// Send Poisson traffic and show where every request waited
    Traffic(Box<traffic::Args>),
    /// Test one server: start it, load it with each setting of a plan, compare
    Node(Box<command::Args>),
    /// Test several servers behind a router: compare policies, let servers fail
    Routing(Box<command::Args>),
    /// Stand before a router or servers and record where each request waits
    Proxy(Box<config::args::Args>),
    /// Check a config of the proxy and draw what it makes; exit code 2 when it is wrong
    Check(Box<config::args::Args>),
    /// Pretend to be an SGLang server that queues as the real one does
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
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Ask a proxy whether it lives; exit code 1 when it does not
    Health(health::Args),
    /// Print what a shell completes command lines by
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a man page a subcommand
    Man {
        /// An existing folder for them
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// An end that is no success, with its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct Ended {
    why: String,
    code: u8,
}

/// Exit code where what was asked for did not work out.
const FAILED: u8 = 1;
/// Exit code where the command line, config or input file is wrong.
const USAGE: u8 = 2;

/// `queuescope`: parses the process's arguments and runs the subcommand.
pub fn main() -> ExitCode {
    start(std::env::args_os().collect())
}

/// `queuescope-traffic`: the same as `queuescope traffic`.
pub fn traffic_main() -> ExitCode {
    let ours = ["queuescope", "traffic"].map(OsString::from);
    let words = ours.into_iter().chain(std::env::args_os().skip(1));
    start(words.collect())
}

fn start(words: Vec<OsString>) -> ExitCode {
    let cli = match parse(words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // What it runs is to have what it would have without it.
    if !matches!(cli.command, Command::EndWithParent { .. }) {
        begin(matches!(cli.command, Command::Proxy(_)), cli.log_format);
    }
    exit_code(run(cli.command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => return ended(demo::run(&args)?),
        Command::Traffic(args) => return run_traffic(&args),
        Command::Node(args) => args.run(Kind::Node)?.iter().try_for_each(shortcoming)?,
        Command::Routing(args) => args.run(Kind::Routing)?.iter().try_for_each(shortcoming)?,
        Command::Proxy(args) => return run_proxy(&args),
        Command::Check(args) => return Ok(run_check(&args)),
        Command::Sim(args) => sim::server::run(args)?,
        Command::Probe(args) => return run_probe(&args),
        Command::Report(args) => run_report(args)?,
        Command::Whatif(args) => return run_whatif(&args),
        Command::EndWithParent { command } => return Ok(keep(&command)),
        Command::Health(args) => health::ask(&args)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "queuescope", &mut script);
            terminal::put(&String::from_utf8_lossy(&script), terminal::shown);
        }
        Command::Man { folder } => {
            let command = with_help(Cli::command(), false);
            clap_mangen::generate_to(command, &folder)
                .with_context(|| folder.display().to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The end of a process.
fn exit_code(done: anyhow::Result<ExitCode>) -> ExitCode {
    log::logger().flush();
    // A signal leaves threads behind that may be writing.
    disk::abandon();
    done.unwrap_or_else(|error| fail(&error))
}

/// What every process needs that opens connections: a log, many files, and that no stray signal ends it. News of the proxy are
/// for its log; those of all else are few, and Pingora's are the demo's own affair.
fn begin(is_proxy: bool, format: logging::Format) {
    let filter = match is_proxy {
        true => "error,queuescope=info",
        false => "error,pingora_core::connectors=off,queuescope=warn",
    };
    logging::start(filter, format);
    if let Err(error) = ignore_signals(is_proxy) {
        log::warn!("signals that mean nothing here will end this process: {error}");
    }
    if let Err(error) = allow_many_files() {
        log::warn!("cannot raise the limit on open files: {error}");
    }
}

/// From now on SIGXFSZ does nothing (a file has come to the limit of `ulimit -f`: writing it fails then, and whoever writes it says
/// so), nor SIGUSR1, which often means "write your figures" or "open your log again"; nor, but to a proxy, SIGUSR2.
fn ignore_signals(is_proxy: bool) -> std::io::Result<()> {
    let usr2 = (!is_proxy).then_some(Signal::SIGUSR2);
    let ignored = [Signal::SIGXFSZ, Signal::SIGUSR1].into_iter().chain(usr2);
    for signal in ignored {
        signal_hook::flag::register(signal as i32, Arc::default())?;
    }
    Ok(())
}

/// A request takes a socket, at the proxy two; the usual soft limit of 1024 is for programs that use `select`.
fn allow_many_files() -> nix::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

/// A command and those below it, with helps that end in an example. A brief help has only the most used flags, which are those under
/// no heading.
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

/// Columns that a help takes whose flags stand beside what is said of them.
const WIDE: usize = 100;

/// The help for a narrower terminal: what is said of a flag follows it at once, and no line is empty.
fn narrow(help: &str) -> String {
    let told = |line: &str| {
        let start = line.len() - line.trim_start().len();
        let of_flag = line.get(start..).filter(|body| body.starts_with('-'));
        match of_flag.and_then(|body| body.split_once("  ")) {
            Some((flag, said)) => format!("{:start$}{flag}: {}\n", "", said.trim_start()),
            None => format!("{line}\n"),
        }
    };
    help.lines()
        .filter(|line| !line.is_empty())
        .map(told)
        .collect()
}

/// Reads the command line. A value that does not fit is said in one line: flag, value, what would be right.
fn parse(words: Vec<OsString>) -> Result<Cli, ExitCode> {
    let asked = |flag: &str| words.iter().any(|word| word == flag);
    let width = terminal::width().filter(|width| *width < WIDE && (asked("-h") || asked("--help")));
    let mut command = with_help(Cli::command(), asked("-h"));
    if width.is_some() {
        command = command.term_width(0);
    }
    let read = command.try_get_matches_from_mut(words);
    let read = read.and_then(|mut read| {
        let of = read.subcommand().map(|(_, of)| of.try_get_one("json"));
        terminal::begin(matches!(of, Some(Ok(Some(true)))));
        Cli::from_arg_matches_mut(&mut read)
    });
    read.map_err(|error| match wrong_value(&error) {
        Some((flag, value, right)) if error.kind() != ErrorKind::TooManyValues => {
            let why = format!("{flag}{}: {right}", shown(&flag, &value));
            fail(&Ended { why, code: USAGE }.into())
        }
        _ if width.is_some() && error.kind() == ErrorKind::DisplayHelp => {
            terminal::say(&narrow(&error.to_string()), width);
            ExitCode::SUCCESS
        }
        _ => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            // A closed standard output or error leaves nobody to tell.
            let _ = error.format(&mut command).print();
            ExitCode::from(code)
        }
    })
}

/// A value as an error shows it, without what may be a secret: a header's value, a URL's user or query.
fn shown(flag: &str, value: &str) -> String {
    match flag {
        "--base-url" | "URL" if value.contains(['@', '?']) => String::new(),
        // What has no `=` may be a secret's key and value all the same.
        "--set" => String::new(),
        _ => format!(" {}", secret::shown(flag, value)),
    }
}

fn run_traffic(args: &traffic::Args) -> anyhow::Result<ExitCode> {
    if args.tls.insecure {
        terminal::complain(&format!("warning: {INSECURE}\n"));
    }
    let outcome = traffic::run(args, Clock::system())?;
    terminal::tell(&outcome.to_text());
    ended(outcome)
}

/// Exit code of a run whose figures are not to be believed.
const INVALID: u8 = 3;
/// Exit code of a run in which more requests failed than may.
const TOO_MANY_FAILED: u8 = 4;
/// What shells add to the number of a signal.
const SIGNALLED: u8 = 128;

/// How a run ended, for scripts.
fn ended(outcome: traffic::FinishedRun) -> anyhow::Result<ExitCode> {
    // Why a file of results is missing has been said.
    let summary = std::fs::read_to_string(outcome.output_dir.join(SUMMARY));
    terminal::put_results(&summary.unwrap_or_default());
    let code = match &outcome.unfit {
        None if outcome.failure.is_none() => return Ok(ExitCode::SUCCESS),
        None => FAILED,
        Some(Unfit::Stopped(signal)) => SIGNALLED + signal,
        Some(Unfit::Invalid) => INVALID,
        Some(Unfit::Failed { .. }) => TOO_MANY_FAILED,
    };
    let unfit = outcome.unfit.map(|unfit| unfit.to_string());
    let why = outcome.failure.or(unfit).unwrap_or_default();
    Err(Ended { why, code }.into())
}

/// How an experiment ended, for scripts.
fn shortcoming(finished: &Finished) -> Result<(), Ended> {
    let comparison = std::fs::read_to_string(finished.dir.join(report::command::COMPARISON));
    terminal::put_results(&comparison.unwrap_or_default());
    let too_often = |end: &RunEnd| end.file.has_failed_too_often;
    // What --resume can mend comes first.
    let (why, code) = match finished.signal {
        Some(signal) => (
            "the experiment was stopped before its end",
            SIGNALLED + signal,
        ),
        None if finished.failed().next().is_some() => {
            ("a run failed; --resume does it again", FAILED)
        }
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
    let why = why.to_owned();
    Err(Ended { why, code })
}

fn run_proxy(args: &config::args::Args) -> anyhow::Result<ExitCode> {
    let load = || config::load(args.config.as_deref(), args).map(|(config, _)| config);
    let config = match load() {
        Ok(config) => config,
        Err(faults) => return Ok(report_all(faults)),
    };
    let path = |path: Option<&Path>| path.map_or("none".into(), |path| path.display().to_string());
    log::info!(
        "queuescope {} begins, process {}: config {}, records {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        path(args.config.as_deref()),
        path(config.records.as_deref()),
    );
    serve::process::run(&load, config, Clock::system())?;
    Ok(ExitCode::SUCCESS)
}

/// Draws the topology, or tells every fault.
fn run_check(args: &config::args::Args) -> ExitCode {
    match config::load(args.config.as_deref(), args) {
        Ok((config, credentials)) => {
            terminal::tell(&topology::of(&config, &credentials));
            ExitCode::SUCCESS
        }
        Err(faults) => report_all(faults),
    }
}

fn run_probe(args: &probe::Args) -> anyhow::Result<ExitCode> {
    let probe = probe::probe(args, Clock::system());
    let probed = tokio::runtime::Runtime::new()?.block_on(probe)?;
    terminal::tell(&probed.text);
    terminal::put_results(&format!("{:#}\n", probed.record.to_json()));
    Ok(match probed.wrong {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

fn run_report(args: report::command::Args) -> anyhow::Result<()> {
    use report::command::Format;
    let (width, format, is_file) = (terminal::width(), args.format, args.output.is_some());
    let report = move || report::command::run(&args, width);
    let reported = traffic::runtime()?.block_on(traffic::unless_signalled(report))??;
    // What programs read is neither broken into lines nor changed.
    match format {
        Format::Text => terminal::say(&reported, width),
        Format::Json if !is_file => terminal::put(&reported, terminal::shown_json),
        Format::Csv if !is_file => terminal::put(&reported, terminal::shown),
        _ => terminal::say(&reported, None),
    }
    Ok(())
}

fn run_whatif(args: &whatif::command::Args) -> anyhow::Result<ExitCode> {
    let (shown, refused) = whatif::command::run(args)?;
    match args.is_json() {
        true => terminal::put(&shown, terminal::shown_json),
        false => terminal::put(&shown, terminal::shown),
    }
    refused.map_or(Ok(ExitCode::SUCCESS), |why| {
        Err(Ended { why, code: FAILED }.into())
    })
}

/// The exit code of an error.
fn code(error: &anyhow::Error) -> u8 {
    if let Some(Ended { code, .. }) = error.downcast_ref() {
        return *code;
    }
    let is_usage = command::is_usage(error)
        || error.downcast_ref().is_some_and(sim::Error::is_usage)
        || error.downcast_ref().is_some_and(whatif::Error::is_usage)
        || error.downcast_ref().is_some_and(report::command::is_usage)
        || error.is::<ConfigError>();
    match error.downcast_ref() {
        Some(traffic::Error::Interrupted(signal)) => SIGNALLED + *signal,
        _ if is_usage => USAGE,
        _ => FAILED,
    }
}

/// What is wrong with what it was told, a line each.
fn report_all(faults: Vec<String>) -> ExitCode {
    let code = USAGE;
    for why in faults {
        fail(&Ended { why, code }.into());
    }
    ExitCode::from(code)
}

/// Prints a failure as one line (causes joined by `: `), which a terminal's width may break, and gives its
/// exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    terminal::complain(&format!("error: {}\n", line(error)));
    ExitCode::from(code(error))
}

/// An error and its causes, joined by `: `; a cause that has been said already is not said again.
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
