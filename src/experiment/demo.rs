//! `queuescope demo`: a whole deployment, so that a newcomer sees where requests wait before there is anything of theirs to
//! look at.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;

use super::launch::{CommandLine, Deployment, DeploymentSpec, Router, ServerSpec};
use crate::clock::Clock;
use crate::report::verdict::Grade;
use crate::traffic::folder::{Folder, Made};
use crate::{report, terminal, traffic};

mod keep_running;
mod load;

/// What `queuescope demo` can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder that gets the files, which must not hold a run already [default: a new one,
    /// results/demo/DATE-TIME; the link results/demo/latest leads to it]
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Replace the run that --output-dir holds
    #[arg(long, requires = "output_dir")]
    force: bool,
    /// Requests to send
    #[arg(short, long, value_name = "N", default_value = "100", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    num_prompts: u64,
    /// Requests a second
    #[arg(short, long, value_name = "RATE", default_value = "50", allow_negative_numbers = true,
        value_parser = traffic::rate)]
    request_rate: f64,
    /// Print traffic/summary.json to standard output; the text goes to standard error
    #[arg(long, conflicts_with = "keep_running")]
    pub json: bool,
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
const RUNNING: &str = "4";
/// Requests that the front sends on at once: more than the servers run, and fewer than come, so that both have a queue.
const AT_ONCE: i64 = 20;
/// Where demos go that are given no folder.
const RESULTS: &str = "results/demo";
/// The proxy's own rows.
const RECORDS: &str = "proxy.csv";
/// The report on them.
const PAGE: &str = "report.html";

/// Runs the demo; prints what it does. `None` of one that kept running until it was told to end.
///
/// # Errors
/// A server, the proxy or the run could not start, or the files could not be written.
pub fn run(args: &Args) -> anyhow::Result<Option<traffic::FinishedRun>> {
    let runtime = traffic::runtime()?;
    let clock = Clock::system();
    let folder = Folder::new(args.output_dir.as_deref(), args.force, RESULTS);
    if args.keep_running {
        runtime.block_on(keep_running::run(&folder, args, &clock))?;
        return Ok(None);
    }
    runtime.block_on(async {
        let Made { dir, note } = folder.make(&[RECORDS], clock.now())?;
        let sims = format!("--tokenize-ms 1 --max-running-requests {RUNNING}");
        let deployment = Deployment::start(&spec(&dir, &[sims.clone(), sims], AT_ONCE)?).await?;
        let flags = traffic_flags(args, &deployment.target);
        let to = dir.join("traffic").display().to_string();
        let picture = picture(&deployment);
        say(&format!("{picture}\n$ queuescope {flags} {to}\n\n"));
        let flags = flags.split_whitespace().filter(|flag| *flag != "\\");
        let flags = traffic::Args::try_parse_from(flags.chain([to.as_str()]))?;
        let stop = traffic::Stop::new();
        let outcome = traffic::run_watched(&flags, clock, Arc::default(), stop).await?;
        // The servers tell of chats by traces, to the proxy: its rows have all of it once it has ended.
        deployment.stop().await;
        let shown = dir.display();
        say(&format!(
            "$ queuescope report {shown}/{RECORDS} \\\n    --html {shown}/{PAGE}\n\n"
        ));
        let asked = report::command::Args {
            dirs: vec![dir.join(RECORDS)],
            html: Some(dir.join(PAGE)),
            ..Default::default()
        };
        say(&match report::command::run(&asked, terminal::width()) {
            Ok(told) if outcome.verdict.grade == Grade::Valid => told,
            Ok(told) => format!("{told}\n{}", outcome.verdict.to_text(&outcome.evidence)),
            // Where no request came through, the generator knows why.
            Err(why) => format!("{}note: {why}\n", outcome.to_text()),
        });
        let note = note.map_or_else(String::new, |note| format!("note: {note}\n"));
        say(&format!("\n{}\n{note}", guide(&dir)));
        Ok(Some(outcome))
    })
}

fn say(text: &str) {
    terminal::say(text, terminal::width());
}

/// Simulated servers that tell the proxy of their requests by traces, each with a hop before it. The front is their router: it
/// sends to them in turn, and so many requests at once.
fn spec(dir: &Path, sims: &[String], at_once: i64) -> anyhow::Result<DeploymentSpec> {
    let mut spec = DeploymentSpec {
        router: Router::Builtin("round_robin".to_owned()),
        hops: true,
        program: std::env::current_exe().context("the program's own file")?,
        dir: dir.to_owned(),
        traces: true,
        ..DeploymentSpec::default()
    };
    let server = |flags: &String| {
        let line = CommandLine::new(&spec.program, &["sim"]);
        let line = line.with(["--enable-trace", "--trace-level", "2"]);
        ServerSpec::Started(line.with(flags.split(' ')))
    };
    spec.servers = sims.iter().map(server).collect();
    spec.proxy = format!("max_concurrent_requests = {at_once}").parse()?;
    Ok(spec)
}

/// The generator's command as a person types it, but for the folder at its end; broken as a shell takes it.
fn traffic_flags(args: &Args, base_url: &str) -> String {
    let Args {
        request_rate,
        num_prompts,
        ..
    } = args;
    let force = if args.force { " --force" } else { "" };
    format!(
        "traffic --base-url {base_url} \\\n    --backend sglang-oai-chat --request-rate {request_rate} \
         --num-prompts {num_prompts} \\\n    --random-input-len 320 --random-output-len 40 \
         --random-range-ratio 0.6 \\\n   {force} --output-dir"
    )
}

/// The port of a URL.
fn port(url: &str) -> &str {
    url.rsplit_once(':').map_or(url, |(_, port)| port)
}

fn picture(deployment: &Deployment) -> String {
    let mut text = format!("traffic -> front :{}", port(&deployment.target));
    let indent = format!("\n{}", " ".repeat(text.len()));
    for (number, server) in deployment.servers.iter().enumerate() {
        let before = if number == 0 { "" } else { &indent };
        let hop = server.hop.map_or(0, |hop| hop.port());
        let server = port(&server.file.url);
        text.push_str(&format!(
            "{before} -> worker hop :{hop} -> simulated SGLang :{server}"
        ));
    }
    text.push_str(&format!(
        "\n(All on 127.0.0.1. The front is the router: it sends {AT_ONCE} requests on at once,\n\
         the others wait in it. A server runs {RUNNING} at once, the others wait in its\n\
         queue. Chat is streamed; servers tell the proxy of it by traces.)\n"
    ));
    text
}

fn guide(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "  {dir}/{PAGE}           the same as a page, with pictures\n  \
         {dir}/{RECORDS}             a row a request (docs/METRICS.md), as the proxy saw them\n  \
         {dir}/traffic/requests.csv  the same as their client saw them\n  \
         {dir}/traffic/summary.json  its figures, and more (docs/SUMMARY.md)\n  \
         {dir}/traffic/schedule.csv  what was to be sent when"
    )
}
