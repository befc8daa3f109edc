//! `queuescope demo`: an experiment with simulated servers, so that a new user sees a report without any setup.

use std::path::PathBuf;

use super::command::run_and_print;
use super::plan::keys::ExperimentKind;
use super::plan::{Plan, grid};
use super::run::{Finished, OutputDir};
use crate::report::files::{PROXY_ROWS, SUMMARY, plain};
use crate::traffic::folder::Folder;
use crate::units::between;
use crate::{terminal, traffic};

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
    /// Print the run's summary.json to standard output; the text goes to standard error
    #[arg(long)]
    pub json: bool,
}

/// Few requests run at once in each server, so that a queue forms. The front, which is their router, sends on more than they run and fewer
/// than arrive, so that both have a queue.
const PLAN: &str = "
    router = 'builtin'
    routing_policy = 'round_robin'
    num_gpus = 2
    base_port = 0
    hops = true
    max_running_requests = 4
    proxy.max_concurrent_requests = 20
    sim.tokenize_ms = 1
    backend = 'sglang-oai-chat'
    random_input_len = 320
    random_output_len = 40
    random_range_ratio = 0.6
";

/// Runs the demo and prints its report and what ran.
///
/// # Errors
/// Files cannot be written, or a signal came while the report was made.
pub fn run(args: &Args) -> anyhow::Result<Finished> {
    let (count, rate) = (args.num_prompts, args.request_rate);
    let plan = format!("{PLAN}num_prompts = {count}\nrequest_rate = {rate:?}");
    let plan = Plan::new(ExperimentKind::Routing, [], grid::file(&plan)?)?;
    let folder = Folder::new(args.output_dir.as_deref(), false, "results/demo");
    // The proxy's rows, as with its one clock all is known of the first requests, too: nothing that a new user must ask about.
    let finished = run_and_print(plan, OutputDir::New(folder), Some(PROXY_ROWS))?;
    for run in &finished.runs {
        let summary = std::fs::read_to_string(run.dir.join(SUMMARY));
        terminal::print_json(&summary.unwrap_or_default());
        let verdict = &run.metrics()["verdict"];
        for reason in verdict["reasons"].as_array().into_iter().flatten() {
            terminal::print(&format!(
                "{}: {}\n",
                plain(&verdict["grade"]),
                plain(reason)
            ));
        }
        if let [first, second] = &run.file.servers[..] {
            terminal::print(&format!(
                "\nWhat ran:\n\n\
                 traffic -> front -> worker hop -> simulated SGLang {}\n                 \
                 -> worker hop -> simulated SGLang {}\n\
                 (All on 127.0.0.1. The front is the router: it sends 20 requests on at once,\n\
                 the others wait in it. A server runs 4 at once, the others wait in its\n\
                 queue. Chat is streamed; servers tell the proxy of it by request logs.)\n",
                first.host, second.host
            ));
        }
    }
    Ok(finished)
}
