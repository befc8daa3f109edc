//! `queuescope demo`: a whole deployment in one process, so that a newcomer sees where requests wait
//! before there is anything of theirs to look at.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;

use crate::clock::Clock;
use crate::config::proxy::Config;
use crate::proxy::shared::UpstreamKind;
use crate::serve::lifecycle::Proxy;
use crate::sim::config::Config as SimConfig;
use crate::sim::server::Sim;
use crate::traffic::folder::{Folder, Made};
use crate::{terminal, traffic};

mod keep_running;
mod load;
mod router;
mod stack;

/// What `queuescope demo` can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder that gets the files, which must not hold a run already [default: a new one,
    /// results/demo/DATE-TIME; the link results/demo/latest leads to it]
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Replace the run that --output-dir holds
    #[arg(long, requires = "output_dir")]
    force: bool,
    /// Requests to send
    #[arg(long, value_name = "N", default_value = "100", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    num_prompts: u64,
    /// Requests a second
    #[arg(long, value_name = "RATE", default_value = "50", allow_negative_numbers = true,
        value_parser = traffic::rate)]
    request_rate: f64,
    /// Go on until Ctrl-C, with load that rises and falls as in a day of four minutes; three servers, a slow
    /// one among them. Writes DIR/targets.json, which tells Prometheus what to scrape
    #[arg(long, conflicts_with_all = ["num_prompts", "request_rate"])]
    keep_running: bool,
    /// With --keep-running: a router (`smg`, see scripts/router.sh) to start between front and hops
    #[arg(long, value_name = "PROGRAM", requires = "keep_running")]
    router: Option<PathBuf>,
    /// With --keep-running: where /metrics and the live page are [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "IP:PORT", requires = "keep_running")]
    admin: Option<SocketAddr>,
}

/// Requests that each simulated server runs at once: few, so that a queue forms.
const RUNNING: usize = 4;
/// Where demos go that are given no folder.
const RESULTS: &str = "results/demo";
/// The proxy's own rows.
const RECORDS: &str = "proxy.csv";

/// Runs the demo; prints what it does. `None` of one that kept running until it was told to end.
///
/// # Errors
/// A server, the proxy or the run could not start, or the files could not be written.
pub fn run(args: &Args) -> anyhow::Result<Option<traffic::FinishedRun>> {
    let runtime = tokio::runtime::Runtime::new().context("no runtime could be started")?;
    let clock = Clock::system();
    let folder = Folder::new(args.output_dir.as_deref(), args.force, RESULTS);
    if args.keep_running {
        let options = keep_running::Options {
            router: args.router.clone(),
            admin: args.admin,
        };
        runtime.block_on(keep_running::run(&folder, &options, &clock))?;
        return Ok(None);
    }
    runtime.block_on(async {
        let sims = [sim(&clock)?, sim(&clock)?];
        let Made { dir, note } = folder.make(&[RECORDS], clock.now())?;
        let records = dir.join(RECORDS);
        let proxy = stack::proxy(|| proxy_config(&sims, &records), &clock).await?;
        let front = proxy.front_addr().context("the proxy has no front")?;
        let flags = traffic_flags(args, &dir, front);
        say(&format!(
            "{}\n{}\n\n",
            picture(&sims, front, &proxy),
            command(&flags)
        ));
        let flags = traffic::Args::try_parse_from(&flags)?;
        let outcome = traffic::run_async(&flags, clock).await?;
        proxy.drain().await;
        say(&format!(
            "{}{}\n{}",
            outcome.to_text(),
            guide(&dir),
            note.map_or_else(String::new, |note| format!("note: {note}\n"))
        ));
        Ok(Some(outcome))
    })
}

/// Whether what was asked for is to blame, rather than how it went.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(traffic::Error::is_usage)
}

fn say(text: &str) {
    terminal::say(text, terminal::width());
}

fn sim(clock: &Clock) -> anyhow::Result<Sim> {
    let mut config = SimConfig {
        port: 0,
        ..SimConfig::default()
    };
    config.profile.tokenize_ms = 1.0;
    config.profile.max_running_requests = RUNNING;
    Ok(Sim::start(config, clock.clone())?)
}

/// The front sends to the hops in turn, as a router would.
fn proxy_config(sims: &[Sim], records: &Path) -> anyhow::Result<Config> {
    let workers = stack::hops(sims)?;
    Ok(Config {
        listen: stack::LOOPBACK,
        admin: stack::LOOPBACK,
        upstream: workers.iter().map(|worker| worker.listen.into()).collect(),
        upstream_kind: UpstreamKind::Router,
        records: Some(records.to_owned()),
        workers,
        ..Config::default()
    })
}

fn traffic_flags(args: &Args, dir: &Path, front: SocketAddr) -> Vec<String> {
    let base_url = format!("http://{front}");
    let pairs = [
        ("--base-url", base_url),
        ("--request-rate", args.request_rate.to_string()),
        ("--num-prompts", args.num_prompts.to_string()),
        ("--dataset-name", "random".to_owned()),
        ("--random-input-len", "320".to_owned()),
        ("--random-output-len", "40".to_owned()),
        ("--random-range-ratio", "0.6".to_owned()),
        ("--output-dir", dir.join("traffic").display().to_string()),
    ];
    let pairs = pairs
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value]);
    let force = args.force.then(|| "--force".to_owned());
    std::iter::once("traffic".to_owned())
        .chain(pairs)
        .chain(force)
        .collect()
}

/// The command as a person types it, broken as a shell takes it.
fn command(flags: &[String]) -> String {
    let mut text = "$ queuescope".to_owned();
    let mut at = text.len();
    for flag in flags {
        // A value stays beside its flag.
        let is_flag = flag.starts_with("--");
        if is_flag && at > COMMAND_COLUMNS {
            text.push_str(" \\\n   ");
            at = 3;
        }
        text.push(' ');
        text.push_str(flag);
        at += 1 + flag.len();
    }
    text
}

/// A line of the command is broken at the next flag behind so many columns.
const COMMAND_COLUMNS: usize = 48;

fn picture(sims: &[Sim], front: SocketAddr, proxy: &Proxy) -> String {
    let mut text = format!("traffic -> front :{}", front.port());
    let indent = " ".repeat(text.len());
    for (index, (sim, hop)) in sims.iter().zip(proxy.worker_addrs()).enumerate() {
        let before = if index == 0 {
            ""
        } else {
            &format!("\n{indent}")
        };
        let line = format!(
            "{before} -> worker hop :{} -> simulated SGLang :{}",
            hop.port(),
            sim.addr().port()
        );
        text.push_str(&line);
    }
    text.push_str(&format!(
        "\n(all on 127.0.0.1; {RUNNING} requests run at once on a server, the others queue.\n\
         No router is here: the front plays its part, \"in the router\" is its time.)\n"
    ));
    text
}

fn guide(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "  {dir}/traffic/requests.csv  a row a request (docs/METRICS.md)\n  \
         {dir}/traffic/summary.json  the figures, and more (docs/SUMMARY.md)\n  \
         {dir}/traffic/schedule.csv  what was to be sent when\n  \
         {dir}/proxy.csv             the same requests as the proxy saw them"
    )
}
