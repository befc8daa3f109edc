//! A report in words: the same blocks for the terminal and as Markdown.

use std::collections::BTreeSet;

use serde_json::json;

use crate::request::columns::ColumnId;
use crate::terminal::one_line;

use super::compare::Difference;
use super::files::plain;
use super::findings::Finding;
use super::grid::Grid;
use super::load::{Figure, Group, Summary};
use super::phases;
use super::runs::{Report, RunReport};
use super::verdict::Grade;
use super::why::tables::tables;
use crate::units::{count, duration};

/// A piece of a report.
#[derive(Clone, Debug)]
pub enum Block {
    /// A run, with what is to be known before its figures are read.
    Run {
        /// Its name.
        name: String,
        /// What must stand beside its figures.
        mark: Option<&'static str>,
        /// What is to be known.
        known: Vec<String>,
    },
    /// Words, each line by itself.
    Words(Vec<String>),
    /// Lines of figures, aligned.
    Figures(Vec<String>),
    /// A table.
    Table(Grid),
    /// What was found, and what to do about it.
    Findings(Vec<Finding>),
}

/// Latencies in the tables of runs and servers, and how they are called in so little room.
const SHOWN: [(&str, ColumnId, Figure); 5] = [
    ("TTFT p50", ColumnId::ttft, |s| s.p50),
    ("TTFT p99", ColumnId::ttft, |s| s.p99),
    ("total p99", ColumnId::total_latency, |s| s.p99),
    ("server queue p50", ColumnId::pure_queue_time, |s| s.p50),
    ("per token p50", ColumnId::tpot, |s| s.p50),
];

/// So many findings of each of several runs are shown on the terminal.
const FIRST: usize = 2;

/// The report as the terminal shows it, in lines of at most `width` columns where they are tables.
pub fn to_text(report: &Report<'_>, width: Option<usize>) -> String {
    let mut blocks = Vec::new();
    match report.runs.as_slice() {
        [] => blocks.push("The experiment has no run with any row yet.\n".to_owned()),
        [one] => {
            let is_plain = one.run.mark().is_none() && known_of(one, false).is_empty();
            let said = of_run(one).into_iter().skip(usize::from(is_plain));
            blocks.extend(said.filter_map(|block| text(&block, one.run.mark(), width)));
        }
        runs => {
            // What helps several of them is said of the first.
            let mut advised = BTreeSet::new();
            let mut once = |of: &Finding| match advised.insert(of.advice.clone()) {
                true => of.clone(),
                false => Finding {
                    advice: String::new(),
                    ..of.clone()
                },
            };
            blocks.extend(text(&Block::Table(of_runs(runs)), None, width));
            blocks.extend(text(&Block::Words(answers(report)), None, None));
            for run in runs {
                let head = named(run, true);
                let found = findings(run).take(FIRST).map(&mut once).collect();
                let more = findings(run).count().saturating_sub(FIRST);
                let more = (more > 0).then(|| {
                    let more = count(more, "more finding");
                    format!("And {more} in the report: its page, or --format markdown.")
                });
                let beside = [
                    Block::Findings(found),
                    Block::Words(more.into_iter().collect()),
                    Block::Figures(phases::lines(&run.episodes)),
                ];
                let shown = |block| text(block, run.run.mark(), None);
                let beside: Vec<String> = beside.iter().filter_map(shown).collect();
                if run.run.mark().is_some() || !known_of(run, true).is_empty() || !beside.is_empty()
                {
                    blocks.extend(text(&head, run.run.mark(), None));
                    blocks.extend(beside);
                }
            }
        }
    }
    blocks.extend(text(&Block::Words(max_rate(report)), None, None));
    blocks.join("\n")
}

/// The report as Markdown: every run with all that is said of it.
pub fn to_markdown(report: &Report<'_>) -> String {
    let together = [
        Block::Table(of_runs(&report.runs)),
        Block::Figures(max_rate(report)),
        Block::Words(compared(report)),
    ];
    let together = together.iter().filter_map(|block| markdown(block, None));
    let mut blocks = vec!["# Report\n".to_owned()];
    blocks.extend(together);
    for run in &report.runs {
        let said = of_run(run).into_iter();
        blocks.extend(said.filter_map(|block| markdown(&block, run.run.mark())));
    }
    blocks.join("\n")
}

/// All that is said of a run.
fn of_run(run: &RunReport<'_>) -> Vec<Block> {
    let mut blocks = vec![named(run, false)];
    let named = |host: &str| match run.run.server(host) {
        name if name == host => host.to_owned(),
        name => format!("{name} ({host})"),
    };
    blocks.extend(run.summary.blocks(named));
    blocks.extend(tables(&run.why).into_iter().map(Block::Table));
    // What was not seen stands in the sentence above all.
    let found = findings(run).filter(|of| of.kind != "unseen");
    blocks.push(Block::Findings(found.cloned().collect()));
    blocks.push(Block::Figures(phases::lines(&run.episodes)));
    blocks
}

fn named(run: &RunReport<'_>, with_window: bool) -> Block {
    Block::Run {
        name: run.run.name.clone(),
        mark: run.run.mark(),
        known: known_of(run, with_window),
    }
}

fn lines(before: &str, lines: &[String]) -> String {
    let lines = lines.iter().map(|line| format!("{before}{line}\n"));
    lines.collect()
}

/// A block for the terminal, under the mark of a run whose figures must not be read without it; `None` of an empty one.
pub fn text(block: &Block, mark: Option<&str>, width: Option<usize>) -> Option<String> {
    let text = match block {
        Block::Run { name, mark, known } => {
            let mark = mark.map_or(String::new(), |mark| format!("{mark}: "));
            return Some(format!("{mark}{name}\n{}", lines("  ", known)));
        }
        Block::Words(said) | Block::Figures(said) => lines("", said),
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
    // Within what a run's head says, figures that are `DEGRADED` hold: once is enough.
    let mark = mark.filter(|mark| *mark != Grade::Degraded.name());
    let mark = mark.map_or(String::new(), |mark| format!("[{mark}]\n"));
    (!text.is_empty()).then(|| mark + &text)
}

/// The same in Markdown, where a run's head and each of its tables have the mark.
fn markdown(block: &Block, mark: Option<&str>) -> Option<String> {
    let text = match block {
        Block::Run { name, mark, known } => {
            let mark = mark.map_or(String::new(), |mark| format!(" ({mark})"));
            let space = if known.is_empty() { "" } else { "\n" };
            return Some(format!("## {name}{mark}\n{space}{}", lines("- ", known)));
        }
        Block::Figures(said) if said.is_empty() => return None,
        Block::Figures(said) => format!("```text\n{}```\n", lines("", said)),
        Block::Words(said) => lines("- ", said),
        Block::Table(grid) => {
            mark.map_or(String::new(), |mark| format!("**[{mark}]**\n\n")) + &grid.to_markdown()
        }
        Block::Findings(found) => {
            let line = |of: &Finding| {
                let said = format!("**{}** {} {}", of.title, of.what, of.advice);
                said.trim_end().to_owned()
            };
            lines("- ", &found.iter().map(line).collect::<Vec<_>>())
        }
    };
    (!text.is_empty()).then_some(text)
}

/// What is to be known of a run before its figures are read; of what they are, where that is not said with them.
fn known_of(told: &RunReport<'_>, with_window: bool) -> Vec<String> {
    let reasons = told.verdict.iter().flat_map(|verdict| &verdict.reasons);
    let error = told.run.file.iter().filter_map(|file| file.error.as_ref());
    let error = error.map(|error| format!("failed: {error}"));
    let window = told.summary.of_window().filter(|_| with_window);
    let notes = told.warnings().map(|note| format!("note: {note}"));
    let all = reasons.cloned().chain(error).chain(window).chain(notes);
    all.map(|line| one_line(&line).into_owned()).collect()
}

/// What the figures say; that the run is not to be believed, and why, stands above all.
fn findings<'a>(run: &'a RunReport<'_>) -> impl Iterator<Item = &'a Finding> {
    let all = run.findings.iter();
    all.filter(|finding| finding.kind != "verdict")
}

/// So many answers are on the terminal.
const ANSWERS: usize = 4;

/// Which setting is best, and which runs were not compared. What else there is to say of settings is in the report.
fn answers(report: &Report<'_>) -> Vec<String> {
    let made = &report.comparison;
    let all = made.answers();
    let count = made.differences.len();
    let more = match all.len() {
        0 => None,
        answers if answers > ANSWERS => Some(format!(
            "{} more answers and all comparisons ({count}) are in the report",
            answers - ANSWERS
        )),
        _ => Some(format!("All comparisons ({count}) are in the report")),
    };
    let more = more.map(|more| format!("{more}: its page, or --format markdown."));
    let notes = made.notes.iter().map(|note| format!("note: {note}"));
    let answers = all.into_iter().take(ANSWERS);
    answers.chain(more).chain(notes).collect()
}

/// What differs between settings that were sent the same, and what was not compared.
fn compared(report: &Report<'_>) -> Vec<String> {
    let made = &report.comparison;
    let notes = made.notes.iter().chain(&made.too_few);
    let notes = notes.map(|note| format!("note: {note}"));
    let sentences = made.differences.iter().map(Difference::sentence);
    let answers = made.answers().into_iter();
    answers.chain(sentences).chain(notes).collect()
}

/// What a search of the highest rate found; empty where there was none.
pub fn max_rate(report: &Report<'_>) -> Vec<String> {
    let experiment = report.loaded.experiment.as_ref();
    let Some(found) = experiment.and_then(|of| of.max_rate.as_ref()) else {
        return Vec::new();
    };
    let tried = |rate: f64| {
        let trial = found.trials.iter().rfind(|trial| trial.rate == rate);
        let drawn = trial.and_then(|trial| trial.drawn);
        let drawn = drawn.map_or(String::new(), |drawn| format!(" (drawn: {drawn:.2})"));
        format!("{rate:.2} requests/s{drawn}")
    };
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
    let (goals, share) = (found.goodput.join(", "), found.share * 100.0);
    let mut lines = vec![format!(
        "Highest rate at which {share:.1} % of requests keep {goals}: {met}{missed}."
    )];
    let head = (!found.trials.is_empty()).then(|| format!("  {:>8} {:>8}", "asked/s", "drawn/s"));
    lines.extend(head);
    lines.extend(found.trials.iter().map(|trial| {
        let drawn = figure(trial.drawn, |drawn| format!("{drawn:.2}"));
        let (rate, kept) = (trial.rate, trial.kept * 100.0);
        let result = plain(&json!(trial.result));
        format!("  {rate:>8.2} {drawn:>8}  {kept:>5.1} % kept them  {result}")
    }));
    lines
}

/// A table of lines of [`line`].
pub fn runs_table(rows: Vec<Vec<String>>) -> Grid {
    Grid {
        heads: heads(["run", "ok", "failed", "req/s"], Some("tokens/s")),
        rows,
    }
}

/// The line of a run: how many went well and failed, how many a second; latencies in seconds; tokens a second.
pub fn line(
    name: String,
    counts: [u64; 2],
    rate: Option<f64>,
    latencies: [Option<f64>; SHOWN.len()],
    tokens: Option<f64>,
) -> Vec<String> {
    let rate = figure(rate, |rate| format!("{rate:.2}"));
    let tokens = figure(tokens, |tokens| format!("{tokens:.0}"));
    cells(name, counts, rate, latencies, Some(tokens))
}

/// The line of a run that was measured.
pub fn line_of(name: String, Summary { run, all, .. }: &Summary) -> Vec<String> {
    let rate = run.a_second(all.completed as f64);
    let tokens = all.tokens.output;
    let tokens = tokens.and_then(|tokens| run.a_second(tokens as f64));
    line(name, counts(all), rate, latencies(all), tokens)
}

/// The table of runs.
pub fn of_runs(runs: &[RunReport<'_>]) -> Grid {
    let line = |of: &RunReport<'_>| line_of(of.run.marked_name(), &of.summary);
    runs_table(runs.iter().map(line).collect())
}

/// A line a server of a run; `named`: what its host is called.
pub fn of_servers(summary: &Summary, named: impl Fn(&str) -> String) -> Grid {
    let hosts = summary.hosts.iter();
    let hosts: Vec<(String, &Group)> = hosts.map(|(host, group)| (named(host), group)).collect();
    let shown = hosts.iter().map(|(_, group)| group.counts.requests);
    let all = shown.sum::<u64>() + summary.other_hosts.1 as u64;
    let row = |(host, group): (String, &Group)| {
        let share = Some(group.counts.requests as f64 / all as f64);
        let share = figure(share, |share| format!("{:.0} %", share * 100.0));
        cells(host, counts(group), share, latencies(group), None)
    };
    Grid {
        heads: heads(["server", "ok", "failed", "share"], None),
        rows: hosts.into_iter().map(row).collect(),
    }
}

/// Heads before those of the latencies, and behind them.
fn heads(before: [&str; 4], behind: Option<&str>) -> Vec<String> {
    let shown = SHOWN.map(|(head, ..)| head);
    let all = before.into_iter().chain(shown).chain(behind);
    all.map(str::to_owned).collect()
}

/// A line of the figures of a run or a server: `third` stands before the latencies, `last` behind them.
fn cells(
    name: String,
    counts: [u64; 2],
    third: String,
    latencies: [Option<f64>; SHOWN.len()],
    last: Option<String>,
) -> Vec<String> {
    let counts = counts.map(|count| count.to_string());
    let latencies = latencies.map(|of| figure(of, duration));
    let first = std::iter::once(name).chain(counts).chain([third]);
    first.chain(latencies).chain(last).collect()
}

fn counts(group: &Group) -> [u64; 2] {
    [group.counts.ok(), group.counts.failed()]
}

fn latencies(group: &Group) -> [Option<f64>; SHOWN.len()] {
    SHOWN.map(|(_, column, get)| group.latencies.get(column).map(get))
}

fn figure(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    let value = value.filter(|value| value.is_finite());
    value.map_or("-".to_owned(), shown)
}
