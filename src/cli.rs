//! The subcommands: parse, call the module, print its error, choose the exit code.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::clock::Clock;
use crate::config::Config;
use crate::experiment::{demo, probe};
use crate::traffic::client::INSECURE;
use crate::{proxy, sim, terminal, traffic};

/// Shows where every LLM request waits: client, router, server queue, prefill or decode.
#[derive(Debug, Parser)]
#[command(name = "queuescope", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show it all in one process: two simulated servers, hops, a front and 100 requests
    Demo(demo::Args),
    /// Send Poisson traffic and show where every request waited
    Traffic(Box<traffic::Args>),
    /// Stand before a router or servers and record where each request waits
    Proxy(Box<proxy::Args>),
    /// Check a config of the proxy and draw what it makes; exit code 2 when it is wrong
    Check(Box<proxy::Args>),
    /// Pretend to be an SGLang server that queues as the real one does
    Sim(sim::Args),
    /// Send one streamed request and show all that could be seen of it
    Probe(probe::Args),
}

/// Sends Poisson traffic to an LLM server, router or proxy and shows where every request waited.
#[derive(Debug, Parser)]
#[command(name = "queuescope-traffic", version, max_term_width = 100)]
struct TrafficCli {
    #[command(flatten)]
    args: traffic::Args,
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
    let cli: Cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match cli.command {
        Command::Demo(args) => demo::run(&args)
            .map(|()| ExitCode::SUCCESS)
            .map_err(Failure::Runtime),
        Command::Traffic(args) => run_traffic(&args),
        Command::Proxy(args) => run_proxy(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => Ok(run_check(*args)),
        Command::Sim(args) => run_sim(args).map(|()| ExitCode::SUCCESS),
        Command::Probe(args) => run_probe(&args),
    };
    done.unwrap_or_else(|failure| report(&failure))
}

/// `queuescope-traffic`: the same as `queuescope traffic`.
pub fn traffic_main() -> ExitCode {
    let cli: TrafficCli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    run_traffic(&cli.args).unwrap_or_else(|failure| report(&failure))
}

/// Reads the command line. A value that does not fit is said in one line: flag, value, what would be right.
fn parse<P: Parser>() -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let right = match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(names)) => {
                Some(format!("must be one of {}", names.join(", ")))
            }
            _ => std::error::Error::source(&error).map(ToString::to_string),
        };
        let flag = text(ContextKind::InvalidArg).and_then(|arg| arg.split(' ').next());
        // A value without a flag has its name in angle brackets.
        let flag = flag.map(|flag| flag.trim_matches(['<', '>']));
        let value = |flag| text(ContextKind::InvalidValue).map(|value| shown(flag, value));
        match (error.kind(), flag, flag.and_then(value), right) {
            (
                ErrorKind::ValueValidation | ErrorKind::InvalidValue,
                Some(flag),
                Some(value),
                Some(right),
            ) => {
                let line = anyhow::anyhow!("{flag}{value}: {right}");
                report(&Failure::Usage(line))
            }
            _ => {
                // A closed standard output or error leaves nobody to tell.
                let _ = error.print();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
        }
    })
}

/// A value as an error shows it, without what may be a secret: a header's value, a URL's user or query.
fn shown(flag: &str, value: &str) -> String {
    match (flag, value.split_once(':')) {
        ("--header", Some((name, _))) => format!(" {name}:***"),
        ("--header", None) => String::new(),
        ("--base-url" | "URL" | "--worker", _) if value.contains(['@', '?']) => String::new(),
        _ => format!(" {value}"),
    }
}

fn run_traffic(args: &traffic::Args) -> Result<ExitCode, Failure> {
    if args.tls.insecure {
        terminal::complain(&format!("warning: {INSECURE}\n"));
    }
    let outcome = traffic::run(args, Clock::system())
        .map_err(|error| Failure::of(error.is_usage(), error))?;
    terminal::say(&outcome.to_text(), terminal::width());
    match outcome.failure {
        None => Ok(ExitCode::SUCCESS),
        Some(why) => Err(Failure::Runtime(anyhow::anyhow!(why))),
    }
}

fn run_proxy(args: &proxy::Args) -> Result<(), Failure> {
    log_to_stderr();
    let load = || {
        let loaded = args.config.as_deref().map(Config::load).transpose()?;
        let mut config = loaded.unwrap_or_default().into_proxy();
        args.clone().override_config(&mut config);
        Ok(config)
    };
    let config = load().map_err(|error: crate::config::Error| Failure::Usage(error.into()))?;
    let again = || load().map_err(|error| error.to_string());
    proxy::run(&again, config, Clock::system())
        .map_err(|error| Failure::of(error.is_usage(), error))
}

/// Draws the topology, or tells every fault.
fn run_check(args: proxy::Args) -> ExitCode {
    let loaded = args.config.as_deref().map(Config::load_all).transpose();
    let loaded = match loaded {
        Ok(loaded) => loaded.unwrap_or_default(),
        Err(error) => return report(&Failure::Usage(error.into())),
    };
    let mut faults: Vec<anyhow::Error> = loaded.faults.into_iter().map(Into::into).collect();
    let mut config = loaded.config.into_proxy();
    args.override_config(&mut config);
    let checked = proxy::topology::check(&config).map_err(|wrong| {
        let is_new = |fault: &proxy::Wrong| !loaded.keys.contains(&fault.key);
        faults.extend(wrong.into_iter().filter(is_new).map(Into::into));
    });
    let Ok(topology) = checked.and_then(|topology| faults.is_empty().then_some(topology).ok_or(()))
    else {
        for fault in faults {
            report(&Failure::Usage(fault));
        }
        return ExitCode::from(2);
    };
    let warnings = topology.warnings.iter();
    let warnings: String = warnings
        .map(|warning| format!("\nwarning: {warning}\n"))
        .collect();
    terminal::say(&(topology.text + &warnings), terminal::width());
    ExitCode::SUCCESS
}

fn run_sim(args: sim::Args) -> Result<(), Failure> {
    sim::run(args).map_err(|error| Failure::of(error.is_usage(), error))
}

fn run_probe(args: &probe::Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::Runtime(error.into()))?;
    let probed = runtime.block_on(probe::probe(args, Clock::system()));
    let probed = probed.map_err(|error| {
        let cause = error.downcast_ref::<traffic::Error>();
        Failure::of(cause.is_some_and(traffic::Error::is_usage), error)
    })?;
    terminal::say(&probed.text, args.width());
    Ok(if probed.wrong.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Our own news go to stderr; `RUST_LOG` asks for more or less.
fn log_to_stderr() {
    let news = env_logger::Env::default().default_filter_or("error,queuescope=info");
    // A second logger in the process is refused; the first one serves.
    let _ = env_logger::Builder::from_env(news).try_init();
}

impl Failure {
    fn of(is_usage: bool, error: impl Into<anyhow::Error>) -> Failure {
        if is_usage {
            Failure::Usage(error.into())
        } else {
            Failure::Runtime(error.into())
        }
    }
}

/// Prints a failure as one line (causes joined by `: `), which a terminal's width may break, and gives its
/// exit code.
pub fn report(failure: &Failure) -> ExitCode {
    let (error, code) = match failure {
        Failure::Usage(error) => (error, 2),
        Failure::Runtime(error) => (error, 1),
    };
    terminal::complain(&format!("error: {}\n", line(error)));
    ExitCode::from(code)
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
