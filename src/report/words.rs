//! A report in words: the same blocks for the terminal and as Markdown.

use crate::terminal::one_line;

use super::compare::Difference;
use super::duration;
use super::files::MaxRate;
use super::findings::Finding;
use super::grid::Grid;
use super::load::{Group, Latency};
use super::phases;
use super::runs::{Report, RunReport};

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
const SHOWN: [(&str, &str, Figure); 5] = [
    ("TTFT p50", "ttft", |s| s.p50),
    ("TTFT p99", "ttft", |s| s.p99),
    ("total p99", "total_latency", |s| s.p99),
    ("queue p50", "pure_queue_time", |s| s.p50),
    ("per token p50", "tpot", |s| s.p50),
];

type Figure = fn(&crate::stats::Summary) -> f64;

/// Metrics of which it is also said that no difference to the first setting can be shown.
const ALWAYS: [&str; 3] = ["ttft", "total_latency", "pure_queue_time"];

/// So many findings of each of several runs are shown on the terminal.
const FIRST: usize = 2;

/// The report as the terminal shows it, in lines of at most `width` columns where they are tables.
pub fn to_text(report: &Report<'_>, width: Option<usize>) -> String {
    let mut blocks = Vec::new();
    match report.runs.as_slice() {
        [] => blocks.push("The experiment has no run with any row yet.\n".to_owned()),
        [one] => {
            let is_plain = one.mark().is_none() && known_of(one, false).is_empty();
            let said = of_run(one).into_iter().skip(usize::from(is_plain));
            blocks.extend(said.filter_map(|block| text(&block, one.mark(), width)));
        }
        runs => {
            blocks.extend(text(&Block::Table(of_runs(runs)), None, width));
            blocks.extend(text(&Block::Words(compared(report)), None, None));
            for run in runs {
                let known = known_of(run, true);
                let found: Vec<Finding> = findings(run).take(FIRST).cloned().collect();
                let faults = phases::lines(&run.episodes);
                if run.mark().is_none() && known.is_empty() && found.is_empty() && faults.is_empty()
                {
                    continue;
                }
                let known = Block::Run {
                    name: run.run.name.clone(),
                    mark: run.mark(),
                    known,
                };
                for block in [known, Block::Findings(found), Block::Figures(faults)] {
                    blocks.extend(text(&block, run.mark(), None));
                }
            }
        }
    }
    blocks.extend(max_rate(report).map(|lines| lines.join("\n") + "\n"));
    blocks.join("\n")
}

/// The report as Markdown: every run with all that is said of it.
pub fn to_markdown(report: &Report<'_>) -> String {
    let mut blocks = vec!["# Report\n".to_owned()];
    blocks.extend(markdown(&Block::Table(of_runs(&report.runs)), None));
    blocks.extend(max_rate(report).and_then(|lines| markdown(&Block::Figures(lines), None)));
    blocks.extend(markdown(&Block::Words(compared(report)), None));
    for run in &report.runs {
        let mut of_run = of_run(run);
        of_run.push(Block::Table(of_latencies(run)));
        blocks.extend(
            of_run
                .iter()
                .filter_map(|block| markdown(block, run.mark())),
        );
    }
    blocks.join("\n")
}

/// All that is said of a run.
fn of_run(run: &RunReport<'_>) -> Vec<Block> {
    let mut blocks = vec![Block::Run {
        name: run.run.name.clone(),
        mark: run.mark(),
        known: known_of(run, false),
    }];
    blocks.extend(run.summary.blocks());
    if run.summary.hosts.len() > 1 {
        blocks.push(Block::Table(of_servers(run)));
    }
    blocks.push(Block::Findings(findings(run).cloned().collect()));
    blocks.push(Block::Figures(phases::lines(&run.episodes)));
    blocks
}

/// A block for the terminal, under the mark of a run whose figures must not be read without it; `None` of an empty one.
pub fn text(block: &Block, mark: Option<&str>, width: Option<usize>) -> Option<String> {
    let marked = |text: String| match mark {
        Some(mark) => format!("[{mark}]\n{text}"),
        None => text,
    };
    let lines = |lines: &[String]| {
        lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let text = match block {
        Block::Run { name, mark, known } => {
            let known: String = known.iter().map(|line| format!("  {line}\n")).collect();
            match mark {
                Some(mark) => format!("{mark}: {name}\n{known}"),
                None => format!("{name}\n{known}"),
            }
        }
        Block::Words(said) | Block::Figures(said) if said.is_empty() => return None,
        Block::Words(said) | Block::Figures(said) => marked(lines(said)),
        Block::Table(grid) => marked(grid.to_text(width)),
        Block::Findings(found) if found.is_empty() => return None,
        Block::Findings(found) => {
            let line = |finding: &Finding| {
                let title = finding.title.trim_end_matches('.');
                let advice = match finding.advice.as_str() {
                    "" => String::new(),
                    advice => format!("\n  What to do: {advice}"),
                };
                format!("{title}\n  {}{advice}\n", finding.what)
            };
            marked(found.iter().map(line).collect())
        }
    };
    Some(text)
}

/// The same in Markdown, where the mark is a paragraph of its own.
fn markdown(block: &Block, mark: Option<&str>) -> Option<String> {
    let marked = |text: String| match mark {
        Some(mark) => format!("**[{mark}]**\n\n{text}"),
        None => text,
    };
    let items = |lines: &[String]| {
        lines
            .iter()
            .map(|line| format!("- {line}\n"))
            .collect::<String>()
    };
    Some(match block {
        Block::Run { name, mark, known } => {
            let mark = mark.map(|mark| format!(" ({mark})")).unwrap_or_default();
            let known = match known.is_empty() {
                true => String::new(),
                false => format!("\n{}", items(known)),
            };
            format!("## {name}{mark}\n{known}")
        }
        Block::Words(said) | Block::Figures(said) if said.is_empty() => return None,
        Block::Words(said) => marked(items(said)),
        Block::Figures(said) => marked(format!("```text\n{}\n```\n", said.join("\n"))),
        Block::Table(grid) => marked(grid.to_markdown()),
        Block::Findings(found) if found.is_empty() => return None,
        Block::Findings(found) => {
            let line = |of: &Finding| format!("- **{}** {} {}", of.title, of.what, of.advice);
            let lines = found.iter().map(|of| line(of).trim_end().to_owned() + "\n");
            marked(lines.collect())
        }
    })
}

/// What is to be known of a run before its figures are read; of what they are, where that is not said with them.
fn known_of(told: &RunReport<'_>, with_window: bool) -> Vec<String> {
    let reasons = told.verdict.iter().flat_map(|verdict| &verdict.reasons);
    let mut lines: Vec<String> = reasons
        .map(|reason| one_line(reason).into_owned())
        .collect();
    if let Some(error) = told.run.file.as_ref().and_then(|file| file.error.as_ref()) {
        lines.push(format!("failed: {}", one_line(error)));
    }
    lines.extend(told.summary.of_window().filter(|_| with_window));
    lines.extend(
        told.warnings()
            .map(|note| format!("note: {}", one_line(note))),
    );
    lines
}

/// What the figures say; that the run is not to be believed, and why, stands above all.
fn findings<'a>(run: &'a RunReport<'_>) -> impl Iterator<Item = &'a Finding> {
    run.findings
        .iter()
        .filter(|finding| finding.kind != "verdict")
}

/// What differs between settings that were sent the same, and what was not compared.
fn compared(report: &Report<'_>) -> Vec<String> {
    let made = &report.comparison;
    let is_told =
        |of: &&Difference| of.shown || of.is_against_first && ALWAYS.contains(&&*of.metric);
    let differences = made.differences.iter().filter(is_told);
    let notes = made.notes.iter().map(|note| format!("note: {note}"));
    differences.map(Difference::sentence).chain(notes).collect()
}

/// What a search of the highest rate found.
pub fn max_rate(report: &Report<'_>) -> Option<Vec<String>> {
    let found: &MaxRate = report.loaded.experiment.as_ref()?.max_rate.as_ref()?;
    let goals = found.goodput.join(", ");
    let share = found.share * 100.0;
    let drawn = |rate: f64| {
        let trial = found.trials.iter().rfind(|trial| trial.rate == rate)?;
        Some(format!(" (drawn: {:.2})", trial.drawn?))
    };
    let tried = |rate: f64| format!("{rate:.2} requests/s{}", drawn(rate).unwrap_or_default());
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
    let mut lines = vec![format!(
        "Highest rate at which {share:.1} % of requests keep {goals}: {met}{missed}."
    )];
    if !found.trials.is_empty() {
        lines.push(format!("  {:>8} {:>8}", "asked/s", "drawn/s"));
    }
    lines.extend(found.trials.iter().map(|trial| {
        let drawn = trial
            .drawn
            .map_or_else(String::new, |drawn| format!("{drawn:.2}"));
        let (rate, kept) = (trial.rate, trial.kept * 100.0);
        format!(
            "  {rate:>8.2} {drawn:>8}  {kept:>5.1} % kept them  {}",
            trial.result
        )
    }));
    Some(lines)
}

/// A line a latency that any request had.
fn of_latencies(told: &RunReport<'_>) -> Grid {
    let heads = [
        "latency, ms",
        "count",
        "mean",
        "p50",
        "p90",
        "p95",
        "p99",
        "max",
    ];
    let row = |latency: &Latency| {
        let s = latency.summary.as_ref()?;
        let figures = [s.mean, s.p50, s.p90, s.p95, s.p99, s.max];
        let figures = figures.map(|seconds| format!("{:.3}", seconds * 1e3));
        let first = [latency.name.to_owned(), s.count.to_string()];
        Some(first.into_iter().chain(figures).collect())
    };
    let all = told.summary.all.latencies.all.iter();
    Grid {
        heads: heads.map(str::to_owned).into(),
        rows: all.filter_map(row).collect(),
    }
}

/// A line a run.
pub fn of_runs(runs: &[RunReport<'_>]) -> Grid {
    let row = |told: &RunReport<'_>| {
        let (run, all) = (&told.summary.run, &told.summary.all);
        let mark = told.mark().map(|mark| format!(" {mark}"));
        let rate = run.a_second(all.completed as f64);
        let tokens = all.tokens.output;
        let tokens = tokens.and_then(|tokens| run.a_second(tokens as f64));
        let mut cells = vec![
            format!("{}{}", told.run.name, mark.unwrap_or_default()),
            all.counts.ok().to_string(),
            all.counts.failed().to_string(),
            figure(rate, |rate| format!("{rate:.2}")),
        ];
        cells.extend(latencies(all));
        cells.push(figure(tokens, |tokens| format!("{tokens:.0}")));
        cells
    };
    Grid {
        heads: heads(&["run", "ok", "failed", "req/s"], Some("tokens/s")),
        rows: runs.iter().map(row).collect(),
    }
}

/// A line a server of a run.
pub fn of_servers(told: &RunReport<'_>) -> Grid {
    let name = |host: &String| match told.server(host) {
        name if name == host => host.clone(),
        name => format!("{name} ({host})"),
    };
    let named = told
        .summary
        .hosts
        .iter()
        .map(|(host, group)| (name(host), group));
    let others = told.summary.other_hosts.iter();
    let others = others.map(|(servers, group)| (format!("{servers} others"), group));
    let hosts: Vec<(String, &Group)> = named.chain(others).collect();
    let all: u64 = hosts.iter().map(|(_, group)| group.counts.requests).sum();
    let row = |(host, group): (String, &Group)| {
        let share = group.counts.requests as f64 / all as f64;
        let mut cells = vec![
            host,
            group.counts.ok().to_string(),
            group.counts.failed().to_string(),
            format!("{:.0} %", share * 100.0),
        ];
        cells.extend(latencies(group));
        cells
    };
    Grid {
        heads: heads(&["server", "ok", "failed", "share"], None),
        rows: hosts.into_iter().map(row).collect(),
    }
}

fn heads(first: &[&str], last: Option<&str>) -> Vec<String> {
    let shown = SHOWN.map(|(head, ..)| head.to_owned());
    let first = first.iter().map(|head| (*head).to_owned());
    first.chain(shown).chain(last.map(str::to_owned)).collect()
}

fn latencies(group: &Group) -> impl Iterator<Item = String> {
    SHOWN.iter().map(|(_, name, get)| {
        let summary = group.latencies.get(name);
        figure(summary.map(get), duration)
    })
}

fn figure(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    let value = value.filter(|value| value.is_finite());
    value.map_or("-".to_owned(), shown)
}
