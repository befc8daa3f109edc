//! The summary as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::Stamp;
use crate::request::{ColumnId, Outcome};
use crate::stats;

use super::counts::most_frequent;
use super::latency::ends;
use super::{Goal, Group, OverTime, RunFacts, Summary, TimeSpent};

/// A figure of a sample.
pub type Figure = fn(&stats::Summary) -> f64;

/// The figures of a sample, with their names. The first six are those of bench_serving.
const FIGURES: [(&str, Figure); 8] = [
    ("mean", |s| s.mean),
    ("p50", |s| s.p50),
    ("std", |s| s.std),
    ("p90", |s| s.p90),
    ("p95", |s| s.p95),
    ("p99", |s| s.p99),
    ("p99.9", |s| s.p999),
    ("max", |s| s.max),
];

/// The most errors and failed attempts listed: there can be as many as requests.
const MAX_LISTED: usize = 20;

impl Summary {
    /// The summary as in `summary.json`.
    ///
    /// Where SGLang's bench_serving has the same figure, key and unit are its own (`…_ms`, tokens per second), as are those of the first
    /// version's scripts: `avg_server_latency`, `avg_total_latency`, `avg_ttft` and `p99_server_latency` are in milliseconds. Figures
    /// under `latency` are in seconds. bench_serving's quantiles of ITL are missing: they are of the gaps of all requests, which rows do
    /// not have.
    pub fn to_json(&self) -> Value {
        let run = &self.run;
        let hosts = self.hosts.iter();
        let hosts = object(hosts.map(|(host, figures)| (host, group(figures, run))));
        let mut of_the_run = json!({
            "started_at": self.began.map(Stamp::seconds),
            "started_at_ns": self.began.map(Stamp::nanos),
            "duration": run.duration(),
            "scheduled": run.scheduled,
            "window": self.window,
            "request_rate": run.offered_rate,
            "offered_rate": run.offered_rate,
            "config": run.config,
            "versions": { "queuescope": env!("CARGO_PKG_VERSION") },
            "machine": run.machine,
            "hosts": hosts,
            "goodput_goals_ms": goals_ms(&run.goodput),
        });
        let (servers, requests) = self.other_hosts;
        if servers > 0 {
            of_the_run["other_hosts"] = json!({ "servers": servers, "requests": requests });
        }
        joined([group(&self.all, run), of_the_run])
    }
}

/// The limits of goals by latency, milliseconds.
pub fn goals_ms(goals: &[Goal]) -> Value {
    let goals = goals.iter();
    object(goals.map(|goal| (&goal.name, goal.limit_ms)))
}

/// The figures of all requests, or of a server's.
fn group(group: &Group, run: &RunFacts) -> Value {
    let failed = group.failures.iter().map(|kind| {
        json!({
            "outcome": kind.outcome.name(),
            "ended_in": kind.last_seen.map(|seen| seen.ended_in(|stage| stage.name)),
            "requests": kind.requests,
            "waited": figures(kind.waited.as_ref()),
        })
    });
    let bounds = group.latencies.all.iter();
    let bounds = bounds.filter(|latency| ends(latency.id).is_some());
    let bounds = bounds.map(|of| (of.id.column().name, figures(of.at_least.as_ref())));
    let spent = &group.spent;
    let unseen = spent.unseen.iter();
    let time = |spent: &TimeSpent, sentence: Option<String>| {
        let parts = spent.parts.iter().map(|part| {
            let (share, mean) = (spent.share(part), spent.mean(part));
            json!({ "stage": part.spent.name(), "share": share, "mean": mean, "requests": part.requests })
        });
        json!({ "requests": spent.requests, "mean": spent.mean_total(), "parts": parts.collect::<Value>(), "sentence": sentence })
    };
    let mut time_spent = time(spent, Some(group.time_sentences()));
    time_spent["unseen"] = object(unseen.map(|(what, requests)| (what.name(), requests)));
    let until_first = &group.until_first;
    let sentence = until_first.shares("until the first token") + ".";
    let sentence = Some(sentence).filter(|_| until_first.requests > 0);
    time_spent["until_first_token"] = time(until_first, sentence);
    let more = json!({
        "latency": latencies(group),
        "latency_at_least": object(bounds),
        "failures": failed.collect::<Value>(),
        "time_spent": time_spent,
    });
    let goodput = group.goodput.as_ref().map(|goodput| {
        json!({
            "goodput_requests": goodput.good,
            "goodput_share": group.goodput_share(),
            "goodput_unknown": goodput.unknown,
            "request_goodput": goodput.completed.and_then(|n| run.per_second(n as f64)),
        })
    });
    joined([
        counts(group),
        rates(group, run),
        over_time(group),
        bench_names(group),
        more,
        goodput.unwrap_or_default(),
    ])
}

/// Makes an object of names and values.
fn object(members: impl Iterator<Item = (impl Into<String>, impl Serialize)>) -> Value {
    let members = members.map(|(name, value)| (name.into(), json!(value)));
    members.collect()
}

/// Makes one object of the members of several.
fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let members = objects.into_iter().filter_map(|object| match object {
        Value::Object(members) => Some(members),
        _ => None,
    });
    members.flatten().collect()
}

fn counts(group: &Group) -> Value {
    let counts = &group.counts;
    let outcomes = Outcome::ALL.map(Outcome::name).into_iter();
    let errors = most_frequent(&counts.errors).take(MAX_LISTED);
    let errors = errors.map(|(error, count)| json!({ "error": error, "count": count }));
    let failed = most_frequent(&counts.failed_attempts).take(MAX_LISTED);
    let failed = failed.map(|((host, outcome, status), count)| {
        json!({ "host": host, "outcome": outcome, "status": status, "count": count })
    });
    json!({
        "requests": counts.requests,
        "rows": counts.rows,
        "completed": counts.ok(),
        "failed": counts.failed(),
        "given_up": counts.given_up,
        "success_rate": counts.success_rate(),
        "outcomes": object(outcomes.zip(counts.outcomes)),
        "errors": errors.collect::<Value>(),
        "attempts": counts.attempts,
        "retried_requests": counts.retried,
        "failed_attempts": failed.collect::<Value>(),
        "inconsistent_rows": counts.inconsistent.0,
        "left_out_clock_error": group.left_out,
    })
}

fn rates(group: &Group, run: &RunFacts) -> Value {
    let (tokens, latencies) = (&group.tokens, &group.latencies);
    let completed = run.per_second(group.completed as f64);
    let per_second = |tokens: Option<u64>| tokens.and_then(|n| run.per_second(n as f64));
    // As in bench_serving: the time in flight of successful requests, over the length of the run.
    let in_flight = |e2e: &stats::Summary| run.per_second(e2e.mean * e2e.count as f64);
    json!({
        "schedule_rate": group.schedule_rate,
        "achieved_rate": group.achieved_rate,
        "completed_rate": completed,
        "request_throughput": completed,
        "total_input_tokens": tokens.input,
        "total_output_tokens": tokens.output,
        "output_tokens_unknown_requests": tokens.output_unknown,
        "input_throughput": per_second(tokens.input),
        "output_throughput": per_second(tokens.output),
        "total_throughput": per_second(tokens.total()),
        "concurrency": latencies.e2e().and_then(in_flight),
    })
}

/// Every latency, seconds.
fn latencies(group: &Group) -> Value {
    let all = group.latencies.all.iter();
    object(all.map(|latency| {
        let mut shown = figures(latency.summary.as_ref());
        shown["ci95"] = object(latency.intervals.into_iter());
        (latency.id.column().name, shown)
    }))
}

fn figures(summary: Option<&stats::Summary>) -> Value {
    let figures = FIGURES.into_iter();
    let mut shown = object(figures.map(|(name, get)| (name, summary.map(get))));
    shown["count"] = summary.map_or(0, |summary| summary.count).into();
    shown
}

/// Figures by bench_serving's names and those of the first version's scripts, milliseconds.
fn bench_names(group: &Group) -> Value {
    let latencies = &group.latencies;
    let bench = [
        ("e2e_latency", latencies.e2e()),
        ("ttft", latencies.ttft()),
        ("tpot", latencies.get(ColumnId::tpot)),
    ];
    // The first six, and its own name for the median.
    let of_bench = bench.iter().flat_map(|(name, summary)| {
        FIGURES.iter().take(6).map(move |(figure, get)| {
            let figure = if *figure == "p50" { "median" } else { figure };
            (format!("{figure}_{name}_ms"), summary.map(get))
        })
    });
    let of_itl = [
        ("mean_itl_ms".to_owned(), latencies.itl_mean),
        ("max_itl_ms".to_owned(), latencies.itl_max),
    ];
    let seed: [(&str, ColumnId, Figure); 4] = [
        ("avg_server_latency", ColumnId::server_latency, |s| s.mean),
        ("avg_total_latency", ColumnId::total_latency, |s| s.mean),
        ("avg_ttft", ColumnId::ttft, |s| s.mean),
        ("p99_server_latency", ColumnId::server_latency, |s| s.p99),
    ];
    let of_seed =
        seed.map(|(name, latency, get)| (name.to_owned(), latencies.get(latency).map(get)));
    let all = of_bench.chain(of_itl).chain(of_seed);
    object(all.map(|(name, seconds)| (name, seconds.map(|seconds| seconds * 1e3))))
}

fn over_time(group: &Group) -> Value {
    let over_time = group.over_time.as_ref();
    let missing = |at: usize| {
        let known = over_time.filter(|of| of.series[at].is_some());
        known.map(|of| of.missing[at])
    };
    let mut members = json!({
        "queued_unknown_requests": missing(1),
        "running_unknown_requests": missing(2),
        "state_unknown_requests": missing(3),
        "series": { "bucket_s": over_time.map(|of| of.bucket_s) },
    });
    for (at, name) in OverTime::NAMES.into_iter().enumerate() {
        let known = over_time.and_then(|of| of.series[at].as_ref());
        members[format!("mean_{name}")] = json!(known.map(|c| c.mean));
        members[format!("peak_{name}")] = json!(known.map(|c| c.peak));
        members["series"][name] = json!(known.map(|c| &c.series));
    }
    members
}
