//! Renders a report as text for the terminal and as Markdown, from the same blocks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::request::ColumnId;
use crate::terminal::one_line;

use super::Report;
use super::compare::{Difference, MAX_ANSWERS};
use super::files::{Grade, plain};
use super::findings::{Finding, RunReport};
use super::grid::Grid;
use super::load::{Figure, Group, RunFacts, Summary};
use crate::units::{duration, one_decimal};

/// A part of a report.
#[derive(Clone, Debug)]
pub enum Block {
    /// The heading of a run, with notes.
    Run {
        /// Its name.
        name: String,
        /// What is to be known before its figures are read.
        notes: Vec<String>,
    },
    /// Sentences, one a line.
    Sentences(Vec<String>),
    /// Preformatted lines.
    Figures(Vec<String>),
    /// A table.
    Table(Grid),
    /// Findings with their advice.
    Findings(Vec<Finding>),
}

/// The latencies in the tables of runs and servers, with short headings.
const LATENCIES: [(&str, ColumnId, Figure); 5] = [
    ("TTFT p50", ColumnId::ttft, |s| s.p50),
    ("TTFT p99", ColumnId::ttft, |s| s.p99),
    ("total p99", ColumnId::total_latency, |s| s.p99),
    ("server queue p50", ColumnId::pure_queue_time, |s| s.p50),
    ("per token p50", ColumnId::tpot, |s| s.p50),
];

/// The most findings of each of several runs on the terminal.
const MAX_FINDINGS: usize = 2;

/// A block, and the mark of its run.
type Marked = (Option<&'static str>, Block);

/// Renders a report for the terminal; tables are at most `width` columns wide.
pub fn to_text(report: &Report<'_>, width: Option<usize>) -> String {
    let mut blocks = match report.runs.as_slice() {
        [] => {
            let none = "The experiment has no run with any row yet.".to_owned();
            vec![(None, Block::Sentences(vec![none]))]
        }
        [one] => {
            let is_plain = one.run.mark().is_none() && notes_of(one, false).is_empty();
            of_run(one).split_off(usize::from(is_plain))
        }
        _ => of_several(report),
    };
    blocks.push((None, Block::Sentences(max_rate(report))));
    let shown = blocks.iter();
    let shown = shown.filter_map(|(mark, block)| text(block, *mark, width));
    shown.collect::<Vec<String>>().join("\n")
}

/// Renders a report as Markdown.
pub fn to_markdown(report: &Report<'_>) -> String {
    let together = [
        Block::Table(of_runs(&report.runs)),
        Block::Figures(max_rate(report)),
        Block::Sentences(compared(report, true)),
    ];
    let mut blocks: Vec<Marked> = together.map(|block| (None, block)).into();
    blocks.extend(report.runs.iter().flat_map(of_run));
    let shown = blocks.iter();
    let shown = shown.filter_map(|(mark, block)| markdown(block, *mark));
    let all = std::iter::once("# Report\n".to_owned()).chain(shown);
    all.collect::<Vec<String>>().join("\n")
}

/// The blocks of several runs on the terminal.
fn of_several(report: &Report<'_>) -> Vec<Marked> {
    let mut blocks = vec![
        (None, Block::Table(of_runs(&report.runs))),
        (None, Block::Sentences(compared(report, false))),
    ];
    // Advice that is the same for several runs is given once.
    let mut advised = BTreeSet::new();
    for run in &report.runs {
        let found = run.findings.iter().take(MAX_FINDINGS);
        let mut found: Vec<Finding> = found.cloned().collect();
        for finding in &mut found {
            if !advised.insert(finding.advice.clone()) {
                finding.advice.clear();
            }
        }
        let more = (run.findings.len() > MAX_FINDINGS)
            .then(|| "More findings: on the page, or by --format markdown.".to_owned());
        let parts = [
            heading(run, true),
            Block::Findings(found),
            Block::Sentences(more.into_iter().collect()),
            Block::Figures(run.fault_lines()),
        ];
        blocks.extend(parts.map(|part| (run.run.mark(), part)));
    }
    blocks
}

/// All blocks of a run.
fn of_run(run: &RunReport<'_>) -> Vec<Marked> {
    let mut blocks = vec![heading(run, false)];
    if !run.run.lacks_rows() {
        blocks.extend(run.summary.blocks(|host| named(run, host)));
        blocks.extend(run.why.tables().into_iter().map(Block::Table));
        blocks.push(Block::Findings(run.findings.clone()));
        blocks.push(Block::Figures(run.fault_lines()));
    }
    let blocks = blocks.into_iter();
    blocks.map(|block| (run.run.mark(), block)).collect()
}

/// A server's name and host.
pub fn named(run: &RunReport<'_>, host: &str) -> String {
    match run.run.server(host) {
        name if name == host => host.to_owned(),
        name => format!("{name} ({host})"),
    }
}

fn heading(run: &RunReport<'_>, with_window: bool) -> Block {
    Block::Run {
        name: run.run.name.clone(),
        notes: notes_of(run, with_window),
    }
}

fn lines(prefix: &str, lines: &[String]) -> String {
    let lines = lines.iter().map(|line| format!("{prefix}{line}\n"));
    lines.collect()
}

/// Renders a block for the terminal, below the mark of its run; `None` if it is empty.
pub fn text(block: &Block, mark: Option<&str>, width: Option<usize>) -> Option<String> {
    let text = match block {
        Block::Run { name, notes } => {
            let mark = mark.map_or(String::new(), |mark| format!("{mark}: "));
            return Some(format!("{mark}{name}\n{}", lines("  ", notes)));
        }
        Block::Sentences(text) | Block::Figures(text) => lines("", text),
        Block::Table(grid) => grid.to_text(width),
        Block::Findings(found) => {
            let line = |finding: &Finding| {
                let title = finding.title.trim_end_matches('.');
                let advice = match finding.advice.as_str() {
                    "" => String::new(),
                    advice => format!("\n  What to do: {advice}"),
                };
                format!("{title}\n  {}{advice}\n", finding.what)
            };
            found.iter().map(line).collect()
        }
    };
    // `DEGRADED` figures can be used with care: the mark in the run's heading is enough.
    let mark = mark.filter(|mark| *mark != Grade::Degraded.name());
    let mark = mark.map_or(String::new(), |mark| format!("[{mark}]\n"));
    (!text.is_empty()).then(|| mark + &text)
}

/// Renders a block as Markdown. The heading of a run and each of its tables have its mark.
fn markdown(block: &Block, mark: Option<&str>) -> Option<String> {
    let text = match block {
        Block::Run { name, notes } => {
            let mark = mark.map_or(String::new(), |mark| format!(" ({mark})"));
            let space = if notes.is_empty() { "" } else { "\n" };
            return Some(format!("## {name}{mark}\n{space}{}", lines("- ", notes)));
        }
        Block::Figures(text) if text.is_empty() => return None,
        Block::Figures(text) => format!("```text\n{}```\n", lines("", text)),
        Block::Sentences(text) => lines("- ", text),
        Block::Table(grid) => {
            mark.map_or(String::new(), |mark| format!("**[{mark}]**\n\n")) + &grid.to_markdown()
        }
        Block::Findings(found) => {
            let line = |of: &Finding| {
                let text = format!("**{}** {} {}", of.title, of.what, of.advice);
                text.trim_end().to_owned()
            };
            lines("- ", &found.iter().map(line).collect::<Vec<_>>())
        }
    };
    (!text.is_empty()).then_some(text)
}

/// What is to be known of a run before its figures are read; the window only if the figures do not follow.
fn notes_of(of: &RunReport<'_>, with_window: bool) -> Vec<String> {
    let verdict = of.run.verdict().into_iter();
    let reasons = verdict.flat_map(|verdict| verdict.reasons);
    let window = of.summary.of_window().filter(|_| with_window);
    let notes = of.run.notes.iter().map(String::as_str);
    let notes = notes.chain(of.run.warnings());
    let notes = notes.map(|note| format!("note: {note}"));
    let all = reasons
        .chain(of.run.failure_note())
        .chain(window)
        .chain(notes);
    all.map(|line| one_line(&line).into_owned()).collect()
}

/// What the comparison says: which settings are best, `all` differences or how many there are, and what was not compared.
fn compared(report: &Report<'_>, all: bool) -> Vec<String> {
    let comparison = &report.comparison;
    let mut said = comparison.answers();
    if all {
        said.extend(comparison.differences.iter().map(Difference::sentence));
    } else if !said.is_empty() {
        let number = comparison.differences.len();
        said.truncate(MAX_ANSWERS);
        said.push(format!(
            "All comparisons ({number}) are in the report: its page, or --format markdown."
        ));
    }
    said.extend(comparison.notes.iter().map(|note| format!("note: {note}")));
    said
}

/// The result of `--find-max-rate`; empty if there was no search.
pub fn max_rate(report: &Report<'_>) -> Vec<String> {
    let experiment = report.loaded.experiment.as_ref();
    let Some(found) = experiment.and_then(|of| of.max_rate.as_ref()) else {
        return Vec::new();
    };
    let tried = |rate: f64| format!("{rate:.2} requests/s");
    let met = found.met.map_or("no rate that was tried".to_owned(), tried);
    let missed = match (found.missed, found.invalid) {
        (Some(missed), invalid) if invalid.is_none_or(|invalid| invalid > missed) => {
            format!("; {} is too much", tried(missed))
        }
        (_, Some(invalid)) => format!(
            "; {} is more than this machine's generator could send, so the servers may take more",
            tried(invalid)
        ),
        _ => String::new(),
    };
    let (goals, share) = (found.goodput.join(", "), one_decimal(found.share));
    let mut lines = vec![
        format!("Highest rate at which {share} of requests keep {goals}: {met}{missed}."),
        format!("  {:>8} {:>8}", "asked/s", "drawn/s"),
    ];
    lines.extend(found.trials.iter().map(|trial| {
        let drawn = figure(trial.drawn, |drawn| format!("{drawn:.2}"));
        let (rate, kept) = (trial.rate, trial.kept * 100.0);
        let result = plain(&json!(trial.result));
        format!("  {rate:>8.2} {drawn:>8}  {kept:>5.1} % kept them  {result}")
    }));
    lines
}

/// A table of rows of [`line_of`], which are of what `first` names.
pub fn table(first: &str, has_goals: bool, rows: Vec<Vec<String>>) -> Grid {
    let shown = LATENCIES.map(|(head, ..)| head);
    let heads = [first, "ok", "failed", "req/s"].into_iter().chain(shown);
    let goals = has_goals.then_some("kept the goals");
    Grid::new(heads.chain(["tokens/s"]).chain(goals), rows)
}

/// The row of a run or a server: requests that went well and that failed, requests a second, latencies, tokens a second; with goals, the
/// share of the requests that kept them.
pub fn line_of(name: String, of: &Group, run: &RunFacts, has_goals: bool) -> Vec<String> {
    let rate = run.per_second(of.completed as f64);
    let rate = figure(rate, |rate| format!("{rate:.2}"));
    let tokens = of.tokens.output;
    let tokens = tokens.and_then(|tokens| run.per_second(tokens as f64));
    let tokens = figure(tokens, |tokens| format!("{tokens:.0}"));
    let latency = |column| of.latencies.get(column);
    let latencies = LATENCIES.map(|(_, column, get)| figure(latency(column).map(get), duration));
    let counts = [of.counts.ok(), of.counts.failed()].map(|count| count.to_string());
    let kept = has_goals.then(|| figure(of.goodput_share(), one_decimal));
    let first = std::iter::once(name).chain(counts).chain([rate]);
    first.chain(latencies).chain([tokens]).chain(kept).collect()
}

/// The row below that of a prediction: by how much its figures may be off, where that is known.
pub fn error_line(errors: &BTreeMap<&'static str, f64>) -> Vec<String> {
    let error = |figure| errors.get(figure).map(|off| one_decimal(*off));
    let known = [
        "request_throughput",
        "ttft_ms.p50",
        "ttft_ms.p99",
        "total_latency_ms.p99",
    ];
    let errors = known.map(error).map(Option::unwrap_or_default);
    let first = ["  ±", "", ""].map(str::to_owned);
    first.into_iter().chain(errors).collect()
}

/// Whether all runs have the same goals, so that the shares that kept them compare.
pub fn have_goals(runs: &[RunReport<'_>]) -> bool {
    let mut all = runs.iter().map(|of| &of.summary.run.goodput);
    let first = all.next().filter(|goals| !goals.is_empty());
    first.is_some_and(|first| all.all(|goals| goals == first))
}

/// The row of a run, and one of the errors of a prediction.
pub fn lines_of(of: &RunReport<'_>, has_goals: bool) -> Vec<Vec<String>> {
    let (name, summary) = (of.run.marked_name(), &of.summary);
    let mut line = line_of(name, &summary.all, &summary.run, has_goals);
    if of.run.lacks_rows() {
        line[1..].fill(figure(None, |_| String::new()));
    }
    let errors = Some(&of.run.prediction_errors).filter(|errors| !errors.is_empty());
    let errors = errors.map(error_line);
    std::iter::once(line).chain(errors).collect()
}

/// A table with the rows of each run.
pub fn of_runs(runs: &[RunReport<'_>]) -> Grid {
    let has_goals = have_goals(runs);
    let lines = runs.iter().flat_map(|of| lines_of(of, has_goals));
    table("run", has_goals, lines.collect())
}

/// A table with a row for each server of a run; `named` gives the name of a host.
pub fn servers_table(summary: &Summary, named: impl Fn(&str) -> String) -> Grid {
    let hosts = summary.hosts.iter();
    let has_goals = !summary.run.goodput.is_empty();
    let rows = hosts.map(|(host, group)| line_of(named(host), group, &summary.run, has_goals));
    table("server", has_goals, rows.collect())
}

fn figure(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    let value = value.filter(|value| value.is_finite());
    value.map_or("-".to_owned(), shown)
}
