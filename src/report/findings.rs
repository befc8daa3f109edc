//! Findings: what limits a run by its figures, in sentences, and what to do about it. Nothing is concluded from what was not measured.

mod requests;
mod servers;

use serde::Serialize;

use super::capitalized;
use super::load::Summary;
use super::phases::{Episode, episodes};
use super::reader::Run;
use super::why::WaitReport;
use crate::request::{ColumnId, PartSpent, Period, StageSet};
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
    /// Its kind in [`KINDS`], such as `server_queue`.
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

/// Returns the figures that show a finding, in sentences; `None` if it does not apply. May change its level, title and advice.
type Rule = fn(&RunReport<'_>, &mut Finding) -> Option<String>;

/// The share of a request's time from which prefill, which is normally small, is a finding.
const PREFILL_SHARE: f64 = 0.4;
/// The same of decoding, which is normally the largest stage.
const DECODE_SHARE: f64 = 0.7;
/// A router that holds first tokens back for this long, seconds, and for this share of the TTFT, does more than pass them on.
const MIN_RETURN_S: f64 = 1e-3;
const RETURN_SHARE: f64 = 0.05;

/// Kind, level, title, advice (empty: nothing to do), rule.
const KINDS: [(&str, Level, &str, &str, Rule); 14] = [
    (
        "slots",
        Level::Limit,
        "The generator's own limit held requests back",
        "`--max-concurrency` was reached, so the load was less than the schedule asked: raise it, or read the latencies that \
         count from the schedule.",
        requests::slots,
    ),
    (
        "not_served",
        Level::Limit,
        "A server was not used again",
        "What shares requests out still takes it for dead: sglang-router looks at its workers once a minute \
         (`health_check_interval_secs`, `cb_timeout_duration_secs`).",
        servers::not_served,
    ),
    (
        "failures",
        Level::Problem,
        "Requests failed",
        "Read the column `error` of these rows.",
        requests::failures,
    ),
    (
        "server_queue",
        Level::Limit,
        "Requests wait in the server queue",
        "Raise `max_running_requests` or add servers.",
        requests::server_queue,
    ),
    ("pair", Level::Limit, "", "", servers::pair),
    (
        "held_up",
        Level::Limit,
        "Few requests cause most of the waiting",
        "Give them servers of their own; limit how long answers may get, or cut the prefill of long prompts into smaller pieces \
         (`chunked_prefill_size`).",
        requests::held_up,
    ),
    (
        "queue_growth",
        Level::Limit,
        "The queue grew as long as the run lasted",
        "Lower the rate until the queue is steady; `--find-max-rate` searches the highest rate that meets an objective.",
        |report, _| servers::growth(report.run),
    ),
    (
        "router_queue",
        Level::Limit,
        "Requests wait in the router queue",
        "Raise the router's limit of concurrent requests if it has one, give it more CPU, or run more than one: the servers \
         do not see these requests meanwhile.",
        requests::router_queue,
    ),
    (
        "router_return",
        Level::Limit,
        "The router holds first tokens back",
        "Try another router, or version of it. The time between tokens is measured behind the router: it is too short by what first \
         tokens are held back longer than last ones.",
        |report, _| {
            let latencies = &report.summary.all.latencies;
            let held = latencies.get(ColumnId::router_return)?;
            let share = held.mean / latencies.ttft()?.mean;
            let is_long = held.mean >= MIN_RETURN_S && share >= RETURN_SHARE;
            let [mean, p50, p99] = [held.mean, held.p50, held.p99].map(duration);
            (is_long && held.count >= ENOUGH).then(|| {
                format!(
                    "A first token was {mean} on its way back through the router on average (p50 {p50}, p99 {p99}): \
                     {:.0} % of the TTFT.",
                    share * 100.0
                )
            })
        },
    ),
    (
        "prefill_bound",
        Level::Limit,
        "Prefill takes much of the time",
        "Send requests that begin alike to the same server (`cache_aware`), so that its prefix cache serves them; shorten \
         prompts; try another `chunked_prefill_size`; add servers or a higher `tp_size`.",
        |report, _| {
            let took = report.stage(Period::PREFILL, PREFILL_SHARE)?;
            Some(format!("Reading the prompts took {took}."))
        },
    ),
    (
        "imbalance",
        Level::Limit,
        "Servers had unequal shares",
        "Try a policy that looks at the servers' load (`shortest_queue`, `power_of_two`); with `cache_aware`, lower its \
         balance thresholds.",
        servers::imbalance,
    ),
    (
        "decode_bound",
        Level::Note,
        "Decoding takes most of the time",
        "That is how it should be where requests do not wait. To make it shorter: fewer requests at once on a server (lower \
         `max_running_requests`, more servers), a higher `tp_size`, `quantization`, or speculative decoding.",
        |report, _| {
            let took = report.stage(Period::DECODE, DECODE_SHARE)?;
            let each = report.summary.all.latencies.get(ColumnId::tpot);
            let each = each.map_or(String::new(), |each| {
                format!(" An output token took {} (median).", duration(each.p50))
            });
            Some(format!("Making the answers took {took}.{each}"))
        },
    ),
    (
        "client_stall",
        Level::Limit,
        "Clients read slower than the servers write",
        "Look at the client's CPU and network; the servers are not slow here.",
        requests::stall,
    ),
    (
        "retractions",
        Level::Limit,
        "Servers ran out of memory for tokens",
        "Raise `mem_fraction_static` or `schedule_conservativeness`, lower `max_running_requests`, or add servers.",
        requests::retractions,
    ),
];

/// Adds the findings to the report on a run, those that matter most first.
fn add_findings(report: &mut RunReport<'_>) {
    for (kind, level, title, advice, rule) in KINDS {
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
            summary: Summary::of_run(run),
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
