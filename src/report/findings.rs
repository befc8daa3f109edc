//! Findings: what limits a run by its figures, in sentences, and what to do about it. Nothing is concluded from what was not measured.

mod servers;

use serde::Serialize;

use super::capitalized;
use super::load::{FailureKind, Summary};
use super::phases::{Episode, episodes, lines};
use super::reader::Run;
use super::why::{WaitReport, dominant_group};
use crate::request::{ColumnId, Outcome, PartSpent, Period, StageSet};
use crate::stats::waits::Cause;
use crate::threads::joined;
use crate::units::{count, duration, one_decimal, percent};

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
/// The share of failed requests from which the latencies of the others mislead: the slowest requests may be among those that failed.
const FAILED_SHARE: f64 = 0.01;
/// The share of a request's time from which its wait is a finding: in the router, for room in a server, or for few other requests.
const WAIT_SHARE: f64 = 0.1;
/// The share of the waiting from which a second cause is named.
const MUCH: f64 = 0.2;

/// The share of the waiting in servers from which their slots count as full.
const FULL: f64 = 0.5;
/// The share of all slots from which on a router that sent more would hardly have them used better.
const TAKEN: f64 = 0.9;

/// A generator whose p99 lateness is over this share of the median TTFT distorts the latencies.
const LATE_SHARE: f64 = 0.1;
/// Shorter lateness is within what timers do, seconds.
const MIN_LATE_S: f64 = 0.020;
/// A client that stalls its responses for this share of their time shows in the figures.
const STALL_SHARE: f64 = 0.05;

/// Kind, level, title, advice (empty: nothing to do), rule.
const KINDS: [(&str, Level, &str, &str, Rule); 14] = [
    (
        "slots",
        Level::Limit,
        "The generator's own limit held requests back",
        "`--max-concurrency` was reached, so the load was less than the schedule asked: raise it, or read the latencies that \
         count from the schedule.",
        slots,
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
        failures,
    ),
    (
        "server_queue",
        Level::Limit,
        "Requests wait in the server queue",
        "Raise `max_running_requests` or add servers.",
        server_queue,
    ),
    ("pair", Level::Limit, "", "", servers::pair),
    (
        "held_up",
        Level::Limit,
        "Few requests cause most of the waiting",
        "Give them servers of their own; limit how long answers may get, or cut the prefill of long prompts into smaller pieces \
         (`chunked_prefill_size`).",
        held_up,
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
        router_queue,
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
            let share = percent(share);
            (is_long && held.count >= ENOUGH).then(|| {
                format!(
                    "A first token was {mean} on its way back through the router on average (p50 {p50}, p99 {p99}): \
                     {share} of the TTFT."
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
            let took = report.stage(StageSet::of(Period::PREFILL), PREFILL_SHARE)?;
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
            let took = report.stage(StageSet::of(Period::DECODE), DECODE_SHARE)?;
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
        |report, _| {
            let took = report.stage(StageSet::CLIENT_STALL, STALL_SHARE)?;
            Some(format!(
                "Answers stood still for {took} because the client did not read."
            ))
        },
    ),
    (
        "retractions",
        Level::Limit,
        "Servers ran out of memory for tokens",
        "Raise `mem_fraction_static` or `schedule_conservativeness`, lower `max_running_requests`, or add servers.",
        retractions,
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
        let (summary, why) = std::thread::scope(|scope| {
            let why = scope.spawn(|| WaitReport::of(run));
            (Summary::of_run(run), joined(why))
        });
        let mut report = RunReport {
            run,
            summary,
            episodes: episodes(&run.table, &run.faults, run.servers()),
            why,
            findings: Vec::new(),
        };
        add_findings(&mut report);
        report
    }

    /// What faults did to requests, as lines of text.
    pub fn fault_lines(&self) -> Vec<String> {
        let note = self.fault_note().map(|note| format!("  {note}"));
        lines(&self.episodes).into_iter().chain(note).collect()
    }

    /// That faults are not of the window, if the other figures are.
    pub fn fault_note(&self) -> Option<String> {
        let is_apart = !self.episodes.is_empty() && self.summary.of_window().is_some();
        let note = "requests before, during and after faults are those of the whole run, not only of its window";
        is_apart.then(|| note.to_owned())
    }

    /// Returns how long a stage took (`0.61 s of 0.89 s on average (69 %)`); `None` if that is under `share` of the time, or the stage
    /// was measured by itself in under a tenth of the requests.
    fn stage(&self, stage: StageSet, share: f64) -> Option<String> {
        let spent = &self.summary.all.spent;
        let part = self.part(stage)?;
        let (mean, of_all) = (spent.mean(part)?, spent.share(part)?);
        let (requests, _) = spent.measured(part);
        let is_enough = requests >= ENOUGH && requests * 10 >= spent.requests;
        (is_enough && mean >= MIN_MEAN_S && of_all >= share).then(|| {
            let [took, whole] = [mean, mean / of_all].map(duration);
            let (share, requests) = (percent(of_all), spent.of_requests(part));
            format!("{took} of {whole} on average ({share}{requests})")
        })
    }

    /// The time of a stage, where it was measured by itself, or that is no stage.
    fn part(&self, spent: StageSet) -> Option<&PartSpent> {
        let mut parts = self.summary.all.spent.parts.iter();
        parts.find(|part| part.spent == spent)
    }
}

/// Waiting in server queues: its main cause and other large ones, and what helps against each.
fn server_queue(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let why = &report.why;
    let shares = why.shares();
    // Waiting for the batch under way is a part of serving.
    let main = shares.first().map(|of| of.0);
    let is_room = !matches!(main, None | Some(Cause::Prefill | Cause::Unknown));
    let min_share = if is_room { WAIT_SHARE } else { QUEUE_SHARE };
    let took = report.stage(StageSet::of(Period::PURE_QUEUE), min_share)?;
    let mut what = format!("A request waited {took} for a place in a batch.");
    let Some(((main, share), others)) = shares.split_first() else {
        return Some(what);
    };
    let slots = why.slots();
    let (first, share) = (capitalized(&main.described(slots)), percent(*share));
    what += &format!(" {first} for {share} of that time");
    finding.advice = main.advice().to_owned();
    let is_much = |(cause, share): &&(Cause, f64)| *share >= MUCH && *cause != Cause::Unknown;
    for (cause, share) in others.iter().filter(is_much) {
        let share = percent(*share);
        what += &format!(", and {} for {share}", cause.described(slots));
        finding.advice += &format!(" For the {share}: {}", cause.advice());
    }
    Some(what + ".")
}

/// Waiting in the router. A higher limit of the router does not help if the servers have hardly a free slot either.
fn router_queue(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let took = report.stage(StageSet::of(Period::QUEUE_IN_ROUTER), WAIT_SHARE)?;
    let what = format!("The router held a request {took} before it sent it on.");
    let waited = report.why.mean().is_some_and(|mean| mean >= MIN_MEAN_S);
    let mut causes = report.why.shares().into_iter().filter(|_| waited);
    let full = causes.find(|(cause, share)| *cause == Cause::Slots && *share >= FULL);
    let taken = slots_taken(report).filter(|share| *share >= TAKEN);
    let sentence = match (full.map(|(_, share)| percent(share)), taken.map(percent)) {
        (Some(share), _) => format!(
            "Those that it had sent on waited in the servers, {share} of that time while all slots were taken."
        ),
        (None, Some(share)) => format!("Meanwhile {share} of the servers' slots were taken."),
        (None, None) => return Some(what),
    };
    finding.advice = format!(
        "A higher limit of the router would only move this wait into the servers, whose slots are full. {}",
        Cause::Slots.advice()
    );
    Some(format!("{what} {sentence}"))
}

/// The share of the servers' slots that were taken while the router held requests, on average over these; `None` if unknown.
fn slots_taken(report: &RunReport<'_>) -> Option<f64> {
    let servers = report.why.servers.iter();
    let slots = servers.map(|of| Some(of.slots()?.0)).sum::<Option<u32>>();
    let slots = f64::from(slots.filter(|slots| *slots > 0)?);
    let over_time = report.summary.all.over_time.as_ref()?;
    let [_, _, running, _] = &over_time.series;
    let (held, running) = (over_time.in_router.as_ref()?, running.as_ref()?);
    let both = held.series.iter().zip(&running.series);
    let taken = both.map(|(held, running)| held * (running / slots).min(1.0));
    Some(taken.sum::<f64>() / held.series.iter().sum::<f64>())
}

/// Few requests that held up the others.
fn held_up(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    report.stage(StageSet::of(Period::PURE_QUEUE), WAIT_SHARE)?;
    dominant_group(&report.why.groups)
}

/// Requests that waited for one of `--max-concurrency` slots. The verdict reports other lateness.
fn slots(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    report.run.summary_as::<u64>("/config/max_concurrency")?;
    let latencies = &report.summary.all.latencies;
    let lag = latencies.get(ColumnId::schedule_lag);
    let lag = lag.filter(|lag| lag.count >= ENOUGH)?.p99;
    let ttft = latencies.get(ColumnId::ttft_observed)?.p50;
    (lag >= MIN_LATE_S && lag >= LATE_SHARE * ttft).then(|| {
        format!(
            "1 of 100 requests was sent {} late or later, where the median time to the first token is {}.",
            duration(lag),
            duration(ttft)
        )
    })
}

/// Failed requests, and where they were last seen.
fn failures(report: &RunReport<'_>, finding: &mut Finding) -> Option<String> {
    let all = &report.summary.all;
    let failed = all.counts.failed();
    let requests = all.counts.requests - all.counts.given_up;
    if failed == 0 {
        return None;
    }
    let share = failed as f64 / requests as f64;
    let mut end = ": the slowest may be among those that failed.";
    if share < FAILED_SHARE {
        (finding.level, end) = (Level::Limit, ".");
    }
    let percent = one_decimal(share);
    finding.title = format!("{failed} of {requests} requests failed ({percent})");
    let first = all.failures.first();
    let advice = match report.run.faults.is_empty() {
        true => first.and_then(|kind| advice(kind.outcome)),
        false => Some("This run had faults on purpose: the table of faults shows what they cost."),
    };
    if let Some(advice) = advice {
        finding.advice = advice.to_owned();
    }
    let text = FailureKind::list(&all.failures);
    Some(match all.counts.ok() {
        0 => format!("{text}."),
        _ => format!("{text}. The latencies are those of the requests that went well{end}"),
    })
}

/// What to do about the most frequent kind of failure, if its outcome suggests it.
fn advice(outcome: Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Rejected | Outcome::Timeout => {
            "More was sent than is served in time: add servers, lower the rate, or allow a longer queue (the column `error` says \
             whose) or time (`--request-timeout-s`)."
        }
        Outcome::ClientError => "The requests themselves were refused: read the column `error`.",
        Outcome::ConnectError => {
            "Nothing listened at the target, or it accepted no more connections: is the server or router up?"
        }
        Outcome::UpstreamDied | Outcome::ServerError => {
            "Read the end of the servers' logs (`logs/` in the folder of an experiment's run) and the column `error`."
        }
        _ => return None,
    })
}

/// Requests that servers took out of a batch again (retracted).
fn retractions(report: &RunReport<'_>, _: &mut Finding) -> Option<String> {
    let table = &report.run.table;
    let times = |row| table.number(ColumnId::num_retractions, row).unwrap_or(0.0);
    let is_retracted = |row: &usize| table.rows_of(*row).any(|row| times(row) > 0.0);
    let retracted = report.run.counted().filter(is_retracted).count();
    (retracted > 0).then(|| {
        let requests = count(retracted, "request");
        format!("To make room for others, {requests} left a batch again and waited a second time.")
    })
}

#[cfg(test)]
mod tests;
