//! `queuescope probe`: sends one request and shows everything that is known of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;

use crate::clock::Clock;
use crate::report::timeline::{clock_lines, render, unseen};
use crate::report::why::wait_sentence;
use crate::request::{Moment, Row};
use crate::terminal;
use crate::traffic;
use crate::traffic::client::{INSECURE_WARNING, Target, TlsArgs, UpstreamKind};
use crate::traffic::{Backend, OtlpArgs, RunPlan, Stop, drive};
use crate::units::between;

/// Sends one streamed request and shows its timeline, what of it is missing, and whether its order is sane
#[derive(Clone, Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub struct Args {
    /// Server, router or proxy, such as http://127.0.0.1:30000
    #[arg(value_name = "URL", value_parser = Target::parse)]
    pub target: Target,
    /// API to speak
    #[arg(long, value_enum, default_value = "sglang")]
    pub backend: Backend,
    /// What answers there, or behind our proxy if one does
    #[arg(long, value_enum, value_name = "KIND", default_value = "router")]
    pub upstream_kind: UpstreamKind,
    /// Model to name; the OpenAI endpoints ask /v1/models when it is not given
    #[arg(long)]
    pub model: Option<String>,
    /// Words of the prompt
    #[arg(long, value_name = "N", default_value = "64",
        value_parser = between(1_u64, 1_000_000))]
    pub input_len: u64,
    /// Tokens to ask for
    #[arg(long, value_name = "N", default_value = "32",
        value_parser = between(1_u64, 1_000_000))]
    pub output_len: u64,
    /// Sent as a bearer token [default: the variable OPENAI_API_KEY]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub api_key: Option<String>,
    /// Give the request up after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = traffic::seconds)]
    pub request_timeout_s: Duration,
    /// Print the request's columns (docs/METRICS.md) as JSON to standard output; the text goes to standard error
    #[arg(long)]
    pub json: bool,
    /// How an https:// server is verified
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Where its span goes
    #[command(flatten)]
    pub otlp: OtlpArgs,
}

/// The result of a probe.
#[derive(Clone, Debug)]
pub struct ProbeResult {
    /// The request's row.
    pub row: Row,
    /// The text for the terminal.
    pub text: String,
    /// Why the request failed, or which of its moments are out of order.
    pub problem: Option<String>,
}

/// The width of the picture if the terminal's is unknown.
const WIDTH: usize = 80;

/// Sends the request and describes the result.
///
/// # Errors
/// Nothing responds at the URL, or no model is known. A failed request is no error: see [`ProbeResult::problem`].
pub async fn probe(args: &Args, clock: Clock) -> anyhow::Result<ProbeResult> {
    let plan = plan(args)?;
    let spans = args.otlp.start(clock.name())?;
    let run = drive(plan, clock, Arc::default(), Stop::default()).await?;
    let row = run.rows.into_iter().next();
    let mut row = row.context("the request was not sent")?;
    // The wait from the schedule to the send is the probe's own.
    row.timeline.clear(Moment::Scheduled);
    row.derive_anew();
    let unsent = spans.map(|spans| {
        spans.add(std::slice::from_ref(&row));
        tokio::task::spawn_blocking(move || spans.finish())
    });
    let problem = find_problem(&row);
    let url = format!("{}{}", args.target, args.backend.endpoint().path());
    let width = terminal::width().unwrap_or(WIDTH);
    let mut text = describe(&row, &url, width, problem.as_deref());
    text.extend(describe_engine(&row).map(|line| format!("\n{line}\n")));
    if let Some(unsent) = unsent
        && let Some(note) = unsent.await?
    {
        text += &format!("\nnote: {note}\n");
    }
    if args.tls.insecure {
        text.insert_str(0, &format!("warning: {INSECURE_WARNING}\n\n"));
    }
    Ok(ProbeResult { row, text, problem })
}

fn plan(args: &Args) -> anyhow::Result<RunPlan> {
    let load = traffic::Args {
        backend: args.backend,
        base_url: args.target.clone(),
        upstream_kind: args.upstream_kind,
        model: args.model.clone(),
        random_input_len: args.input_len,
        random_output_len: args.output_len,
        api_key: args.api_key.clone(),
        tls: args.tls.clone(),
        request_timeout_s: args.request_timeout_s,
        // So that the proxy's file can tell probes apart.
        request_id_prefix: Some(format!("queuescope-probe-{:08x}", rand::random::<u32>())),
        ..traffic::Args::try_parse_from(["traffic", "--num-prompts", "1"])?
    };
    Ok(load.plan()?)
}

/// Describes the version of SGLang, as its response shows it.
fn describe_engine(row: &Row) -> Option<String> {
    let generation = row.internal.generation?;
    Some(format!(
        "the server's SGLang: {} by the shape of its meta_info: {}",
        generation.versions(),
        generation.help()
    ))
}

/// Returns why the request failed, or which of its moments are out of order.
fn find_problem(row: &Row) -> Option<String> {
    if !row.is_ok() {
        let outcome = row.outcome().name();
        let error = row.error.as_deref().unwrap_or_default();
        return Some(format!("the request failed: {outcome}: {error}"));
    }
    let broken = row.inconsistency.as_ref()?;
    Some(format!("the order of the stamps is broken: {broken}"))
}

fn describe(row: &Row, url: &str, width: usize, problem: Option<&str>) -> String {
    let mut text = format!("POST {url}: {}", row.outcome().name());
    text.extend(row.status.map(|status| format!(", status {status}")));
    text.extend(row.host.iter().map(|host| format!(", served by {host}")));
    text += &format!("\n\n{}", render(row, width));
    let line = |line: String| line + "\n";
    text.extend(clock_lines(row).into_iter().map(line));
    text.extend(wait_sentence([row]).map(|waited| format!("it {waited}\n")));
    let unseen = unseen(row);
    text.extend((!unseen.is_empty()).then_some("\n"));
    text.extend(unseen.into_iter().map(line));
    text + "\n" + problem.unwrap_or("timestamps are consistent") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::sample::Sample;
    use crate::request::{Generation, Moment, Outcome};

    #[test]
    fn a_failed_request_and_a_broken_order_are_problems() {
        assert_eq!(find_problem(&Sample::whole().row()), None);
        let broken = Sample::whole().at(Moment::QueueStart, 8);
        let failed = broken.clone().ended(Outcome::ServerError, "");
        let order = "the order of the stamps is broken: queue_start<server_created";
        for (sample, start) in [
            (broken, order),
            (failed, "the request failed: server_error"),
        ] {
            let problem = find_problem(&sample.row()).unwrap();
            assert!(problem.starts_with(start), "{problem}");
        }
    }

    #[test]
    fn the_generation_is_named() {
        let mut row = Sample::whole().row();
        for (generation, name) in [
            (Generation::From0_5_7, "0.5.7 to 0.5.20"),
            (Generation::Decode0_5_21, "0.5.21 or later, a decode server"),
            (Generation::Before0_5_5, "before 0.5.5"),
        ] {
            row.internal.generation = Some(generation);
            let line = describe_engine(&row).unwrap();
            let start = format!("the server's SGLang: {name} by the shape of its meta_info: it ");
            assert!(line.starts_with(&start), "{line}");
        }
        row.internal.generation = None;
        assert_eq!(describe_engine(&row), None);
    }
}
