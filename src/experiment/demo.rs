//! `queuescope demo`: runs a whole deployment with simulated servers, so that a new user sees a report without any setup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;

use super::launch::{Deployment, DeploymentSpec, PROXY_CONFIG, Server};
use super::plan::keys::ExperimentKind;
use super::plan::{Plan, deploy, read};
use crate::clock::Clock;
use crate::report::files::{Grade, LOGS, PROXY_ROWS, ROWS};
use crate::traffic::folder::Folder;
use crate::units::between;
use crate::{report, terminal, traffic};

/// The arguments of `queuescope demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Folder that gets the files, which must not hold a run already [default: a new one,
    /// results/demo/DATE-TIME; the link results/demo/latest leads to it]
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Requests to send
    #[arg(short, long, value_name = "N", default_value = "100", allow_negative_numbers = true,
        value_parser = between(1_usize, 1_000_000))]
    num_prompts: usize,
    /// Requests a second
    #[arg(short, long, value_name = "RATE", default_value = "50", allow_negative_numbers = true,
        value_parser = traffic::rate)]
    request_rate: f64,
    /// Print traffic/summary.json to standard output; the text goes to standard error
    #[arg(long)]
    pub json: bool,
}

/// How many requests each simulated server runs at once: few, so that a queue forms.
const MAX_RUNNING: u32 = 4;
/// How many requests the front sends on at once: more than the servers run and fewer than arrive, so that both have a queue.
const MAX_CONCURRENT: u32 = 20;
/// The report's page.
const PAGE: &str = "report.html";
/// The folder of the generator's files.
const TRAFFIC: &str = "traffic";
/// Files whose presence means that a given folder is already used: those of a demo, and the rows of a run.
const FILES: [&str; 6] = [PROXY_ROWS, PAGE, TRAFFIC, LOGS, PROXY_CONFIG, ROWS];

/// Runs the demo and prints its report and what ran.
///
/// # Errors
/// A server, the proxy or the run cannot start, or files cannot be written.
pub fn run(args: &Args) -> anyhow::Result<traffic::FinishedRun> {
    let runtime = traffic::runtime()?;
    let clock = Clock::system();
    let folder = Folder::new(args.output_dir.as_deref(), false, "results/demo");
    runtime.block_on(async {
        let dir = folder.create(&FILES, clock.now())?;
        let deployment = Deployment::start(&spec(&dir)?).await?;
        let picture = picture(&deployment);
        let load = load(args, &deployment.target, &dir)?;
        let stop = traffic::Stop::new();
        let outcome = traffic::run_with_progress(&load, clock, Arc::default(), stop).await?;
        // The proxy's rows are complete once it has stopped, as servers send it traces until then.
        deployment.stop().await;
        let args = report::command::Args {
            dirs: vec![dir.join(PROXY_ROWS)],
            html: Some(dir.join(PAGE)),
            ..Default::default()
        };
        let report = move || report::command::run(&args, terminal::width());
        terminal::print(&match traffic::unless_signalled(report).await? {
            Ok(text) if outcome.verdict.grade == Grade::Valid => text,
            Ok(text) => format!("{text}\n{}", outcome.verdict.to_text(&outcome.evidence)),
            // No request succeeded; the generator's summary says why.
            Err(error) => format!("{}note: {error}\n", outcome.to_text()),
        });
        let dir = dir.display();
        terminal::print(&format!(
            "\nWhat ran:\n\n{picture}\n{dir}/{PAGE}: the same as a page, with pictures\n\
             {dir}: rows (docs/METRICS.md), figures and logs\n"
        ));
        Ok(outcome)
    })
}

/// Simulated servers that send traces to the proxy, each behind a hop. The front is their router.
fn spec(dir: &Path) -> anyhow::Result<DeploymentSpec> {
    let plan = format!(
        "router = 'builtin'\nrouting_policy = 'round_robin'\nnum_gpus = 2\nbase_port = 0\nhops = true\n\
         max_running_requests = {MAX_RUNNING}\nproxy.max_concurrent_requests = {MAX_CONCURRENT}\n\
         sim.enable_trace = true\nsim.tokenize_ms = 1"
    );
    let plan = Plan::new(ExperimentKind::Routing, Vec::new(), read::file(&plan)?)?;
    let program = std::env::current_exe().context("the program's own file")?;
    let mut spec = deploy::spec(&plan.runs[0].settings, dir, &program)?;
    spec.traces = true;
    Ok(spec)
}

/// The generator's arguments.
fn load(args: &Args, base_url: &str, dir: &Path) -> anyhow::Result<traffic::Args> {
    let flags = "traffic --backend sglang-oai-chat --random-input-len 320 --random-output-len 40 \
                 --random-range-ratio 0.6 --base-url";
    let flags = flags.split(' ').chain([base_url]);
    Ok(traffic::Args {
        num_prompts: Some(args.num_prompts),
        request_rate: args.request_rate,
        output_dir: Some(dir.join(TRAFFIC)),
        ..traffic::Args::try_parse_from(flags)?
    })
}

/// The port of a URL.
fn port(url: &str) -> &str {
    url.rsplit_once(':').map_or(url, |(_, port)| port)
}

fn picture(deployment: &Deployment) -> String {
    let front = format!("traffic -> front :{}", port(&deployment.target));
    let way = |server: &Server| {
        let hop = server.hop.map_or(0, |hop| hop.port());
        let server = port(&server.file.url);
        format!(" -> worker hop :{hop} -> simulated SGLang :{server}")
    };
    let ways: Vec<String> = deployment.servers.iter().map(way).collect();
    let ways = ways.join(&format!("\n{}", " ".repeat(front.len())));
    format!(
        "{front}{ways}\n(All on 127.0.0.1. The front is the router: it sends {MAX_CONCURRENT} requests on at once,\n\
         the others wait in it. A server runs {MAX_RUNNING} at once, the others wait in its\n\
         queue. Chat is streamed; servers tell the proxy of it by traces.)\n"
    )
}
