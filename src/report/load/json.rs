//! The summary as JSON.

use serde_json::{Map, Value, json};

use crate::request::last_seen::LastSeen;
use crate::stats;

use super::goodput::Goal;
use super::run::RunFacts;
use super::spent::TimeSpent;
use super::summary::{Group, Summary};
use super::way_back;

type Object = Map<String, Value>;
type Figure = fn(&stats::Summary) -> f64;

/// Errors and failed attempts that are listed: they can be as many as requests.
const LISTED: usize = 20;

impl Summary {
    /// The summary as `summary.json` holds it.
    ///
    /// Keys and units that SGLang's bench_serving has for the same thing are its own (`…_ms`, tokens a
    /// second). The seed's `avg_server_latency`, `avg_total_latency`, `avg_ttft` and `p99_server_latency`
    /// are milliseconds. Under `latency` every figure is seconds. bench_serving's quantiles of ITL are left
    /// out: they take the gaps of all requests as one sample, which rows do not hold.
    pub fn to_json(&self) -> Value {
        let run = &self.run;
        let hosts = self.hosts.iter();
        let hosts: Object = hosts
            .map(|(host, figures)| (host.clone(), group(figures, run).into()))
            .collect();
        let of_the_run = json!({
            "started_at": self.began.seconds(),
            "started_at_ns": self.began.nanos(),
            "duration": run.duration(),
            "scheduled": run.scheduled,
            "window": self.window,
            "request_rate": run.offered_rate,
            "offered_rate": run.offered_rate,
            "config": run.config,
            "versions": { "queuescope": env!("CARGO_PKG_VERSION") },
            "machine": run.machine,
            "hosts": hosts,
            "other_hosts": self.other_hosts.as_ref().map(|(servers, figures)| {
                joined([json!({ "servers": servers }), group(figures, run).into()])
            }),
            "goodput_goals_ms": goals_ms(&run.goodput),
        });
        joined([group(&self.all, run).into(), of_the_run]).into()
    }
}

/// The limits that a good request keeps, by latency, milliseconds.
pub fn goals_ms(goals: &[Goal]) -> Value {
    let goals = goals.iter();
    let goals: Object = goals
        .map(|goal| (goal.name.clone(), goal.most_ms.into()))
        .collect();
    goals.into()
}

/// What is said of all requests, and of each server's.
fn group(group: &Group, run: &RunFacts) -> Object {
    joined([
        counts(group),
        rates(group, run),
        latencies(group),
        bench_names(group),
        seed_names(group),
        over_time(group),
        failures(group),
        goodput(group, run),
        json!({ "time_spent": time_spent(group) }),
    ])
}

/// The members of several objects.
fn joined<const N: usize>(objects: [Value; N]) -> Object {
    let members = objects.into_iter().filter_map(|object| match object {
        Value::Object(members) => Some(members),
        _ => None,
    });
    members.flatten().collect()
}

fn goodput(group: &Group, run: &RunFacts) -> Value {
    group.goodput.as_ref().map_or(Value::Null, |goodput| {
        json!({
            "goodput_requests": goodput.good,
            "goodput_unknown": goodput.unknown,
            "request_goodput": run.a_second(goodput.good as f64),
        })
    })
}

fn counts(group: &Group) -> Value {
    let counts = &group.counts;
    let outcomes = counts.outcomes.iter();
    let outcomes: Object = outcomes
        .map(|(outcome, count)| (outcome.name().to_owned(), json!(count)))
        .collect();
    let errors = counts.errors.most_frequent().take(LISTED);
    let errors = errors.map(|(error, count)| json!({ "error": error, "count": count }));
    let failed = counts.failed_attempts.most_frequent().take(LISTED);
    let failed = failed.map(|(of, count)| {
        json!({ "host": of.host, "outcome": of.outcome, "status": of.status, "count": count })
    });
    json!({
        "requests": counts.requests,
        "rows": counts.rows,
        "completed": counts.ok(),
        "failed": counts.failed(),
        "given_up": counts.given_up,
        "success_rate": counts.success_rate(),
        "outcomes": outcomes,
        "errors": errors.collect::<Value>(),
        "attempts": counts.attempts,
        "retried_requests": counts.retried,
        "failed_attempts": failed.collect::<Value>(),
        "inconsistent_rows": counts.inconsistent.0,
        "left_out_clock_error": group.left_out,
    })
}

fn rates(group: &Group, run: &RunFacts) -> Value {
    let (flow, tokens, latencies) = (&group.flow, &group.tokens, &group.latencies);
    let completed = run.a_second(group.completed as f64);
    let a_second = |tokens: Option<u64>| tokens.and_then(|n| run.a_second(n as f64));
    // bench_serving's: time in flight of the requests that went well, over the run.
    let in_flight = latencies.e2e.and_then(|_| run.a_second(latencies.e2e_sum));
    json!({
        "schedule_rate": flow.schedule_rate,
        "achieved_rate": flow.achieved_rate,
        "completed_rate": completed,
        "request_throughput": completed,
        "total_input_tokens": tokens.input,
        "total_output_tokens": tokens.output,
        "output_tokens_unknown_requests": tokens.output_unknown,
        "input_throughput": a_second(tokens.input),
        "output_throughput": a_second(tokens.output),
        "total_throughput": a_second(tokens.total()),
        "max_output_tokens_per_s": flow.peak_output_tokens,
        "concurrency": in_flight,
    })
}

/// Every latency in seconds.
fn latencies(group: &Group) -> Value {
    let all = group.latencies.all.iter();
    let all: Object = all
        .map(|latency| {
            let mut shown = figures(latency.summary.as_ref());
            let intervals = latency.intervals.named();
            let intervals: Object = intervals
                .map(|(name, interval)| (name.to_owned(), json!(interval.ok())))
                .collect();
            shown["ci95"] = intervals.into();
            if let count @ 1.. = latency.within_clock_error {
                shown["within_clock_error"] = count.into();
            }
            (latency.name.to_owned(), shown)
        })
        .collect();
    json!({ "latency": all })
}

fn figures(summary: Option<&stats::Summary>) -> Value {
    let figure = |get: Figure| summary.map(get);
    json!({
        "count": summary.map_or(0, |summary| summary.count),
        "mean": figure(|s| s.mean),
        "std": figure(|s| s.std),
        "p50": figure(|s| s.p50),
        "p90": figure(|s| s.p90),
        "p95": figure(|s| s.p95),
        "p99": figure(|s| s.p99),
        "p99.9": figure(|s| s.p999),
        "max": figure(|s| s.max),
    })
}

/// What SGLang's bench_serving has, by its names, in milliseconds.
fn bench_names(group: &Group) -> Value {
    const FIGURES: [(&str, Figure); 6] = [
        ("mean", |s| s.mean),
        ("median", |s| s.p50),
        ("std", |s| s.std),
        ("p90", |s| s.p90),
        ("p95", |s| s.p95),
        ("p99", |s| s.p99),
    ];
    let latencies = &group.latencies;
    let mut object = json!({
        "mean_itl_ms": ms(latencies.itl_mean),
        "max_itl_ms": ms(latencies.itl_max),
    });
    for (name, summary) in [
        ("e2e_latency", &latencies.e2e),
        ("ttft", &latencies.ttft),
        ("tpot", &latencies.tpot),
    ] {
        for (figure, get) in FIGURES {
            object[format!("{figure}_{name}_ms")] = json!(ms(summary.as_ref().map(get)));
        }
    }
    object
}

/// What the seed's scripts read, in milliseconds.
fn seed_names(group: &Group) -> Value {
    let figure = |name, get: Figure| ms(group.latencies.get(name).map(get));
    json!({
        "avg_server_latency": figure("server_latency", |s| s.mean),
        "avg_total_latency": figure("total_latency", |s| s.mean),
        "avg_ttft": figure("ttft", |s| s.mean),
        "p99_server_latency": figure("server_latency", |s| s.p99),
    })
}

fn over_time(group: &Group) -> Value {
    let over_time = group.flow.over_time.as_ref();
    let queued = over_time.and_then(|o| o.queued.as_ref());
    let running = over_time.and_then(|o| o.running.as_ref());
    let mut object = json!({
        "queued_unknown_requests": queued.map(|place| place.unknown),
        "running_unknown_requests": running.map(|place| place.unknown),
        "state_unknown_requests": over_time.map(|o| o.unknown.1),
        "series": { "bucket_s": over_time.map(|o| o.bucket_s) },
    });
    for (name, concurrency) in [
        ("concurrency", over_time.map(|o| &o.in_flight)),
        ("queued", queued.map(|place| &place.known)),
        ("running", running.map(|place| &place.known)),
        ("unknown", over_time.map(|o| &o.unknown.0)),
    ] {
        object[format!("mean_{name}")] = json!(concurrency.map(|c| c.mean));
        object[format!("peak_{name}")] = json!(concurrency.map(|c| c.peak));
        object["series"][name] = json!(concurrency.map(|c| &c.series));
    }
    object
}

fn parts(spent: &TimeSpent) -> Vec<Value> {
    let parts = spent.parts.iter().map(|part| {
        json!({
            "stage": part.spent.name(),
            "share": spent.share(part),
            "mean": spent.mean(part),
            "requests": part.requests,
        })
    });
    parts.collect()
}

/// What became of the failed, and what that says of all.
fn failures(group: &Group) -> Value {
    let kinds = group.failures.kinds.iter().map(|kind| {
        json!({
            "outcome": kind.outcome.name(),
            "ended_in": kind.last_seen.map(LastSeen::name),
            "requests": kind.requests,
            "waited": figures(kind.waited.as_ref()),
            "parts": parts(&kind.spent),
        })
    });
    let at_least = group.failures.at_least.iter();
    let at_least: Object = at_least
        .map(|(name, summary)| ((*name).to_owned(), figures(summary.as_ref())))
        .collect();
    json!({ "failures": kinds.collect::<Value>(), "latency_at_least": at_least })
}

fn time_spent(group: &Group) -> Value {
    let spent = &group.spent;
    let unseen = spent.unseen.iter();
    let unseen: Object = unseen
        .map(|(what, requests)| (what.name().to_owned(), json!(requests)))
        .collect();
    json!({
        "requests": spent.requests,
        "mean": spent.mean_total(),
        "parts": parts(spent),
        "unseen": unseen,
        "sentence": group.verdict(),
        "findings": way_back::finding(group).into_iter().collect::<Vec<_>>(),
    })
}

fn ms(seconds: Option<f64>) -> Option<f64> {
    seconds.map(|seconds| seconds * 1e3)
}
