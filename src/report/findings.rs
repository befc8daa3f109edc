//! Findings: what limits a run by its figures, in sentences, and what to do about it. Nothing is concluded from what was not measured.

mod kinds;
mod pair;
mod requests;
mod servers;

use serde::Serialize;

use super::capitalized;
use super::figures::figures;
use super::load::Summary;
use super::phases::{Episode, episodes};
use super::reader::Run;
use super::why::WaitReport;
use crate::request::{PartSpent, Period, StageSet};
use crate::units::duration;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The figures must not be used, or requests failed.
    Problem,
    /// Something limits what was measured, and can be changed.
    Limit,
    /// Good to know.
    Note,
}

/// A conclusion from a run's figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind in [`kinds`], such as `server_queue`.
    pub kind: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What it is, in a few words.
    pub title: String,
    /// The figures that show it, in sentences.
    pub what: String,
    /// What to do; empty if there is nothing to do.
    pub advice: String,
}

/// The shortest mean of a stage that makes a finding, seconds.
const MIN_MEAN_S: f64 = 0.010;
/// The fewest requests that a mean is reported of.
const ENOUGH: u64 = 20;

/// The share of a request's time from which its wait in a server queue is a finding.
const QUEUE_SHARE: f64 = 1.0 / 3.0;

/// The report on a run.
#[derive(Clone, Debug)]
pub struct RunReport<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its figures, from its rows.
    pub summary: Summary,
    /// The injected faults and their effects.
    pub episodes: Vec<Episode>,
    /// Why its requests waited.
    pub why: WaitReport,
    /// The findings, the most important first.
    pub findings: Vec<Finding>,
}

/// Adds the findings to the report on a run, those that matter most first.
fn add_findings(report: &mut RunReport<'_>) {
    for (kind, level, title, advice, rule) in kinds::KINDS {
        // No setting helps against a stage that a fault on purpose made long.
        let is_advised = !kind.ends_with("_bound") || report.run.faults.is_empty();
        let mut finding = Finding {
            kind,
            level,
            title: title.to_owned(),
            what: String::new(),
            advice: advice.repeat(is_advised.into()),
        };
        if let Some(what) = rule(report, &mut finding) {
            report.findings.push(Finding { what, ..finding });
        }
    }
    report.findings.sort_by_key(|finding| finding.level);
}

impl<'a> RunReport<'a> {
    /// Makes the report on a run.
    pub fn of(run: &'a Run) -> RunReport<'a> {
        let mut report = RunReport {
            run,
            summary: figures(run),
            episodes: episodes(&run.table, &run.faults, run.servers()),
            why: WaitReport::of(run),
            findings: Vec::new(),
        };
        add_findings(&mut report);
        report
    }

    /// Returns how long a stage took (`0.61 s of 0.89 s on average (69 %)`); `None` if that is under `share` of the time, or the stage
    /// was measured by itself in under a tenth of the requests.
    fn stage(&self, period: Period, share: f64) -> Option<String> {
        let spent = &self.summary.all.spent;
        let part = self.part(period)?;
        let (mean, of_all) = (spent.mean(part)?, spent.share(part)?);
        let is_enough = part.requests >= ENOUGH && part.requests * 10 >= spent.requests;
        (is_enough && mean >= MIN_MEAN_S && of_all >= share).then(|| {
            format!(
                "{} of {} on average ({:.0} %{})",
                duration(mean),
                duration(mean / of_all),
                of_all * 100.0,
                spent.of_requests(part)
            )
        })
    }

    /// The time of a stage, where it was measured by itself.
    fn part(&self, period: Period) -> Option<&PartSpent> {
        let mut parts = self.summary.all.spent.parts.iter();
        parts.find(|part| part.spent == StageSet::of(period))
    }
}

#[cfg(test)]
mod tests;
