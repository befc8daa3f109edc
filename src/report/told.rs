//! What a report says to people, in words: for the terminal, and as Markdown.

use serde_json::Value;

use crate::terminal::one_line;

use super::compare::{Comparison, Difference, Sweep};
use super::files::MaxRate;
use super::findings::{Finding, findings, sweep};
use super::grid::Grid;
use super::load::Latency;
use super::phases;
use super::reader::Loaded;
use super::series::{gaps, gaps_line, gaps_text};
use super::side_by_side::{Told, of_runs, of_servers};

/// The report as the terminal shows it, in lines of at most `width` columns where they are tables.
pub fn to_text(
    loaded: &Loaded,
    told: &[Told<'_>],
    made: &Comparison,
    width: Option<usize>,
) -> String {
    let mut blocks = Vec::new();
    match told {
        [] => blocks.push("The experiment has no run with any row yet.\n".to_owned()),
        [one] => blocks.extend(of_one(one, width)),
        runs => {
            blocks.push(of_runs(runs).to_text(width));
            blocks.extend(compared(made));
            blocks.extend(
                runs.iter()
                    .filter_map(|told| against(told, told.summary.of_window())),
            );
            blocks.extend(runs.iter().filter_map(of_several));
            blocks.extend(runs.iter().filter_map(of_faults));
            blocks.extend(of_gaps(runs));
        }
    }
    blocks.extend(
        loaded
            .experiment
            .as_ref()
            .and_then(|e| e.max_rate.as_ref())
            .map(max_rate),
    );
    blocks.join("\n")
}

/// What is to be known of a run before its figures are read; `window`: what they are of, where that is not said with them.
fn against(told: &Told<'_>, window: Option<String>) -> Option<String> {
    let said = known_of(told, window);
    let head = match told.mark() {
        Some(mark) => format!("{mark}: {}\n", told.run.name),
        None if said.is_empty() => return None,
        None => format!("{}\n", told.run.name),
    };
    let said = said.iter().map(|line| format!("  {line}\n"));
    Some(head + &said.collect::<String>())
}

/// The same, line by line.
fn known_of(told: &Told<'_>, window: Option<String>) -> Vec<String> {
    let mut lines: Vec<String> = told
        .reasons()
        .into_iter()
        .map(|reason| one_line(reason).into_owned())
        .collect();
    if let Some(error) = told.run.file.as_ref().and_then(|file| file.error.as_ref()) {
        lines.push(format!("failed: {}", one_line(error)));
    }
    let warnings = told
        .run
        .summary
        .as_ref()
        .and_then(|told| told.get("warnings")?.as_array());
    let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
    let notes = told.run.notes.iter().map(String::as_str);
    lines.extend(window);
    let notes = notes.chain(warnings).map(one_line);
    lines.extend(notes.map(|note| format!("note: {note}")));
    lines
}

/// A run by itself.
fn of_one(told: &Told<'_>, width: Option<usize>) -> Vec<String> {
    let mut blocks: Vec<String> = against(told, None).into_iter().collect();
    let text = told.summary.to_text();
    blocks.extend(text.split_inclusive("\n\n").map(|block| {
        let block = format!("{}\n", block.trim_end());
        marked(told, &block)
    }));
    if told.summary.hosts.len() > 1 {
        blocks.push(marked(told, &of_servers(told).to_text(width)));
    }
    let found = of_findings(told, usize::MAX);
    blocks.extend((!found.is_empty()).then(|| marked(told, &found)));
    blocks.extend(of_faults(told));
    let gaps = gaps_text(&gaps(&told.run.series));
    blocks.extend((!gaps.is_empty()).then(|| marked(told, &gaps)));
    blocks
}

/// What each fault did, under the name of the run and its mark.
fn of_faults(told: &Told<'_>) -> Option<String> {
    let text = phases::text(&told.episodes());
    (!text.is_empty()).then(|| marked(told, &format!("Faults in {}\n{text}", told.run.name)))
}

/// How far what servers told of themselves is from what was counted, a line a run.
fn of_gaps(runs: &[Told<'_>]) -> Option<String> {
    let line = |told: &Told<'_>| {
        let line = gaps_line(&gaps(&told.run.series))?;
        let mark = told
            .mark()
            .map_or(String::new(), |mark| format!("[{mark}] "));
        Some(format!("  {mark}{}: {line}\n", told.run.name))
    };
    let lines: String = runs.iter().filter_map(line).collect();
    (!lines.is_empty()).then(|| {
        format!("Counted from requests, and told by servers' /metrics (means, all servers together):\n{lines}")
    })
}

/// What the figures say and what to do about it, what matters most first.
fn of_findings(told: &Told<'_>, most: usize) -> String {
    let found = findings(told.run, &told.summary);
    // That the run is not to be believed, and why, stands above all.
    let found = found.iter().filter(|finding| finding.kind != "verdict");
    let line = |finding: &Finding| {
        let title = finding.title.trim_end_matches('.');
        let advice = match finding.advice.as_str() {
            "" => String::new(),
            advice => format!("\n  What to do: {advice}"),
        };
        format!("{title}\n  {}{advice}\n", finding.what)
    };
    found.take(most).map(line).collect()
}

/// What differs between settings that were sent the same, and what was not compared.
fn compared(made: &Comparison) -> Option<String> {
    let is_told =
        |of: &&Difference| of.shown || of.is_against_first && ALWAYS.contains(&&*of.metric);
    let differences = made.differences.iter().filter(is_told);
    let sweeps = made.sweeps.iter().flat_map(of_sweep);
    let said = sweeps.chain(differences.map(Difference::sentence));
    let notes = made.notes.iter().map(|note| format!("note: {note}"));
    let lines: String = said.chain(notes).map(|line| line + "\n").collect();
    (!lines.is_empty()).then_some(lines)
}

/// What a setting does to the queue, and what to do about it.
fn of_sweep(of: &Sweep) -> Vec<String> {
    let advice = sweep(of).advice;
    let advice = (!advice.is_empty()).then(|| format!("  What to do: {advice}"));
    std::iter::once(of.sentence()).chain(advice).collect()
}

/// Metrics of which it is also said that no difference to the first setting can be shown.
const ALWAYS: [&str; 3] = ["ttft", "total_latency", "pure_queue_time"];

/// So many findings of each of several runs are shown.
const FIRST: usize = 2;

/// The findings of one of several runs, under its name.
fn of_several(told: &Told<'_>) -> Option<String> {
    let found = of_findings(told, FIRST);
    (!found.is_empty()).then(|| marked(told, &format!("{}\n\n{found}", told.run.name)))
}

/// A block of figures, under the mark of a run whose figures must not be read without it.
fn marked(told: &Told<'_>, block: &str) -> String {
    match told.mark() {
        Some(mark) => format!("[{mark}]\n{block}"),
        None => block.to_owned(),
    }
}

/// The same in Markdown, where the mark is a paragraph of its own.
fn marked_block(told: &Told<'_>, block: &str) -> String {
    match told.mark() {
        Some(mark) => format!("**[{mark}]**\n\n{block}"),
        None => block.to_owned(),
    }
}

/// What a search of the highest rate found, in a line.
pub fn max_rate(found: &MaxRate) -> String {
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
    let trials = found.trials.iter().map(|trial| {
        let drawn = trial
            .drawn
            .map_or_else(String::new, |drawn| format!("{drawn:.2}"));
        let (rate, kept) = (trial.rate, trial.kept * 100.0);
        format!(
            "  {rate:>8.2} {drawn:>8}  {kept:>5.1} % kept them  {}\n",
            trial.result
        )
    });
    let mut table = String::new();
    if !found.trials.is_empty() {
        table.push_str(&format!("  {:>8} {:>8}\n", "asked/s", "drawn/s"));
    }
    table.extend(trials);
    format!("Highest rate at which {share:.1} % of requests keep {goals}: {met}{missed}.\n{table}")
}

/// The report as Markdown.
pub fn to_markdown(loaded: &Loaded, told: &[Told<'_>], made: &Comparison) -> String {
    let mut text = String::from("# Report\n");
    let mut block = |block: &str| text.push_str(&format!("\n{block}"));
    block(&of_runs(told).to_markdown());
    if let Some(found) = loaded.experiment.as_ref().and_then(|e| e.max_rate.as_ref()) {
        block(&max_rate(found));
    }
    if let Some(said) = compared(made) {
        let said = said.lines().map(|line| format!("- {line}\n"));
        block(&said.collect::<String>());
    }
    for told in told {
        let mark = told.mark().map(|mark| format!(" ({mark})"));
        block(&format!(
            "## {}{}\n",
            told.run.name,
            mark.unwrap_or_default()
        ));
        let said = known_of(told, told.summary.of_window());
        let said: String = said.iter().map(|line| format!("- {line}\n")).collect();
        if !said.is_empty() {
            block(&said);
        }
        let mut block = |text: &str| block(&marked_block(told, text));
        block(&format!("{}\n", told.summary.all.verdict()));
        let found = findings(told.run, &told.summary);
        let found = found.iter().filter(|finding| finding.kind != "verdict");
        let line = |finding: &Finding| {
            format!(
                "- **{}** {} {}",
                finding.title, finding.what, finding.advice
            )
            .trim_end()
            .to_owned()
                + "\n"
        };
        let found: String = found.map(line).collect();
        if !found.is_empty() {
            block(&found);
        }
        block(&of_latencies(told).to_markdown());
        if told.summary.hosts.len() > 1 {
            block(&of_servers(told).to_markdown());
        }
        let measured = [
            phases::text(&told.episodes()),
            gaps_text(&gaps(&told.run.series)),
        ];
        for text in measured.iter().filter(|text| !text.is_empty()) {
            block(&format!("```text\n{text}```\n"));
        }
    }
    text
}

/// A line a latency that any request had.
fn of_latencies(told: &Told<'_>) -> Grid {
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
        let summary = latency.summary.as_ref()?;
        let figures = [
            summary.mean,
            summary.p50,
            summary.p90,
            summary.p95,
            summary.p99,
            summary.max,
        ];
        let mut cells = vec![latency.name.to_owned(), summary.count.to_string()];
        cells.extend(figures.map(|seconds| format!("{:.3}", seconds * 1e3)));
        Some(cells)
    };
    Grid {
        heads: heads.map(str::to_owned).into(),
        rows: told
            .summary
            .all
            .latencies
            .all
            .iter()
            .filter_map(row)
            .collect(),
    }
}
